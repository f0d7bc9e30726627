"""How long a call waits for its event: a second at most, never past its deadline, and never for another tenant."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.errors import AuditUnavailable, Cancelled, DeadlineExceeded, StoreUnavailable
from substrate.services import audit_writer
from substrate.services.audit_writer import REFUSE_AFTER, AuditWriter
from substrate.services.tallies import Tallies
from substrate.store.chain_writer import ChainWriter, Verdict
from tests.servers import Cluster, RunningServer
from tests.services.writer import WAITING, Bench, Watch, call_of, frozen, outcomes, running_writer, seconds_until
from tests.store.chain import events, faults
from tests.store.owner import held_chain, unwritable_audit, wait_until


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    with running_writer(cluster) as bench:
        yield bench


@pytest.fixture
def tenants(server: RunningServer) -> list[str]:
    return [server.tenant().name for _ in range(3)]


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
        assert seconds_until(lambda: bench.settle(held), AuditUnavailable) < REFUSE_AFTER + 0.5
        bench.after_another_batch(free)
    assert bench.settle(held) is Verdict.CURRENT
    assert len(events(bench.cluster, held)) == 1
    assert faults(bench.cluster, free) == []


def test_a_wait_ends_with_the_calls_deadline_and_the_call_is_recorded_as_cancelled(
    bench: Bench, tenants: list[str]
) -> None:
    with held_chain(bench.cluster, tenants[0]):
        took = seconds_until(lambda: bench.settle(tenants[0], call_of(tenants[0], 0.2)), DeadlineExceeded)
        assert 0.15 < took < 0.5
        bench.after_another_batch(tenants[1])
    wait_until(bench.cluster, "SELECT count(*) = 1 FROM audit_events WHERE tenant_id = %s", tenants[0])
    assert outcomes(bench.cluster, tenants[0]) == [("CANCELLED", "CANCELLED")]


def test_a_deadline_that_has_passed_is_not_waited_for(bench: Bench, tenants: list[str]) -> None:
    with held_chain(bench.cluster, tenants[0]):
        assert seconds_until(lambda: bench.settle(tenants[0], call_of(tenants[0], -1)), DeadlineExceeded) < 0.1


def test_a_call_that_does_not_need_its_event_is_never_told_that_the_audit_is_at_fault(
    bench: Bench, tenants: list[str]
) -> None:
    with held_chain(bench.cluster, tenants[0]):
        took = seconds_until(lambda: bench.settle(tenants[0], required=False), StoreUnavailable)
    assert took < REFUSE_AFTER + 0.5


@pytest.mark.parametrize("end", ["its deadline passes", "its caller goes away"])
def test_a_call_that_ends_before_it_is_answered_has_lost_no_event(
    cluster: Cluster, tenants: list[str], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    # However busy the machine is, it must not be refused for its wait.
    monkeypatch.setattr(audit_writer, "REFUSE_AFTER", 30.0)
    ended, answered, _ = tenants
    call = call_of(ended, 0.2 if end == "its deadline passes" else None)
    with running_writer(cluster) as bench:
        with unwritable_audit(cluster):
            with held_chain(cluster, ended):
                waiting = bench.begin(ended, call, required=False)
                if call.deadline is None:
                    wait_until(cluster, WAITING)
                    call.cancel()
                else:
                    with pytest.raises(DeadlineExceeded):
                        waiting.result(timeout=10)
            # The one that has ended is settled in the same batch, or before it.
            assert bench.settle(answered, required=False) is Verdict.CURRENT
        with pytest.raises((Cancelled, DeadlineExceeded)):
            waiting.result(timeout=10)
    assert bench.lost == [1]
    assert events(cluster, ended) == []
    assert [event["details"]["count"] for event in events(cluster, answered)] == [1]


def test_a_long_deadline_makes_no_wait_longer_than_a_second(bench: Bench, tenants: list[str]) -> None:
    with held_chain(bench.cluster, tenants[0]):
        took = seconds_until(lambda: bench.settle(tenants[0], call_of(tenants[0], 30)), AuditUnavailable)
    assert took < REFUSE_AFTER + 0.5


def test_a_database_that_does_not_answer_refuses_in_a_second_and_recovers(bench: Bench, tenants: list[str]) -> None:
    assert bench.settle(tenants[0]) is Verdict.CURRENT
    assert bench.chain._connection is not None
    with frozen(bench.chain._connection.info.backend_pid):
        took = [seconds_until(lambda: bench.settle(tenants[0]), AuditUnavailable) for _ in range(2)]
        took.append(seconds_until(lambda: bench.settle(tenants[0], call_of(tenants[0], 0.2)), DeadlineExceeded))
    assert max(took[:2]) < REFUSE_AFTER + 0.5
    assert took[2] < 0.5
    assert bench.settle(tenants[0]) is Verdict.CURRENT
    assert faults(bench.cluster, tenants[0]) == []


def test_a_database_that_was_never_there_is_a_typed_error_of_each_kind(tenants: list[str], cluster: Cluster) -> None:
    writer = AuditWriter(
        ChainWriter("postgresql://nobody@/nowhere?host=/nowhere"), Tallies(SystemClock(), "test"), Watch()
    )
    writer.start()
    with ThreadPoolExecutor(1) as pool:
        bench = Bench(cluster, ChainWriter(cluster.login_url), writer, pool, [])
        assert seconds_until(lambda: bench.settle(tenants[0]), AuditUnavailable) < REFUSE_AFTER
        assert seconds_until(lambda: bench.settle(tenants[0], required=False), StoreUnavailable) < REFUSE_AFTER
    writer.stop()
