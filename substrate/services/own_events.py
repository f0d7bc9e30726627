"""What a process records of itself, and whether it can record at all.

It announces which static state it serves, says how many events it lost, and counts calls that proved nothing. While
events cannot be written it tries four times a second whether they can be again, by inserting one and taking it back.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from substrate.domain.audit import AuditEvent
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.services.tallies import Kind, Tallies, Tally
from substrate.store.chain_writer import ChainWriter, Entry, Verdict, WriteFailedError

RETRY_SECONDS = 0.25
"""How often it is tried whether events can be written again, and what the process has to say is put again."""

_AT_ONCE = 64

_log = structlog.get_logger("substrate.audit")


class Watch(Protocol):
    """Who is told how the audit fares."""

    def audit_queue(self, depth: int) -> None:
        """Note how many calls wait to be settled."""

    def audit_committed(self, seconds: float, events: int) -> None:
        """Note that a batch with so many events took so long."""

    def lost(self, events: int, cause: str) -> None:
        """Count events of calls that were answered without them."""

    def audit_refused(self, calls: int) -> None:
        """Count calls that were refused since their event could not be written."""

    def audit_healthy(self, healthy: bool) -> None:  # noqa: FBT001 - it is the whole message.
        """Note whether events can be written."""


class OwnEvents:
    """The events of the process itself; all but `announce` and `count` belong to the thread that uses `writer`.

    `healthy` says whether events can be written, as far as is known.
    """

    def __init__(self, writer: ChainWriter, tallies: Tallies, watch: Watch) -> None:
        self._writer = writer
        self._tallies = tallies
        self._own: deque[AuditEvent] = deque()
        self._on_health: list[Callable[[bool], None]] = [watch.audit_healthy]
        self.healthy = True
        self._tried_at = 0.0
        watch.audit_healthy(self.healthy)

    def tell(self, on_health: Callable[[bool], None]) -> None:
        """Let `on_health` be told whenever events cannot be written any more, and when they can be again."""
        self._on_health.append(on_health)

    def announce(self, event: AuditEvent) -> None:
        """Keep an event until it is written."""
        self._own.append(event)

    def count(self, kind: Kind, tenant: TenantId, part: str) -> bool:
        """Count one of `kind`, as `Tallies.count` does."""
        return self._tallies.count(kind, tenant, part)

    def pause(self) -> float | None:
        """Return after how many seconds the thread has something to do even when no call comes; None for never."""
        if not self.healthy or self._own:
            return RETRY_SECONDS
        left = self._tallies.seconds_to_wait()
        return None if left is None else max(RETRY_SECONDS, left)

    def attend(self, *, last: bool) -> None:
        """Try whether events can be written again, and write what the process itself has to say.

        With `last` all of it is written now, as far as it can be.
        """
        now = time.monotonic()
        if not last and now - self._tried_at < RETRY_SECONDS:
            return
        if not self.healthy:
            self._tried_at = now
            self._probe()
        if not self.healthy:
            return
        # An event keeps its id until it is written, so that it is never there twice.
        while tallies := self._tallies.take(at_once=last):
            self._own.extend(map(self._tallies.event, tallies))
        while self._own:
            self._tried_at = now
            if not self._write_some() or not last:
                return

    def _probe(self) -> None:
        try:
            now = self._tallies.now()
            self._writer.probe(self._tallies.event(Tally(Kind.LOST, PLATFORM_TENANT, now, now)))
        except WriteFailedError:
            self.become(healthy=False)
            return
        self.become(healthy=True)

    def _write_some(self) -> bool:
        """Write some of the own events; return whether that got further."""
        events = [self._own[index] for index in range(min(len(self._own), _AT_ONCE))]
        done = self._written(events)
        if done is None:
            # Whether that is the fault of one of them or the audit's decides whether calls can be answered.
            self._probe()
            done = [event for event in events if self._written([event])] if self.healthy else []
        for event in done:
            self._own.remove(event)
        return bool(done)

    def _written(self, events: list[AuditEvent]) -> list[AuditEvent] | None:
        """Write `events` and return those that are settled; None when the batch failed."""
        entries = [Entry(event.tenant, check=False, revision=None, event=event) for event in events]
        try:
            verdicts = self._writer.write_again(entries)
        except WriteFailedError as error:
            _log.error("audit.own_events_failed", error=error.told, events=len(events))
            # What was written before its commit was heard of is there already.
            there = error.is_duplicate and len(events) == 1
            return events if there or (not error.outcome_known and self._writer.was_committed(error.ends)) else None
        for event, verdict in zip(events, verdicts, strict=True):
            if verdict is Verdict.GONE:
                _log.error("audit.tenant_gone", tenant=event.tenant, verb=event.verb.value)
        return [event for event, verdict in zip(events, verdicts, strict=True) if verdict is not Verdict.BUSY]

    def become(self, *, healthy: bool) -> None:
        """Note whether events can be written, and tell it when that has changed."""
        if healthy is self.healthy:
            return
        self.healthy = healthy
        _log.warning("audit.healthy" if healthy else "audit.unhealthy")
        for tell in self._on_health:
            tell(healthy)
