"""What a SKILL.md says about itself: the header kept in memory for every skill, its stored form and its digest."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from substrate.domain.errors import InvalidSkill, Violation
from substrate.domain.names import slug_problem
from substrate.domain.plainyaml import MAX_DEPTH, Plain


@dataclass(frozen=True, slots=True)
class SkillHeader:
    """Everything in a SKILL.md but its body.

    `name` is a slug, the last segment of the skill's name. `allowed_tools` is None when the skill declares none and
    empty when it needs none. `extra` holds the keys without a meaning here, verbatim and in file order.
    """

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None = None
    license: str | None = None
    compatibility: str | None = None
    when_to_use: str | None = None
    argument_hint: str | None = None
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    disable_model_invocation: bool = False
    user_invocable: bool = True
    paths: tuple[str, ...] = ()
    extra: Mapping[str, Plain] = field(default_factory=dict)


_BARE = SkillHeader(name="", description="")
_FIELDS = tuple(field.name for field in dataclasses.fields(SkillHeader))


def header_to_plain(header: SkillHeader) -> dict[str, Any]:
    """Return `header` as JSON data without the fields that have their default values.

    Unknown keys are a list of pairs, so that their order survives a database column that sorts the keys of objects.
    """
    plain = {name: value for name in _FIELDS if (value := getattr(header, name)) != getattr(_BARE, name)}
    if header.extra:
        plain["extra"] = [[key, value] for key, value in header.extra.items()]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def header_from_plain(data: Any) -> SkillHeader:
    """Return the header that `header_to_plain` made `data` of; raise InvalidSkill when it cannot be that."""
    if not isinstance(data, dict):
        raise InvalidSkill(Violation("header", "The stored header is not an object."))
    wrong = [name for name, value in data.items() if name not in _SHAPES or not _SHAPES[name](value)]
    wrong += [name for name in ("name", "description") if name not in data]
    if wrong:
        raise InvalidSkill(*(Violation(f"header.{name}", f"The stored {name!a} is malformed.") for name in wrong))
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    values["extra"] = dict(data.get("extra", ()))
    return SkillHeader(**values)


def content_sha256(header: SkillHeader, body: str, files: Sequence[tuple[str, str]] = ()) -> str:
    """Return the hex SHA-256 of what the skill says and carries; `files` are pairs of path and hex SHA-256.

    The digest covers canonical JSON (sorted keys, no blanks, UTF-8) of the name, description, body, allowed tools, all
    other frontmatter and the files in the order of their paths. The order of frontmatter keys makes no difference.
    """
    frontmatter = header_to_plain(header)
    content = {
        "name": frontmatter.pop("name"),
        "description": frontmatter.pop("description"),
        "allowed_tools": frontmatter.pop("allowed_tools", None),
        "frontmatter": {**frontmatter, "extra": dict(header.extra)},
        "body": body,
        "files": sorted(files),
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(isinstance(k, str) and _is_plain(item, depth - 1) for k, item in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return isinstance(value, str)


def _is_pair(value: Any) -> bool:
    match value:
        case [str(), item]:
            return _is_plain(item)
        case _:
            return False


_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str) and slug_problem(value) is None,
    "description": _is_text,
    "allowed_tools": _is_texts,
    "license": _is_text,
    "compatibility": _is_text,
    "when_to_use": _is_text,
    "argument_hint": _is_text,
    "metadata": lambda value: isinstance(value, dict) and _is_plain(value),
    "arguments": _is_texts,
    "disable_model_invocation": lambda value: isinstance(value, bool),
    "user_invocable": lambda value: isinstance(value, bool),
    "paths": _is_texts,
    "extra": lambda value: isinstance(value, list) and all(map(_is_pair, value)),
}
