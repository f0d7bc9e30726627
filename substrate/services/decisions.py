"""How every call is decided, recorded and answered.

**Reading calls** decide on the tenant's cached snapshot and put the outcome to the audit writer, which records it only
if the snapshot was still current. A stale call starts again, at authentication, on a snapshot whose load began after
the call arrived; that load is its strong read, and it then waits for its event alone.

**Changing calls** are checked on the cached snapshot first. Then one transaction bumps the catalog revision, which
makes the writers of a tenant take turns, checks again on the state as it is now, changes the rows, and appends the
event last.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypeVar, cast

from substrate.domain.audit import AuditEvent, Verb
from substrate.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    RevisionUnknown,
    StoreUnavailable,
    SubstrateError,
    Unauthenticated,
)
from substrate.domain.identity import authenticate, missing_key
from substrate.domain.names import TenantId
from substrate.domain.tokens import read_catalog_token
from substrate.services.audit_writer import AuditWriter
from substrate.services.call import Call
from substrate.services.snapshots import Snapshot, Snapshots
from substrate.services.trace import Trace
from substrate.sources.tenant import read_state
from substrate.store import audit, tenants
from substrate.store.audit import Entry, Verdict
from substrate.store.session import Database, Transaction

T = TypeVar("T")

# These say nothing about what the caller may do, so there is no decision to record.
_UNDECIDED = (StoreUnavailable, DeadlineExceeded, Cancelled)
_UNRECORDED = (Unauthenticated, InvalidInput)


class Clock(Protocol):
    """Where the time and new event ids come from."""

    def now(self) -> datetime:
        """Return the time, in UTC."""

    def event_id(self) -> str:
        """Return a new UUIDv7."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Runs decisions.

    `server` names this process in events. `strict` says that an answer which must have its event waits for it; without
    it (best effort) every answer may be given when the event cannot be written.
    """

    snapshots: Snapshots
    writer: AuditWriter
    database: Database
    clock: Clock
    server: str
    strict: bool = True

    def settle(self, call: Call, verb: Verb, judge: Callable[[Trace], T], *, required: bool) -> T:
        """Let `judge` decide on the caller's snapshot; return its answer, or raise its refusal, once it is settled.

        `required` says that an answer must not be given without its event; a refusal never is. `judge` may run twice
        and must change nothing but its trace.
        """
        tenant = call.bearer.tenant
        snapshot = self.snapshots.current(tenant, call.deadline)
        while True:
            fresh = snapshot.began >= call.started
            trace, answer, refusal = self._judge(call, verb, snapshot, judge)
            event = self._event(trace, refusal) if trace is not None else None
            own = event if event is not None and event.tenant == tenant else None
            needed = self.strict and event is not None and (required or refusal is not None)
            entry = Entry(tenant, not fresh, snapshot.state.revision, own)
            verdict = self.writer.settle(entry, call, required=needed)
            if verdict is Verdict.CURRENT:
                break
            snapshot = self.snapshots.load(tenant, call.started, call.deadline)
        if event is not None and own is None:
            self._record(call, event, required=needed)
        self._note(call, trace, event)
        if refusal is not None:
            raise refusal
        return cast("T", answer)

    def change(
        self,
        call: Call,
        verb: Verb,
        check: Callable[[Trace], None],
        apply: Callable[[Trace, Transaction, int], T],
        *,
        subject: TenantId | None = None,
    ) -> T:
        """Let `check` admit the call, then `apply` it in one transaction at the new catalog revision it is given.

        `subject` is the tenant that an operator changes; without it the caller changes its own. `check` runs again when
        the state has moved since. A refusal by either leaves no row behind and is recorded.
        """
        home = call.bearer.tenant
        snapshot = self._not_refused(call, verb, check)
        try:
            answer, trace, event, revision = self._write(call, verb, snapshot, check, apply, subject)
        except _Refused as refused:
            self._record_refusal(call, refused)
            raise refused.reason from None
        self.snapshots.forget(subject or home)
        self._note(call, trace, event)
        if subject is None:
            call.catalog = replace(trace.snapshot.token, revision=revision)
        return answer

    def authenticate(self, call: Call) -> None:
        """Raise Unauthenticated unless the call's key is valid now; nothing else is decided, so nothing is recorded."""
        self._not_refused(call, Verb.AUTHENTICATE, lambda _: None)

    def _not_refused(self, call: Call, verb: Verb, check: Callable[[Trace], None]) -> Snapshot:
        """Return a snapshot on which `check` admits the call; a refusal is recorded, if it stands, and raised.

        It stands when the snapshot it was given on is still current; else the check is repeated on a newer one. So a
        call that proves nothing costs a look at the revision, not a load.
        """
        home = call.bearer.tenant
        snapshot = self.snapshots.current(home, call.deadline)
        while True:
            fresh = snapshot.began >= call.started
            trace, _, refusal = self._judge(call, verb, snapshot, check)
            if refusal is None and (verb is not Verb.AUTHENTICATE or fresh):
                return snapshot
            event = self._event(trace, refusal) if trace is not None and refusal is not None else None
            entry = Entry(home, not fresh, snapshot.state.revision, event)
            verdict = self.writer.settle(entry, call, required=self.strict and event is not None)
            if verdict is Verdict.CURRENT:
                break
            snapshot = self.snapshots.load(home, call.started, call.deadline)
        if refusal is None:
            return snapshot
        self._note(call, trace, event)
        raise refusal

    def _write(
        self,
        call: Call,
        verb: Verb,
        snapshot: Snapshot,
        check: Callable[[Trace], None],
        apply: Callable[[Trace, Transaction, int], T],
        subject: TenantId | None,
    ) -> tuple[T, Trace, AuditEvent, int]:
        home = call.bearer.tenant
        with self._transaction(home, subject, call.deadline) as connection:
            revision = 1
            if subject is None:
                revision = tenants.bump(connection, home)
                if snapshot.state.revision != revision - 1:
                    # The bump locked out all other writers, so this reads the state as it was before it.
                    state = replace(read_state(connection, home), revision=revision - 1)
                    snapshot = Snapshot(state, self.snapshots.static, time.monotonic())
            elif tenants.revision(connection, home) != snapshot.state.revision:
                snapshot = self.snapshots.load(home, call.started, call.deadline)
            trace = self._admit(call, verb, snapshot, check)
            try:
                if subject is not None and verb is not Verb.CREATE_TENANT:
                    revision = tenants.bump(connection, subject)
                answer = apply(trace, connection, revision)
            except _UNDECIDED:
                raise
            except SubstrateError as error:
                raise _Refused(trace, error) from None
            if call.cancelled:
                raise Cancelled("The caller went away before the change was made.")
            trace.details = {**(trace.details or {}), "revision": revision}
            event = trace.event(self.clock.event_id(), self.server, None)
            audit.append(connection, event)
        return answer, trace, event, revision

    def _admit(self, call: Call, verb: Verb, snapshot: Snapshot, check: Callable[[Trace], None]) -> Trace:
        trace, _, refusal = self._judge(call, verb, snapshot, check)
        if trace is None or refusal is not None:
            raise _Refused(trace, refusal or missing_key())
        return trace

    @contextmanager
    def _transaction(self, home: TenantId, subject: TenantId | None, deadline: float | None) -> Iterator[Transaction]:
        if subject is None:
            with self.database.tenant(home, deadline) as connection:
                yield connection
        else:
            with self.database.operator(deadline) as connection:
                yield connection

    def _judge(
        self, call: Call, verb: Verb, snapshot: Snapshot, judge: Callable[[Trace], T]
    ) -> tuple[Trace | None, T | None, SubstrateError | None]:
        try:
            key = snapshot.state.keys.get(call.bearer.key_id)
            principal = authenticate(call.bearer, key, self.clock.now())
        except Unauthenticated as refusal:
            return None, None, refusal
        trace = Trace(call, verb, snapshot, principal)
        try:
            return trace, judge(trace), None
        except _UNDECIDED:
            raise
        except SubstrateError as refusal:
            return trace, None, refusal

    def _event(self, trace: Trace, refusal: SubstrateError | None) -> AuditEvent | None:
        if isinstance(refusal, _UNRECORDED):
            return None
        return trace.event(self.clock.event_id(), self.server, refusal)

    def _record_refusal(self, call: Call, refused: "_Refused") -> None:
        if refused.trace is None:
            return
        event = self._event(refused.trace, refused.reason)
        if event is not None:
            self._record(call, event, required=self.strict)
            self._note(call, refused.trace, event)

    def _record(self, call: Call, event: AuditEvent, *, required: bool) -> None:
        """Put an event that stands whatever the revision into its tenant's chain."""
        self.writer.settle(Entry(event.tenant, check=False, revision=None, event=event), call, required=required)

    def _note(self, call: Call, trace: Trace | None, event: AuditEvent | None) -> None:
        """Tell the call what it was answered from, and log its resolutions."""
        if trace is None:
            return
        call.catalog = trace.snapshot.token
        call.log.update(
            tenant=trace.principal.tenant,
            actor=trace.principal.actor,
            agent=trace.agent_name or "",
            revision=trace.snapshot.state.revision,
        )
        if event is not None:
            call.decision_id = event.id
            trace.log(event)


class _Refused(Exception):
    """Carries a refusal out of a changing transaction, so that it rolls back."""

    def __init__(self, trace: Trace | None, reason: SubstrateError) -> None:
        super().__init__(reason.message)
        self.trace = trace
        self.reason = reason


def follow_token(trace: Trace, token: str) -> None:
    """Hold the caller's catalog token against the snapshot and note whether the catalog has changed since.

    Raises InvalidPageToken for a malformed token, RevisionUnknown for one of another database, another tenant, or a
    revision that this database has not reached.
    """
    if not token:
        return
    theirs = read_catalog_token(token)
    ours = trace.snapshot.token
    if (theirs.incarnation, theirs.tenant) != (ours.incarnation, ours.tenant) or theirs.revision > ours.revision:
        raise RevisionUnknown("The catalog token is of another database, or of a state this one has not reached.")
    trace.call.catalog_changed = ours.differs_from(theirs)
