"""How two contents of a skill differ: field by field in the frontmatter, as a unified diff in the body, by file."""

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from substrate.domain.candidates import SkillFile
from substrate.domain.skillheader import SkillHeader, header_to_plain

MAX_COMPARED = 4_000_000
"""Products of differing lines up to which the lines are matched; beyond it they are shown as replaced as a whole."""

_CONTEXT = 3
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
"""Lines end at LF only, as everywhere in a SKILL.md."""

_WRITTEN = {
    "allowed_tools": "allowed-tools",
    "argument_hint": "argument-hint",
    "disable_model_invocation": "disable-model-invocation",
    "user_invocable": "user-invocable",
}


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A frontmatter field that differs, with both values as compact JSON; empty where it is not there."""

    field: str
    before: str
    after: str


def field_differences(before: SkillHeader, after: SkillHeader) -> list[FieldDifference]:
    """Return the frontmatter's differing fields, by the name they have in a SKILL.md."""
    left, right = _fields(before), _fields(after)
    return [
        FieldDifference(name, left.get(name, ""), right.get(name, ""))
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    ]


def body_difference(before: str, after: str, from_name: str, to_name: str) -> str:
    """Return the unified difference of two bodies, empty when they are equal; a last line without an end is marked."""
    if before == after:
        return ""
    left, right = _LINES.findall(before), _LINES.findall(after)
    head = _common(left, right)
    tail = _common(left[head:][::-1], right[head:][::-1])
    differing = (len(left) - head - tail) * (len(right) - head - tail)
    if differing > MAX_COMPARED:
        lines = _replaced(left, right, head, tail, from_name, to_name)
    else:
        lines = list(difflib.unified_diff(left, right, from_name, to_name, n=_CONTEXT))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def differing_files(before: Iterable[SkillFile], after: Iterable[SkillFile]) -> list[str]:
    """Return the paths of files that differ or are on one side alone, sorted."""
    left = {file.path: file.sha256 for file in before}
    right = {file.path: file.sha256 for file in after}
    return sorted(path for path in {*left, *right} if left.get(path) != right.get(path))


def _fields(header: SkillHeader) -> dict[str, str]:
    plain: dict[str, Any] = header_to_plain(header)
    extra = dict(plain.pop("extra", ()))
    values = {_WRITTEN.get(name, name): value for name, value in plain.items()} | extra
    return {name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for name, value in values.items()}


def _common(left: list[str], right: list[str]) -> int:
    """Return how many lines the two begin with in common."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _replaced(left: list[str], right: list[str], head: int, tail: int, from_name: str, to_name: str) -> list[str]:
    """Return one hunk that replaces everything between the lines that both begin and end with."""
    start = max(0, head - _CONTEXT)
    before, after = left[head : len(left) - tail], right[head : len(right) - tail]
    trailing = left[len(left) - tail :][:_CONTEXT]
    context = head - start + len(trailing)
    position = f"@@ -{start + 1},{len(before) + context} +{start + 1},{len(after) + context} @@\n"
    return [
        f"--- {from_name}\n",
        f"+++ {to_name}\n",
        position,
        *(f" {line}" for line in left[start:head]),
        *(f"-{line}" for line in before),
        *(f"+{line}" for line in after),
        *(f" {line}" for line in trailing),
    ]
