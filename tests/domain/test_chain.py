"""Verification of chains made in memory; `tests/proofs/test_tamper.py` shows it on stored ones."""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.domain.audit import GENESIS_HASH, AuditEvent, EventOutcome, Verb, chain_hash
from substrate.domain.chain import COLUMNS, ChainCheck, ChainRow, Ends, Fault, Point, Start
from substrate.domain.names import TenantId
from substrate.store.audit import row_of
from substrate.store.tables import audit_events

TENANT = TenantId("acme")
WINNER = {"layer": "TENANT", "state": "WON", "version": 2, "digest": "d", "origin": "tenant:v2"}
LOSER = {"layer": "BUNDLE", "state": "SHADOWED", "version": None, "digest": "e", "origin": "bundle:b"}


def event(number: int, tenant: str = TENANT) -> AuditEvent:
    return AuditEvent(
        id=f"00000000-0000-7000-8000-{number:012}",
        tenant=TenantId(tenant),
        time=datetime(2026, 5, 1, second=number % 60, microsecond=number, tzinfo=UTC),
        call_id=str(number),
        verb=Verb.INVOKE,
        outcome=EventOutcome.ALLOWED,
        name="doc/query",
        candidates=[WINNER, LOSER],
        winner=WINNER,
    )


def chain(length: int, tenant: str = TENANT) -> list[ChainRow]:
    """Return a chain as a server writes it."""
    made: list[ChainRow] = []
    for number in range(1, length + 1):
        row = row_of(event(number, tenant), number, made[-1].hash if made else GENESIS_HASH)
        columns = [row[name] for name in COLUMNS]
        made.append(ChainRow(tenant, number, row["previous_hash"], row["hash"], row["event"], columns))
    return made


def point(row: ChainRow) -> Point:
    return Point(row.sequence, row.hash)


def fault(
    rows: Sequence[ChainRow],
    signed: Sequence[Point] = (),
    start: Start | None = None,
    head: Point | None = None,
    last: int | None = None,
) -> Fault | None:
    check = ChainCheck(TENANT, Ends(start or Start(), head, last), signed)
    return check.add(rows) or check.end()


def test_every_column_that_repeats_the_text_is_compared() -> None:
    own = {"tenant_id", "sequence", "txid", "previous_hash", "hash", "event"}
    assert {column.name for column in audit_events.c} - own == set(COLUMNS)


def test_a_chain_as_it_is_written_is_intact() -> None:
    rows = chain(9)
    signed = [point(rows[2]), point(rows[2]), point(rows[8])]
    check = ChainCheck(TENANT, Ends(Start(), point(rows[8]), 9), signed)
    assert check.add(rows[:4]) is None
    assert check.add(rows[4:]) is None
    assert check.end() is None
    assert (check.checked, check.held_against, check.last_held) == (9, 2, 9)
    assert fault([], head=Point(0, GENESIS_HASH)) is None
    assert fault(rows) is None
    assert fault([row._replace(columns=None) for row in rows]) is None


@given(st.integers(1, 8), st.data())
def test_whatever_is_done_to_one_event_its_number_is_named(number: int, data: st.DataObject) -> None:
    rows = chain(8)
    head = point(rows[-1])
    row = rows[number - 1]
    edits: list[Callable[[], ChainRow | None]] = [
        lambda: None,
        lambda: row._replace(event=row.event.replace("doc/query", "doc/other")),
        lambda: row._replace(event=row.event + " "),
        lambda: row._replace(hash=bytes(32)),
        lambda: row._replace(previous_hash=b"x" * 32),
        lambda: row._replace(columns=["x", *list(row.columns or ())[1:]]),
        lambda: rewritten(row, row.event.replace("doc/query", "doc/other")),
        lambda: rewritten(row, "null"),
        lambda: row._replace(event="\ud800"),
    ]
    edit = data.draw(st.sampled_from(edits))()
    changed = [*rows[: number - 1], *([edit] if edit else []), *rows[number:]]
    found = fault(changed, head=head, last=8)
    assert found is not None
    assert found.sequence == number


def rewritten(row: ChainRow, text: str) -> ChainRow:
    return row._replace(event=text, hash=chain_hash(row.previous_hash, row.sequence, text))


def test_an_event_rewritten_with_its_hash_is_told_from_the_one_after_it_being_linked_elsewhere() -> None:
    rows = chain(6)
    other = chain(6, "other")
    changed = [*rows[:3], rewritten(rows[3], rows[3].event.replace("doc/query", "doc/other"))._replace(columns=None)]
    found = fault([*changed, *rows[4:]])
    assert found is not None
    assert found.sequence == 4
    assert "was rewritten with its hash" in found.problem
    # Of event 4 it was signed what it is: then it is event 5 that was put there.
    forged = rewritten(rows[4]._replace(previous_hash=other[3].hash), rows[4].event)
    found = fault([*rows[:4], forged], [point(rows[3])])
    assert found is not None
    assert (found.sequence, found.problem[:28]) == (5, "Event 5 does not follow the ")


@pytest.mark.parametrize("name", ["tenant", "id", "time"])
def test_a_text_without_what_every_event_has_is_none(name: str) -> None:
    (row,) = chain(1)
    found = fault([rewritten(row, row.event.replace(f'"{name}":', f'"no-{name}":'))])
    assert found == Fault(1, "The text of event 1 is no audit event.")


def test_checkpoints_that_contradict_each_other_are_found() -> None:
    rows = chain(3)
    assert fault(rows, [point(rows[1]), Point(2, bytes(32))]) is not None


def test_the_first_of_several_faults_is_named() -> None:
    rows = chain(9)
    found = fault([*rows[:2], *rows[3:6]], [point(rows[7])], head=point(rows[8]), last=12)
    assert found is not None
    assert found.sequence == 3


def test_a_chain_with_a_start_has_its_stragglers_and_begins_after_it() -> None:
    rows = chain(9)
    start = Start(point(rows[5]), {3: rows[2].hash.hex(), 5: rows[4].hash.hex()})
    left = [rows[2], rows[4], *rows[6:]]
    signed = [point(rows[1]), point(rows[5]), point(rows[7])]
    assert fault(left, signed, start, point(rows[8]), 9) is None
    assert fault([rows[2], rows[4]], [], dataclasses.replace(start), point(rows[5]), 5) is None

    def first_bad(rows: Sequence[ChainRow]) -> int:
        found = fault(rows, signed, start, point(left[-1]), 9)
        assert found is not None
        return found.sequence

    assert first_bad([rows[4], *rows[6:]]) == 3
    assert first_bad([rows[2], *rows[6:]]) == 5
    assert first_bad([rows[2]]) == 5
    assert first_bad([rows[1], *left]) == 2
    assert first_bad([rows[2], *left]) == 3
    assert first_bad([rows[2], rows[4], *rows[7:]]) == 7
    assert first_bad([rewritten(rows[2], "{}"), *left[1:]]) == 3
    assert first_bad([rows[2]._replace(event="{}"), *left[1:]]) == 3
    other = Start(Point(6, bytes(32)), start.stragglers)
    found = fault(left, signed, other, point(rows[8]), 9)
    assert found is not None
    assert "Event 6 has another hash than was signed of it" in found.problem
