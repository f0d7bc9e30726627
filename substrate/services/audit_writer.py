"""The audit writer: one thread that settles calls in batches, each in one transaction.

A call hands over its event and the catalog revision it decided on, and waits once. The thread takes everything that
arrived while the last batch was committing; there is no timer, so an idle server settles a call at once. A batch locks
the chain heads of its tenants, reads their revisions and inserts the events of the calls that decided on the current
one. So one wait gives a call both its strong read and its durable event.

A call is refused when its event cannot be committed within a second; a commit whose outcome is unknown refuses its
calls too, and is not repeated. A call whose caller went away is recorded as cancelled.

The thread also writes what the process itself has to say: which static state it serves, the events it lost, and calls
that proved nothing. While events cannot be written it tries four times a second whether they can be again.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from substrate.domain.audit import AuditEvent
from substrate.domain.errors import AuditUnavailable, Cancelled, DeadlineExceeded, StoreUnavailable
from substrate.domain.names import TenantId
from substrate.services.call import Call
from substrate.services.own_events import OwnEvents, Watch
from substrate.services.tallies import Kind, Tallies
from substrate.store.chain_writer import ChainWriter, Entry, Verdict, WriteFailedError

REFUSE_AFTER = 1.0
MAX_BATCH = 256
MAX_OFFERED = 10_000
"""Calls waiting to be settled at which further events that nobody waits for are dropped."""

_log = structlog.get_logger("substrate.audit")


class _Wake:
    """Tells the thread that there is something of the process's own to record."""


