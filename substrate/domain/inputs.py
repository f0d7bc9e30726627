"""What decisions are made from, as texts that are kept under their digest so that a decision can be made again.

An **agent** is kept with all of it that decides: its tools, its allowlist and its pins. A **static state** is kept with
all layers, name modes and agents; of a skill it holds where it comes from, its digest and what restricts its use, and
neither description nor body. Both are compact JSON, and the SHA-256 of the text is the digest that events name. Equal
digests decide equally, wherever the files lie.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.audit import KeptInput
from substrate.domain.candidates import Candidate, Layer, LayerKind, Standing
from substrate.domain.catalog import NameMode, NameModes, StaticCatalog
from substrate.domain.names import SkillName
from substrate.domain.patterns import parse_pattern
from substrate.domain.skillheader import SkillHeader

_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


class InvalidInputTextError(Exception):
    """A kept text that is not what its digest stands for, or that cannot be read."""


def agent_input(agent: Agent) -> KeptInput:
    """Return what is kept of `agent`."""
    return _kept(
        {
            "name": agent.name,
            "origin": agent.origin,
            "kind": agent.kind.value,
            "tools": None if agent.tools is None else list(agent.tools),
            "skills": [entry.text for entry in agent.allowlist.entries],
            "pins": dict(agent.pins),
        }
    )


def agent_of(kept: KeptInput) -> Agent:
    """Return the agent that was kept, without its description and definition; raise InvalidInputTextError."""
    content = _content(kept)
    try:
        data: dict[str, object] = {"skills": content["skills"], "pins": content["pins"]}
        if content["tools"] is not None:
            data["tools"] = content["tools"]
        # Pins are a tenant's own; the kinds without them have none to read.
        kind = LayerKind(content["kind"])
        if kind is not LayerKind.TENANT:
            del data["pins"]
        return parse_agent(content["name"], data, kind, content["origin"])
    except Exception as error:
        raise InvalidInputTextError(f"The kept agent {kept.sha256} cannot be read.") from error


def static_input(catalog: StaticCatalog, agents: Iterable[Agent]) -> KeptInput:
    """Return what is kept of a static state."""
    return _kept(
        {
            "layers": [
                {
                    "kind": layer.kind.value,
                    "origin": layer.origin,
                    "candidates": [_candidate_fields(candidate) for candidate in layer.candidates.values()],
                }
                for layer in catalog.layers
            ],
            # An agent's own digest leaves out the Skill tool, which can still be one that a skill asks for.
            "agents": [
                [agent.name, agent.origin, agent.content_sha256, agent.allowlist_sha256, agent.tools]
                for agent in sorted(agents, key=lambda agent: agent.name)
            ],
            "modes": [["/".join(pattern.segments), mode.value] for pattern, mode in catalog.modes.modes],
        }
    )


def static_of(kept: KeptInput, name: SkillName | None = None) -> StaticCatalog:
    """Return the layers and name modes that were kept, of `name` alone if it is given; raise InvalidInputTextError.

    The candidates have headers without descriptions, and no bodies.
    """
    content = _content(kept)
    try:
        layers = [
            Layer(
                LayerKind(layer["kind"]),
                layer["origin"],
                {
                    SkillName(fields["name"]): _candidate_of(fields, LayerKind(layer["kind"]))
                    for fields in layer["candidates"]
                    if name in (None, fields["name"])
                },
            )
            for layer in content["layers"]
        ]
        modes = [(parse_pattern(pattern), NameMode(mode)) for pattern, mode in content["modes"]]
    except Exception as error:
        raise InvalidInputTextError(f"The kept static state {kept.sha256} cannot be read.") from error
    return StaticCatalog(tuple(layers), NameModes(modes))


def _candidate_fields(candidate: Candidate) -> dict[str, Any]:
    header = candidate.header
    return {
        "name": candidate.name,
        "origin": candidate.origin,
        "standing": candidate.standing.value,
        "digest": candidate.content_sha256,
        "base": candidate.positional_base,
        "problem": candidate.problem,
        "header": header
        and {
            "tools": header.allowed_tools,
            "model": not header.disable_model_invocation,
            "user": header.user_invocable,
            "paths": header.paths,
        },
    }


def _candidate_of(fields: Mapping[str, Any], kind: LayerKind) -> Candidate:
    header = fields["header"]
    name = SkillName(fields["name"])
    return Candidate(
        name=name,
        kind=kind,
        origin=fields["origin"],
        standing=Standing(fields["standing"]),
        header=header
        and SkillHeader(
            name=name.rpartition("/")[2],
            description="",
            allowed_tools=None if header["tools"] is None else tuple(header["tools"]),
            disable_model_invocation=not header["model"],
            user_invocable=header["user"],
            paths=tuple(header["paths"]),
        ),
        content_sha256=fields["digest"],
        positional_base=fields["base"],
        problem=fields["problem"],
    )


def _kept(content: object) -> KeptInput:
    text = _encode(content)
    return KeptInput(hashlib.sha256(text.encode()).hexdigest(), text)


def _content(kept: KeptInput) -> Any:
    if hashlib.sha256(kept.content.encode()).hexdigest() != kept.sha256:
        raise InvalidInputTextError(f"The text kept as {kept.sha256} has been altered.")
    try:
        return json.loads(kept.content)
    except ValueError as error:
        raise InvalidInputTextError(f"The text kept as {kept.sha256} is no JSON.") from error
