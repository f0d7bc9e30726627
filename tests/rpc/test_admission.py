"""Which calls are taken in hand: each tenant has places of its own, and whoever proves no key has few."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from substrate.domain.identity import Role, parse_bearer
from substrate.domain.names import KeyId, TenantId
from substrate.domain.quotas import Quotas
from substrate.store import tenants
from tests.rpc.headers import HeadersOnly
from tests.rpc.test_server import INVOKE, LIST, health, until
from tests.rpc.wire import METHODS, Failure, bearer, path_of, send, typed
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md

FEW: dict[str, Any] = {"threads": 1, "max_calls": 16}
"""Of so many calls, four may be such as prove no key; each kind has one thread."""
UNPROVEN = 4
MADE_UP = "sub_nobody.abcdefghijkl_secret"


@pytest.fixture
def few(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster, **FEW) as server:
        yield server


class Holder(HeadersOnly):
    """Calls that the server has in hand."""

    server: RunningServer

    def hold(self, count: int, key: str | None) -> None:
        """Begin `count` calls, all of which the server takes in hand."""
        held = self.server.app.server.held + count
        begun = [self.begin(key) for _ in range(count)]
        until(lambda: self.server.app.server.held >= held or any(call.done() for call in begun))
        assert [typed(call.exception()) for call in begun if call.done()] == []

    def end(self) -> None:
        """Cancel all calls, and wait until the server has left them."""
        self.cancel()
        until(lambda: self.server.app.server.held == 0)


@contextmanager
def holding(server: RunningServer) -> Iterator[Holder]:
    with Holder.to(server.address) as holder:
        holder.server = server
        yield holder


def known(server: RunningServer, calls_in_flight: int) -> tuple[TestTenant, str]:
    """Return a tenant with this quota, and a key of it that the server knows."""
    tenant = server.tenant()
    with server.database.operator() as connection:
        tenants.set_quotas(connection, TenantId(tenant.name), Quotas(calls_in_flight=calls_in_flight))
        tenants.bump(connection, TenantId(tenant.name))
    key = server.key(tenant.name, Role.RUNTIME)
    server.client(key).call(LIST, agent="doc-manager")
    return tenant, key


def wrong_secret(key: str) -> str:
    return f"{key.rpartition('_')[0]}_{'x' * 43}"


def assert_over_quota(failed: Failure, limit: int) -> None:
    assert (failed.code, failed.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    assert failed.metadata == {"quota": "calls_in_flight", "limit": str(limit), "retry_after_seconds": "1"}


def test_a_tenant_with_all_its_calls_in_hand_is_refused_and_no_other_is(few: RunningServer) -> None:
    tenant, key = known(few, 3)
    other, others_key = known(few, 3)
    with holding(few) as holder:
        holder.hold(3, key)
        for method in METHODS:
            failed = send(holder.channel, method, metadata=bearer(key))
            assert isinstance(failed, Failure)
            assert_over_quota(failed, 3)
        assert refused(tenant.author, "SkillDefService.ListSkillDefs").reason == "QUOTA_EXCEEDED"
        # All of the one thread is taken; that the other's calls are in hand is what they have a right to.
        holder.hold(3, others_key)
        assert refused(other.runtime, LIST, agent="doc-manager").reason == "QUOTA_EXCEEDED"
        assert health(holder.channel) == health_pb2.HealthCheckResponse.SERVING
        holder.end()
    for each in (tenant, other):
        assert each.runtime.call(LIST, agent="doc-manager").total_size > 0


def test_a_refusal_does_not_wait_for_the_message(few: RunningServer) -> None:
    _, key = known(few, 1)
    with holding(few) as holder:
        holder.hold(1, key)
        # There are four threads for refusals.
        for _ in range(8):
            assert_over_quota(holder.refused(key), 1)


def test_calls_that_prove_no_key_have_a_quarter_of_the_places_and_none_of_the_threads_of_others(
    few: RunningServer,
) -> None:
    tenant, key = known(few, 2)
    unheard_of = few.key(few.tenant().name, Role.RUNTIME)
    with holding(few) as holder:
        holder.hold(1, wrong_secret(key))
        holder.hold(1, MADE_UP)
        holder.hold(1, None)
        holder.hold(1, unheard_of)
        for unproven in (wrong_secret(key), MADE_UP, None, unheard_of):
            assert holder.refused(unproven).reason == "OVERLOADED"
        # None of them counts as the tenant's, and the thread for those who prove their key is free.
        assert tenant.runtime.call(LIST, agent="doc-manager").total_size > 0
        holder.hold(2, key)
        assert_over_quota(holder.refused(key), 2)
        holder.end()
    assert few.client(unheard_of).call(LIST, agent="doc-manager").total_size > 0


def test_even_the_smallest_server_admits_a_tenant_that_it_has_not_heard_of(cluster: Cluster) -> None:
    with running_server(cluster, threads=1, max_calls=1) as smallest:
        assert smallest.tenant().runtime.call(LIST, agent="doc-manager").total_size > 0


def test_all_places_together_are_no_more_than_the_server_has(few: RunningServer) -> None:
    keys = [known(few, 8)[1] for _ in range(3)]
    with holding(few) as holder:
        holder.hold(8, keys[0])
        holder.hold(8, keys[1])
        for key in (keys[2], MADE_UP):
            assert holder.refused(key).reason == "OVERLOADED"
        assert_over_quota(holder.refused(keys[0]), 8)


def test_a_tenant_keeps_its_places_while_it_writes(few: RunningServer) -> None:
    tenant, key = known(few, UNPROVEN + 2)
    with holding(few) as holder:
        # The write takes the snapshot from memory, and no call that is held brings it back.
        tenant.author.call("SkillDefService.CreateSkillDef", name="own/one", source=skill_md("one"))
        holder.hold(UNPROVEN + 2, key)
        assert_over_quota(holder.refused(key), UNPROVEN + 2)


@pytest.mark.parametrize(("processes", "share"), [(1, 3), (2, 2), (3, 1), (64, 1)])
def test_a_quota_is_divided_among_the_processes_of_a_server(cluster: Cluster, processes: int, share: int) -> None:
    with running_server(cluster, workers=processes, **FEW) as server, holding(server) as holder:
        _, key = known(server, 3)
        holder.hold(share, key)
        assert_over_quota(holder.refused(key), 3)


def test_a_caller_that_waits_for_its_answers_needs_one_place(few: RunningServer) -> None:
    tenant, _ = known(few, 1)
    for _ in range(200):
        assert tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query").body
        assert refused(tenant.runtime, INVOKE, agent="doc-manager", name="doc/none").reason == "SKILL_NOT_FOUND"


def test_no_place_is_lost_however_calls_end(few: RunningServer) -> None:
    tenant, key = known(few, 8)
    request = GetMessageClass(METHODS[LIST].input_type)(agent="doc-manager").SerializeToString()
    with holding(few) as holder:
        begin: Any = holder.channel.unary_unary(path_of(LIST))
        for turn in range(150):
            for each in (key, MADE_UP):
                # Whole calls, some of which are over before they are cancelled, and headers alone.
                holder.calls += [begin.future(request, metadata=bearer(each), timeout=30) for _ in range(5)]
                for _ in range(3):
                    holder.begin(each)
            if turn % 2:
                holder.cancel()
        holder.end()
        holder.hold(8, key)
        assert_over_quota(holder.refused(key), 8)
        holder.hold(UNPROVEN, MADE_UP)
        assert holder.refused(MADE_UP).reason == "OVERLOADED"
        holder.end()
    assert tenant.runtime.call(LIST, agent="doc-manager").total_size > 0


def test_what_stands_for_a_tenant_is_a_live_key_in_memory_with_its_secret(few: RunningServer) -> None:
    snapshots = few.app.snapshots
    now = datetime.now(UTC)
    tenant, key = known(few, 7)
    proven = parse_bearer(key)
    assert snapshots.standing(proven, now) == 7
    assert snapshots.standing(replace(proven, secret=f"{proven.secret}x"), now) is None
    assert snapshots.standing(replace(proven, key_id=KeyId("none")), now) is None
    # Of this tenant nothing is in memory, and it stays so.
    unheard_of = parse_bearer(few.key(few.tenant().name, Role.RUNTIME))
    for _ in range(2):
        assert snapshots.standing(unheard_of, now) is None

    with few.database.operator() as connection:
        tenants.bump(connection, proven.tenant)
        tenants.expire_key(connection, proven.tenant, proven.key_id, now + timedelta(hours=1), now)
    assert tenant.runtime.call(LIST, agent="doc-manager").total_size > 0
    assert snapshots.standing(proven, now + timedelta(minutes=59)) == 7
    assert snapshots.standing(proven, now + timedelta(hours=1)) is None
    with few.database.operator() as connection:
        tenants.bump(connection, proven.tenant)
        tenants.revoke_key(connection, proven.tenant, proven.key_id, now)
    assert tenant.runtime.call(LIST, agent="doc-manager").total_size > 0
    assert snapshots.standing(proven, now) is None
