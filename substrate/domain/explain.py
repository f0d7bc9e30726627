"""Why a name resolves, or does not, for an agent: the whole decision laid out for people.

An explanation is made by the same functions that decide, from the same state, so it cannot tell another story.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from substrate.domain.agents import Agent
from substrate.domain.audit import DecidingEntry, deciding_entry
from substrate.domain.candidates import Candidate, CandidateState, LayerKind, Outcome, Resolution
from substrate.domain.catalog import NameMode
from substrate.domain.eligibility import CallerKind, barrier_of_caller, barrier_of_tools, tools_of, unresolved
from substrate.domain.skillmatch import Allowlist, Reason


@dataclass(frozen=True, slots=True)
class Trial:
    """One allowlist entry held against the name: whether it matched, what that did, and whether it decided."""

    index: int
    entry: str
    matched: bool
    effect: str
    decided: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision laid out; `reason` is the error reason that an invoke by the model would get, or empty."""

    resolution: Resolution
    mode: NameMode
    trials: Sequence[Trial]
    decision: DecidingEntry | None
    reason: str
    text: str

    @property
    def would_succeed(self) -> bool:
        """Whether the model could invoke the name now, touching no paths."""
        return not self.reason


def explain(resolution: Resolution, mode: NameMode, agent: Agent | None, state: str) -> Explanation:
    """Lay out `resolution` for `agent` (None: whatever agent); `state` says in words which state was read."""
    ref = resolution.ref
    trials: list[Trial] = []
    decision = None
    reason = ""
    if agent is not None:
        decided = agent.allowlist.decide(ref.name)
        decision = deciding_entry(agent.allowlist, decided)
        trials = _trials(
            agent.allowlist, decision, agent.allowlist.matching(ref.name) if agent.allowlist.entries else []
        )
        reason = "" if decided.allowed else "SKILL_NOT_PERMITTED"
    barrier = None
    if not reason and resolution.winner is None:
        barrier = unresolved(resolution)
    elif not reason and resolution.winner is not None:
        barrier = (
            barrier_of_tools(ref.name, tools_of(resolution.winner), agent) if agent else None
        ) or barrier_of_caller(resolution.winner, CallerKind.MODEL, ())
    reason = reason or (barrier.reason if barrier else "")
    lines = [_verdict(resolution, agent, decision, barrier.message if barrier else "")]
    lines += ["", "Candidates, highest layer first:", *_candidate_lines(resolution, mode)]
    if resolution.pin and agent is not None:
        lines += ["", f"Pinned: agent '{agent.name}' gets '{resolution.pin}' of it, whatever is in effect."]
    if agent is not None:
        lines += ["", f"Allowlist of agent '{agent.name}' ({agent.origin}):", *_trial_lines(trials, decision)]
    lines += ["", f"State read: {state}"]
    return Explanation(resolution, mode, trials, decision, reason, "\n".join(lines))


def why(candidate: Candidate, state: CandidateState, resolution: Resolution) -> str:
    """Say in a sentence why `candidate` ended in `state`."""
    winner = resolution.winner
    if candidate is winner and (resolution.pin or resolution.ref.qualifier):
        pinned = f"It is the version that the agent's pin to '{resolution.pin}' picks."
        return pinned if resolution.pin else "It is the candidate that the reference picks."
    match state:
        case CandidateState.SHADOWED:
            above = f"{winner.origin} stands above it" if winner else "what stands above it decides"
            return f"It would serve, but {above}."
        case CandidateState.DRAFT:
            return "No version of it has been promoted."
        case CandidateState.RETIRED:
            return "It is retired, so the name falls through to the layers below."
        case CandidateState.DISABLED:
            note = f" ({candidate.problem})" if candidate.problem else ""
            return f"The tenant has disabled the name, which hides every layer{note}."
        case CandidateState.QUARANTINED:
            return f"It is invalid: {candidate.problem}"
        case CandidateState.SUPPRESSED_BY_LOCK:
            return "Operators have locked the name, so what the tenant says about it does not count."
        case CandidateState.WON if candidate is not winner:
            return "It is in effect, but not what was asked for."
        case _:
            return "It is the highest active one."


