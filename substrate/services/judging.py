"""What reading and changing calls share: the key is proved, the call judged on a snapshot, the decision recorded."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

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
from substrate.domain.identity import authenticate, suspended
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.services.audit_writer import AuditWriter
from substrate.services.call import Call, Clock
from substrate.services.snapshots import Snapshot, Snapshots
from substrate.services.trace import Trace
from substrate.services.writers import Writers
from substrate.store import tenants
from substrate.store.chain_writer import Entry, Verdict
from substrate.store.session import Database

T = TypeVar("T")

UNDECIDED = (StoreUnavailable, DeadlineExceeded, Cancelled)
"""These say nothing about what the caller may do, so there is no decision to record."""

_UNRECORDED = (Unauthenticated, InvalidInput)


@dataclass(frozen=True, slots=True)
class Judging:
    """The parts of a process that decide and record.

    `server` names this process in events. `strict` says that an answer which must have its event waits for it; without
    it (best effort) every answer may be given when the event cannot be written. `strict_lists` says that lists and
    prepared runs wait for theirs too. `resolved` hears of every decision on a single name: how it ended, and the layer
    of the winner or an empty text.
    """

    snapshots: Snapshots
    writer: AuditWriter
    database: Database
    clock: Clock
    server: str
    writers: Writers
    resolved: Callable[[str, str], None]
    strict: bool = True
    strict_lists: bool = False

    def own_keys(self, call: Call, inside: TenantId | None) -> Snapshot | None:
        """Return a strong read of the caller's own tenant, for who works inside another."""
        if inside is None:
            return None
        home = call.bearer.tenant
        known = self.snapshots.current(home, call.deadline)
        key = known.state.keys.get(call.bearer.key_id)
        if key is None or not key.admits(call.bearer.secret, self.clock.now()):
            # What proves nothing costs a look at the revision, not a load.
            entry = Entry(home, known.began < call.started, known.state.revision, None, known.state.incarnation)
            if self.writer.settle(entry, call, required=False) is Verdict.CURRENT:
                return known
        return self.snapshots.load(home, call.started, call.deadline)

    def not_refused(
        self, call: Call, verb: Verb, check: Callable[[Trace], None], tenant: TenantId, keys: Snapshot | None
    ) -> Snapshot:
        """Return a snapshot on which `check` admits the call; a refusal is recorded, if it stands, and raised.

        It stands when the snapshot it was given on is still current; else the check is repeated on a newer one. So a
        call that proves nothing costs a look at the revision, not a load.
        """
        snapshot = self.snapshots.current(tenant, call.deadline)
        while True:
            fresh = snapshot.began >= call.started
            trace, _, refusal = self.judged(call, verb, snapshot, check, keys)
            if refusal is None and (verb is not Verb.AUTHENTICATE or fresh):
                return snapshot
            event = self.event_of(trace, refusal) if trace is not None and refusal is not None else None
            own = event if event is not None and event.tenant == tenant else None
            state = snapshot.state
            entry = Entry(tenant, not fresh, state.revision, own, state.incarnation)
            verdict = self.writer.settle(entry, call, required=self.strict and event is not None)
            if verdict is Verdict.CURRENT:
                break
            snapshot = self.snapshots.load(tenant, call.started, call.deadline)
        if refusal is None:
            return snapshot
        if trace is None:
            self.count_unproven(call, keys or snapshot)
        if event is not None and own is None:
            self.record(call, event, required=self.strict)
        self.note(call, trace, event)
        raise refusal

    def prove_again(self, call: Call, incarnation: str) -> None:
        """Prove the key of a call that stays open on the state as it is now.

        Raises what refuses it, which is then recorded as for a new call, and RevisionUnknown when the database is not
        the one of this `incarnation` any more.
        """
        home = call.bearer.tenant
        known = self.snapshots.current(home, call.deadline).state
        with self.database.tenant(home, call.deadline) as connection:
            if tenants.incarnation(connection) != incarnation:
                raise RevisionUnknown("The database is another one than before; start again.")
            is_current = tenants.revision(connection, home) == known.revision
        key = known.keys.get(call.bearer.key_id)
        proven = key is not None and key.admits(call.bearer.secret, self.clock.now()) and known.suspended is None
        if not (is_current and proven and known.incarnation == incarnation):
            again = replace(call, started=time.monotonic())
            self.not_refused(again, Verb.AUTHENTICATE, lambda _: None, home, None)

    def judged(
        self, call: Call, verb: Verb, snapshot: Snapshot, judge: Callable[[Trace], T], keys: Snapshot | None
    ) -> tuple[Trace | None, T | None, SubstrateError | None]:
        """Prove the key on `keys`, or on the snapshot itself, and let `judge` decide on the snapshot."""
        own = (keys or snapshot).state
        try:
            principal = authenticate(call.bearer, own.keys.get(call.bearer.key_id), self.clock.now())
        except Unauthenticated as refusal:
            return None, None, refusal
        trace = Trace(call, verb, snapshot, principal)
        call.log.update(tenant=principal.tenant, actor=principal.actor)
        if keys is not None and snapshot.state.revision is not None:
            trace.subject = snapshot.state.tenant
        if own.suspended is not None:
            return trace, None, suspended(own.tenant, own.suspended)
        try:
            return trace, judge(trace), None
        except UNDECIDED:
            raise
        except SubstrateError as refusal:
            return trace, None, refusal
        finally:
            # Also for a call that ends without a decision, since the database or the audit is away.
            if trace.agent_name is not None:
                call.log["agent"] = trace.agent_name

    def count_unproven(self, call: Call, proved_on: Snapshot) -> None:
        """Count a call whose key proved nothing: its tenant's, or the platform's when there is no such tenant."""
        exists = proved_on.state.revision is not None
        self.writer.unproven(proved_on.state.tenant if exists else PLATFORM_TENANT, call.bearer.key_id)

    def event_of(self, trace: Trace, refusal: SubstrateError | None) -> AuditEvent | None:
        """Return the audit event of a decision; malformed input is none."""
        if isinstance(refusal, _UNRECORDED):
            return None
        return trace.event(self.clock.event_id(), self.server, refusal)

    def record(self, call: Call, event: AuditEvent, *, required: bool) -> None:
        """Put an event that stands whatever the revision into its tenant's chain."""
        self.writer.settle(Entry(event.tenant, check=False, revision=None, event=event), call, required=required)

    def note(self, call: Call, trace: Trace | None, event: AuditEvent | None) -> None:
        """Tell the call what it was answered from, and log its resolutions."""
        if trace is None:
            return
        call.catalog = trace.snapshot.token
        call.log["revision"] = trace.snapshot.state.revision
        if event is not None:
            call.decision_id = event.id
            trace.log(event)
        if trace.resolution is not None:
            winner = trace.resolution.winner
            self.resolved(trace.resolution.outcome.value, winner.kind.value if winner else "")
        elif trace.decision is not None and not trace.decision.allowed:
            self.resolved("DENIED", "")
