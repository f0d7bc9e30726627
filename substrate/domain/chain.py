"""Verification of a tenant's audit chain: the first event that is not as it was written, and what is wrong there.

What can be known is this. An event whose text, number or link was edited no longer has its hash. An event that was
rewritten with its hash no longer is what the next one was written after. Only when everything up to the end was
rewritten do the hashes agree again, and then they differ from what was signed outside the database; the first bad
event is then the one after the last that still agrees. Events after the last checkpoint are vouched for by nothing but
each other.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from substrate.domain.audit import GENESIS_HASH, chain_hash

COLUMNS = (
    "event_id",
    "occurred_at",
    "call_id",
    "verb",
    "outcome",
    "agent",
    "name",
    "actor",
    "winner_layer",
    "version",
    "reason",
    "shadowed",
)
"""The columns of a row that repeat what its text says, in the order in which `ChainRow.columns` holds them."""

_NO_TEXT = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""How it shows that a text is no event."""


class ChainRow(NamedTuple):
    """An event as it is stored; `columns` are its indexed columns in the order of COLUMNS, None where there are none.

    `event` is the text that is hashed.
    """

    tenant: str
    sequence: int
    previous_hash: bytes
    hash: bytes
    event: str
    columns: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a chain: an event's number, from 1, and its hash. Number 0 stands before the first event."""

    sequence: int
    hash: bytes


