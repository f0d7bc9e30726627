"""The use case of `ExplainResolution`: why a name stands for what it does, did, or would after a change."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from substrate.domain.audit import Verb, chain_hash, is_uuid
from substrate.domain.changed import changed_since
from substrate.domain.changes import Change, ChangeKind, apply_all
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import AgentNotFound, AuditEventNotFound, InvalidArgument, InvalidName
from substrate.domain.explain import Explanation, explain
from substrate.domain.explain_text import text_of
from substrate.domain.flips import flips
from substrate.domain.names import AgentName, SkillName, SkillRef, TenantId, parse_agent_name, parse_skill_ref
from substrate.domain.question import Answer, Question, answer
from substrate.domain.recorded import Event, whole
from substrate.domain.replay import (
    DECIDED,
    GATED,
    decided_reason,
    is_decided,
    is_denied,
    made_again,
    versions_of,
)
from substrate.services.access import acting_agent, gate, subject_of, subject_or_all
from substrate.services.audit_conditions import AuditQuery, filter_of
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.present import Present, read_kept, read_present
from substrate.services.run import check_touched
from substrate.services.trace import Trace
from substrate.store import audit_log
from substrate.store.audit import StoredEvent
from substrate.store.tenants import no_tenant, revision

_OF_ONE_SKILL = {verb.value for verb in (*DECIDED, *GATED)}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be explained: a name, now or after `changes`, or the `recorded` event with this id."""

    tenant: str = ""
    name: str = ""
    agent: str = ""
    recorded: str = ""
    changes: Sequence[Change] = ()
    caller_kind: CallerKind = CallerKind.MODEL
    names_caller_kind: bool = False
    touched_paths: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded event, what keeps its decision from being the same again, and what has changed since."""

    event: StoredEvent
    problems: Sequence[str]
    changed_since: Sequence[str]


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation with its text; `replay` is there for a recorded event."""

    explanation: Explanation
    text: str
    replay: Replay | None = None


