"""What a change does to a name: what it stands for before and after, and for which agents that matters."""

from collections.abc import Iterable
from dataclasses import dataclass

from substrate.domain.agents import Agent
from substrate.domain.candidates import Candidate, Resolution
from substrate.domain.catalog import Catalog
from substrate.domain.eligibility import usable
from substrate.domain.names import AgentName, SkillName, SkillRef


@dataclass(frozen=True, slots=True)
class Effect:
    """A name's resolution before and after a change, and the agents that gain it, lose it or get another content."""

    before: Resolution
    after: Resolution
    gaining: tuple[AgentName, ...]
    losing: tuple[AgentName, ...]
    changing: tuple[AgentName, ...]


def effect_of(name: SkillName, before: Catalog, after: Catalog, agents: Iterable[Agent]) -> Effect:
    """Compare what `name` is to each of `agents` in the catalogs `before` and `after` a change."""
    gaining, losing, changing = [], [], []
    for agent in agents:
        if not agent.allowlist.decide(name).allowed:
            continue
        had, has = usable(before, agent, name), usable(after, agent, name)
        if had is None and has is not None:
            gaining.append(agent.name)
        elif had is not None and has is None:
            losing.append(agent.name)
        elif had is not None and has is not None and _content(had) != _content(has):
            changing.append(agent.name)
    ref = SkillRef(name)
    return Effect(before.resolve(ref), after.resolve(ref), tuple(gaining), tuple(losing), tuple(changing))


def _content(candidate: Candidate) -> tuple[str, int]:
    return candidate.content_sha256, candidate.positional_base