class _Ticket:
    """A call waiting to be settled; `done` is a lock that the writer releases."""

    __slots__ = ("abandoned", "call", "done", "entry", "error", "offered", "put_at", "required", "verdict")

    def __init__(self, entry: Entry, call: Call, *, required: bool, offered: bool = False) -> None:
        self.entry = entry
        self.call = call
        self.required = required
        self.offered = offered
        self.put_at = time.monotonic()
        self.verdict: Verdict | None = None
        self.error: type[AuditUnavailable | StoreUnavailable] | None = None
        self.abandoned = False
        self.done = threading.Lock()
        self.done.acquire()

    def to_write(self) -> Entry:
        """Return the entry as it stands now: with the event of a cancelled call, if the caller went away."""
        event = self.entry.event
        if event is not None and (self.abandoned or self.call.cancelled):
            return replace(self.entry, check=False, event=event.cancelled())
        return self.entry

    @property
    def is_finished(self) -> bool:
        return self.verdict is not None or self.error is not None

    def finish(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.done.release()

    def refuse(self) -> None:
        self.error = AuditUnavailable if self.required else StoreUnavailable
        self.done.release()


class AuditWriter:
    """Settles the calls of one process.

    `tallies` counts what is recorded as one event for many; `watch` is told how the audit fares.
    """

    def __init__(self, writer: ChainWriter, tallies: Tallies, watch: Watch) -> None:
        self._writer = writer
        self._watch = watch
        self._own = OwnEvents(writer, tallies, watch)
        self._queue: queue.SimpleQueue[_Ticket | _Wake | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="audit-writer", daemon=True)

    def tell(self, on_health: Callable[[bool], None]) -> None:
        """Let `on_health` be told whenever events cannot be written any more, and when they can be again."""
        self._own.tell(on_health)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Settle what has been handed over, then end the thread and its connection."""
        self._queue.put(None)
        self._thread.join()
        self._writer.close()

    def announce(self, event: AuditEvent) -> None:
        """Record an event of the process itself, as soon as that can be done."""
        self._own.announce(event)
        self._queue.put(_Wake())

    def unproven(self, tenant: TenantId, key_id: str) -> None:
        """Count a call to `tenant` whose key proved nothing."""
        if self._own.count(Kind.UNPROVEN, tenant, key_id):
            self._queue.put(_Wake())

    def settle(self, entry: Entry, call: Call, *, required: bool) -> Verdict:
        """Wait until `entry` is settled: CURRENT, with its event durable, or STALE.

        `required` says that the answer must not be given without its event. Raises AuditUnavailable (StoreUnavailable
        when the event is not required but the revision could not be read), DeadlineExceeded or Cancelled.
        """
        try:
            return self._settled(entry, call, required=required)
        except AuditUnavailable:
            self._watch.audit_refused(1)
            raise

    def _settled(self, entry: Entry, call: Call, *, required: bool) -> Verdict:
        ticket = _Ticket(entry, call, required=required)
        self._queue.put(ticket)
        wait = REFUSE_AFTER if call.deadline is None else min(REFUSE_AFTER, call.deadline - time.monotonic())
        if not ticket.done.acquire(timeout=max(0.0, wait)):
            ticket.abandoned = True
            if wait < REFUSE_AFTER:
                raise DeadlineExceeded("The deadline passed before the decision was recorded.")
            unavailable = AuditUnavailable if required else StoreUnavailable
            raise unavailable("The decision could not be recorded in time, so it is not given; try again.")
        if call.cancelled:
            raise Cancelled("The caller went away.")
        if ticket.error is not None:
            raise ticket.error("The decision could not be recorded, so it is not given; try again shortly.")
        if ticket.verdict is None:
            raise AuditUnavailable("The audit writer ended before the decision was recorded.")
        return ticket.verdict

    def offer(self, entry: Entry, call: Call) -> None:
        """Hand over the event of a call that is answered at once, whatever becomes of it."""
        if self._queue.qsize() >= MAX_OFFERED:
            if entry.event is not None:
                self._lost(entry.tenant, "queue_full")
        else:
            self._queue.put(_Ticket(entry, call, required=False, offered=True))

    def _lost(self, tenant: TenantId, cause: str) -> None:
        self._watch.lost(1, cause)
        if self._own.count(Kind.LOST, tenant, cause):
            self._queue.put(_Wake())

    def _refuse(self, ticket: _Ticket, cause: str | None) -> None:
        ticket.refuse()
        if ticket.offered and ticket.entry.event is not None and cause is not None:
            self._lost(ticket.entry.tenant, cause)

    def _run(self) -> None:
        waiting: list[_Ticket] = []
        open_for_more = True
        while open_for_more or waiting:
            batch, open_for_more = self._next_batch(waiting, open_for_more=open_for_more)
            if batch:
                # At the end, so that those of all tenants take turns.
                waiting = [ticket for ticket in waiting if ticket not in batch] + self._settle(batch)
                self._watch.audit_queue(self._queue.qsize() + len(waiting))
            try:
                self._own.attend(last=not open_for_more and not waiting)
            except Exception:  # noqa: BLE001 - as in `_settle`.
                _log.exception("audit.own_events_faulty")

    def _next_batch(self, waiting: list[_Ticket], *, open_for_more: bool) -> tuple[list[_Ticket], bool]:
        """Return the next tickets; with nothing new, those of one tenant whose chain was held before."""
        batch: list[_Ticket] = []
        while open_for_more and len(batch) < MAX_BATCH:
            try:
                block = not batch and not waiting
                ticket = self._queue.get(block, self._own.pause() if block else None)
            except queue.Empty:
                break
            if ticket is None:
                open_for_more = False
            elif isinstance(ticket, _Ticket):
                batch.append(ticket)
            elif not batch:
                break
        self._watch.audit_queue(self._queue.qsize() + len(batch) + len(waiting))
        if batch or not waiting:
            return waiting + batch, open_for_more
        # With a single tenant the writer waits for the lock, instead of looking again and again whether it is free.
        return [ticket for ticket in waiting if ticket.entry.tenant == waiting[0].entry.tenant], open_for_more

    def _settle(self, batch: list[_Ticket]) -> list[_Ticket]:
        """Settle `batch`; return the tickets that are to be put again."""
        try:
            return self._settle_or_fail(batch)
        except Exception:  # noqa: BLE001 - a fault of ours must not end the thread and leave later calls unanswered.
            _log.exception("audit.batch_faulty", calls=len(batch))
            for ticket in batch:
                if not ticket.is_finished:
                    self._refuse(ticket, "write_failed")
            return []

    def _settle_or_fail(self, batch: list[_Ticket]) -> list[_Ticket]:
        if not self._own.healthy:
            # Those that may do without their event must not wait for an attempt that is likely to fail.
            self._spare([ticket for ticket in batch if not ticket.required], "write_failed")
            batch = [ticket for ticket in batch if ticket.required]
            if not batch:
                return []
        entries = [ticket.to_write() for ticket in batch]
        began = time.monotonic()
        try:
            verdicts = self._writer.write_again(entries)
        except WriteFailedError as error:
            _log.error("audit.batch_failed", error=error.told, calls=len(batch))
            self._own.become(healthy=False)
            self._fail(batch, self._cause(error))
            return []
        again = []
        events = 0
        for ticket, entry, verdict in zip(batch, entries, verdicts, strict=True):
            if verdict is Verdict.GONE:
                self._refuse(ticket, "write_failed")
            elif verdict is not Verdict.BUSY:
                events += verdict is Verdict.CURRENT and entry.event is not None
                ticket.finish(verdict)
            elif time.monotonic() - ticket.put_at < REFUSE_AFTER:
                again.append(ticket)
            else:
                self._refuse(ticket, "busy")
        self._watch.audit_committed(time.monotonic() - began, events)
        if events:
            self._own.become(healthy=True)
        return again

    def _cause(self, error: WriteFailedError) -> str | None:
        """Return why the events of a failed batch are lost; None when they were committed all the same."""
        if error.outcome_known:
            return "write_failed"
        match self._writer.was_committed(error.ends):
            case True:
                return None
            case False:
                return "write_failed"
            case _:
                return "outcome_unknown"

    def _fail(self, batch: list[_Ticket], cause: str | None) -> None:
        """Refuse the calls that need their event, and spare the others."""
        for ticket in batch:
            if ticket.required:
                self._refuse(ticket, cause)
        self._spare([ticket for ticket in batch if not ticket.required], cause)

    def _spare(self, tickets: list[_Ticket], cause: str | None) -> None:
        """Settle calls without their events, which are lost for `cause`: they still need their revision read."""
        spared = [ticket for ticket in tickets if not ticket.offered]
        for ticket in tickets:
            if ticket.offered:
                self._refuse(ticket, cause)
        if not spared:
            return
        try:
            verdicts = self._writer.write([replace(ticket.entry, event=None) for ticket in spared])
        except WriteFailedError:
            for ticket in spared:
                ticket.refuse()
            return
        for ticket, verdict in zip(spared, verdicts, strict=True):
            if verdict is Verdict.BUSY:
                ticket.refuse()
                continue
            # A call that did not wait for this was refused, and has lost nothing.
            answered = verdict is Verdict.CURRENT and not (ticket.abandoned or ticket.call.cancelled)
            if answered and ticket.entry.event is not None and cause is not None:
                self._lost(ticket.entry.tenant, cause)
            ticket.finish(verdict)
