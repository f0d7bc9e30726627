"""The server as a whole: deadlines, cancellation, admission and an orderly end."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any

import grpc
import psycopg
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from psycopg.sql import SQL, Identifier

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed
from substrate.services import audit_writer
from tests.rpc.wire import METHODS, Failure, bearer, path_of, send
from tests.servers import Cluster, RunningServer, TestTenant, running_server

LIST = "SkillService.ListSkills"
INVOKE = "SkillService.InvokeSkill"
CREATE = "SkillDefService.CreateSkillDef"
SOURCE = "---\nname: {}\ndescription: What it is for.\n---\n\nDo it.\n"
REQUESTS: dict[str, dict[str, str]] = {
    LIST: {"agent": "doc-manager"},
    INVOKE: {"agent": "doc-manager", "name": "doc/query"},
    CREATE: {"name": "own/one", "source": SOURCE.format("one")},
}
PROMPTLY = 4.0
"""Seconds within which a call with a deadline has ended, on a busy machine too; without one it would wait for 30."""

Future = Any  # grpc's future is generic in the stubs alone.


@pytest.fixture
def small(cluster: Cluster) -> Iterator[RunningServer]:
    """A server with one thread, which a second call is answered on only when the first has left it."""
    with running_server(cluster, threads=1, max_calls=2) as server:
        yield server


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for their events for longer than the busiest machine takes to get on with a test."""
    monkeypatch.setattr(audit_writer, "REFUSE_AFTER", 30.0)