GENESIS = Point(0, GENESIS_HASH)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a chain begins: after `point`, the last event of what was dropped.

    `stragglers` are earlier events that are still there, as their numbers and the hex of their hashes: calls that
    arrived in a later month, but were recorded first.
    """

    point: Point = GENESIS
    stragglers: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ends:
    """What is known of a chain before its events are read: its head, and the number of the last event that is there.

    `head` is None for a chain of which there is only a copy of events.
    """

    start: Start = Start()
    head: Point | None = None
    last_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """The first event that is bad or missing, and what is wrong, in a sentence.

    `event_id` is what its text says to be its id, where that can be read.
    """

    sequence: int
    problem: str
    event_id: str = field(default="", compare=False)

    @property
    def told(self) -> str:
        """What is wrong, with the id by which the event can be looked at."""
        return f"{self.problem} Its id is {self.event_id}." if self.event_id else self.problem


class ChainCheck:
    """One pass over the events of one tenant, in the order of their numbers.

    `checkpoints` are what was signed of the chain. After a fault has been returned, the check is over. `checked` counts
    the events, `held_against` the checkpoints that agreed, of which `last_held` is the last.
    """

    def __init__(self, tenant: str, ends: Ends, checkpoints: Iterable[Point] = ()) -> None:
        self._tenant = tenant
        self._ends = ends
        self._start = ends.start
        # Of two checkpoints of one event the second is never wrong if the first is not, unless they differ.
        self._signed = sorted(set(checkpoints), key=attrgetter("sequence"))
        self._next_signed = 0
        self._stragglers = sorted(ends.start.stragglers)
        self._next_straggler = 0
        self._last: Point | None = None
        self.checked = 0
        self.held_against = 0
        self.last_held = 0

    def add(self, rows: Iterable[ChainRow]) -> Fault | None:
        """Check the next events; return the first fault."""
        for row in rows:
            fault = self._add(row)
            if fault is not None:
                return _named(fault, row)
            self.checked += 1
        return None

    def end(self) -> Fault | None:
        """Check that the chain ends where it must, once all events have been added."""
        fault = self._missing_straggler() or (self._begin() if self._last is None else None)
        if fault is not None:
            return fault
        last, head = self._last or self._start.point, self._ends.head
        if head is not None and last.sequence < head.sequence:
            return self._cut(last, f"the head of the chain is event {head.sequence}")
        if self._next_signed < len(self._signed):
            signed = self._signed[-1].sequence
            return self._cut(last, f"a checkpoint was signed of event {signed}")
        if head is None:
            return None
        if last.hash != head.hash:
            return Fault(last.sequence, f"Event {last.sequence} is the last, and its hash is not that of the head.")
        if self._ends.last_sequence is not None and self._ends.last_sequence > head.sequence:
            return Fault(
                head.sequence + 1,
                f"There are events beyond the head of the chain, which is event {head.sequence}: they were put there, "
                "or the head was moved back.",
            )
        return None

    def _add(self, row: ChainRow) -> Fault | None:
        if row.sequence <= self._start.point.sequence:
            return self._add_straggler(row)
        fault = self._missing_straggler() or (self._begin() if self._last is None else None)
        if fault is not None:
            return fault
        last = self._last or self._start.point
        fault = self._wrong_place(row, last) or self._wrong_in_itself(row)
        if fault is not None:
            return fault
        self._last = Point(row.sequence, row.hash)
        return self._hold(self._last)

    def _wrong_place(self, row: ChainRow, last: Point) -> Fault | None:
        sequence = row.sequence
        if sequence == last.sequence:
            return Fault(sequence, f"There are two events with the number {sequence}.")
        if sequence != last.sequence + 1:
            missing = last.sequence + 1
            gone = f"Event {missing} is" if sequence == missing + 1 else f"Events {missing} to {sequence - 1} are"
            return Fault(missing, f"{gone} missing.")
        if row.previous_hash == last.hash:
            return None
        if last.sequence in (self._start.point.sequence, self.last_held) or not _has_its_hash(row):
            return Fault(sequence, f"Event {sequence} does not follow the event before it: it names another hash.")
        return Fault(
            last.sequence,
            f"Event {last.sequence} is not the one that event {sequence} was written after: it was rewritten with its "
            "hash, and perhaps others before it.",
        )

    def _wrong_in_itself(self, row: ChainRow) -> Fault | None:
        sequence = row.sequence
        if not _has_its_hash(row):
            return Fault(sequence, f"The hash of event {sequence} is not that of its text.")
        try:
            event = json.loads(row.event)
            if row.tenant != self._tenant or event["tenant"] != self._tenant:
                return Fault(sequence, f"The text of event {sequence} is of another tenant's event.")
            if row.columns is not None:
                for name, stored, said in zip(COLUMNS, row.columns, _said(event), strict=True):
                    if stored != said:
                        return Fault(sequence, f"The column {name} of event {sequence} is not what its text says.")
        except _NO_TEXT:
            return Fault(sequence, f"The text of event {sequence} is no audit event.")
        return None

    def _hold(self, point: Point) -> Fault | None:
        while self._next_signed < len(self._signed) and self._signed[self._next_signed].sequence <= point.sequence:
            signed = self._signed[self._next_signed]
            self._next_signed += 1
            if signed.sequence < point.sequence:
                # It is of an event that was dropped with its month.
                continue
            if signed.hash != point.hash:
                return Fault(
                    self.last_held + 1,
                    f"Event {point.sequence} has another hash than was signed of it: the chain was rewritten at or "
                    f"after event {self.last_held + 1}.",
                )
            self.held_against += 1
            self.last_held = point.sequence
        return None

    def _begin(self) -> Fault | None:
        """Hold the start itself against what was signed of it, and take it for the last event so far."""
        self._last = self._start.point
        return self._hold(self._last)

    def _add_straggler(self, row: ChainRow) -> Fault | None:
        sequence = row.sequence
        known = self._start.stragglers.get(sequence)
        expected = self._expected_straggler()
        if expected is not None and expected < sequence:
            return self._missing_straggler()
        if known is None or expected != sequence:
            twice = f"There are two events with the number {sequence}." if known else ""
            return Fault(max(1, sequence), twice or f"Event {sequence} lies before the start of the chain.")
        if known != row.hash.hex():
            return Fault(sequence, f"Event {sequence} has another hash than the start of the chain says.")
        self._next_straggler += 1
        return self._wrong_in_itself(row)

    def _missing_straggler(self) -> Fault | None:
        sequence = self._expected_straggler()
        return None if sequence is None else Fault(sequence, f"Event {sequence} is missing.")

    def _expected_straggler(self) -> int | None:
        return self._stragglers[self._next_straggler] if self._next_straggler < len(self._stragglers) else None

    def _cut(self, last: Point, why: str) -> Fault:
        sequence = last.sequence + 1
        begins = f"the chain ends with event {last.sequence}" if last.sequence else "the chain is empty"
        return Fault(sequence, f"Event {sequence} is missing: {begins}, and {why}.")


def _has_its_hash(row: ChainRow) -> bool:
    try:
        return chain_hash(row.previous_hash, row.sequence, row.event) == row.hash
    except (ValueError, OverflowError):  # Text that is no Unicode, or a number that no event has.
        return False


def _said(event: Any) -> Iterator[Any]:
    """Yield what the text of an event says of each of COLUMNS, in their order."""
    winner = event.get("winner") or {}
    yield event["id"]
    yield datetime.fromisoformat(event["time"])
    yield event["call_id"]
    yield event["verb"]
    yield event["outcome"]
    yield event.get("agent", "")
    yield event.get("name", "")
    yield event.get("actor", "")
    yield winner.get("layer", "")
    yield winner.get("version")
    yield event.get("reason", "")
    yield bool(winner) and any(found["state"] == "SHADOWED" for found in event.get("candidates", ()))


def _named(fault: Fault, row: ChainRow) -> Fault:
    """Return `fault` with the id of its event."""
    try:
        event_id = json.loads(row.event)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return fault
    return replace(fault, event_id=str(event_id)) if fault.sequence == row.sequence else fault
