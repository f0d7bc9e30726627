"""A recorded decision, made again from what its event holds and from the inputs that were kept by digest.

The event says which candidates there were and what became of each; the agent and the static layers are read from their
kept texts, headers of the tenant's versions from their rows, which never change. What a label meant is not kept beside
the event: it is the version that the event shows to have been looked at for the pin. Nothing that is missing is
guessed; it is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from substrate.domain.agents import Agent
from substrate.domain.audit import DecidingEntry, Verb, candidate_fields
from substrate.domain.candidates import Candidate, CandidateState, LayerKind, Outcome, Resolution, Ruling, Standing
from substrate.domain.candidates import Versions as KnownVersions
from substrate.domain.catalog import StaticCatalog
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import (
    InvocationNotAllowed,
    SkillIneligible,
    SkillNotFound,
    SkillNotPermitted,
    SkillQuarantined,
    SubstrateError,
    ToolsExceedAgent,
    VersionNotFound,
)
from substrate.domain.names import SkillName, SkillRef, TenantId, parse_skill_ref
from substrate.domain.question import Answer, Question, answer
from substrate.domain.recorded import Event

DECIDED = (Verb.INVOKE, Verb.READ_FILE)
"""The verbs that ask for what a name stands for, and are decided whole by gate, resolution and eligibility."""

GATED = (
    *(Verb.CREATE, Verb.FORK, Verb.PROMOTE, Verb.RETIRE, Verb.UNRETIRE, Verb.DISABLE, Verb.ENABLE, Verb.SET_LABEL),
    *(Verb.GET, Verb.LIST_VERSIONS, Verb.DIFF, Verb.VERIFY, Verb.EXPORT),
)
"""The verbs of authors about one name, of which the allowlist alone decides."""

_OF_DECISIONS = {
    error.reason
    for error in (
        *(SkillNotPermitted, SkillNotFound, VersionNotFound, SkillQuarantined),
        *(ToolsExceedAgent, InvocationNotAllowed, SkillIneligible),
    )
}
_STANDINGS = {
    CandidateState.WON: Standing.ACTIVE,
    CandidateState.SHADOWED: Standing.ACTIVE,
    CandidateState.DRAFT: Standing.DRAFT,
    CandidateState.RETIRED: Standing.RETIRED,
    CandidateState.DISABLED: Standing.DISABLED,
    CandidateState.QUARANTINED: Standing.QUARANTINED,
}
_OUTCOMES = {
    CandidateState.DISABLED: Outcome.DISABLED,
    CandidateState.QUARANTINED: Outcome.QUARANTINED,
    CandidateState.SUPPRESSED_BY_LOCK: Outcome.LOCKED,
    CandidateState.RETIRED: Outcome.RETIRED,
    CandidateState.DRAFT: Outcome.DRAFT,
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What is still there of what an event's decision was made from.

    `stored` are the versions that the event names, as they are stored now, by number. `problems` says what is missing
    or is not what it was.
    """

    agent: Agent | None = None
    static: StaticCatalog | None = None
    stored: Mapping[int, Candidate] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def is_denied(event: Event) -> bool:
    """Whether the allowlist refused the name, so that nothing was looked up."""
    return bool(event.get("decision") and not event["decision"]["allowed"])


def is_decided(event: Event) -> bool:
    """Whether the event is of a call that asked for what a name stands for."""
    return event["verb"] in {verb.value for verb in DECIDED}


def decides_layers(event: Event) -> bool:
    """Whether what the layers say, and who calls, was part of the decision."""
    return is_decided(event) and not is_denied(event)


def reference_of(event: Event) -> SkillRef:
    """Return the reference that was decided on."""
    return parse_skill_ref(event["requested"]) if is_decided(event) else SkillRef(SkillName(event["name"]))


def versions_of(event: Event) -> list[int]:
    """Return the numbers of the tenant's versions that the event names."""
    return sorted({fields["version"] for fields in event.get("candidates", ()) if fields["version"] is not None})


