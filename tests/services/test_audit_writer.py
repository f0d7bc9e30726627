"""The audit writer on a real database: one wait settles a call, and no wait is longer than it may be."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import AuditUnavailable, Cancelled, DeadlineExceeded, StoreUnavailable
from substrate.domain.identity import Bearer
from substrate.domain.names import KeyId, TenantId
from substrate.services.audit_writer import REFUSE_AFTER, AuditWriter
from substrate.services.call import Call
from substrate.store.audit import ChainWriter, Entry, Verdict
from tests.servers import Cluster, RunningServer
from tests.store.chain import events, faults
from tests.store.owner import change, held_chain, value, wait_until

WAITING = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%chain_heads%%')"


@dataclass
class Bench:
    """A writer of its own, what it counted as lost, and threads to call it from."""

    cluster: Cluster
    chain: ChainWriter
    writer: AuditWriter
    pool: ThreadPoolExecutor
    lost: list[int] = field(default_factory=list)

    def settle(
        self, tenant: str, call: Call | None = None, *, required: bool = True, revision: int | None = None
    ) -> Verdict:
        """Put one call to the writer: of `revision` when it is given, else one that is not asked for it."""
        call = call or _call(tenant)
        entry = Entry(TenantId(tenant), check=revision is not None, revision=revision, event=_event(tenant, call))
        return self.writer.settle(entry, call, required=required)

    def after_another_batch(self, tenant: str) -> None:
        """Return when the writer has looked at its waiting calls again, those whose wait is over included."""
        assert self.settle(tenant) is Verdict.CURRENT

    def begin(self, tenant: str, call: Call | None = None, *, required: bool = True) -> "Future[Verdict]":
        """Put one call to the writer from a thread of its own."""
        return self.pool.submit(self.settle, tenant, call, required=required)


def _call(tenant: str, seconds: float | None = None) -> Call:
    now = time.monotonic()
    return Call(
        method="test",
        call_id=str(uuid.uuid4()),
        bearer=Bearer(TenantId(tenant), KeyId("k"), "s"),
        arrived=SystemClock().now(),
        started=now,
        deadline=None if seconds is None else now + seconds,
    )


def _event(tenant: str, call: Call) -> AuditEvent:
    return AuditEvent(
        SystemClock().event_id(), TenantId(tenant), call.arrived, call.call_id, Verb.INVOKE, EventOutcome.ALLOWED
    )


def _timed(act: Callable[[], object], error: type[Exception]) -> float:
    """Return how many seconds `act` takes to raise `error`."""
    began = time.monotonic()
    with pytest.raises(error):
        act()
    return time.monotonic() - began


def _outcomes(cluster: Cluster, tenant: str) -> list[tuple[str, str]]:
    return [(event["outcome"], event.get("reason", "")) for event in events(cluster, tenant)]


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    lost: list[int] = []
    chain = ChainWriter(cluster.login_url)
    writer = AuditWriter(chain, lost.append)
    writer.start()
    with ThreadPoolExecutor(40) as pool:
        yield Bench(cluster, chain, writer, pool, lost)
    writer.stop()


@pytest.fixture
def tenants(server: RunningServer) -> list[str]:
    return [server.tenant().name for _ in range(3)]


def test_a_settled_call_has_its_event_committed(bench: Bench, tenants: list[str]) -> None:
    call = _call(tenants[0])
    assert bench.settle(tenants[0], call) is Verdict.CURRENT
    assert [event["call_id"] for event in events(bench.cluster, tenants[0])] == [call.call_id]


def test_a_call_on_a_stale_revision_is_told_so_and_nothing_is_written(bench: Bench, tenants: list[str]) -> None:
    revision = value(bench.cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", tenants[0])
    for wrong in (revision - 1, revision + 1):
        assert bench.settle(tenants[0], revision=wrong) is Verdict.STALE
    assert events(bench.cluster, tenants[0]) == []
    assert bench.settle(tenants[0], revision=revision) is Verdict.CURRENT
    assert len(events(bench.cluster, tenants[0])) == 1


def test_calls_that_arrive_together_share_transactions_and_leave_whole_chains(bench: Bench, tenants: list[str]) -> None:
    held, *free = tenants
    with held_chain(bench.cluster, held):
        first = bench.begin(held)
        wait_until(bench.cluster, WAITING)
        others = [bench.begin(free[number % 2]) for number in range(30)]
        assert [call.result(timeout=5) for call in others] == [Verdict.CURRENT] * 30
        assert not first.done()
    assert first.result(timeout=5) is Verdict.CURRENT
    transactions = "SELECT count(DISTINCT txid) FROM audit_events WHERE tenant_id = ANY(%s)"
    assert value(bench.cluster, transactions, free) < 30
    assert [(len(events(bench.cluster, t)), faults(bench.cluster, t)) for t in tenants] == [(1, []), (15, []), (15, [])]


def test_a_held_chain_refuses_its_own_tenant_in_a_second_and_delays_no_other(bench: Bench, tenants: list[str]) -> None:
    held, free, _ = tenants
    with held_chain(bench.cluster, held):
        waiting = bench.begin(held)
        wait_until(bench.cluster, WAITING)
        slowest = 0.0
        answered = 0
        began = time.monotonic()
        while not waiting.done():
            before = time.monotonic()
            assert bench.settle(free) is Verdict.CURRENT
            slowest = max(slowest, time.monotonic() - before)
            answered += 1
        assert 0.5 < time.monotonic() - began < REFUSE_AFTER + 0.5
        with pytest.raises(AuditUnavailable):
            waiting.result()
        assert slowest < 0.5
        assert answered > 5
        assert _timed(lambda: bench.settle(held), AuditUnavailable) < REFUSE_AFTER + 0.5
        bench.after_another_batch(free)
    assert bench.settle(held) is Verdict.CURRENT
    assert len(events(bench.cluster, held)) == 1
    assert faults(bench.cluster, free) == []


def test_a_lists_answer_is_given_when_only_the_event_cannot_be_inserted(bench: Bench, tenants: list[str]) -> None:
    tenant = tenants[0]
    revision = value(bench.cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", tenant)
    change(bench.cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    try:
        assert bench.settle(tenant, required=False, revision=revision) is Verdict.CURRENT
        assert sum(bench.lost) == 1
        # A stale one is decided again, with an event that may be written then: nothing is lost by it.
        assert bench.settle(tenant, required=False, revision=revision - 1) is Verdict.STALE
        assert sum(bench.lost) == 1
        assert _timed(lambda: bench.settle(tenant), AuditUnavailable) < REFUSE_AFTER
    finally:
        change(bench.cluster, "GRANT INSERT ON audit_events TO substrate_audit")
    assert bench.settle(tenant) is Verdict.CURRENT
    assert (len(events(bench.cluster, tenant)), sum(bench.lost)) == (1, 1)


def test_calls_that_need_their_event_and_calls_that_do_not_may_fail_in_one_batch(
    bench: Bench, tenants: list[str]
) -> None:
    held, free, _ = tenants
    change(bench.cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    try:
        with held_chain(bench.cluster, held):
            first = bench.begin(held)
            wait_until(bench.cluster, WAITING)
            mixed = [bench.begin(free, required=number % 2 == 0) for number in range(10)]
            for number, call in enumerate(mixed):
                if number % 2 == 0:
                    with pytest.raises(AuditUnavailable):
                        call.result(timeout=5)
                else:
                    assert call.result(timeout=5) is Verdict.CURRENT
        with pytest.raises(AuditUnavailable):
            first.result(timeout=5)
    finally:
        change(bench.cluster, "GRANT INSERT ON audit_events TO substrate_audit")
    assert sum(bench.lost) == 5
    assert events(bench.cluster, free) == events(bench.cluster, held) == []


def test_a_call_whose_caller_went_away_is_recorded_as_cancelled(bench: Bench, tenants: list[str]) -> None:
    gone, going = _call(tenants[0]), _call(tenants[0])
    gone.cancelled = True
    with pytest.raises(Cancelled):
        bench.settle(tenants[0], gone)
    with held_chain(bench.cluster, tenants[0]):
        waiting = bench.begin(tenants[0], going)
        wait_until(bench.cluster, WAITING)
        going.cancelled = True
        bench.after_another_batch(tenants[1])
    with pytest.raises(Cancelled):
        waiting.result(timeout=5)
    assert _outcomes(bench.cluster, tenants[0]) == [("CANCELLED", "CANCELLED")] * 2


def test_a_stale_call_whose_caller_went_away_is_not_decided_again(bench: Bench, tenants: list[str]) -> None:
    gone = _call(tenants[0])
    gone.cancelled = True
    with pytest.raises(Cancelled):
        bench.settle(tenants[0], gone, revision=1_000_000)
    assert _outcomes(bench.cluster, tenants[0]) == [("CANCELLED", "CANCELLED")]


def test_a_wait_ends_with_the_calls_deadline_and_the_call_is_recorded_as_cancelled(
    bench: Bench, tenants: list[str]
) -> None:
    with held_chain(bench.cluster, tenants[0]):
        took = _timed(lambda: bench.settle(tenants[0], _call(tenants[0], 0.2)), DeadlineExceeded)
        assert 0.15 < took < 0.5
        bench.after_another_batch(tenants[1])
    wait_until(bench.cluster, "SELECT count(*) = 1 FROM audit_events WHERE tenant_id = %s", tenants[0])
    assert _outcomes(bench.cluster, tenants[0]) == [("CANCELLED", "CANCELLED")]


def test_a_deadline_that_has_passed_is_not_waited_for(bench: Bench, tenants: list[str]) -> None:
    with held_chain(bench.cluster, tenants[0]):
        assert _timed(lambda: bench.settle(tenants[0], _call(tenants[0], -1)), DeadlineExceeded) < 0.1


def test_a_call_that_does_not_need_its_event_is_never_told_that_the_audit_is_at_fault(
    bench: Bench, tenants: list[str]
) -> None:
    with held_chain(bench.cluster, tenants[0]):
        took = _timed(lambda: bench.settle(tenants[0], required=False), StoreUnavailable)
    assert took < REFUSE_AFTER + 0.5


def test_a_long_deadline_makes_no_wait_longer_than_a_second(bench: Bench, tenants: list[str]) -> None:
    with held_chain(bench.cluster, tenants[0]):
        took = _timed(lambda: bench.settle(tenants[0], _call(tenants[0], 30)), AuditUnavailable)
    assert took < REFUSE_AFTER + 0.5


@contextmanager
def _frozen(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_database_that_does_not_answer_refuses_in_a_second_and_recovers(bench: Bench, tenants: list[str]) -> None:
    assert bench.settle(tenants[0]) is Verdict.CURRENT
    assert bench.chain._connection is not None
    with _frozen(bench.chain._connection.info.backend_pid):
        took = [_timed(lambda: bench.settle(tenants[0]), AuditUnavailable) for _ in range(2)]
        took.append(_timed(lambda: bench.settle(tenants[0], _call(tenants[0], 0.2)), DeadlineExceeded))
    assert max(took[:2]) < REFUSE_AFTER + 0.5
    assert took[2] < 0.5
    assert bench.settle(tenants[0]) is Verdict.CURRENT
    assert faults(bench.cluster, tenants[0]) == []


def test_stopping_settles_what_was_handed_over(cluster: Cluster, tenants: list[str]) -> None:
    writer = AuditWriter(ChainWriter(cluster.login_url), lambda _: None)
    writer.start()
    with ThreadPoolExecutor(8) as pool:
        bench = Bench(cluster, ChainWriter(cluster.login_url), writer, pool)
        with held_chain(cluster, tenants[0]):
            calls = [bench.begin(tenant) for tenant in (tenants[0], tenants[0], *tenants)]
            wait_until(cluster, WAITING)
            stopping = threading.Thread(target=writer.stop)
            stopping.start()
            assert calls[3].result(timeout=5) is Verdict.CURRENT
            assert stopping.is_alive()
        assert [call.result(timeout=5) for call in calls] == [Verdict.CURRENT] * 5
        stopping.join(timeout=5)
        assert not stopping.is_alive()
        assert _timed(lambda: bench.settle(tenants[0]), AuditUnavailable) < REFUSE_AFTER + 0.5
    assert [len(events(cluster, tenant)) for tenant in tenants] == [3, 1, 1]


def test_a_database_that_was_never_there_is_a_typed_error_of_each_kind(tenants: list[str], cluster: Cluster) -> None:
    writer = AuditWriter(ChainWriter("postgresql://nobody@/nowhere?host=/nowhere"), lambda _: None)
    writer.start()
    with ThreadPoolExecutor(1) as pool:
        bench = Bench(cluster, ChainWriter(cluster.login_url), writer, pool)
        assert _timed(lambda: bench.settle(tenants[0]), AuditUnavailable) < REFUSE_AFTER
        assert _timed(lambda: bench.settle(tenants[0], required=False), StoreUnavailable) < REFUSE_AFTER
    writer.stop()
