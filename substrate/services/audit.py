"""What operators and authors ask of the audit: which decisions there were, and why a name resolves as it does."""

import json
from dataclasses import dataclass
from datetime import datetime

from substrate.domain.audit import EventOutcome, Verb, is_uuid
from substrate.domain.errors import InvalidArgument, InvalidPageToken, RoleRequired
from substrate.domain.explain import Explanation, explain
from substrate.domain.names import TenantId, parse_agent_name, parse_skill_ref
from substrate.domain.patterns import parse_query_pattern
from substrate.domain.tokens import read_page_token
from substrate.services.access import acting_agent, gate, subject_of
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, cut, page_limit
from substrate.services.snapshots import Snapshot
from substrate.services.trace import Trace
from substrate.sources.tenant import TenantSource
from substrate.store import audit
from substrate.store.audit import Filter, StoredEvent
from substrate.store.tenants import no_tenant, revision

MAX_CALL_ID_LENGTH = 128
MAX_SEQUENCE_DIGITS = 18
"""Digits that a position in the log can have: one fewer than the database's largest number has."""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """What a caller asks for; empty fields ask for nothing."""

    tenant: str = ""
    agent: str = ""
    pattern: str = ""
    verb: str = ""
    outcome: EventOutcome | None = None
    decision_id: str = ""
    call_id: str = ""
    since: datetime | None = None
    until: datetime | None = None
    oldest_first: bool = False


class Audit:
    """The use cases of `AuditService`."""

    def __init__(self, decisions: Decisions, source: TenantSource) -> None:
        self._decisions = decisions
        self._source = source

    def query(self, call: Call, asked: AuditQuery, page_size: int, token: str) -> Page[StoredEvent]:
        """Return one page of a tenant's events, newest first unless asked otherwise."""

        def judge(trace: Trace) -> Page[StoredEvent]:
            tenant = subject_of(trace, asked.tenant)
            limit = page_limit(page_size)
            wanted = _filter(trace, asked)
            trace.filter = _described(asked)
            bound = ("QueryAuditEvents", tenant, trace.filter)
            after = read_page_token(token, *bound)
            if after and not (after.isdigit() and len(after) <= MAX_SEQUENCE_DIGITS):
                raise InvalidPageToken("page_token", "The page token was not issued by this server; start again.")
            # Reading a tenant's events takes the same role, and the same policy, whoever asks.
            with self._decisions.database.tenant(tenant, call.deadline) as connection:
                if revision(connection, tenant) is None:
                    raise no_tenant(tenant)
                found = audit.query(
                    connection,
                    tenant,
                    wanted,
                    int(after) if after else None,
                    limit + 1,
                    oldest_first=asked.oldest_first,
                )
            trace.admitted = min(len(found), limit)
            return cut(found, limit, lambda event: str(event.sequence), *bound, weight=_weight)

        return self._decisions.settle(call, Verb.QUERY_AUDIT, judge, required=False)

    def explain(self, call: Call, tenant: str, name: str, agent: str) -> Explanation:
        """Explain what `name` resolves to now, and, with an `agent`, what its allowlist says of it."""

        def judge(trace: Trace) -> Explanation:
            subject = subject_of(trace, tenant)
            ref = parse_skill_ref(name)
            trace.requested = name
            trace.name = ref.name
            snapshot = trace.snapshot
            if subject != trace.principal.tenant:
                snapshot = self._decisions.snapshots.load(subject, call.started, call.deadline)
                if snapshot.state.revision is None:
                    raise no_tenant(subject)
            trace.snapshot = snapshot
            if trace.principal.agent is not None:
                # An agent that authors sees no more of a name than it may use of it.
                acting_agent(trace, agent)
                gate(trace, ref.name)
            acting = snapshot.agent(parse_agent_name(agent)) if agent else trace.agent
            trace.agent_name = acting.name if acting else None
            if ref.qualifier is None:
                resolution = snapshot.catalog.resolve_for(ref.name, acting.pins if acting else {})
            else:
                drafts = acting is not None and snapshot.catalog.pins_to(ref, acting.pins)
                resolution = self._source.resolve(snapshot.catalog, subject, ref, call.deadline, drafts=drafts)
            trace.resolution = resolution
            explanation = explain(resolution, snapshot.catalog.mode_of(ref.name), acting, _state(snapshot, subject))
            trace.decision = explanation.decision
            return explanation

        return self._decisions.settle(call, Verb.EXPLAIN, judge, required=False)


def _weight(event: StoredEvent) -> int:
    # The text travels once as it is and once as fields.
    return 2 * len(event.event) + 512


def _filter(trace: Trace, asked: AuditQuery) -> Filter:
    if asked.verb and asked.verb not in {verb.value for verb in Verb}:
        raise InvalidArgument("verb", f"Unknown verb; the verbs are {', '.join(verb.value for verb in Verb)}.")
    if asked.decision_id and not is_uuid(asked.decision_id):
        raise InvalidArgument("decision_id", "Must be the id of an audit event, a UUID.")
    if len(asked.call_id) > MAX_CALL_ID_LENGTH or "\0" in asked.call_id:
        raise InvalidArgument("call_id", f"Must be at most {MAX_CALL_ID_LENGTH} characters.")
    if asked.since and asked.until and asked.since >= asked.until:
        raise InvalidArgument("until", "Must be later than `since`.")
    bound = trace.principal.agent
    if bound is not None and asked.agent not in ("", bound):
        raise RoleRequired(f"This key is bound to the agent '{bound}' and sees no other's events.", agent=bound)
    return Filter(
        agent=bound or (parse_agent_name(asked.agent) if asked.agent else ""),
        pattern=parse_query_pattern(asked.pattern),
        verb=asked.verb,
        outcome=asked.outcome.value if asked.outcome else "",
        event_id=asked.decision_id,
        call_id=asked.call_id,
        as_agent=trace.principal.actor if bound else "",
        since=asked.since,
        until=asked.until,
    )


def _described(asked: AuditQuery) -> str:
    """Return what was asked as text: for the event, and for the page token to be bound to."""
    asked_for = {name: getattr(asked, name) for name in asked.__slots__ if getattr(asked, name)}
    return json.dumps(asked_for, default=lambda value: getattr(value, "value", None) or str(value))


def _state(snapshot: Snapshot, tenant: TenantId) -> str:
    return (
        f"tenant '{tenant}' at catalog revision {snapshot.state.revision}, static state {snapshot.static.digest[:12]}"
    )
