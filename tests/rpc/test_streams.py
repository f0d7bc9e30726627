"""Streams as such: threads of their own, typed errors at any moment, and an end when anybody wants one."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.identity import Role
from substrate.domain.names import TenantId
from substrate.rpc.admission import MAX_STREAMS, MAX_STREAMS_OF_TENANT, MAX_UNPROVEN_STREAMS
from substrate.rpc.client import CallFailed, Client
from substrate.store.audit import append
from tests.metrics import counted
from tests.rpc.headers import HeadersOnly
from tests.rpc.test_server import until
from tests.rpc.wire import path_of
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.store.owner import change, value

TAIL = "AuditService.TailAuditEvents"
LIST = "SkillService.ListSkills"
LOOKS = 20


@pytest.fixture
def own(cluster: Cluster) -> Iterator[RunningServer]:
    """A server whose streams are this test's alone."""
    with running_server(cluster) as server:
        yield server
        until(lambda: server.app.server.held == 0)


def opened(client: Client, **fields: object) -> Iterator[Any]:
    """Return a stream that the server has begun to answer."""
    stream = client.stream(TAIL, timeout=600, **fields)
    assert next(stream).position
    return stream


def failure(stream: Iterator[Any]) -> CallFailed:
    """Return how a stream ends, which must be with a failure."""
    with pytest.raises(CallFailed) as failed:
        for _ in stream:
            pass
    return failed.value


def close(*streams: Iterator[Any]) -> None:
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]  # It is a generator.


def ended(server: RunningServer) -> float:
    """Return how many streams have ended, as the server counts them."""
    return counted(server, "rpc_server_call_duration_seconds_count", rpc_method=path_of(TAIL).removeprefix("/"))


def is_stuck(cluster: Cluster) -> Callable[[], bool]:
    """Return what tells whether servers have asked the database for nothing in the last so many looks."""
    seen: list[Any] = []

    def look() -> bool:
        query = "SELECT max(query_start) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
        seen.append(value(cluster, query, "%audit_events%"))
        return len(seen) > LOOKS and len(set(seen[-LOOKS:])) == 1

    return look


def known(server: RunningServer) -> Client:
    """Return an author's client of a new tenant, whose key the server has met."""
    author = server.tenant().author
    author.call("SkillDefService.ListSkillDefs")
    return author


