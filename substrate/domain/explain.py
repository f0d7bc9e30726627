"""Why a name resolves, or does not, for an agent: the whole decision laid out for people.

An explanation is made of a question and its answer, by the functions that decide, so it cannot tell another story. How
it reads as text is in `explain_text.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from substrate.domain.audit import DecidingEntry
from substrate.domain.candidates import Candidate, CandidateState, Resolution, Standing
from substrate.domain.catalog import NameMode
from substrate.domain.difference import body_difference, differing_files, field_differences
from substrate.domain.flips import Flip
from substrate.domain.question import Answer, Cause, Question
from substrate.domain.skillmatch import Allowlist


@dataclass(frozen=True, slots=True)
class Trial:
    """One allowlist entry held against the name: whether it matched, what that did, and whether it decided."""

    index: int
    entry: str
    matched: bool
    effect: str
    decided: bool


@dataclass(frozen=True, slots=True)
class Deed:
    """Who did something and when, and the audit event that records it; the event is empty when it is not known."""

    by: str
    at: datetime
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who made a tenant's candidate (or disabled the name), who promoted it last, and who retired it."""

    created: Deed | None = None
    promoted: Deed | None = None
    retired: Deed | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the winner is not what it shadows first; of a body and of files only how much."""

    field: str
    winner: str
    loser: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision laid out.

    `provenance` is by `source_of` the tenant's candidates. `state` says in words which state was read. `looked_up` is
    false for a recorded refusal at the gate, where nobody looked at the layers.
    """

    question: Question
    answer: Answer
    trials: Sequence[Trial]
    provenance: Mapping[str, Provenance]
    differences: Sequence[Difference]
    flips: Sequence[Flip]
    state: str
    looked_up: bool = True

    @property
    def resolution(self) -> Resolution:
        """All candidates with what became of them."""
        return self.answer.resolution

    @property
    def decision(self) -> DecidingEntry | None:
        """What the agent's allowlist decides; None without an agent."""
        return self.answer.decision

    @property
    def mode(self) -> NameMode:
        """What operators let tenants do with the name."""
        return self.question.mode

    @property
    def reason(self) -> str:
        """The error reason that an invocation would get, or empty."""
        return self.answer.reason

    @property
    def would_succeed(self) -> bool:
        """Whether the name could be invoked by this kind of caller that touches these paths."""
        return not self.reason

    @property
    def cause(self) -> Cause | None:
        """Why not, in one word."""
        return self.answer.cause


def explain(
    question: Question,
    answer: Answer,
    *,
    state: str,
    provenance: Mapping[str, Provenance] | None = None,
    differences: Sequence[Difference] = (),
    flips: Sequence[Flip] = (),
    looked_up: bool = True,
) -> Explanation:
    """Lay out the `answer` to a `question`; `state` says in words which state was read."""
    trials = _trials(question.agent.allowlist, answer) if question.agent and answer.decision else []
    return Explanation(question, answer, trials, provenance or {}, differences, flips, state, looked_up)


def source_of(candidate: Candidate) -> str:
    """Return what tells a tenant's candidates of one name apart: ``v3``, ``disabled``, or ``skill_def`` without one."""
    if candidate.version is not None:
        return f"v{candidate.version}"
    return "disabled" if candidate.standing is Standing.DISABLED else "skill_def"


def shadowed_first(resolution: Resolution) -> Candidate | None:
    """Return the candidate that would serve next if the winner did not, or None."""
    return next(
        (
            ruling.candidate
            for ruling in resolution.rulings
            if ruling.candidate is not resolution.winner
            and ruling.state in (CandidateState.SHADOWED, CandidateState.WON)
        ),
        None,
    )


def differences_of(winner: Candidate, loser: Candidate) -> list[Difference]:
    """Return what differs between two candidates, but for their bodies."""
    found = []
    if winner.header and loser.header:
        found += [
            Difference(each.field, each.after or "none", each.before or "none")
            for each in field_differences(loser.header, winner.header)
        ]
    if winner.positional_base != loser.positional_base:
        found.append(Difference("positional-base", str(winner.positional_base), str(loser.positional_base)))
    changed = differing_files(loser.files, winner.files)
    if changed:
        more = f"{_counted(len(winner.files), 'file')}, {len(changed)} added, removed or changed"
        found.append(Difference("files", more, _counted(len(loser.files), "file")))
    return found


def body_amount(winner: str, loser: str) -> Difference | None:
    """Return by how much two bodies differ, without a word of them; None when they are equal."""
    lines = body_difference(loser, winner, "", "").splitlines()[2:]
    if not lines:
        return None
    more, less = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    return Difference("body", f"{_lines(winner)}, +{more} -{less} lines", _lines(loser))


def _lines(body: str) -> str:
    return _counted(body.count("\n") + (not body.endswith("\n") and bool(body)), "line")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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


def _trials(allowlist: Allowlist, answer: Answer) -> list[Trial]:
    decision = answer.decision
    matching = allowlist.matching(answer.resolution.ref.name) if allowlist.entries else []
    first = matching[0] if matching else None
    decider = decision.index if decision else None
    trials = []
    for index, entry in enumerate(allowlist.entries):
        matched = index in matching
        decided = index == decider
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
            effect = f"matches, but entry {decider} has decided before"
        trials.append(Trial(index, entry.text, matched, effect, decided))
    return trials