def made_again(event: Event, kept: Kept) -> tuple[Question, Answer, list[str]]:
    """Make a recorded decision again, and say in sentences what keeps it from being the one that was recorded.

    Where something does, the answer is what the event tells of it.
    """
    question, problems = question_of(event, kept)
    told = _recorded(event)
    if problems:
        return question, told, problems
    again = answer(question)
    problems = contradictions(event, again)
    if problems:
        return question, told, problems
    if not is_decided(event):
        return question, told, []
    # What the layers hold nobody looked at when the allowlist refused; and what came later was no part of it.
    resolution = told.resolution if is_denied(event) else again.resolution
    refusal = again.refusal if decided_reason(event) or again.refusal else _refusal_of(event)
    return question, Answer(again.decision, resolution, refusal), []


def question_of(event: Event, kept: Kept) -> tuple[Question, list[str]]:
    """Return the question that the event answers, and what keeps it from being whole."""
    problems = list(kept.problems)
    ref = reference_of(event)
    question = Question(
        TenantId(event["tenant"]),
        ref,
        kept.agent,
        static=kept.static or StaticCatalog(),
        touched_paths=tuple(filter(None, [event.get("touched_path")])),
        drafts=event.get("drafts", False),
    )
    if not decides_layers(event):
        return question, problems
    if "caller_kind" in event:
        question = replace(question, caller_kind=CallerKind(event["caller_kind"]))
    else:
        problems.append("On whose initiative the call was made was not recorded.")
    own = [
        _stored(ref.name, fields, kept, problems) for fields in event.get("candidates", ()) if _is_own(fields["layer"])
    ]
    tombstone, skill_def, picked = _parts(own)
    candidates = {(ref.name, c.version): c for c in (skill_def, picked) if c is not None and c.version is not None}
    return (
        replace(
            question,
            tombstone=tombstone.candidate if tombstone else None,
            skill_def=skill_def.candidate if skill_def else None,
            versions=KnownVersions(
                {key: found.candidate for key, found in candidates.items()}, _labels(event, skill_def, picked)
            ),
        ),
        problems,
    )


@dataclass(frozen=True, slots=True)
class _Own:
    """A candidate of the tenant's with the state that was recorded."""

    candidate: Candidate
    state: CandidateState

    @property
    def version(self) -> int | None:
        return self.candidate.version


def _stored(name: SkillName, fields: Mapping[str, Any], kept: Kept, problems: list[str]) -> _Own:
    state = CandidateState(fields["state"])
    recorded = _candidate(name, fields)
    number = recorded.version
    if number is None:
        return _Own(recorded, state)
    stored = kept.stored.get(number)
    if stored is None:
        problems.append(f"Version {number} of '{name}' is not stored any more.")
        return _Own(recorded, state)
    # Beneath a lock nobody looks at how a candidate stands.
    corrupt = stored.standing is Standing.QUARANTINED and state is not CandidateState.SUPPRESSED_BY_LOCK
    if stored.content_sha256 != recorded.content_sha256 or (corrupt and recorded.standing is not Standing.QUARANTINED):
        problems.append(f"Version {number} of '{name}' is not what was recorded: its row has been altered.")
        return _Own(recorded, state)
    return _Own(replace(stored, standing=recorded.standing), state)


def _parts(own: Sequence[_Own]) -> tuple[_Own | None, _Own | None, _Own | None]:
    """Return the tombstone, the SkillDef and the version that was looked at beside it.

    A version beside it is looked at only where neither a tombstone nor a lock nor a retirement is in its way.
    """
    if not own:
        return None, None, None
    first, second = own[0], own[1] if len(own) > 1 else None
    if first.state is CandidateState.DISABLED or (first.state is CandidateState.SUPPRESSED_BY_LOCK and second):
        return first, second, None
    return None, first, second


def _labels(event: Event, skill_def: _Own | None, picked: _Own | None) -> dict[SkillName, dict[str, int]]:
    """Return what the pin's label meant: the version looked at for it, which may be the one in effect."""
    pin, winner = event.get("pin", ""), event.get("winner")
    if not pin or (pin[0] == "v" and pin[1:].isdigit()):
        return {}
    won = winner is not None and skill_def is not None and winner["version"] == skill_def.version
    meant = picked or (skill_def if won else None)
    return {} if meant is None or meant.version is None else {SkillName(event["name"]): {pin: meant.version}}


