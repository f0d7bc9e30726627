"""What has changed since a recorded decision that matters to it, in sentences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from substrate.domain.agents import Agent
from substrate.domain.audit import candidate_fields
from substrate.domain.candidates import CandidateState, LayerKind
from substrate.domain.question import Answer, Question
from substrate.domain.recorded import Event
from substrate.domain.replay import Kept, decided_reason, decides_layers, is_decided

Fields = Mapping[str, Any]


def changed_since(event: Event, kept: Kept, now: Question, answer: Answer) -> list[str]:
    """Say how what `event` was decided from, as far as it is kept, differs from `now`, and what comes of it."""
    found = []
    if now.suspended is not None:
        found.append("The tenant is suspended now.")
    if event.get("agent"):
        found += _agent(event, kept.agent, now)
    if decides_layers(event):
        if kept.static is not None:
            was = kept.static.modes.mode_of(now.name)
            if was is not now.mode:
                found.append(f"The name is in mode '{now.mode.value}' now; it was in '{was.value}'.")
        found += _candidates(event.get("candidates", ()), candidate_fields(answer.resolution)[0])
    if is_decided(event) and (now.agent is not None or now.suspended is not None):
        found += _verdict(event, answer)
    return found


def _agent(event: Event, was: Agent | None, now: Question) -> list[str]:
    agent, name = now.agent, event["agent"]
    if agent is None:
        return [f"There is no agent '{name}' any more."]
    if was is None:
        changed = event.get("allowlist_sha256", "") not in ("", agent.allowlist_sha256)
        return [f"The allowlist of agent '{name}' is another one now."] if changed else []
    found = []
    if was.origin.partition(":")[0] != agent.origin.partition(":")[0]:
        found.append(f"The agent '{name}' is defined in {agent.origin} now; it was in {was.origin}.")
    before, after = was.allowlist.texts(), agent.allowlist.texts()
    if before != after:
        found.append(f"The allowlist of agent '{name}' has changed: {_entries(before, after)}.")
    if was.tools != agent.tools:
        found.append(f"The agent '{name}' has {_tools(agent)} now; it had {_tools(was)}.")
    pin, pinned = agent.pins.get(now.name, ""), was.pins.get(now.name, "")
    if pin != pinned:
        found.append(
            f"The agent '{name}' is {f'pinned to {pin!r}' if pin else 'not pinned'} now; "
            f"it was {f'pinned to {pinned!r}' if pinned else 'not'}."
        )
    return found


def _entries(before: Sequence[str], after: Sequence[str]) -> str:
    more, less = Counter(after) - Counter(before), Counter(before) - Counter(after)
    parts = [f"it has got '{entry}'" for entry in more.elements()]
    parts += [f"it has lost '{entry}'" for entry in less.elements()]
    if not parts:
        return "its entries stand in another order"
    return ", ".join(parts) + ("" if after else ", and is empty, which allows everything")


def _tools(agent: Agent) -> str:
    if agent.tools is None:
        return "all tools"
    return f"the tools {', '.join(agent.tools)}" if agent.tools else "no tools"


def _candidates(before: Sequence[Fields], after: Sequence[Fields]) -> list[str]:
    was, now = _by_source(before), _by_source(after)
    found = [f"{now[source]['origin']} is new, and {_state(now[source])}." for source in now if source not in was]
    for source, old in was.items():
        new = now.get(source)
        if new is None:
            found.append(f"{old['origin']}, which was {_state(old)}, is not there any more.")
        elif new["version"] != old["version"]:
            found.append(f"The tenant's SkillDef is {new['origin']} now, {_state(new)}; it was {old['origin']}.")
        elif new["digest"] != old["digest"]:
            found.append(
                f"{new['origin']} has another content now, sha256:{new['digest'][:12]}; "
                f"it was sha256:{old['digest'][:12]}."
            )
        elif new["state"] != old["state"]:
            found.append(f"{new['origin']} is {_state(new)} now; it was {_state(old)}.")
    return found


def _by_source(candidates: Sequence[Fields]) -> dict[str, Fields]:
    """Return the candidates by where they come from, whatever version of it: a tombstone, the SkillDef, a bundle."""
    found: dict[str, Fields] = {}
    for fields in candidates:
        source = fields["origin"].partition("@")[0]
        if fields["layer"] == LayerKind.TENANT.value:
            source = "tombstone" if fields["state"] == CandidateState.DISABLED.value else "skill_def"
        if source in found:
            source = fields["origin"]
        found.setdefault(source, fields)
    return found


def _state(fields: Fields) -> str:
    state = CandidateState(fields["state"])
    return "in effect" if state is CandidateState.WON else state.value.replace("_", " ").lower()


def _verdict(event: Event, answer: Answer) -> list[str]:
    before, after = event.get("winner"), candidate_fields(answer.resolution)[1]
    reason = decided_reason(event)
    got = f"was refused ({reason})" if reason else f"got {before['origin']}" if before else "got nothing"
    if answer.reason and answer.reason != reason:
        return [f"The same call would be refused now ({answer.reason}); it {got}."]
    if not answer.reason and after is not None and (reason or not _same(before, after)):
        return [f"The same call would get {after['origin']} now; it {got}."]
    return []


def _same(before: Fields | None, after: Fields) -> bool:
    kept = ("layer", "version", "digest")
    return before is not None and all(before[key] == after[key] for key in kept)
