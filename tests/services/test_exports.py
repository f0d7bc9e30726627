"""Exports of whole databases: a chain that is not there is missed, unless all of it has been dropped."""

from datetime import UTC, datetime

import pytest

from substrate.domain.audit import GENESIS_HASH, chain_hash
from substrate.domain.chain import Point, Start
from substrate.domain.checkpoints import Checkpoint, Signed
from substrate.services.exports import verify_export

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HASH = chain_hash(GENESIS_HASH, 1, "{}")


def at(sequence: int) -> Checkpoint:
    return Checkpoint("acme", Point(sequence, HASH), NOW)


def start_after(sequence: int, *stragglers: int) -> Checkpoint:
    start = Start(Point(sequence, HASH), {number: HASH.hex() for number in stragglers})
    return Checkpoint("acme", start.point, NOW, start, ("2026-05",))


@pytest.mark.parametrize(
    ("signed", "first_bad"),
    [
        ([at(7)], 1),
        ([at(7), start_after(7)], None),
        ([at(7), start_after(5)], 6),
        ([start_after(5), at(7)], 6),
        ([at(7), start_after(5), start_after(7)], None),
        ([at(7), start_after(7, 4, 6)], 4),
    ],
)
def test_a_chain_that_is_not_there_at_all_is_missed_unless_it_was_dropped(
    signed: list[Checkpoint], first_bad: int | None
) -> None:
    kept = Signed({"acme": signed})
    assert verify_export([], kept) == []
    found = verify_export([], kept, whole=True)
    assert [(each.tenant, each.intact, each.first_bad) for each in found] == (
        [] if first_bad is None else [("acme", False, first_bad)]
    )
