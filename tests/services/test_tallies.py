"""What is recorded as one event for many: how it is counted, when it is due, and that nothing counted is forgotten."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from substrate.domain.names import TenantId
from substrate.services.tallies import UNPROVEN_EVERY, Kind, Tallies

ACME, BETA = TenantId("acme"), TenantId("beta")


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = datetime(2026, 3, 1, tzinfo=UTC)
        self.ids = 0

    def now(self) -> datetime:
        return self.at

    def event_id(self) -> str:
        self.ids += 1
        return f"id-{self.ids}"


def test_lost_events_are_due_at_once_as_one_event_a_tenant_with_their_causes() -> None:
    clock = Clock()
    tallies = Tallies(clock, "s-1")
    assert tallies.seconds_to_wait() is None
    assert tallies.count(Kind.LOST, ACME, "busy")
    clock.at += timedelta(seconds=3)
    assert not tallies.count(Kind.LOST, ACME, "write_failed")
    assert not tallies.count(Kind.LOST, ACME, "write_failed")
    assert tallies.count(Kind.LOST, BETA, "busy")
    assert tallies.seconds_to_wait() == 0
    taken = {tally.tenant: tally for tally in tallies.take()}
    assert taken.keys() == {ACME, BETA}
    event = tallies.event(taken[ACME])
    assert (event.tenant, event.verb.value, event.outcome.value, event.server) == (ACME, "gap", "ALLOWED", "s-1")
    assert event.details == {
        "count": 3,
        "since": "2026-03-01T00:00:00.000000+00:00",
        "until": "2026-03-01T00:00:03.000000+00:00",
        "causes": {"busy": 1, "write_failed": 2},
    }
    assert tallies.take() == []


def test_unproven_calls_are_recorded_at_once_and_then_once_a_minute_with_their_number() -> None:
    clock = Clock()
    tallies = Tallies(clock, "s-1")
    tallies.count(Kind.UNPROVEN, ACME, "k1")
    (first,) = tallies.take()
    event = tallies.event(first)
    assert (event.verb.value, event.outcome.value, event.reason) == ("authenticate", "REFUSED", "UNAUTHENTICATED")
    assert event.details is not None
    assert (event.details["count"], event.details["keys"]) == (1, {"k1": 1})
    for _ in range(5):
        tallies.count(Kind.UNPROVEN, ACME, "k1")
    assert tallies.take() == []
    assert tallies.seconds_to_wait() == UNPROVEN_EVERY.total_seconds()
    tallies.count(Kind.UNPROVEN, BETA, "k1")
    assert [tally.tenant for tally in tallies.take()] == [BETA]
    clock.at += UNPROVEN_EVERY
    (rest,) = tallies.take()
    assert (rest.tenant, rest.count) == (ACME, 5)


def test_the_end_of_the_process_waits_for_no_minute() -> None:
    clock = Clock()
    tallies = Tallies(clock, "s-1")
    tallies.count(Kind.UNPROVEN, ACME, "k1")
    tallies.take()
    tallies.count(Kind.UNPROVEN, ACME, "k1")
    assert [tally.count for tally in tallies.take(at_once=True)] == [1]


def test_made_up_key_ids_fill_no_memory_but_are_counted() -> None:
    tallies = Tallies(Clock(), "s-1")
    for number in range(100):
        tallies.count(Kind.UNPROVEN, ACME, f"k{number}")
    (tally,) = tallies.take()
    assert len(tally.parts) == 9
    assert tally.parts == Counter({**{f"k{number}": 1 for number in range(8)}, "others": 92})
