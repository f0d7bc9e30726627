"""Whether a skill that exists and is permitted may be used by this caller, here and now.

List and invoke ask the same two functions, so what is listed can be invoked and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from substrate.domain.agents import Agent, uncovered
from substrate.domain.audit import DecidingEntry, deciding_entry
from substrate.domain.candidates import Candidate, Outcome, Resolution
from substrate.domain.catalog import Catalog
from substrate.domain.errors import (
    InvocationNotAllowed,
    SkillIneligible,
    SkillNotFound,
    SkillQuarantined,
    SubstrateError,
    ToolsExceedAgent,
    VersionNotFound,
)
from substrate.domain.names import SkillName
from substrate.domain.paths import eligible


class CallerKind(Enum):
    """Who asks for a skill: the model by itself, or a user by name."""

    MODEL = "MODEL"
    USER = "USER"


@dataclass(frozen=True, slots=True)
class Visible:
    """A skill that an agent's allowlist admits and that resolves, with the decision and the resolution."""

    name: SkillName
    winner: Candidate
    decision: DecidingEntry
    resolution: Resolution


def visible(catalog: Catalog, agent: Agent) -> tuple[Visible, ...]:
    """Return every skill that `agent` may see, by name, whoever calls and whatever paths are touched."""
    found = []
    for name in catalog.names():
        decision = agent.allowlist.decide(name)
        if not decision.allowed:
            continue
        resolution = catalog.resolve_for(name, agent.pins)
        winner = resolution.winner
        if winner is not None and barrier_of_tools(name, tools_of(winner), agent) is None:
            found.append(Visible(name, winner, deciding_entry(agent.allowlist, decision), resolution))
    return tuple(found)


def usable(catalog: Catalog, agent: Agent, name: SkillName) -> Candidate | None:
    """Return what `agent` gets for a bare `name` that its allowlist admits, whoever calls, or None."""
    winner = catalog.resolve_for(name, agent.pins).winner
    return None if winner is None or barrier_of_tools(name, tools_of(winner), agent) else winner


def reached(
    resolution: Resolution, agent: Agent | None, kind: CallerKind, touched: Sequence[str]
) -> Candidate | SubstrateError:
    """Return the candidate that a caller gets for a reference that its allowlist admits, or the error that it gets.

    Without an `agent` no tools are lacking.
    """
    winner = resolution.winner
    if winner is None:
        return unresolved(resolution)
    lacking = None if agent is None else barrier_of_tools(resolution.ref.name, tools_of(winner), agent)
    return lacking or barrier_of_caller(winner, kind, touched) or winner


def unresolved(resolution: Resolution) -> SubstrateError:
    """Return the error for a reference that has no winner."""
    ref = resolution.ref
    if resolution.outcome is Outcome.QUARANTINED:
        return SkillQuarantined(
            f"The skill '{ref}' is quarantined: what decides it is invalid. Its author or operator must repair it.",
            name=ref.name,
        )
    if resolution.pin and resolution.outcome is not Outcome.DISABLED:
        why = {Outcome.RETIRED: ", which is retired", Outcome.LOCKED: ", which is locked"}.get(resolution.outcome, "")
        message = f"The agent's pin of '{ref}' to '{resolution.pin}' reaches no version of it{why}."
        return VersionNotFound(message, name=ref.name, version=resolution.pin)
    asked = ref.qualifier.version if ref.qualifier else None
    if asked is not None and resolution.outcome is not Outcome.DISABLED:
        message = f"There is no version {asked} of '{ref.name}' to reach."
        return VersionNotFound(message, name=ref.name, version=str(asked))
    return SkillNotFound(f"There is no skill '{ref}'.", name=ref.name)


def tools_of(candidate: Candidate) -> tuple[str, ...] | None:
    """Return the tools that a skill allows itself; None when it does not restrict them."""
    return candidate.header.allowed_tools if candidate.header else None


def barrier_of_tools(
    name: SkillName,
    tools: Sequence[str] | None,
    agent: Agent,
    forked_from: Sequence[str] | None = None,
) -> ToolsExceedAgent | None:
    """Return why `agent` may neither use nor author a skill with these `tools`, or None: a skill narrows, never widens.

    `tools` is None when the skill does not restrict them. `forked_from` holds the tools of the version that it was
    forked from, if that restricts them: an agent's fork may allow itself no other, nor lift the restriction.
    """
    lacking = agent.lacks(tools or ())
    if lacking:
        return ToolsExceedAgent(
            f"The skill '{name}' needs tools that the agent '{agent.name}' does not have: {', '.join(lacking)}.",
            name=name,
            agent=agent.name,
            tools=", ".join(lacking),
        )
    if forked_from is None:
        return None
    if tools is None:
        return ToolsExceedAgent(
            f"What '{name}' was forked from restricts its tools to {', '.join(forked_from) or 'none'}; "
            f"the agent '{agent.name}' may narrow that in allowed-tools, but not lift it.",
            name=name,
            agent=agent.name,
            tools="*",
        )
    widened = uncovered(tools, forked_from)
    if not widened:
        return None
    return ToolsExceedAgent(
        f"What '{name}' was forked from does not allow these tools, and the agent '{agent.name}' may not add them: "
        f"{', '.join(widened)}.",
        name=name,
        agent=agent.name,
        tools=", ".join(widened),
    )


def barrier_of_caller(winner: Candidate, kind: CallerKind, touched: Sequence[str]) -> SubstrateError | None:
    """Return why this kind of caller, touching these paths, may not use the skill now, or None."""
    header = winner.header
    if header is None:
        return None
    if kind is CallerKind.MODEL and header.disable_model_invocation:
        return InvocationNotAllowed(
            f"The skill '{winner.name}' is for users to invoke, not for the model.",
            name=winner.name,
            caller_kind="MODEL",
        )
    if kind is CallerKind.USER and not header.user_invocable:
        return InvocationNotAllowed(
            f"The skill '{winner.name}' is for the model to invoke, not for users.",
            name=winner.name,
            caller_kind="USER",
        )
    if not eligible(header.paths, touched):
        return SkillIneligible(
            f"The skill '{winner.name}' applies to other files: its paths match none of those touched.",
            name=winner.name,
        )
    return None
