"""What would lead to another answer: a fixed menu of changes, each applied to a copy of the state and decided again."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from substrate.domain.agents import Agent
from substrate.domain.candidates import LayerKind, Outcome, Standing
from substrate.domain.catalog import NameMode
from substrate.domain.changes import Change, ChangeKind, apply
from substrate.domain.errors import InvalidInput
from substrate.domain.question import Answer, Question, answer
from substrate.domain.skillmatch import MAX_ENTRIES, Allowlist

MAX_FLIPS = 10

_VERSIONS_TRIED = 2


@dataclass(frozen=True, slots=True)
class Flip:
    """A change that leads to another answer, what to do in words, and the command where there is one."""

    change: Change
    text: str
    command: str
    answer: Answer


def flips(question: Question, present: Answer | None = None) -> list[Flip]:
    """Return the changes of the menu that lead to another answer, in the order of the menu, at most `MAX_FLIPS`.

    Another answer is another content, or a refusal in place of a content or the other way round. `present` is the
    answer to the question, if it is known already.
    """
    before = present or answer(question)
    found: list[Flip] = []
    for change in _menu(question, before):
        if len(found) == MAX_FLIPS:
            break
        try:
            after = answer(apply(question, change))
        except InvalidInput:
            # There is nothing there to be changed so.
            continue
        # A qualifier is offered for what it reaches.
        is_vain = change.kind is ChangeKind.QUALIFY and after.refusal is not None
        if not is_vain and after.served != before.served and all(flip.change != change for flip in found):
            does, command = _described(question, change)
            found.append(Flip(change, f"{does}: {_outcome(question, after)}.", command, after))
    return found


def _menu(question: Question, before: Answer) -> Iterator[Change]:
    agent = question.agent
    if agent is not None:
        yield from _entries(agent, question, before)
    for kind in (ChangeKind.RETIRE, ChangeKind.UNRETIRE):
        yield Change(kind)
    for number in _versions(question):
        yield Change(ChangeKind.PROMOTE, version=number)
    for kind in (ChangeKind.DISABLE, ChangeKind.ENABLE):
        yield Change(kind)
    yield from _qualifiers(question, before)
    for kind in (ChangeKind.LOCK, ChangeKind.UNLOCK):
        yield Change(kind)


def _entries(agent: Agent, question: Question, before: Answer) -> Iterator[Change]:
    decision, name = before.decision, question.name
    if decision is None:
        return
    count = len(agent.allowlist.entries)
    place = count if decision.index is None else decision.index
    if decision.allowed:
        yield Change(ChangeKind.ADD_ENTRY, entry=f"-{name}", index=place)
        return
    if count < MAX_ENTRIES:
        # Before everything that matches: a deny further down counts as its exception only if it is as narrow.
        first = next(iter(agent.allowlist.matching(name)), place)
        change = Change(ChangeKind.ADD_ENTRY, entry=name, index=first)
        yield change
        if not _denies_still(agent, change, question):
            return
    entries = agent.allowlist.texts()
    while (denying := Allowlist.parse(entries).decide(name)).index is not None and not denying.allowed:
        del entries[denying.index]
    if not denying.allowed:
        entries.append(name)
    yield Change(ChangeKind.SET_ALLOWLIST, entries=tuple(entries))


def _denies_still(agent: Agent, change: Change, question: Question) -> bool:
    entries = agent.allowlist.texts()
    entries.insert(change.index, change.entry)
    return not Allowlist.parse(entries).decide(question.name).allowed


def _versions(question: Question) -> list[int]:
    """Return the versions whose promotion is tried: the newest others, those that were promoted before in front."""
    active = question.skill_def.version if question.skill_def else None
    others = [number for number in reversed(question.numbers) if number != active]
    drafts = [number for number in others if _is_draft(question, number)]
    promoted = [number for number in others if number not in drafts]
    return [*promoted[:_VERSIONS_TRIED], *drafts[:_VERSIONS_TRIED]]


def _is_draft(question: Question, number: int) -> bool:
    return question.versions.candidates[question.name, number].standing is Standing.DRAFT


def _qualifiers(question: Question, before: Answer) -> Iterator[Change]:
    winner = before.resolution.winner
    kinds = [ruling.candidate.kind for ruling in before.resolution.rulings if ruling.candidate is not winner]
    for kind, qualifier in ((LayerKind.INLINE, "inline"), (LayerKind.BUNDLE, "bundle")):
        if kind in kinds:
            yield Change(ChangeKind.QUALIFY, qualifier=qualifier)
    active = question.skill_def.version if question.skill_def else None
    for number in ([active] if active else []) + _versions(question):
        yield Change(ChangeKind.QUALIFY, qualifier=f"v{number}")


def _described(question: Question, change: Change) -> tuple[str, str]:
    """Return what the change does, in words, and the command that makes it, if there is one."""
    name, agent = question.name, question.agent
    who = agent.name if agent else ""
    match change.kind:
        case ChangeKind.ADD_ENTRY:
            does = f"Put the entry '{change.entry}' at position {change.index} of the allowlist of agent '{who}'"
            return f"{does}{_side_effect(agent, change)}", _put(who)
        case ChangeKind.SET_ALLOWLIST:
            return f"{_taken_out(agent, change) if agent else ''} the allowlist of agent '{who}'", _put(who)
        case ChangeKind.PROMOTE:
            reviewed = " (a review: by somebody other than its author)" if question.mode is NameMode.REVIEW else ""
            return f"Promote v{change.version}{reviewed}", f"substrate skilldef promote {name} {change.version}"
        case ChangeKind.QUALIFY:
            acting = f" --agent {who}" if who else ""
            command = f"substrate skill invoke {name}@{change.qualifier}{acting}"
            return f"Ask for '{name}@{change.qualifier}'", command
        case ChangeKind.LOCK | ChangeKind.UNLOCK:
            mode, done = ("locked", "Lock") if change.kind is ChangeKind.LOCK else ("open", "Open")
            entry = f"{{pattern: {name}, mode: {mode}}}"
            return f"{done} the name: put {entry} first in `name_modes` of the configuration and reload it", ""
        case _:
            return _WORDS[change.kind], f"substrate skilldef {change.kind.value.lower()} {name}"


_WORDS = {
    ChangeKind.RETIRE: "Retire the tenant's SkillDef",
    ChangeKind.UNRETIRE: "Bring the retired SkillDef back",
    ChangeKind.DISABLE: "Disable the name for the tenant",
    ChangeKind.ENABLE: "Enable the name again",
}


def _put(agent: str) -> str:
    file = shlex.quote(f"{agent}.json")
    return f"substrate agent get {agent} --source > {file}; edit `skills`; substrate agent put {agent} {file}"


def _side_effect(agent: Agent | None, change: Change) -> str:
    """Say what else an allow does to a list that has none: whatever it does not mention is denied from then on."""
    if agent is None or agent.allowlist.has_allow or change.entry.startswith("-"):
        return ""
    return " (its first that allows: every name that no entry matches is denied from then on)"


def _taken_out(agent: Agent, change: Change) -> str:
    left = list(change.entries)
    gone = []
    for index, entry in enumerate(agent.allowlist.texts()):
        if left and left[0] == entry:
            left.pop(0)
        else:
            gone.append(f"entry {index} '{entry}'")
    added = "".join(f", and put '{entry}' at the end of" for entry in left)
    return f"Take {' and '.join(gone)} out of{added}"


def _outcome(question: Question, after: Answer) -> str:
    winner = after.resolution.winner
    who = f"agent '{question.agent.name}'" if question.agent else "whoever may use it"
    if after.refusal is None and winner is not None:
        return f"{who} would get {winner.origin}"
    if after.resolution.outcome is not Outcome.RESOLVED and (after.decision is None or after.decision.allowed):
        return f"the name would stand for nothing ({after.reason})"
    return f"{who} would be refused ({after.reason})"
