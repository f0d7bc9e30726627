"""Changes that are only supposed: what a question would be after them. Nothing is stored, nobody is asked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from substrate.domain.agents import Agent
from substrate.domain.candidates import Candidate, LayerKind, Standing
from substrate.domain.catalog import NameMode, NameModes, StaticCatalog
from substrate.domain.errors import InvalidAllowlist, InvalidArgument, Violation
from substrate.domain.names import parse_skill_ref
from substrate.domain.patterns import parse_pattern
from substrate.domain.question import Question
from substrate.domain.skillmatch import Allowlist

MAX_CHANGES = 16

_SHOWN_VERSIONS = 20


class ChangeKind(Enum):
    """What can be changed to get another answer."""

    SET_ALLOWLIST = "SET_ALLOWLIST"
    ADD_ENTRY = "ADD_ENTRY"
    RETIRE = "RETIRE"
    UNRETIRE = "UNRETIRE"
    PROMOTE = "PROMOTE"
    DISABLE = "DISABLE"
    ENABLE = "ENABLE"
    LOCK = "LOCK"
    UNLOCK = "UNLOCK"
    QUALIFY = "QUALIFY"


@dataclass(frozen=True, slots=True)
class Change:
    """One change; which of the other fields count is the kind's affair.

    `entries` is the whole allowlist for SET_ALLOWLIST; `entry` goes before the entry at `index`, from 0, for ADD_ENTRY;
    `version` is a SkillDef's, from 1, for PROMOTE; `qualifier` is ``bundle``, ``inline`` or ``v3`` for QUALIFY.
    """

    kind: ChangeKind
    entries: tuple[str, ...] = ()
    entry: str = ""
    index: int = 0
    version: int = 0
    qualifier: str = ""


def apply_all(question: Question, changes: Sequence[Change]) -> Question:
    """Return `question` after the changes, one after the other; raise as `apply` does, or for too many."""
    if len(changes) > MAX_CHANGES:
        raise InvalidArgument("changes", f"At most {MAX_CHANGES} changes can be supposed.")
    for index, change in enumerate(changes):
        question = apply(question, change, f"changes[{index}]")
    return question


def apply(question: Question, change: Change, place: str = "changes[0]") -> Question:
    """Return `question` after one change.

    What is so already stays so. Raises InvalidArgument, InvalidName or InvalidAllowlist, naming fields below `place`,
    for what cannot be applied: an entry, a qualifier or an index that is none, no agent whose allowlist could change,
    no SkillDef, no such version.
    """
    match change.kind:
        case ChangeKind.SET_ALLOWLIST:
            agent = _agent(question, place)
            return _allowing(question, agent, Allowlist.parse(change.entries, f"{place}.entries"))
        case ChangeKind.ADD_ENTRY:
            return _with_entry(question, change, place)
        case ChangeKind.RETIRE | ChangeKind.UNRETIRE:
            retired = change.kind is ChangeKind.RETIRE
            return replace(
                question, skill_def=_in_effect(_skill_def(question, place), retired=retired), retired=retired
            )
        case ChangeKind.PROMOTE:
            return _promoted(question, change.version, place)
        case ChangeKind.DISABLE | ChangeKind.ENABLE:
            return _disabled(question, disabled=change.kind is ChangeKind.DISABLE)
        case ChangeKind.LOCK | ChangeKind.UNLOCK:
            return _in_mode(question, locked=change.kind is ChangeKind.LOCK)
        case ChangeKind.QUALIFY:
            return _qualified(question, change.qualifier, place)


def _agent(question: Question, place: str) -> Agent:
    if question.agent is None:
        raise InvalidArgument(f"{place}.kind", "There is no allowlist to change; name the agent that has it.")
    return question.agent


def _allowing(question: Question, agent: Agent, allowlist: Allowlist) -> Question:
    return replace(question, agent=replace(agent, allowlist=allowlist))


def _with_entry(question: Question, change: Change, place: str) -> Question:
    agent = _agent(question, place)
    texts = agent.allowlist.texts()
    if not 0 <= change.index <= len(texts):
        raise InvalidArgument(
            f"{place}.index", f"The agent has {len(texts)} entries; give a position from 0 to {len(texts)}."
        )
    try:
        Allowlist.parse([change.entry])
    except InvalidAllowlist as error:
        raise InvalidAllowlist(Violation(f"{place}.entry", error.violations[0].description)) from None
    texts.insert(change.index, change.entry)
    return _allowing(question, agent, Allowlist.parse(texts, f"{place}.entry"))


def _skill_def(question: Question, place: str) -> Candidate:
    if question.skill_def is None:
        raise InvalidArgument(
            f"{place}.kind", f"The tenant has no SkillDef '{question.name}'; this can be done to a SkillDef alone."
        )
    return question.skill_def


def _in_effect(candidate: Candidate, *, retired: bool) -> Candidate:
    """Return what a SkillDef says once it is retired or no longer so; without a version it is a draft then."""
    if candidate.standing is Standing.QUARANTINED:
        return candidate
    if retired:
        return replace(candidate, standing=Standing.RETIRED)
    return replace(candidate, standing=Standing.DRAFT if candidate.version is None else Standing.ACTIVE)


def _promoted(question: Question, number: int, place: str) -> Question:
    _skill_def(question, place)
    found = question.versions.candidates.get((question.name, number))
    if found is None:
        newest = question.numbers[-_SHOWN_VERSIONS:]
        there = ", ".join(f"v{known}" for known in newest)
        raise InvalidArgument(
            f"{place}.version", f"The SkillDef '{question.name}' has no version {number}; there are {there or 'none'}."
        )
    promoted = replace(found, standing=Standing.ACTIVE) if found.standing is Standing.DRAFT else found
    candidates = {**question.versions.candidates, (question.name, number): promoted}
    return replace(
        question,
        skill_def=_in_effect(promoted, retired=question.retired),
        versions=replace(question.versions, candidates=candidates),
    )


def _disabled(question: Question, *, disabled: bool) -> Question:
    if not disabled:
        return replace(question, tombstone=None)
    tombstone = Candidate(question.name, LayerKind.TENANT, "tenant", Standing.DISABLED)
    return replace(question, tombstone=question.tombstone or tombstone)


def _in_mode(question: Question, *, locked: bool) -> Question:
    if locked is (question.mode is NameMode.LOCKED):
        return question
    mode = NameMode.LOCKED if locked else NameMode.OPEN
    modes = ((parse_pattern(question.name), mode), *question.static.modes.modes)
    return replace(question, static=StaticCatalog(question.static.layers, NameModes(modes)))


def _qualified(question: Question, qualifier: str, place: str) -> Question:
    if not qualifier:
        raise InvalidArgument(f"{place}.qualifier", "Give bundle, inline or a version such as v3.")
    return replace(question, ref=parse_skill_ref(f"{question.name}@{qualifier}", f"{place}.qualifier"))
