"""Retention: whole months of the audit are dropped, and what they ended with is signed as where the chains begin."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.checkpoints import Checkpoint
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.services.call import Clock
from substrate.services.verification import KeptCheckpoints, check_chain
from substrate.store import audit_chain
from substrate.store.checkpoint_file import CheckpointFile
from substrate.store.retention import Dropped, Month, OwnedAudit
from substrate.store.session import Transaction


class ChainsNotIntactError(Exception):
    """Chains that are not intact; nothing is dropped, since that would destroy what shows it."""


@dataclass(frozen=True, slots=True)
class DroppedMonth:
    """A month that has been dropped: its partition, and how many events of how many tenants it held."""

    month: str
    partition: str
    events: int
    tenants: int


class Retention:
    """Drops months of the audit at `audit`, whose checkpoints are `kept` and are appended to `file`."""

    def __init__(self, audit: OwnedAudit, kept: KeptCheckpoints, file: CheckpointFile, clock: Clock) -> None:
        self._audit = audit
        self._kept = kept
        self._file = file
        self._clock = clock

    def drop_before(self, before: date) -> Iterator[DroppedMonth]:
        """Drop every monthly partition that lies wholly before `before`, the oldest first, each in a transaction.

        All chains are verified beforehand. Each month leaves a `retention` event in the platform's chain. Raises
        ChainsNotIntactError, StoreUnavailable, AuditUnavailable and OSError; the months yielded until then are gone.
        """
        months = self._audit.months(before)
        if months:
            self._require_intact()
        for month in months:
            yield self._drop(month)

    def _require_intact(self) -> None:
        def opening(_: TenantId) -> AbstractContextManager[Transaction]:
            return self._audit.reading()

        signed = self._kept.read(None)
        with self._audit.reading() as connection:
            found = audit_chain.tenant_ids(connection)
        problems = [
            f"tenant '{report.tenant}': {report.problem}"
            for tenant in sorted({*found, *map(TenantId, signed.checkpoints)})
            for report in check_chain(tenant, opening, signed, self._kept.read)
            if report.done and not report.intact
        ]
        if problems:
            raise ChainsNotIntactError("Nothing is dropped, since the audit is not intact: " + " ".join(problems))

    def _drop(self, month: Month) -> DroppedMonth:
        now = self._clock.now()
        name = f"{month.first:%Y-%m}"

        def event_of(dropped: Sequence[Dropped]) -> AuditEvent:
            event_id = self._clock.event_id()
            counted = {"events": sum(each.events for each in dropped), "tenants": len(dropped)}
            return AuditEvent(
                id=event_id,
                tenant=PLATFORM_TENANT,
                time=now,
                call_id=event_id,
                verb=Verb.RETENTION,
                outcome=EventOutcome.ALLOWED,
                actor="owner",
                details={"month": name, "partition": month.partition, **counted},
            )

        def sign(dropped: Sequence[Dropped]) -> None:
            starts = [Checkpoint(each.tenant, each.start.point, now, each.start, each.months) for each in dropped]
            self._file.append(lambda _: starts)

        dropped = self._audit.drop(month, now, event_of, sign)
        return DroppedMonth(name, month.partition, sum(each.events for each in dropped), len(dropped))
