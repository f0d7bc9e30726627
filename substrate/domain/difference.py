"""How two contents of a skill differ: field by field in the frontmatter, as a unified diff in the body, by file."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from substrate.domain.candidates import SkillFile
from substrate.domain.skillheader import SkillHeader, header_to_plain

MAX_COMPARED = 20_000_000
"""Steps up to which differing lines are matched one by one; beyond it they are shown as replaced as a whole."""

_Opcode = tuple[str, int, int, int, int]

_CONTEXT = 3
_JUNK_FROM = 200
_JUNK_ABOVE = 100
"""From so many lines on difflib leaves out those that make up more than one in so many."""

_LINES = re.compile(r"[^\n]*\n|[^\n]+")
"""Lines end at LF only, as everywhere in a SKILL.md."""

_WRITTEN = {
    "allowed_tools": "allowed-tools",
    "argument_hint": "argument-hint",
    "disable_model_invocation": "disable-model-invocation",
    "user_invocable": "user-invocable",
}


class _Matched(difflib.SequenceMatcher[str]):
    """A matcher whose differences are known, for its way of grouping them."""

    def __init__(self, opcodes: list[_Opcode]) -> None:
        super().__init__()
        self._known = opcodes

    def get_opcodes(self) -> list[_Opcode]:  # type: ignore[override]  # The stubs narrow the tags to literals.
        """Return the known differences."""
        return self._known


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
    opcodes: list[_Opcode] = [
        ("equal", 0, head, 0, head),
        *_changes(left, right, head, tail),
        ("equal", len(left) - tail, len(left), len(right) - tail, len(right)),
    ]
    lines = [f"--- {from_name}\n", f"+++ {to_name}\n"]
    for group in _Matched(opcodes).get_grouped_opcodes(_CONTEXT):
        lines += _hunk(left, right, group)
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


def _changes(left: list[str], right: list[str], head: int, tail: int) -> list[_Opcode]:
    """Return how what lies between the lines that both begin and end with differs: line by line, if that is cheap."""
    old, new = left[head : len(left) - tail], right[head : len(right) - tail]
    counts = Counter(new)
    # Each block that is found looks at every pair of equal lines again, but for lines that difflib takes for junk.
    common = len(new) // _JUNK_ABOVE + 1 if len(new) >= _JUNK_FROM else len(new)
    pairs = sum(times * count for line, times in Counter(old).items() if (count := counts.get(line, 0)) <= common)
    if pairs * min(len(old), len(new)) > MAX_COMPARED:
        return [("replace", head, head + len(old), head, head + len(new))]
    found = difflib.SequenceMatcher(None, old, new).get_opcodes()
    return [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in found]


def _hunk(left: list[str], right: list[str], group: Sequence[_Opcode]) -> list[str]:
    first, last = group[0], group[-1]
    lines = [f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"]
    for tag, i, j, k, m in group:
        if tag == "equal":
            lines += [f" {line}" for line in left[i:j]]
        else:
            lines += [f"-{line}" for line in left[i:j]] + [f"+{line}" for line in right[k:m]]
    return lines


def _range(start: int, stop: int) -> str:
    """Return lines `start` to `stop` (from 0, `stop` left out) as a unified difference names them."""
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"
