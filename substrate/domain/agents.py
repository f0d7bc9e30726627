"""Agents: what a runtime runs, and the allowlist that says which skills it may reach.

An agent's `content_sha256` covers its description, tools and definition, and leaves out the allowlist and the Skill
tool: tightening or loosening what an agent may reach does not change what the agent is. `tools` absent means
unrestricted, an empty list means none, and a bare ``Bash`` covers ``Bash(git *)``.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from substrate.domain.candidates import LayerKind
from substrate.domain.errors import InvalidAgent, InvalidAllowlist, InvalidName, Violation
from substrate.domain.names import AgentName, SkillName, parse_agent_name, parse_pin, parse_skill_name
from substrate.domain.skillmatch import Allowlist

SKILL_TOOL = "Skill"
MAX_TOOLS = 200
MAX_PINS = 200
MAX_TOOL_LENGTH = 256
MAX_AGENT_DESCRIPTION = 1024
MAX_DEFINITION_BYTES = 65536
MAX_DEFINITION_DEPTH = 64

_SHOWN = 80
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_PIN = "a version from v1 to v999999999 or a label"

SCOPES_REFUSED = (
    "skill_def_scopes is no longer accepted, whatever it holds. Either move its patterns into the agent's `skills` "
    "allowlist, or delete the field if the agent needs no limit."
)
_FIELDS = ("description", "tools", "skills", "definition")
_OWN_FIELDS = (*_FIELDS, "pins")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent definition from one layer; `definition_json` is canonical JSON text of an opaque object.

    `pins` says for which names the agent gets a certain version, ``v3`` or a label's, in place of the one in effect;
    only a tenant's own agents have any, and a `revision`, the catalog revision of their last change.
    """

    name: AgentName
    description: str
    tools: tuple[str, ...] | None
    allowlist: Allowlist
    definition_json: str
    kind: LayerKind
    origin: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    pins: Mapping[SkillName, str] = field(default_factory=dict)
    revision: int = 0

    @property
    def etag(self) -> str:
        """What changes whenever a tenant's agent does; empty for agents of other layers, which nobody can change."""
        return f"r{self.revision}" if self.kind is LayerKind.TENANT else ""

    @property
    def content_sha256(self) -> str:
        """The digest, in hex, of what the agent is; the allowlist and the Skill tool are no part of it."""
        tools = None if self.tools is None else [tool for tool in self.tools if tool != SKILL_TOOL]
        content = {"description": self.description, "tools": tools, "definition": json.loads(self.definition_json)}
        return _digest(content)

    @property
    def allowlist_sha256(self) -> str:
        """The digest, in hex, of the allowlist's entries in order."""
        return self.allowlist.sha256

    def lacks(self, tools: Iterable[str]) -> list[str]:
        """Return those of a skill's `tools` that the agent does not have, in order."""
        return [] if self.tools is None else uncovered(tools, self.tools)


def uncovered(tools: Iterable[str], own: Iterable[str]) -> list[str]:
    """Return those of `tools` that `own` does not cover, in order; a bare ``Bash`` covers every ``Bash(...)``."""
    covering = set(own)
    return [tool for tool in tools if tool not in covering and tool.partition("(")[0].strip() not in covering]


def parse_agent(name: str, data: object, kind: LayerKind, origin: str) -> Agent:
    """Return the agent that plain `data` (as read from YAML or JSON) describes.

    Raises InvalidAgent with every problem: unknown fields, wrong types, bad allowlist entries, and `skill_def_scopes`
    in any form.
    """
    violations: list[Violation] = []
    try:
        parse_agent_name(name, "name")
    except InvalidName as error:
        violations.extend(error.violations)
    if not isinstance(data, Mapping):
        violations.append(Violation("", "An agent is a mapping of description, tools, skills and definition."))
        raise InvalidAgent(*violations)
    # Bundles and configuration come to many tenants, whose versions and labels they cannot know.
    fields = _OWN_FIELDS if kind is LayerKind.TENANT else _FIELDS
    for key in data:
        if key == "skill_def_scopes":
            violations.append(Violation("skill_def_scopes", SCOPES_REFUSED))
        elif key not in fields:
            violations.append(Violation(str(key)[:_SHOWN], f"Unknown field; an agent has {', '.join(fields)}."))
    description = data.get("description", "")
    if not isinstance(description, str) or len(description) > MAX_AGENT_DESCRIPTION or _UNSTORABLE.search(description):
        advice = f"Must be text of at most {MAX_AGENT_DESCRIPTION} characters, without NUL and lone surrogates."
        violations.append(Violation("description", advice))
    tools = _tools(data, violations)
    allowlist = _allowlist(data, violations)
    definition = _definition(data, violations)
    pins = _pins(data.get("pins", {}), violations) if kind is LayerKind.TENANT else {}
    if violations:
        raise InvalidAgent(*violations)
    return Agent(AgentName(name), str(description), tools, allowlist, definition, kind, origin, pins=pins)