@contextmanager
def held(cluster: Cluster, table: str, tenant: TestTenant) -> Iterator[None]:
    """Keep a tenant's row locked, so that whoever needs it waits."""
    with psycopg.connect(cluster.owner_url) as connection:
        locking = SQL("SELECT 1 FROM {} WHERE tenant_id = %s FOR UPDATE").format(Identifier(table))
        connection.execute(locking, (tenant.name,))
        yield


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody signals; fail when it takes longer than it ever should."""
    limit = monotonic() + 10
    while not condition():
        assert monotonic() < limit
        threading.Event().wait(0.005)


def begun(channel: grpc.Channel, server: RunningServer, key: str, method: str) -> Future:
    """Begin a call and return it as soon as the server has it in hand."""
    before = server.app.server.held
    message = GetMessageClass(METHODS[method].input_type)(**REQUESTS[method])
    send: Any = channel.unary_unary(path_of(method))
    call: Future = send.future(message.SerializeToString(), metadata=bearer(key), timeout=20)
    until(lambda: server.app.server.held > before)
    return call


def ended(server: RunningServer) -> None:
    """Wait until the server has left every call."""
    until(lambda: server.app.server.held == 0)


def open_transactions(cluster: Cluster) -> list[Any]:
    with psycopg.connect(cluster.owner_url, autocommit=True) as connection:
        return connection.execute(
            "SELECT query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND state LIKE 'idle in transaction%' AND usename <> current_user"
        ).fetchall()


def writer_tries_again(cluster: Cluster) -> None:
    """Wait until the audit writer begins another attempt at a chain that is held."""
    with psycopg.connect(cluster.owner_url, autocommit=True) as connection:
        (now,) = connection.execute("SELECT clock_timestamp()").fetchone() or ()
        trying = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%chain_heads%%'"
            " AND xact_start > %s"
        )
        until(lambda: bool(connection.execute(trying, (now,)).fetchall()))


def health(channel: grpc.Channel) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    status: int = stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status
    return status


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("method", "table", "role"),
    [(LIST, "chain_heads", Role.RUNTIME), (INVOKE, "chain_heads", Role.RUNTIME)]
    + [(CREATE, table, Role.AUTHOR) for table in ("chain_heads", "tenants")],
)
def test_a_deadline_is_kept_and_leaves_no_transaction_open(
    cluster: Cluster, small: RunningServer, method: str, table: str, role: Role
) -> None:
    tenant, other = small.tenant(), small.tenant()
    caller = tenant.author if role is Role.AUTHOR else tenant.runtime
    caller.call(LIST, agent="doc-manager")
    key = small.key(tenant.name, role)
    impatient = small.client(key, timeout=0.3)
    # Calls whose keys the server has not met yet share one place here; these are not to be refused for want of it.
    for known in (small.client(key), other.runtime):
        known.call(LIST, agent="doc-manager")
    with held(cluster, table, tenant):
        started = monotonic()
        with pytest.raises(CallFailed) as failed:
            impatient.call(method, **REQUESTS[method])
        assert failed.value.code == "DEADLINE_EXCEEDED"
        # The one thread takes the next call only when it is done with the first.
        other.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
        assert monotonic() - started < PROMPTLY
        assert open_transactions(cluster) == []
    assert tenant.author.call("SkillDefService.ListSkillDefs").total_size == 0
    assert caller.call(method, **REQUESTS[method]).decision_id


def test_a_call_without_a_deadline_does_not_wait_for_its_event_for_ever(
    cluster: Cluster, server: RunningServer, tenant: TestTenant
) -> None:
    with held(cluster, "chain_heads", tenant):
        started = monotonic()
        with pytest.raises(CallFailed) as failed:
            tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
        assert (failed.value.code, failed.value.reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
        assert 0.9 < monotonic() - started < PROMPTLY
        other = server.tenant()
        assert other.runtime.call(INVOKE, agent="doc-manager", name="doc/query").body
    assert tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query").body


@pytest.mark.usefixtures("patient")
def test_a_call_whose_caller_went_away_is_recorded_as_cancelled(cluster: Cluster, small: RunningServer) -> None:
    tenant = small.tenant()
    key = small.key(tenant.name, Role.RUNTIME)
    tenant.runtime.call(LIST, agent="doc-manager")
    with grpc.insecure_channel(small.address) as channel:
        with held(cluster, "chain_heads", tenant):
            call = begun(channel, small, key, INVOKE)
            # Cancelled before its message is read, a call decides nothing and leaves no event; so it decides first.
            writer_tries_again(cluster)
            call.cancel()
            # One connection's frames, and the server's one serving thread, keep their order: the cancellation has been
            # seen by the time that this is answered.
            assert health(channel) == health_pb2.HealthCheckResponse.SERVING
            writer_tries_again(cluster)
        ended(small)
        assert call.code() is grpc.StatusCode.CANCELLED
    events = tenant.author.call("AuditService.QueryAuditEvents", verb="invoke").events
    assert [(event.outcome, event.reason, event.name) for event in events] == [(3, "CANCELLED", "doc/query")]
    assert open_transactions(cluster) == []


def test_a_cancelled_change_leaves_no_transaction_open(cluster: Cluster, small: RunningServer) -> None:
    tenant = small.tenant()
    key = small.key(tenant.name, Role.AUTHOR)
    with grpc.insecure_channel(small.address) as channel:
        with held(cluster, "tenants", tenant):
            call = begun(channel, small, key, CREATE)
            call.cancel()
            assert health(channel) == health_pb2.HealthCheckResponse.SERVING
        ended(small)
        assert call.code() is grpc.StatusCode.CANCELLED
    assert open_transactions(cluster) == []
    assert tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query").body


@pytest.mark.usefixtures("patient")
def test_more_calls_than_can_be_held_are_refused_with_a_reason_while_health_is_answered(
    cluster: Cluster, small: RunningServer
) -> None:
    tenant = small.tenant()
    key = small.key(tenant.name, Role.RUNTIME)
    tenant.runtime.call(LIST, agent="doc-manager")
    with grpc.insecure_channel(small.address) as channel:
        with held(cluster, "chain_heads", tenant):
            calls = [begun(channel, small, key, LIST) for _ in range(2)]
            for method in METHODS:
                refused = send(channel, method, metadata=bearer(key), timeout=5)
                assert isinstance(refused, Failure)
                assert refused.reason == "OVERLOADED"
            assert health(channel) == health_pb2.HealthCheckResponse.SERVING
        assert all(call.result() for call in calls)
    assert tenant.runtime.call(LIST, agent="doc-manager").total_size > 0


@pytest.mark.usefixtures("patient")
def test_a_call_in_progress_finishes_when_the_server_stops(cluster: Cluster) -> None:
    with running_server(cluster) as server, ThreadPoolExecutor(1) as aside:
        tenant = server.tenant()
        key = server.key(tenant.name, Role.RUNTIME)
        tenant.runtime.call(LIST, agent="doc-manager")
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
            changes = iter(watched)
            assert next(changes).status == health_pb2.HealthCheckResponse.SERVING
            with held(cluster, "chain_heads", tenant):
                call = begun(channel, server, key, INVOKE)
                stopped = aside.submit(server.app.server.stop, 10.0)
                assert next(changes).status == health_pb2.HealthCheckResponse.NOT_SERVING
                watched.cancel()
                assert not stopped.done()
            assert call.result()
            stopped.result(timeout=5)
        with pytest.raises(CallFailed) as gone:
            tenant.runtime.call(LIST, agent="doc-manager")
        assert gone.value.code == "UNAVAILABLE"


def test_a_call_that_outlasts_the_drain_is_ended(cluster: Cluster) -> None:
    with running_server(cluster) as server:
        tenant = server.tenant()
        key = server.key(tenant.name, Role.RUNTIME)
        tenant.runtime.call(LIST, agent="doc-manager")
        with grpc.insecure_channel(server.address) as channel, held(cluster, "chain_heads", tenant):
            call = begun(channel, server, key, INVOKE)
            started = monotonic()
            server.app.server.stop(0.1)
            assert monotonic() - started < PROMPTLY
            assert call.code() is not grpc.StatusCode.OK


def test_a_server_that_stops_leaves_the_others_of_its_process_whole(cluster: Cluster, server: RunningServer) -> None:
    with running_server(cluster) as second, grpc.insecure_channel(second.address) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=5)
        assert next(iter(watched)).status == health_pb2.HealthCheckResponse.SERVING
        watched.cancel()
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
