"""How every call is decided, recorded and answered.

**Reading calls** decide on the tenant's cached snapshot and put the outcome to the audit writer, which records it only
if the snapshot was still current. A stale call starts again, at authentication, on a snapshot whose load began after
the call arrived; that load is its strong read, and it then waits for its event alone.

**Changing calls** are checked on the cached snapshot first. Then one transaction bumps the catalog revision, which
makes the writers of a tenant take turns, checks again on the state as it is now, changes the rows, and appends the
event last. A change that came with a request id keeps its answer in the same transaction; sent again it passes the
check, changes nothing, and gets that answer. A rehearsal does everything but commit.

**Inside another tenant** an operator may do what a review needs. The key is then proved on the operator's own tenant by
a strong read, and everything else is as if the call were that tenant's.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar, cast

from substrate.domain.audit import AuditEvent, Verb, is_uuid
from substrate.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    QuotaExceeded,
    StoreUnavailable,
    SubstrateError,
)
from substrate.domain.identity import missing_key
from substrate.domain.names import TenantId
from substrate.services.call import Call, Repeat
from substrate.services.judging import UNDECIDED, Judging
from substrate.services.snapshots import Snapshot
from substrate.services.staleness import Reads
from substrate.services.trace import Trace
from substrate.sources.tenant import read_state
from substrate.store import audit, requests, tenants
from substrate.store.chain_writer import Entry, Verdict
from substrate.store.session import Transaction

T = TypeVar("T")

_ASKED_FOR_SECONDS = 1.0


class AnsweredBefore(Exception):
    """The same request was answered before: `answer` holds the bytes of that answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("The request was answered before.")
        self.answer = answer


