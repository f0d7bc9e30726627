"""Verification of the audit: its chains, event by event, held against what was signed of them outside the database."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from substrate.domain.audit import Verb
from substrate.domain.chain import ChainCheck, Ends, Fault, Start
from substrate.domain.checkpoints import Signed
from substrate.domain.errors import InvalidConfig
from substrate.domain.names import TenantId
from substrate.services.access import require_unbound, subject_or_all
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.trace import Trace
from substrate.store import audit_chain, tenants
from substrate.store.checkpoint_file import read_checkpoints
from substrate.store.session import Transaction
from substrate.store.signing_keys import signing_key

ROWS_AT_ONCE = 2000
TELL_SECONDS = 1.0

Opening = Callable[[TenantId], AbstractContextManager[Transaction]]
"""Opens a transaction that sees the audit of a tenant."""


@dataclass(frozen=True, slots=True)
class Report:
    """How far the check of a tenant's chain has come, or, when `done`, what it has found.

    `first_bad` is 0 when no event is bad; there can be a `problem` all the same, with the checkpoints themselves.
    `first` and `last` are the numbers of the first and the last event of the chain, `checkpoints` how many it was held
    against, and `last_checkpoint` the number of the last of them.
    """

    tenant: str
    checked: int
    first: int
    last: int
    checkpoints: int = 0
    last_checkpoint: int = 0
    done: bool = False
    first_bad: int = 0
    problem: str = ""

    @property
    def intact(self) -> bool:
        """Whether all is done, and nothing wrong."""
        return self.done and not self.problem


@dataclass(frozen=True, slots=True)
class KeptCheckpoints:
    """The file of checkpoints of a server, and the file of the key that signs them; neither needs to be there yet."""

    file: Path
    key: Path

    def read(self, tenant: str | None) -> Signed:
        """Return what was signed of one tenant's chain, or of all for None; what is wrong with the files is in it."""
        if not self.key.exists() and not self.file.exists():
            return Signed()
        try:
            return read_checkpoints(self.file, signing_key(self.key).public_key(), tenant)
        except InvalidConfig:
            return Signed(problems=["The key that signs checkpoints cannot be read by the server."])
        except OSError as error:
            return Signed(problems=[f"The checkpoints cannot be read by the server: {error.strerror}."])


class Verification:
    """The use case of `VerifyAudit`."""

    def __init__(self, decisions: Decisions, kept: KeptCheckpoints) -> None:
        self._decisions = decisions
        self._kept = kept

    def verify(self, call: Call, tenant: str) -> Iterator[Report]:
        """Check the caller's own chain, the one of the `tenant` that an operator names, or all of them for none.

        Yields a report about every second, and for each tenant a last one that is `done`. Raises what `subject_or_all`
        does, and RoleRequired for a key that is bound to an agent; the key is proved again all along.
        """

        def judge(trace: Trace) -> tuple[TenantId | None, str]:
            scope = subject_or_all(trace, tenant)
            require_unbound(trace)
            if scope is not None:
                with self._decisions.database.tenant(scope, call.deadline) as connection:
                    if tenants.revision(connection, scope) is None:
                        raise tenants.no_tenant(scope)
            return scope, trace.snapshot.state.incarnation

        scope, incarnation = self._decisions.settle(call, Verb.VERIFY_AUDIT, judge, required=False)
        # Before any head is read: whatever is signed by now must be found in the chains.
        signed = self._kept.read(scope)
        for each in [scope] if scope is not None else self._all(call, signed):
            for report in check_chain(each, self._opening(scope, call), signed, self._kept.read):
                yield report
                self._decisions.prove_again(call, incarnation)

    def _all(self, call: Call, signed: Signed) -> list[TenantId]:
        """Return all tenants, those included that there must have been."""
        with self._decisions.database.operator(call.deadline) as connection:
            found = audit_chain.tenant_ids(connection)
        return sorted({*found, *map(TenantId, signed.checkpoints)})

    def _opening(self, scope: TenantId | None, call: Call) -> Opening:
        database = self._decisions.database
        if scope is None:
            return lambda _: database.operator(call.deadline)
        return lambda tenant: database.tenant(tenant, call.deadline)


def check_chain(
    tenant: TenantId, opening: Opening, signed: Signed, read_again: Callable[[str], Signed]
) -> Iterator[Report]:
    """Check one chain up to its head of now; yields a report about every second and one that is `done`.

    `signed` is what had been signed before; `read_again` returns what has been by now, for when months are dropped
    meanwhile.
    """
    with opening(tenant) as connection:
        ends = audit_chain.ends(connection, tenant)
    while True:
        if not _is_signed(ends.start, tenant, signed):
            signed = read_again(tenant)
        report = yield from _checked(tenant, ends, opening, signed)
        with opening(tenant) as connection:
            now = audit_chain.ends(connection, tenant)
        if report.intact or now.start == ends.start:
            yield report
            return
        # Months were dropped under the reader's eyes: it begins again after them.
        ends = now


def _checked(tenant: TenantId, ends: Ends, opening: Opening, signed: Signed) -> Generator[Report, None, Report]:
    check = ChainCheck(tenant, ends, signed.points(tenant))
    first = ends.start.point.sequence + 1
    last = ends.head.sequence if ends.head else 0
    fault = None if _is_signed(ends.start, tenant, signed) else _forged_start(ends.start, tenant, signed)
    after = audit_chain.BEFORE_ALL
    told = time.monotonic()
    while fault is None:
        with opening(tenant) as connection:
            rows = audit_chain.rows(connection, tenant, after, last, ROWS_AT_ONCE)
        fault = check.add(rows)
        if fault is not None or len(rows) < ROWS_AT_ONCE:
            break
        after = rows[-1].sequence
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            yield Report(tenant, check.checked, first, last, check.held_against, check.last_held)
    fault = fault or check.end()
    problem = fault.told if fault else " ".join(signed.problems)
    return Report(
        tenant,
        check.checked,
        first,
        last,
        check.held_against,
        check.last_held,
        done=True,
        first_bad=fault.sequence if fault else 0,
        problem=problem,
    )


def _is_signed(start: Start, tenant: str, signed: Signed) -> bool:
    return start == Start() or start in signed.starts(tenant)


def _forged_start(start: Start, tenant: str, signed: Signed) -> Fault:
    known = max((known.point.sequence for known in signed.starts(tenant)), default=0)
    sequence = max(1, min(known, start.point.sequence) + 1)
    return Fault(
        sequence,
        f"The chain is said to begin after event {start.point.sequence}, and no such start was signed: what it leaves "
        f"out from event {sequence} on was taken away.",
    )
