"""The operator's ``substrate.yaml``: which bundles there are, skills and agents defined in place, and name modes."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from substrate.domain.agents import Agent
from substrate.domain.candidates import Candidate, Layer, LayerKind
from substrate.domain.catalog import NameMode
from substrate.domain.characters import shown
from substrate.domain.errors import InvalidSkill, Violation
from substrate.domain.frontmatter import KNOWN_KEYS
from substrate.domain.names import SkillName, skill_name_problem
from substrate.domain.patterns import MAX_PATTERN_LENGTH, Pattern, parse_pattern, pattern_problem
from substrate.domain.plainyaml import MAX_DEPTH, Plain
from substrate.domain.skillmd import Skill, content_sha256, parse_strict
from substrate.domain.yamlwriter import dump
from substrate.sources.bundles import MANIFEST
from substrate.sources.configfile import Node, parse_file
from substrate.sources.disk import Unreadable, read_regular

MAX_CONFIG_BYTES = 4 * 1024 * 1024

_SHIPPED = "shipped:"
_MAX_PATH_LENGTH = 4096
_ORIGIN = "inline"
# Takes the place of what is refused, so that the rest can be judged.
_STAND_IN = "unknown"
_HINT = "argument-hint"
# The mapping's key is the name here, and `tools` is but a synonym of `allowed-tools`.
_HEADER_KEYS = sorted(KNOWN_KEYS - {"name", "tools"})
_MODES = {mode.value: mode for mode in NameMode}
# A skill's header stands two levels below the root, and may be as deep as one in a file of its own.
_MAX_DEPTH = MAX_DEPTH + 2


@dataclass(frozen=True, slots=True)
class BundleRef:
    """A bundle that the config asks for at `place`: its folder, and what ``$N`` counts from in its skills (0 or 1)."""

    path: Path
    positional_base: int
    place: str


@dataclass(frozen=True, slots=True)
class Config:
    """What the config file says: `bundles` from the highest to the lowest, and `modes` in order, the first deciding."""

    bundles: tuple[BundleRef, ...]
    layer: Layer
    agents: tuple[Agent, ...]
    modes: tuple[tuple[Pattern, NameMode], ...]


def read_config(path: Path, shipped: Path, violations: list[Violation]) -> Config:
    """Return what the config file at `path` says; ``shipped:<name>`` is the bundle `name` in the folder `shipped`.

    Every problem, the file's being unreadable included, goes to `violations`; the result may be served only if there
    is none. A file without ``bundles`` has none.
    """
    root = _read_root(path, violations)
    known = root.fields(("bundles", "skills", "agents", "name_modes")) if root else {}
    skills = known["skills"].entries() if "skills" in known else {}
    candidates = [candidate for name in sorted(skills) if (candidate := _skill(skills[name], name))]
    return Config(
        bundles=_bundles(known["bundles"], shipped) if "bundles" in known else (),
        layer=Layer(LayerKind.INLINE, _ORIGIN, {candidate.name: candidate for candidate in candidates}),
        agents=known["agents"].agents(LayerKind.INLINE, _ORIGIN) if "agents" in known else (),
        modes=_modes(known["name_modes"]) if "name_modes" in known else (),
    )


def _read_root(path: Path, violations: list[Violation]) -> Node | None:
    try:
        # The operator's file may be a link, as configuration often is; what it leads to is a file like any other.
        # This limit bounds the memory; the reader of YAML has the real one, and says where it was passed.
        data = read_regular(path.resolve(), 2 * MAX_CONFIG_BYTES)
    except Unreadable as error:
        violations.append(Violation(str(path), str(error)))
        return None
    if not data.strip():
        # More likely a file that was cut off than the wish to serve nothing.
        violations.append(Violation(str(path), "is empty; write `bundles: []` if it is to say nothing."))
        return None
    return parse_file(path, data, violations, max_bytes=MAX_CONFIG_BYTES, max_depth=_MAX_DEPTH)


def _bundles(node: Node, shipped: Path) -> tuple[BundleRef, ...]:
    refs: dict[Path, BundleRef] = {}
    for item in node.items():
        fields = {"path": item} if isinstance(item.value, str) else item.fields(("path", "positional_base"), ["path"])
        base = fields["positional_base"].positional_base() if "positional_base" in fields else 0
        folder = _bundle_folder(fields["path"], shipped) if "path" in fields else None
        if folder is None:
            continue
        first = refs.setdefault(folder.resolve(), BundleRef(folder, base, item.place()))
        if first.place != item.place():
            item.refuse(f"The bundle in {folder} is listed twice, first at {first.place}.")
    return tuple(refs.values())


def _bundle_folder(node: Node, shipped: Path) -> Path | None:
    text = node.text(_MAX_PATH_LENGTH)
    if not text:
        return None
    if text.startswith(_SHIPPED):
        name = text.removeprefix(_SHIPPED)
        names = sorted(manifest.parent.name for manifest in shipped.glob(f"*/{MANIFEST}"))
        if name in names:
            return shipped / name
        node.refuse(f"No bundle {shown(name)} comes with the product; there are {', '.join(names)}.")
        return None
    folder = node.path.parent / text
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises where a folder may not be looked at.
        node.refuse(f"There is no folder {folder}.")
        return None
    return folder


def _skill(node: Node, name: str) -> Candidate | None:
    """Return the skill `name` that `node` defines, under the rules for the author of a SKILL.md, or None."""
    before = len(node.violations)
    problem = skill_name_problem(name)
    if problem:
        node.refuse(f"The skill name {shown(name)} {problem}.")
    fields = node.fields((*_HEADER_KEYS, "body", "positional_base"))
    if not isinstance(node.value, dict):
        return None
    base = fields["positional_base"].positional_base() if "positional_base" in fields else 0
    header: dict[str, Plain] = {"name": _STAND_IN if problem else name.rpartition("/")[2]}
    header |= {key: field.value for key, field in fields.items() if key in _HEADER_KEYS}
    if isinstance(header.get(_HINT), list | dict):
        header[_HINT] = fields[_HINT].source()
    body = fields["body"].value if "body" in fields else ""
    if not isinstance(body, str):
        fields["body"].refuse("must be text.")
        body = _STAND_IN
    skill = _parsed(node, f"---\n{dump(header)}---\n\n{body}")
    if skill is None or len(node.violations) > before:
        return None
    return Candidate(
        SkillName(name),
        LayerKind.INLINE,
        f"{_ORIGIN}:{node.path.name}#skills.{name}",
        header=skill.header,
        content_sha256=content_sha256(skill.header, skill.body),
        positional_base=base,
        body=skill.body,
    )


def _parsed(node: Node, text: str) -> Skill | None:
    """Return the skill written as the SKILL.md `text`, which was made of `node`; refuse what is wrong with it there."""
    try:
        return parse_strict(text)
    except InvalidSkill as error:
        for violation in error.violations:
            key = violation.field.removeprefix("source").removeprefix(".")
            # Lines count in the text that was made; the place in the config takes their part.
            message = re.sub(rf"^(?:line \d+: )?(?:{re.escape(key)}: )?", "", violation.description)
            node.refuse(message, *((key,) if key in (*_HEADER_KEYS, "body") else ()))
        return None


def _modes(node: Node) -> tuple[tuple[Pattern, NameMode], ...]:
    modes = []
    for item in node.items():
        fields = item.fields(("pattern", "mode"), required=("pattern", "mode"))
        pattern = fields["pattern"].text(MAX_PATTERN_LENGTH) if "pattern" in fields else ""
        problem = pattern_problem(pattern) if pattern else ""
        if problem:
            fields["pattern"].refuse(f"The pattern {shown(pattern)} {problem}.")
        mode = fields["mode"].value if "mode" in fields else NameMode.OPEN.value
        if not isinstance(mode, str) or mode not in _MODES:
            fields["mode"].refuse(f"must be one of {', '.join(_MODES)}.")
        elif pattern and not problem:
            modes.append((parse_pattern(pattern), _MODES[mode]))
    return tuple(modes)