class Explain:
    """Explains decisions."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def explain(self, call: Call, asked: Asked) -> Explained:
        """Explain what is asked for."""

        def judge(trace: Trace) -> Explained:
            return self._recorded(trace, asked) if asked.recorded else self._now(trace, asked)

        return self._decisions.settle(call, Verb.EXPLAIN, judge, required=False)

    def _now(self, trace: Trace, asked: Asked) -> Explained:
        subject = subject_of(trace, asked.tenant)
        ref = parse_skill_ref(asked.name)
        trace.requested, trace.name = asked.name, ref.name
        trace.caller_kind = asked.caller_kind.value
        trace.touched = len(asked.touched_paths) or None
        check_touched(asked.touched_paths)
        if trace.principal.agent is not None:
            # An agent that authors sees no more of a name than it may use of it.
            acting_agent(trace, asked.agent)
            gate(trace, ref.name)
        named = parse_agent_name(asked.agent) if asked.agent else trace.principal.agent
        present = read_present(self._decisions, trace.call, subject, ref.name, _numbers(ref, asked.changes))
        trace.snapshot = present.snapshot
        trace.agent_name = named
        agent = None if named is None else present.snapshot.agent(named)
        question = present.question(ref, agent, asked.caller_kind, asked.touched_paths, drafts=False)
        decided = answer(question)
        trace.decision, trace.resolution = decided.decision, decided.resolution
        above: tuple[str, ...] = ()
        if asked.changes:
            # The event keeps what is so; what is supposed is no decision.
            supposed = [change.kind.value.lower() for change in asked.changes]
            trace.details = {**(trace.details or {}), "supposed": supposed}
            question = apply_all(question, asked.changes)
            today, decided = decided, answer(question)
            above = (f"Supposing: {', '.join(map(_supposed, asked.changes))}. {_today(today, decided)}",)
        told = explain(
            question,
            decided,
            state=_state(subject, present.snapshot.state.revision, present.snapshot.static.digest),
            provenance=present.provenance(),
            differences=present.differences(decided.resolution),
            flips=flips(question, decided),
        )
        this = "that again" if asked.changes else "this"
        return Explained(told, text_of(told, above, this=this, foreign=subject != trace.principal.tenant))

    def _recorded(self, trace: Trace, asked: Asked) -> Explained:
        _require_alone(asked)
        scope = subject_or_all(trace, asked.tenant)
        stored = self._event(trace, scope, asked.recorded)
        subject = stored.tenant
        event = _undamaged(stored)
        trace.details = {**(trace.details or {}), "recorded": event["id"]}
        _require_of_one_skill(event)
        name = SkillName(event["name"])
        trace.requested, trace.name = event.get("requested", ""), name
        if trace.principal.agent is not None:
            acting_agent(trace, "")
            gate(trace, name)
        present = read_present(self._decisions, trace.call, subject, name, versions_of(event))
        trace.snapshot = present.snapshot
        trace.agent_name = AgentName(event["agent"]) if event.get("agent") else None
        kept = read_kept(self._decisions.database, trace.call, event, present)
        question, decided, problems = made_again(event, kept)
        forged: tuple[str, ...] = ()
        if chain_hash(stored.previous_hash, stored.sequence, stored.event) != stored.hash:
            forged = ("The event itself is not what was written; verify the audit of its tenant.",)
            problems.insert(0, forged[0])
        now = _now_question(present, question, trace.agent_name)
        present_answer = answer(now)
        trace.resolution = present_answer.resolution
        changes = changed_since(event, kept, now, present_answer)
        told = explain(
            question,
            decided,
            state=_state(subject, event.get("revision"), event.get("static_digest", "")),
            provenance=present.provenance(event),
            differences=present.differences(decided.resolution),
            flips=flips(now, present_answer),
            looked_up=not is_denied(event),
        )
        foreign = subject != trace.principal.tenant
        below = _below(event, problems, changes)
        text = text_of(told, (*forged, *_above(event)), below, this="the answer now", foreign=foreign)
        return Explained(told, text, Replay(stored, problems, changes))

    def _event(self, trace: Trace, scope: TenantId | None, event_id: str) -> StoredEvent:
        if not is_uuid(event_id):
            raise InvalidArgument("recorded", "Must be the id of an audit event, a UUID.")
        wanted = filter_of(trace, AuditQuery(decision_id=event_id))
        database, deadline = self._decisions.database, trace.call.deadline
        if scope is None:
            with database.operator(deadline) as connection:
                found = audit_log.get(connection, None, wanted)
        else:
            with database.tenant(scope, deadline) as connection:
                if revision(connection, scope) is None:
                    raise no_tenant(scope)
                found = audit_log.get(connection, scope, wanted)
        if found is None:
            raise AuditEventNotFound(f"There is no audit event '{event_id}'.", id=event_id)
        return found


def _numbers(ref: SkillRef, changes: Iterable[Change]) -> list[int]:
    """Return the versions that the question can come to be about."""
    refs = [ref]
    for change in changes:
        if change.kind is ChangeKind.QUALIFY:
            # One that is none is refused by its name when it is applied.
            with suppress(InvalidName):
                refs.append(parse_skill_ref(f"{ref.name}@{change.qualifier}"))
    asked = [found.qualifier.version for found in refs if found.qualifier and found.qualifier.version]
    return asked + [change.version for change in changes if change.kind is ChangeKind.PROMOTE and change.version > 0]


def _require_alone(asked: Asked) -> None:
    for field, given in (
        ("name", asked.name),
        ("agent", asked.agent),
        ("changes", asked.changes),
        ("caller_kind", asked.names_caller_kind),
        ("touched_paths", asked.touched_paths),
    ):
        if given:
            raise InvalidArgument(field, "Leave it empty with `recorded`: the event says it.")


def _undamaged(stored: StoredEvent) -> Event:
    event = whole(stored.event, stored.tenant)
    if event is None:
        raise InvalidArgument(
            "recorded",
            f"The event, number {stored.sequence} of tenant '{stored.tenant}', was damaged, so that nothing follows "
            "from it. GetAuditEvent shows what can be read of it; verify the audit of its tenant.",
        )
    return event


def _require_of_one_skill(event: Event) -> None:
    if event["verb"] not in _OF_ONE_SKILL:
        raise InvalidArgument(
            "recorded",
            f"The event records the verb '{event['verb']}', which decides about no single skill; there is nothing to "
            "make again. GetAuditEvent shows what it holds.",
        )
    if not event.get("name"):
        reason = event.get("reason") or event["outcome"]
        raise InvalidArgument(
            "recorded", f"The call ended as {reason} before a skill's name was looked at; that is all of its decision."
        )


def _now_question(present: Present, then: Question, agent_name: AgentName | None) -> Question:
    agent = None
    if agent_name is not None:
        try:
            agent = present.snapshot.agent(agent_name)
        except AgentNotFound:
            agent = None
    return present.question(then.ref, agent, then.caller_kind, then.touched_paths, drafts=then.drafts)


def _above(event: Event) -> tuple[str, ...]:
    ended = "was answered" if event["outcome"] == "ALLOWED" else f"ended as {event.get('reason') or event['outcome']}"
    at = datetime.fromisoformat(event["time"]).astimezone(UTC)
    actor = event.get("actor", "nobody known")
    lines = [f"Event {event['id']}: '{event['verb']}' by {actor} at {at:%Y-%m-%dT%H:%M:%SZ} {ended}."]
    if not is_decided(event):
        lines.append(
            "It is an author's call: the allowlist decided whether it was let in, and the event records what it found "
            "or changed:"
        )
    elif event.get("reason") and event["outcome"] != "CANCELLED" and not decided_reason(event):
        lines.append(f"The skill was reached; what came later ({event['reason']}) is no part of the decision.")
    return tuple(lines)


def _below(event: Event, problems: Sequence[str], changes: Sequence[str]) -> tuple[str, ...]:
    if problems:
        lines = ["", "It cannot be shown to follow from what was kept:", *(f"  - {problem}" for problem in problems)]
    else:
        what = "decision" if is_decided(event) else "allowlist's decision"
        lines = ["", f"Made again from the inputs that were kept, the {what} is the one that was recorded."]
    since = [f"  - {change}" for change in changes] or ["  nothing that matters to it."]
    return (*lines, "", "Changed since:", *since)


def _today(today: Answer, decided: Answer) -> str:
    """Say what the answer is without what is supposed."""
    if (today.served, today.reason) == (decided.served, decided.reason):
        return "It makes no difference: the answer is what it is now."
    winner = today.resolution.winner
    return (
        f"As things are it is refused ({today.reason})."
        if today.reason or winner is None
        else (f"As things are it gives {winner.origin}.")
    )


def _state(tenant: TenantId, at: int | None, digest: str) -> str:
    return f"tenant '{tenant}' at catalog revision {at}, static state {digest[:12]}"


def _supposed(change: Change) -> str:
    word = change.kind.value.lower().replace("_", " ")
    match change.kind:
        case ChangeKind.SET_ALLOWLIST:
            return f"{word} to [{', '.join(change.entries)}]"
        case ChangeKind.ADD_ENTRY:
            return f"{word} '{change.entry}' at {change.index}"
        case ChangeKind.PROMOTE:
            return f"{word} v{change.version}"
        case ChangeKind.QUALIFY:
            return f"{word} as '@{change.qualifier}'"
        case _:
            return word