def _texts(data: Mapping[str, object], key: str, violations: list[Violation], advice: str) -> Sequence[str] | None:
    value = data.get(key)
    if key not in data:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        violations.append(Violation(key, f"Must be a list of text; {advice}"))
        return None
    return value


def _tools(data: Mapping[str, object], violations: list[Violation]) -> tuple[str, ...] | None:
    tools = _texts(data, "tools", violations, "leave it out for no restriction, write [] for no tools.")
    if tools is None:
        return None
    if len(tools) > MAX_TOOLS:
        violations.append(Violation("tools", f"At most {MAX_TOOLS} tools are allowed; these are {len(tools)}."))
        return None
    for index, tool in enumerate(tools):
        if not tool.strip() or len(tool) > MAX_TOOL_LENGTH or not tool.isprintable():
            violations.append(
                Violation(f"tools[{index}]", f"A tool is printable text of 1 to {MAX_TOOL_LENGTH} characters.")
            )
    return tuple(tools)


def _allowlist(data: Mapping[str, object], violations: list[Violation]) -> Allowlist:
    entries = _texts(data, "skills", violations, "leave it out to allow every skill.")
    try:
        return Allowlist.parse(entries or ())
    except InvalidAllowlist as error:
        violations.extend(error.violations)
        return Allowlist.parse(())


def _pins(data: object, violations: list[Violation]) -> dict[SkillName, str]:
    if not isinstance(data, Mapping):
        violations.append(Violation("pins", "Must be a mapping from a skill's name to a version or a label."))
        return {}
    if len(data) > MAX_PINS:
        violations.append(Violation("pins", f"At most {MAX_PINS} pins are allowed; these are {len(data)}."))
        return {}
    for name, pin in data.items():
        place = f"pins[{str(name)[:_SHOWN]}]"
        if not isinstance(name, str) or not isinstance(pin, str):
            violations.append(Violation(place, f"Both must be text: a skill's name, and {_PIN}."))
            continue
        try:
            parse_skill_name(name, place)
        except InvalidName as error:
            violations.extend(error.violations)
        try:
            parse_pin(pin, place)
        except InvalidName as error:
            advice = f"{error.message} Pin to {_PIN}."
            violations.append(Violation(place, advice))
    return {SkillName(name): pin for name, pin in sorted(data.items())} if not violations else {}


def _definition(data: Mapping[str, object], violations: list[Violation]) -> str:
    definition = data.get("definition", {})
    if not isinstance(definition, Mapping):
        violations.append(Violation("definition", "Must be a mapping (a JSON object)."))
        return "{}"
    if _mentions_scopes(definition):
        violations.append(Violation("definition", SCOPES_REFUSED))
    if _depth(definition) > MAX_DEFINITION_DEPTH:
        violations.append(Violation("definition", f"Must be nested at most {MAX_DEFINITION_DEPTH} deep."))
        return "{}"
    try:
        text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError):
        violations.append(Violation("definition", "Must hold JSON values only: no NaN, no infinity, no odd texts."))
        return "{}"
    if size > MAX_DEFINITION_BYTES:
        violations.append(Violation("definition", f"Must be at most {MAX_DEFINITION_BYTES} bytes of JSON."))
    return text


def _mentions_scopes(value: object, limit: int = MAX_DEFINITION_DEPTH + 1) -> bool:
    """Whether the refused field stands anywhere in `value`, looking no deeper than a definition may go."""
    if limit == 0 or not isinstance(value, Mapping | list):
        return False
    if isinstance(value, Mapping) and "skill_def_scopes" in value:
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return any(_mentions_scopes(item, limit - 1) for item in inner)


def _depth(value: object, limit: int = MAX_DEFINITION_DEPTH + 1) -> int:
    """Return how deep `value` is nested, looking no deeper than `limit`."""
    if limit == 0 or not isinstance(value, Mapping | list):
        return 0
    inner = value.values() if isinstance(value, Mapping) else value
    return 1 + max((_depth(item, limit - 1) for item in inner), default=0)


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
