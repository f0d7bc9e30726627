"""The audit writer on a real database: one wait settles a call, with its event or without."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.errors import AuditUnavailable, Cancelled, StoreUnavailable
from substrate.domain.names import TenantId
from substrate.services import audit_writer
from substrate.services.audit_writer import REFUSE_AFTER, AuditWriter
from substrate.services.tallies import Tallies
from substrate.store.chain_writer import ChainWriter, Entry, Verdict
from tests.servers import Cluster, RunningServer
from tests.services.writer import WAITING, Bench, Watch, call_of, event_of, outcomes, running_writer, seconds_until
from tests.store.chain import events, faults
from tests.store.owner import change, held_chain, remove_tenant, value, wait_until


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    with running_writer(cluster) as bench:
        yield bench


@pytest.fixture
def tenants(server: RunningServer) -> list[str]:
    return [server.tenant().name for _ in range(3)]


def test_a_settled_call_has_its_event_committed(bench: Bench, tenants: list[str]) -> None:
    call = call_of(tenants[0])
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


def test_one_chain_that_is_held_keeps_no_other_from_being_tried_again(
    bench: Bench, tenants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_writer, "REFUSE_AFTER", 30.0)
    held, free, _ = tenants
    call = call_of(free)
    with held_chain(bench.cluster, held):
        waiting = bench.begin(held)
        wait_until(bench.cluster, WAITING)
        with held_chain(bench.cluster, free):
            bench.writer.offer(Entry(TenantId(free), check=False, revision=None, event=event_of(free, call)), call)
            bench.after_another_batch(tenants[2])
        # Nobody else calls.
        wait_until(bench.cluster, "SELECT count(*) = 1 FROM audit_events WHERE tenant_id = %s", free)
        assert not waiting.done()
    assert waiting.result(timeout=10) is Verdict.CURRENT


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
        assert seconds_until(lambda: bench.settle(tenant), AuditUnavailable) < REFUSE_AFTER
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


@pytest.mark.parametrize("what", ["the tenant", "its chain"])
def test_a_call_of_a_tenant_that_is_gone_is_refused_alone(bench: Bench, tenants: list[str], what: str) -> None:
    gone, free, held = tenants
    if what == "the tenant":
        remove_tenant(bench.cluster, gone)
    else:
        change(bench.cluster, "DELETE FROM chain_heads WHERE tenant_id = %s", gone)
    with held_chain(bench.cluster, held):
        first = bench.begin(held)
        wait_until(bench.cluster, WAITING)
        refusals = [(bench.begin(gone), AuditUnavailable), (bench.begin(gone, required=False), StoreUnavailable)]
        answered = [bench.begin(free, required=number % 2 == 0) for number in range(4)]
        assert [call.result(timeout=5) for call in answered] == [Verdict.CURRENT] * 4
        for call, error in refusals:
            with pytest.raises(error):
                call.result(timeout=5)
    assert first.result(timeout=5) is Verdict.CURRENT
    assert bench.lost == []
    assert [len(events(bench.cluster, tenant)) for tenant in tenants] == [0, 4, 1]


def test_a_call_whose_caller_went_away_is_recorded_as_cancelled(bench: Bench, tenants: list[str]) -> None:
    gone, going = call_of(tenants[0]), call_of(tenants[0])
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
    assert outcomes(bench.cluster, tenants[0]) == [("CANCELLED", "CANCELLED")] * 2


def test_a_stale_call_whose_caller_went_away_is_not_decided_again(bench: Bench, tenants: list[str]) -> None:
    gone = call_of(tenants[0])
    gone.cancelled = True
    with pytest.raises(Cancelled):
        bench.settle(tenants[0], gone, revision=1_000_000)
    assert outcomes(bench.cluster, tenants[0]) == [("CANCELLED", "CANCELLED")]


def test_stopping_settles_what_was_handed_over(
    cluster: Cluster, tenants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was handed over has to wait for the chain, on a busy machine for longer than calls usually do.
    monkeypatch.setattr(audit_writer, "REFUSE_AFTER", 30.0)
    writer = AuditWriter(ChainWriter(cluster.login_url), Tallies(SystemClock(), "test"), Watch())
    writer.start()
    with ThreadPoolExecutor(8) as pool:
        bench = Bench(cluster, ChainWriter(cluster.login_url), writer, pool, [])
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
        monkeypatch.undo()
        assert seconds_until(lambda: bench.settle(tenants[0]), AuditUnavailable) < REFUSE_AFTER + 0.5
    assert [len(events(cluster, tenant)) for tenant in tenants] == [3, 1, 1]
