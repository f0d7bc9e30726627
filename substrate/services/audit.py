"""What operators and authors ask of the audit: which decisions there were, and which are being made."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from substrate.domain.audit import Verb, hmac_of, is_uuid
from substrate.domain.errors import AuditEventNotFound, InvalidArgument
from substrate.domain.names import TenantId
from substrate.services.access import subject_or_all
from substrate.services.audit_conditions import AuditQuery, filter_of, position_token, read_position
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, fitting, page_limit
from substrate.services.trace import Trace
from substrate.store import audit_log, tenants
from substrate.store.audit import StoredEvent
from substrate.store.audit_log import Filter, Found, Position
from substrate.store.session import Transaction

POLL_SECONDS = 0.2
"""How often a stream looks for new events, and proves its key again."""

TELL_SECONDS = 10.0
"""How long a stream is silent at most; then it sends a position."""

TAIL_BATCH = 500


@dataclass(frozen=True, slots=True)
class Tailed:
    """The next events of a stream, if any, and the position after them."""

    events: Sequence[StoredEvent]
    position: str


class Audit:
    """The use cases of `AuditService`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def query(self, call: Call, asked: AuditQuery, page_size: int, token: str) -> Page[StoredEvent]:
        """Return one page of events, newest first unless asked otherwise; an operator may ask about all tenants."""

        def judge(trace: Trace) -> Page[StoredEvent]:
            scope = subject_or_all(trace, asked.tenant)
            limit = page_limit(page_size)
            wanted = filter_of(trace, asked)
            trace.filter = asked.described()
            incarnation = trace.snapshot.state.incarnation
            bound = ("QueryAuditEvents", scope or "", trace.filter, asked.arguments)
            after = read_position(token, incarnation, *bound, field="page_token")
            with self._reading(scope, call) as connection:
                wanted = _with_arguments(wanted, asked, scope, connection)
                oldest_first = asked.oldest_first
                found = audit_log.query(connection, scope, wanted, after, limit + 1, oldest_first=oldest_first)
            fits = min(limit, fitting(_weight(each.event) for each in found))
            trace.admitted = min(len(found), fits)
            following = position_token(found[fits - 1].position, incarnation, *bound) if len(found) > fits else ""
            return Page([each.event for each in found[:fits]], following)

        return self._decisions.settle(call, Verb.QUERY_AUDIT, judge, required=False)

    def get(self, call: Call, tenant: str, event_id: str) -> StoredEvent:
        """Return the event with this id; an operator need not name its tenant."""

        def judge(trace: Trace) -> StoredEvent:
            scope = subject_or_all(trace, tenant)
            if not is_uuid(event_id):
                raise InvalidArgument("id", "Must be the id of an audit event, a UUID.")
            trace.filter = event_id
            wanted = filter_of(trace, AuditQuery(decision_id=event_id))
            with self._reading(scope, call) as connection:
                found = audit_log.get(connection, scope, wanted)
            if found is None:
                raise AuditEventNotFound(f"There is no audit event '{event_id}'.", id=event_id)
            return found

        return self._decisions.settle(call, Verb.GET_EVENT, judge, required=False)

    def tail(self, call: Call, asked: AuditQuery, position: str) -> Iterator[Tailed]:
        """Yield events as they are written, after `position` or since `asked.since`, else from now on.

        The first is a position alone, and another one follows whenever there has been nothing for a while. It ends
        with an error alone: when the caller goes away, and when its key or its tenant is no longer good.
        """

        def judge(trace: Trace) -> _Followed:
            scope = subject_or_all(trace, asked.tenant)
            wanted = filter_of(trace, asked)
            trace.filter = asked.described()
            incarnation = trace.snapshot.state.incarnation
            # Where a stream begins is no condition: it goes on elsewhere.
            conditions = replace(asked, tenant="", since=None)
            bound = ("TailAuditEvents", scope or "", conditions.described(), asked.arguments)
            start = read_position(position, incarnation, *bound, field="position")
            with self._reading(scope, call) as connection:
                wanted = _with_arguments(wanted, asked, scope, connection)
                if start is None and asked.since is not None:
                    start = audit_log.before(connection, scope, asked.since)
                elif start is None:
                    start = audit_log.newest(connection, scope)
            return _Followed(scope, wanted, start, incarnation, bound)

        followed = self._decisions.settle(call, Verb.TAIL_AUDIT, judge, required=False)
        at = followed.start
        yield Tailed((), followed.token(at))
        told = time.monotonic()
        while True:
            self._decisions.prove_again(call, followed.incarnation)
            with self._reading(followed.scope, call) as connection:
                found, at = audit_log.grown(connection, followed.scope, followed.wanted, at, TAIL_BATCH)
            for fitting_ones, position_after in _messages(found, at):
                yield Tailed(fitting_ones, followed.token(position_after))
            if found or time.monotonic() - told >= TELL_SECONDS:
                if not found:
                    yield Tailed((), followed.token(at))
                told = time.monotonic()
            if len(found) < TAIL_BATCH:
                call.pause(POLL_SECONDS)

    @contextmanager
    def _reading(self, scope: TenantId | None, call: Call) -> Iterator[Transaction]:
        """Open a transaction that sees the tenant, or all for None; raise TenantNotFound."""
        database = self._decisions.database
        if scope is None:
            with database.operator(call.deadline) as connection:
                yield connection
            return
        # Reading a tenant's events takes the same role, and the same policy, whoever asks.
        with database.tenant(scope, call.deadline) as connection:
            if tenants.revision(connection, scope) is None:
                raise tenants.no_tenant(scope)
            yield connection


@dataclass(frozen=True, slots=True)
class _Followed:
    """What a stream follows, from where, in which database; `bound` is what its positions are bound to."""

    scope: TenantId | None
    wanted: Filter
    start: Position
    incarnation: str
    bound: tuple[object, ...]

    def token(self, position: Position) -> str:
        """Return the token for `position`."""
        return position_token(position, self.incarnation, *self.bound)


def _messages(found: Sequence[Found], end: Position) -> Iterator[tuple[Sequence[StoredEvent], Position]]:
    """Yield what was found in portions that fit a message, each with the position after it, the last with `end`."""
    left = list(found)
    while left:
        count = fitting(_weight(each.event) for each in left)
        portion, left = left[:count], left[count:]
        yield [each.event for each in portion], portion[-1].position if left else end


def _with_arguments(wanted: Filter, asked: AuditQuery, scope: TenantId | None, connection: Transaction) -> Filter:
    """Return the filter with the arguments that are asked for, as their tenant's events have them."""
    if not asked.arguments:
        return wanted
    tenant = None if scope is None else tenants.get(connection, scope)
    if tenant is None:
        raise InvalidArgument("arguments", "Name the tenant too: arguments are compared under a key of the tenant.")
    return replace(wanted, arguments_hmac=hmac_of(tenant.arguments_key, asked.arguments))


def _weight(event: StoredEvent) -> int:
    # The text travels once as it is and once as fields.
    return 2 * len(event.event) + 512