class Decisions(Judging):
    """Runs decisions: those that read and those that change something."""

    __slots__ = ()

    def settle(
        self,
        call: Call,
        verb: Verb,
        judge: Callable[[Trace], T],
        *,
        required: bool,
        inside: TenantId | None = None,
        reads: Reads | None = None,
    ) -> T:
        """Let `judge` decide on the caller's snapshot; return its answer, or raise its refusal, once it is settled.

        `required` says that an answer must not be given without its event; a refusal never is. `judge` may run twice
        and must change nothing but its trace. `inside` is the tenant that an operator works in; `reads` says how old a
        state the caller accepts.
        """
        tenant = inside or call.bearer.tenant
        keys = self.own_keys(call, inside)
        snapshot = self.snapshots.current(tenant, call.deadline)
        while True:
            fresh = snapshot.began >= call.started
            trace, answer, refusal = self.judged(call, verb, snapshot, judge, keys)
            event = self.event_of(trace, refusal) if trace is not None else None
            own = event if event is not None and event.tenant == tenant else None
            needed = self.strict and event is not None and (required or refusal is not None)
            entry = Entry(tenant, not fresh, snapshot.state.revision, own, snapshot.state.incarnation)
            try:
                verdict = self.writer.settle(entry, call, required=needed)
            except StoreUnavailable:
                if needed or reads is None or not reads.tolerate(snapshot, call) or self._answers(tenant):
                    raise
                self.writer.offer(replace(entry, check=False), call)
                break
            if verdict is Verdict.CURRENT:
                snapshot.confirm(call.started)
                break
            snapshot = self.snapshots.load(tenant, call.started, call.deadline)
        if event is not None and own is None:
            self.record(call, event, required=needed)
        if trace is None:
            self.count_unproven(call, keys or snapshot)
        self.note(call, trace, event)
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
        inside: TenantId | None = None,
        rehearse: bool = False,
    ) -> T:
        """Let `check` admit the call, then `apply` it in one transaction at the new catalog revision it is given.

        `subject` is the tenant that an operator changes, `inside` the one that an operator works in; without them the
        caller changes its own. `check` runs again when the state has moved since. A refusal by either leaves no row
        behind and is recorded. With `rehearse` nothing is changed, and the answer says what would be. Raises
        AnsweredBefore when the same request was answered before.
        """

        def checked(trace: Trace) -> None:
            if call.repeat is not None and not is_uuid(call.repeat.request_id):
                raise InvalidArgument("request_id", "Must be a UUID, such as a random one for each new request.")
            check(trace)

        tenant = inside or call.bearer.tenant
        keys = self.own_keys(call, inside)
        snapshot = self.not_refused(call, verb, checked, tenant, keys)
        writing = _Writing(call, verb, checked, subject, inside, keys, rehearse=rehearse)
        try:
            with self._turn(writing, snapshot, tenant):
                answer, trace, event, revision = self._write(writing, snapshot, apply)
        except _Refused as refused:
            self._record_refusal(call, refused)
            raise refused.reason from None
        except _Unchanged as unchanged:
            return cast("T", self._unchanged(call, unchanged))
        self.snapshots.forget(subject or tenant)
        self.note(call, trace, event)
        if subject is None:
            call.catalog = replace(trace.snapshot.token, revision=revision)
        return answer

    def _answers(self, tenant: TenantId) -> bool:
        """Whether the database can be asked: a chain that is held by somebody is no reason to believe old things."""
        try:
            with self.database.tenant(tenant, time.monotonic() + _ASKED_FOR_SECONDS) as connection:
                tenants.revision(connection, tenant)
        except (StoreUnavailable, DeadlineExceeded):
            return False
        return True

    def authenticate(self, call: Call) -> None:
        """Raise Unauthenticated unless the call's key is valid now; nothing else is decided, so nothing is recorded."""
        self.not_refused(call, Verb.AUTHENTICATE, lambda _: None, call.bearer.tenant, None)

    @contextmanager
    def _turn(self, writing: "_Writing", snapshot: Snapshot, tenant: TenantId) -> Iterator[None]:
        """Hold one of the tenant's places for changes; that there is none is a refusal like any other."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.writers.turn(tenant))
            except QuotaExceeded as error:
                raise _Refused(self._admit(writing, snapshot), error) from None
            yield

    def _write(
        self, writing: "_Writing", snapshot: Snapshot, apply: Callable[[Trace, Transaction, int], T]
    ) -> tuple[T, Trace, AuditEvent, int]:
        call, subject = writing.call, writing.subject
        tenant = writing.inside or call.bearer.tenant
        now = self.clock.now()
        with self._transaction(tenant, subject, call.deadline) as connection:
            revision = 1
            if subject is None:
                revision = self._bump(writing, snapshot, connection, now)
                if not _is_of(snapshot, connection, revision - 1):
                    # The bump locked out all other writers, so this reads the state as it was before it.
                    state = replace(read_state(connection, tenant), revision=revision - 1)
                    snapshot = Snapshot(state, self.snapshots.static, time.monotonic())
            elif not _is_of(snapshot, connection, tenants.revision(connection, tenant)):
                snapshot = self.snapshots.load(tenant, call.started, call.deadline)
            if snapshot.static is not self.snapshots.static:
                # A lock or a review that operators have ordered while the writer waited its turn holds for it too.
                snapshot = Snapshot(snapshot.state, self.snapshots.static, snapshot.began)
            trace = self._admit(writing, snapshot)
            trace.rehearses = writing.rehearse
            repeat = None if writing.rehearse else call.repeat
            with _refusing(trace):
                if subject is not None and writing.verb is not Verb.CREATE_TENANT:
                    revision = tenants.bump(connection, subject)
                    trace.subject = subject
                if repeat is not None:
                    _claim(connection, tenant, repeat, trace, now)
                answer = apply(trace, connection, revision)
            if call.cancelled:
                raise Cancelled("The caller went away before the change was made.")
            if writing.rehearse:
                raise _Unchanged(trace, answer)
            trace.details = {**(trace.details or {}), "revision": revision}
            event = trace.event(self.clock.event_id(), self.server, None)
            if repeat is not None:
                requests.answer(connection, tenant, repeat.request_id, _encoded(call, repeat, answer, trace, event))
            audit.append(connection, event)
        return answer, trace, event, revision

    def _bump(self, writing: "_Writing", snapshot: Snapshot, connection: Transaction, now: datetime) -> int:
        """Advance the revision; a tenant that may not write more at present is refused, which is recorded."""
        tenant = writing.inside or writing.call.bearer.tenant
        try:
            # What operators do inside a tenant is no write of the tenant's.
            return tenants.bump(connection, tenant, now if writing.inside is None else None)
        except QuotaExceeded as error:
            trace = self._admit(writing, snapshot)
            repeat = writing.call.repeat
            if repeat is not None and not writing.rehearse:
                # A change that was made before is answered as it was, however many others there have been since.
                with _refusing(trace):
                    _claim(connection, tenant, repeat, trace, now)
            raise _Refused(trace, error) from None

    def _unchanged(self, call: Call, unchanged: "_Unchanged") -> object:
        """Record a call that changed nothing, since it was made before or is a rehearsal, and answer it."""
        trace, answer = unchanged.trace, unchanged.answer
        if isinstance(answer, AnsweredBefore):
            trace.details = {"repeats": True}
        event = trace.event(self.clock.event_id(), self.server, None)
        self.record(call, event, required=False)
        self.note(call, trace, event)
        if isinstance(answer, AnsweredBefore):
            raise answer
        return answer

    def _admit(self, writing: "_Writing", snapshot: Snapshot) -> Trace:
        trace, _, refusal = self.judged(writing.call, writing.verb, snapshot, writing.check, writing.keys)
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

    def _record_refusal(self, call: Call, refused: "_Refused") -> None:
        if refused.trace is None:
            return
        event = self.event_of(refused.trace, refused.reason)
        if event is not None:
            self.record(call, event, required=self.strict)
            self.note(call, refused.trace, event)


@dataclass(frozen=True, slots=True)
class _Writing:
    """A change as it is handed through."""

    call: Call
    verb: Verb
    check: Callable[[Trace], None]
    subject: TenantId | None
    inside: TenantId | None
    keys: Snapshot | None
    rehearse: bool


class _Refused(Exception):
    """Carries a refusal out of a changing transaction, so that it rolls back."""

    def __init__(self, trace: Trace | None, reason: SubstrateError) -> None:
        super().__init__(reason.message)
        self.trace = trace
        self.reason = reason


class _Unchanged(Exception):
    """Carries an answer out of a changing transaction that must roll back although nothing was refused."""

    def __init__(self, trace: Trace, answer: object) -> None:
        super().__init__("Nothing was changed.")
        self.trace = trace
        self.answer = answer


@contextmanager
def _refusing(trace: Trace) -> Iterator[None]:
    """Turn what a change is refused for into a `_Refused`, which rolls back and is recorded."""
    try:
        yield
    except UNDECIDED:
        raise
    except SubstrateError as error:
        raise _Refused(trace, error) from None


def _is_of(snapshot: Snapshot, connection: Transaction, revision: int | None) -> bool:
    """Whether `snapshot` is the state at `revision` of this database, and not of one that was restored since."""
    return snapshot.state.revision == revision and snapshot.state.incarnation == tenants.incarnation(connection)


def _claim(connection: Transaction, tenant: TenantId, repeat: Repeat, trace: Trace, now: datetime) -> None:
    """Take the request's id for this transaction, or end it with the answer that the request was given before."""
    first = requests.claim(connection, tenant, repeat.request_id, repeat.fingerprint, now)
    if first is not None:
        raise _Unchanged(trace, AnsweredBefore(first))


def _encoded(call: Call, repeat: Repeat, answer: object, trace: Trace, event: AuditEvent) -> bytes:
    """Return the bytes of `answer` as they will be sent once its transaction has committed."""
    call.decision_id = event.id
    call.catalog = replace(trace.snapshot.token, revision=(trace.details or {})["revision"])
    try:
        return repeat.respond(answer)
    finally:
        # Until then the call has no event, should it fail.
        call.decision_id = ""
        call.catalog = None