def _verdict(resolution: Resolution, agent: Agent | None, decision: DecidingEntry | None, barrier: str) -> str:
    ref = resolution.ref
    who = f"agent '{agent.name}'" if agent else "an agent that is allowed it"
    if decision is not None and not decision.allowed:
        return f"'{ref}' is refused to {who}: {_decision_words(decision)}."
    if resolution.winner is None:
        pinned = f", which is pinned to '{resolution.pin}'" if resolution.pin else ""
        return f"'{ref}' does not resolve for {who}{pinned}: {_OUTCOMES[resolution.outcome]}."
    shadowed = [
        ruling.candidate.origin
        for ruling in resolution.rulings
        if ruling.state is CandidateState.SHADOWED and ruling.candidate is not resolution.winner
    ]
    plain = resolution.ref.qualifier is None and not resolution.pin
    over = f", which shadows {', '.join(shadowed)}" if shadowed and plain else ""
    over = f", to which it is pinned as '{resolution.pin}'" if resolution.pin else over
    allowed = f"; {_decision_words(decision)}" if decision else ""
    got = f"'{ref}' gives {who} {resolution.winner.origin} ({_LAYERS[resolution.winner.kind]}){over}{allowed}."
    return f"{got} It cannot be invoked as things are: {barrier}" if barrier else got


_LAYERS = {
    LayerKind.TENANT: "the tenant's SkillDef",
    LayerKind.INLINE: "inline configuration",
    LayerKind.BUNDLE: "a static bundle",
}

_OUTCOMES = {
    Outcome.RESOLVED: "it resolves",
    Outcome.ABSENT: "no layer has it",
    Outcome.DRAFT: "its SkillDef has no promoted version",
    Outcome.RETIRED: "its SkillDef is retired and no layer below has it",
    Outcome.DISABLED: "the tenant has disabled the name",
    Outcome.QUARANTINED: "what decides it is quarantined",
    Outcome.LOCKED: "the name is locked and no static layer has it",
}


def _decision_words(decision: DecidingEntry) -> str:
    match Reason(decision.reason):
        case Reason.EMPTY_ALLOWLIST:
            return "its allowlist is empty, which allows everything"
        case Reason.NOT_DENIED:
            return "its allowlist only denies, and no entry denies this name"
        case Reason.UNLISTED:
            return "no entry of its allowlist matches"
        case Reason.ALLOW_RULE:
            return f"entry {decision.index} '{decision.entry}' of its allowlist allows it"
        case Reason.DENY_RULE:
            return f"entry {decision.index} '{decision.entry}' of its allowlist denies it"


def _trials(allowlist: Allowlist, decision: DecidingEntry, matching: Sequence[int]) -> list[Trial]:
    first = matching[0] if matching else None
    trials = []
    for index, entry in enumerate(allowlist.entries):
        matched = index in matching
        decided = index == decision.index
        if not matched:
            effect = "does not match"
        elif decided:
            effect = "decides: denied" if entry.denies else "decides: allowed"
        elif index == first:
            effect = "matches first and allows, but a later exception denies"
        elif first is not None and allowlist.entries[first].denies:
            effect = f"matches, but entry {first} has denied before"
        elif not entry.denies:
            effect = f"matches, but entry {first} matched before"
        elif first is not None and allowlist.strictly_broader(index, first):
            effect = f"matches, but is broader than entry {first}, so it is no exception to it"
        else:
            effect = f"matches, but entry {decision.index} has decided before"
        trials.append(Trial(index, entry.text, matched, effect, decided))
    return trials


def _candidate_lines(resolution: Resolution, mode: NameMode) -> list[str]:
    lines = [
        f"  {ruling.state.value:<18} {ruling.candidate.origin}"
        f"{'  sha256:' + ruling.candidate.content_sha256[:12] if ruling.candidate.content_sha256 else ''}"
        f"  - {why(ruling.candidate, ruling.state, resolution)}"
        for ruling in resolution.rulings
    ]
    if mode is not NameMode.OPEN:
        lines.append(f"  (the name is in mode '{mode.value}')")
    return lines or ["  none"]


def _trial_lines(trials: Sequence[Trial], decision: DecidingEntry | None) -> list[str]:
    lines = [f"  {'->' if trial.decided else '  '} {trial.index:>3}  {trial.entry}  {trial.effect}" for trial in trials]
    if decision is not None and decision.index is None:
        lines.append(f"  -> {_decision_words(decision)}")
    return lines