def test_what_is_wrong_before_the_first_message_is_a_typed_error(server: RunningServer, tenant: TestTenant) -> None:
    wrong = server.client(server.key(tenant.name, Role.AUTHOR)[:-1] + "?")
    for _ in range(2):
        failed = failure(wrong.stream(TAIL, timeout=20))
        assert (failed.code, failed.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        # Once the server knows the tenant's keys as well.
        tenant.author.call("SkillDefService.ListSkillDefs")
    failed = failure(tenant.author.stream(TAIL, timeout=20, verb="steal"))
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert failed.violations[0][0] == "verb"
    failed = failure(tenant.runtime.stream(TAIL, timeout=20))
    assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
    assert failed.decision_id
    with pytest.raises(TypeError):
        tenant.author.stream("AuditService.Nothing")


def test_a_fault_in_the_middle_shows_an_id_and_none_of_its_text() -> None:
    with running_cluster() as cluster, running_server(cluster) as server, capture_logs() as lines:
        stream = opened(server.tenant().author)
        change(cluster, "REVOKE SELECT ON audit_events FROM substrate_app")
        failed = failure(stream)
        assert (failed.code, failed.reason) == ("INTERNAL", "INTERNAL")
        assert "audit_events" not in failed.message
        (fault,) = [line for line in lines if line["event"] == "call.failed"]
        assert fault["error_id"] == failed.metadata["error_id"]
        assert fault["method"] == path_of(TAIL)


def test_a_stream_is_one_line_and_one_count_at_its_end(own: RunningServer) -> None:
    with capture_logs() as lines:
        stream = opened(known(own))
        assert ended(own) == 0
        close(stream)
        until(lambda: ended(own) == 1)
    (line,) = [line for line in lines if line["event"] == "call" and line["method"] == path_of(TAIL)]
    assert (line["code"], line["reason"]) == ("CANCELLED", "CANCELLED")
    assert line["tenant"]
    assert line["decision_id"]


def test_a_deadline_ends_a_stream(own: RunningServer) -> None:
    failed = failure(known(own).stream(TAIL, timeout=0.5))
    assert failed.code == "DEADLINE_EXCEEDED"
    until(lambda: own.app.server.held == 0)


def test_streams_have_threads_of_their_own_and_no_tenant_gets_them_all(cluster: Cluster) -> None:
    with running_server(cluster, threads=1) as server:
        one, other, third = known(server), known(server), known(server)
        streams = [opened(one) for _ in range(MAX_STREAMS_OF_TENANT)]
        failed = failure(one.stream(TAIL, timeout=20))
        assert (failed.code, failed.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        streams += [opened(other) for _ in range(MAX_STREAMS - MAX_STREAMS_OF_TENANT)]
        failed = failure(third.stream(TAIL, timeout=20))
        assert (failed.code, failed.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        # The one thread for calls is free all the while.
        for author in (one, other, third):
            assert author.call("SkillDefService.ListSkillDefs").decision_id
        held = server.app.server.held
        close(streams.pop())
        until(lambda: server.app.server.held < held)
        streams.append(opened(third))
        close(*streams)
        until(lambda: server.app.server.held == 0)


def test_streams_count_as_calls_in_hand(cluster: Cluster) -> None:
    with running_server(cluster, max_calls=2) as server:
        author = known(server)
        streams = [opened(author) for _ in range(2)]
        for refused in (author.stream(TAIL, timeout=20), author.stream(LIST, timeout=20, agent="doc-manager")):
            assert failure(refused).reason == "OVERLOADED"
        close(*streams)


def test_who_sends_no_message_gets_no_more_than_a_few_threads(own: RunningServer) -> None:
    author = known(own)
    with HeadersOnly.to(own.address) as holder:
        # A key that proves nothing is refused before the message has come.
        error = holder.begin("sub_nobody.abcdefghijkl_secret", TAIL).exception(timeout=20)
        assert error.code().name == "UNAUTHENTICATED"
        unmet = own.key(own.tenant().name, Role.AUTHOR)
        for _ in range(MAX_UNPROVEN_STREAMS):
            holder.begin(unmet, TAIL)
        until(lambda: own.app.server.held == MAX_UNPROVEN_STREAMS)
        close(*[opened(author) for _ in range(MAX_STREAMS_OF_TENANT)])


def test_a_server_that_stops_ends_its_streams_at_once(cluster: Cluster) -> None:
    with running_server(cluster) as server, ThreadPoolExecutor(1) as aside:
        streams = [opened(known(server)) for _ in range(2)]
        stopped = aside.submit(server.app.server.stop, 120.0)
        for stream in streams:
            failed = failure(stream)
            assert (failed.code, failed.reason) == ("UNAVAILABLE", "")
        stopped.result(timeout=60)


def test_a_caller_that_takes_nothing_does_not_keep_a_server_from_stopping(cluster: Cluster) -> None:
    with running_server(cluster) as server, ThreadPoolExecutor(1) as aside:
        tenant = server.tenant()
        tenant.author.call("SkillDefService.ListSkillDefs")
        clock = SystemClock()
        # More than a caller that does not look takes off the wire.
        with server.database.tenant(TenantId(tenant.name)) as connection:
            for _ in range(3):
                event = AuditEvent(
                    clock.event_id(), TenantId(tenant.name), clock.now(), "c", Verb.LIST, EventOutcome.ALLOWED
                )
                append(connection, replace(event, filter="x" * 2_000_000))
        stream = opened(tenant.author, since=clock.now() - timedelta(hours=1))
        until(is_stuck(cluster))
        assert ended(server) == 0
        aside.submit(server.app.server.stop, 120.0).result(timeout=60)
        until(lambda: ended(server) == 1)
        close(stream)
