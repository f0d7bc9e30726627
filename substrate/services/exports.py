"""Verification of exported events, with neither a server nor a database."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from substrate.domain.chain import ChainCheck, ChainRow, Ends, Fault, Start
from substrate.domain.checkpoints import Signed
from substrate.domain.errors import InvalidConfig
from substrate.services.verification import Report

_DAMAGED = (ValueError, TypeError, KeyError, RecursionError)


class _Chain:
    """The check of one tenant's events."""

    def __init__(self, first: ChainRow, signed: Signed) -> None:
        self.start = _start_of(first, signed)
        self.check = ChainCheck(first.tenant, Ends(self.start), signed.points(first.tenant))
        self.last = 0
        self.fault: Fault | None = None


def verify_export(lines: Iterable[bytes], signed: Signed, *, whole: bool = False) -> list[Report]:
    """Check the events of an export, each chain by itself in the order of its lines; return a report for each tenant.

    A line is a JSON object with `tenant`, `sequence`, `previous_hash`, `hash` (both in hex) and `event`. A chain must
    be whole from its first event, or from a start that was signed, to the last checkpoint that was signed of it. With
    `whole` every chain that was signed must be there. Raises InvalidConfig for a line that is none.
    """
    chains: dict[str, _Chain] = {}
    for number, line in enumerate(lines, start=1):
        row = _row(line, number)
        chain = chains.get(row.tenant) or chains.setdefault(row.tenant, _Chain(row, signed))
        if chain.fault is None:
            chain.fault = chain.check.add([row])
            chain.last = max(chain.last, row.sequence)
    reports = [_report(tenant, chain, signed) for tenant, chain in chains.items()]
    absent = sorted(signed.checkpoints.keys() - chains.keys()) if whole else []
    return reports + [report for tenant in absent for report in _missing(tenant, signed)]


def _report(tenant: str, chain: _Chain, signed: Signed) -> Report:
    fault = chain.fault or chain.check.end()
    return Report(
        tenant,
        chain.check.checked,
        chain.start.point.sequence + 1,
        chain.last,
        chain.check.held_against,
        chain.check.last_held,
        done=True,
        first_bad=fault.sequence if fault else 0,
        problem=fault.told if fault else " ".join(signed.problems),
    )


def _missing(tenant: str, signed: Signed) -> Iterator[Report]:
    """Yield a report about a tenant of which there is no event, unless all that was signed of it has been dropped."""
    start = (signed.starts(tenant) or [Start()])[-1]
    begin = start.point.sequence
    if start.stragglers or any(point.sequence > begin for point in signed.points(tenant)):
        problem = "There is no event of this tenant, and checkpoints were signed of its chain."
        first_bad = min(start.stragglers, default=begin + 1)
        yield Report(tenant, 0, begin + 1, begin, done=True, first_bad=first_bad, problem=problem)


def _start_of(first: ChainRow, signed: Signed) -> Start:
    """Return where the chain begins of which `first` is the first event there is."""
    for start in reversed(signed.starts(first.tenant)):
        if first.sequence == start.point.sequence + 1 or first.sequence in start.stragglers:
            return start
    return Start()


def _row(line: bytes, number: int) -> ChainRow:
    try:
        fields: Any = json.loads(line)
        sequence = fields["sequence"]
        if type(sequence) is not int:
            raise TypeError("It is no number.")
        previous, digest = (bytes.fromhex(fields[name]) for name in ("previous_hash", "hash"))
        return ChainRow(str(fields["tenant"]), sequence, previous, digest, str(fields["event"]))
    except _DAMAGED:
        raise InvalidConfig(summary=f"Line {number} of the export is no event as `audit export` writes it.") from None
