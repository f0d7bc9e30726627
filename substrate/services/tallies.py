"""Tallies: what the audit records as one event for many, because each by itself could not or should not be recorded.

Two things are counted for each tenant. **Lost** events are those of calls that were answered although theirs could not
be written; the chain gets a ``gap`` event with their number, time span and causes as soon as it can be written again.
**Unproven** calls are those whose key proved nothing; the first is recorded at once, and what follows within a minute
as one event with its number, so that whoever guesses keys cannot fill the log.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import Unauthenticated
from substrate.domain.names import TenantId
from substrate.services.call import Clock

UNPROVEN_EVERY = timedelta(minutes=1)

_MAX_PARTS = 8


class Kind(Enum):
    """What is counted."""

    LOST = "lost"
    UNPROVEN = "unproven"


@dataclass(slots=True)
class Tally:
    """How often something happened to one tenant between two times, and its parts: causes, or ids of keys."""

    kind: Kind
    tenant: TenantId
    first: datetime
    last: datetime
    parts: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How often it happened."""
        return self.parts.total()

    def count_one(self, at: datetime, part: str) -> None:
        """Count another one."""
        self.last = at
        # Whoever makes up keys must not fill the memory with their ids.
        known = part in self.parts or len(self.parts) < _MAX_PARTS
        self.parts[part if known else "others"] += 1


class Tallies:
    """The tallies of one process; `server` names it in events. Any thread may count."""

    def __init__(self, clock: Clock, server: str) -> None:
        self._clock = clock
        self._server = server
        self._lock = threading.Lock()
        self._counted: dict[tuple[Kind, TenantId], Tally] = {}
        # When the next event about a tenant's unproven calls may be written; those of the past are forgotten.
        self._not_before: dict[TenantId, datetime] = {}

    def count(self, kind: Kind, tenant: TenantId, part: str) -> bool:
        """Count one of `kind`; return whether it is the first since the last event about it."""
        now = self._clock.now()
        with self._lock:
            known = self._counted.get((kind, tenant))
            if known is None:
                self._counted[kind, tenant] = Tally(kind, tenant, now, now, Counter((part,)))
            else:
                known.count_one(now, part)
            return known is None

    def now(self) -> datetime:
        """Return the time by the clock that tallies are taken by."""
        return self._clock.now()

    def take(self, *, at_once: bool = False) -> list[Tally]:
        """Remove and return what is to be recorded now; with `at_once` whatever there is."""
        now = self._clock.now()
        with self._lock:
            self._not_before = {tenant: at for tenant, at in self._not_before.items() if at > now}
            due = [key for key in self._counted if at_once or self._is_due(key)]
            for kind, tenant in due:
                if kind is Kind.UNPROVEN:
                    self._not_before[tenant] = now + UNPROVEN_EVERY
            return [self._counted.pop(key) for key in due]

    def seconds_to_wait(self) -> float | None:
        """Return in how many seconds something is to be recorded, 0 for now; None when nothing was counted."""
        now = self._clock.now()
        with self._lock:
            waits = [
                0.0 if self._is_due(key) else max(0.0, (self._not_before[key[1]] - now).total_seconds())
                for key in self._counted
            ]
        return min(waits, default=None)

    def event(self, tally: Tally) -> AuditEvent:
        """Return the event that records `tally`."""
        is_gap = tally.kind is Kind.LOST
        event_id = self._clock.event_id()
        return AuditEvent(
            id=event_id,
            tenant=tally.tenant,
            time=self._clock.now(),
            call_id=event_id,
            verb=Verb.GAP if is_gap else Verb.AUTHENTICATE,
            outcome=EventOutcome.ALLOWED if is_gap else EventOutcome.REFUSED,
            actor="server",
            reason="" if is_gap else Unauthenticated.reason,
            details={
                "count": tally.count,
                "since": tally.first.isoformat(timespec="microseconds"),
                "until": tally.last.isoformat(timespec="microseconds"),
                "causes" if is_gap else "keys": dict(sorted(tally.parts.items())),
            },
            server=self._server,
        )

    def _is_due(self, key: tuple[Kind, TenantId]) -> bool:
        return key[0] is Kind.LOST or key[1] not in self._not_before
