"""How an explanation reads: the verdict first, then who is behind it, what else there is, and how to change it."""

from collections.abc import Iterator
from datetime import UTC

from substrate.domain.audit import DecidingEntry
from substrate.domain.candidates import CandidateState, LayerKind, Outcome, Ruling
from substrate.domain.catalog import NameMode
from substrate.domain.explain import Deed, Explanation, Provenance, shadowed_first, source_of, why
from substrate.domain.skillmatch import Reason

_SHOWN = 80


def text_of(
    told: Explanation,
    above: tuple[str, ...] = (),
    below: tuple[str, ...] = (),
    *,
    this: str = "this",
    foreign: bool = False,
) -> str:
    """Return an explanation as text of several lines, with `above` before it and `below` after it.

    What would change the answer, which is called `this`, comes last. With `foreign` the reader is of another tenant, so
    that the commands need another key than the reader's.
    """
    lines = [*above, _verdict(told), *_behind(told)]
    lines += ["", "Candidates, highest layer first:", *_candidate_lines(told)]
    agent = told.question.agent
    if told.resolution.pin and agent is not None:
        lines += ["", f"Pinned: agent '{agent.name}' gets '{told.resolution.pin}' of it, whatever is in effect."]
    lines += _difference_lines(told)
    if agent is not None:
        lines += ["", f"Allowlist of agent '{agent.name}' ({agent.origin}):", *_trial_lines(told)]
    lines += ["", f"State read: {told.state}", *below]
    if told.flips:
        whose = f"an author of tenant '{told.question.tenant}'"
        lines += ["", f"What would change {this} (SkillDefs and agents are changed with a key of {whose}):"]
        for flip in told.flips:
            lines.append(f"  - {flip.text}")
            if flip.command:
                lines.append(f"      {flip.command}{' --key KEY' if foreign else ''}")
    return "\n".join(lines)


def _behind(told: Explanation) -> Iterator[str]:
    """Yield why this layer and no other, and who wrote and promoted it, or made the name stand for nothing."""
    winner = told.resolution.winner
    if told.decision is not None and not told.decision.allowed:
        return
    if winner is not None:
        yield _because(told)
        if winner.kind is LayerKind.TENANT:
            yield from _deeds(told.provenance.get(source_of(winner)))
        return
    ruling = _ending(told)
    if ruling is not None:
        yield from _deeds(told.provenance.get(source_of(ruling.candidate)), ruling)


def _ending(told: Explanation) -> Ruling | None:
    """Return the tenant's candidate by which the name stands for nothing: who is behind that is the one to ask."""
    if told.resolution.winner is not None or (told.decision is not None and not told.decision.allowed):
        return None
    return next((r for r in told.resolution.rulings if r.candidate.kind is LayerKind.TENANT), None)


def _because(told: Explanation) -> str:
    resolution, winner = told.resolution, told.resolution.winner
    passed = [r for r in resolution.rulings if r.candidate.kind is LayerKind.TENANT and r.candidate is not winner]
    if resolution.pin:
        return f"Why this one: the agent's pin to '{resolution.pin}' picks it, whatever is in effect."
    if resolution.ref.qualifier is not None:
        return f"Why this one: '@{resolution.ref.qualifier}' asks for it."
    if winner is not None and winner.kind is LayerKind.TENANT:
        return "Why this one: a tenant's SkillDef comes before inline configuration, and that before bundles."
    if passed:
        return f"Why this one: what the tenant has is passed over ({passed[0].state.value}), and it is the next below."
    return "Why this one: the tenant has no SkillDef of the name, and it is the highest of the layers below."


def _deeds(provenance: Provenance | None, ruling: Ruling | None = None) -> Iterator[str]:
    if provenance is None:
        return
    is_tombstone = ruling is not None and ruling.state is CandidateState.DISABLED
    for did, deed in (
        ("Disabled" if is_tombstone else "Written", provenance.created),
        ("Approved (promoted)", provenance.promoted),
        ("Retired", provenance.retired),
    ):
        if deed is not None:
            yield f"{did} {_by(deed)}."


def _by(deed: Deed) -> str:
    event = f", event {deed.event_id}" if deed.event_id else ""
    return f"by {deed.by} at {deed.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}{event}"


def _verdict(told: Explanation) -> str:
    resolution, agent, decision = told.resolution, told.question.agent, told.decision
    ref = resolution.ref
    who = f"agent '{agent.name}'" if agent else "an agent that is allowed it"
    if told.question.suspended is not None and told.answer.refusal is not None:
        return f"'{ref}' is refused to {who}: {told.answer.refusal.message}"
    if decision is not None and not decision.allowed:
        return f"'{ref}' is refused to {who}: {_decision_words(decision)}."
    if resolution.winner is None:
        pinned = f", which is pinned to '{resolution.pin}'" if resolution.pin else ""
        below = ", and no layer below has it" if resolution.outcome is Outcome.RETIRED and not pinned else ""
        return f"'{ref}' does not resolve for {who}{pinned}: {_OUTCOMES[resolution.outcome]}{below}."
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
    refusal = told.answer.refusal
    return f"{got} It cannot be invoked as things are: {refusal.message}" if refusal else got


_LAYERS = {
    LayerKind.TENANT: "the tenant's SkillDef",
    LayerKind.INLINE: "inline configuration",
    LayerKind.BUNDLE: "a static bundle",
}

_OUTCOMES = {
    Outcome.RESOLVED: "it resolves",
    Outcome.ABSENT: "no layer has it",
    Outcome.DRAFT: "its SkillDef has no promoted version",
    Outcome.RETIRED: "its SkillDef is retired",
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


def _candidate_lines(told: Explanation) -> list[str]:
    resolution = told.resolution
    lines = []
    for ruling in resolution.rulings:
        candidate = ruling.candidate
        digest = f"  sha256:{candidate.content_sha256[:12]}" if candidate.content_sha256 else ""
        # What people wrote in several lines must not pass for lines of the explanation.
        reason = " ".join(why(candidate, ruling.state, resolution).split())
        lines.append(f"  {ruling.state.value:<18} {candidate.origin}{digest}  - {reason}")
        known = told.provenance.get(source_of(candidate)) if candidate.kind is LayerKind.TENANT else None
        if known is not None and candidate is not resolution.winner and ruling is not _ending(told):
            lines += [f"  {'':<18}   {line}" for line in _deeds(known, ruling)]
    if told.mode is not NameMode.OPEN:
        lines.append(f"  (the name is in mode '{told.mode.value}')")
    return lines or ["  none" if told.looked_up else "  not looked up, since the allowlist refused the name before"]


def _difference_lines(told: Explanation) -> list[str]:
    winner, loser = told.resolution.winner, shadowed_first(told.resolution)
    if winner is None or loser is None:
        return []
    if winner.content_sha256 == loser.content_sha256 and not told.differences:
        return ["", f"{loser.origin} has the same content."]
    shown = [f"  {each.field}: {_short(each.winner)}  <-  {_short(each.loser)}" for each in told.differences]
    return ["", f"What {winner.origin} has in place of {loser.origin}:", *shown] if shown else []


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."


def _trial_lines(told: Explanation) -> list[str]:
    lines = [
        f"  {'->' if trial.decided else '  '} {trial.index:>3}  {trial.entry}  {trial.effect}" for trial in told.trials
    ]
    if told.decision is not None and told.decision.index is None:
        lines.append(f"  -> {_decision_words(told.decision)}")
    return lines