def contradictions(event: Event, again: Answer) -> list[str]:
    """Return in which ways the decision made again is not the one that was recorded."""
    found = []
    recorded = _decision(event)
    if again.decision != recorded:
        found.append(f"The kept allowlist decides {_words(again.decision)}; recorded was {_words(recorded)}.")
    if is_decided(event) and is_denied(event) and event.get("reason") not in (again.reason, "CANCELLED"):
        found.append(f"The decision made again ends as {again.reason or 'allowed'}.")
    if not decides_layers(event):
        return found
    candidates, winner = candidate_fields(again.resolution)
    if candidates != list(event.get("candidates", ())):
        found.append("The candidates, or what became of them, are not those that were recorded.")
    if winner != event.get("winner"):
        found.append(f"The winner is {_origin(winner)}; recorded was {_origin(event.get('winner'))}.")
    if event["outcome"] != "CANCELLED" and again.reason != decided_reason(event):
        ended = decided_reason(event) or "allowed"
        found.append(f"The decision made again ends as {again.reason or 'allowed'}; recorded was {ended}.")
    return found


def decided_reason(event: Event) -> str:
    """Return the reason for which gate, resolution or eligibility refused; empty when they let the call through.

    What came later, such as a file that is not there, is no part of the decision.
    """
    reason: str = event.get("reason", "")
    later = reason == SkillQuarantined.reason and event.get("winner") is not None
    return reason if reason in _OF_DECISIONS and not later else ""


def _recorded(event: Event) -> Answer:
    """Return what was decided as the event tells it."""
    ref = reference_of(event)
    rulings = tuple(
        Ruling(_candidate(ref.name, fields), CandidateState(fields["state"])) for fields in event.get("candidates", ())
    )
    told, winner = list(event.get("candidates", ())), event.get("winner")
    won = rulings[told.index(winner)].candidate if winner in told else None
    states = {ruling.state for ruling in rulings}
    missed = next((outcome for state, outcome in _OUTCOMES.items() if state in states), Outcome.ABSENT)
    if event.get("reason") == VersionNotFound.reason:
        missed = Outcome.ABSENT
    resolution = Resolution(ref, Outcome.RESOLVED if won else missed, won, rulings, event.get("pin", ""))
    return Answer(_decision(event), resolution, _refusal_of(event))


def _refusal_of(event: Event) -> SubstrateError | None:
    """Return the error that the call got, None when it was answered."""
    reason = event.get("reason", "")
    return _errors()[reason](f"It was refused as {reason}.") if reason in _errors() else None


def _errors() -> dict[str, type[SubstrateError]]:
    found: dict[str, type[SubstrateError]] = {}
    waiting = [SubstrateError]
    while waiting:
        error = waiting.pop()
        found[error.reason] = error
        waiting += error.__subclasses__()
    return found


def _candidate(name: SkillName, fields: Mapping[str, Any]) -> Candidate:
    kind, state = LayerKind(fields["layer"]), CandidateState(fields["state"])
    # What stands beneath a lock is not recorded, and is of no account.
    standing = _STANDINGS.get(state, Standing.DRAFT if fields["version"] is None else Standing.ACTIVE)
    return Candidate(name, kind, fields["origin"], standing, content_sha256=fields["digest"], version=fields["version"])


def _decision(event: Event) -> DecidingEntry | None:
    told = event.get("decision")
    return DecidingEntry(told["allowed"], told["reason"], told["index"], told["entry"]) if told else None


def _words(decision: DecidingEntry | None) -> str:
    if decision is None:
        return "nothing"
    entry = "" if decision.index is None else f" by entry {decision.index} '{decision.entry}'"
    return f"{'allowed' if decision.allowed else 'denied'} ({decision.reason}{entry})"


def _origin(winner: Mapping[str, Any] | None) -> str:
    return f"{winner['origin']} sha256:{winner['digest'][:12]}" if winner else "none"


def _is_own(layer: str) -> bool:
    return layer == LayerKind.TENANT.value
