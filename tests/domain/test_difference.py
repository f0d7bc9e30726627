"""Differences of two contents: what they show can be applied, and is bounded."""

import difflib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.domain import difference
from substrate.domain.candidates import SkillFile
from substrate.domain.difference import body_difference, differing_files, field_differences
from substrate.domain.skillmd import parse_strict
from tests.skills import skill_md

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")
_LINES = re.compile(r"[^\n]*\n")
UNENDED = "\\ No newline at end of file\n"

bodies = st.lists(st.sampled_from(["a", "b", "c", "", "x\u2028y", "\\ odd", "-d", "+e"]), max_size=12).map("\n".join)


def applied(before: str, diff: str) -> str:
    """Return what a unified difference makes of `before`, as any tool that reads one would."""
    old = re.findall(r"[^\n]*\n|[^\n]+", before)
    lines = _LINES.findall(diff)
    assert lines[0].startswith("--- ")
    assert lines[1].startswith("+++ ")
    made: list[str] = []
    position = 0
    for index, line in enumerate(lines[2:], 2):
        hunk = _HUNK.fullmatch(line)
        unended = index + 1 < len(lines) and lines[index + 1] == UNENDED
        text = line[1:-1] if unended else line[1:]
        if hunk:
            start = int(hunk.group(1)) - (0 if hunk.group(2) == "0" else 1)
            made += old[position:start]
            position = start
        elif line == UNENDED:
            continue
        elif line[0] in " -":
            assert old[position] == text
            position += 1
            made += [text] if line[0] == " " else []
        else:
            assert line[0] == "+"
            made.append(text)
    return "".join(made + old[position:])


@given(bodies, bodies)
def test_a_difference_makes_the_one_body_of_the_other(before: str, after: str) -> None:
    diff = body_difference(before, after, "one", "other")
    assert (diff == "") is (before == after)
    if diff:
        assert applied(before, diff) == after


@given(bodies, bodies)
def test_so_does_one_that_is_not_matched_line_by_line(before: str, after: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difference, "MAX_COMPARED", -1)
        diff = body_difference(before, after, "one", "other")
    if before != after:
        assert applied(before, diff) == after


def test_very_different_bodies_are_replaced_as_a_whole() -> None:
    before = "head\n" + "".join(f"{n % 97}\n" for n in range(20_000)) + "tail\n"
    after = "head\n" + "".join(f"{n % 89}\n" for n in range(20_000)) + "tail\n"
    diff = body_difference(before, after, "one", "other")
    assert diff.count("@@ -") == 1
    assert applied(before, diff) == after


def test_few_lines_against_many_equal_ones_are_not_matched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below two hundred lines difflib leaves none out, and looks at every pair for every block that it finds."""
    before = "a\n" * 20_000
    after = "".join(f"a\nx{n}\n" for n in range(99))
    compared: list[int] = []
    real = difflib.SequenceMatcher.find_longest_match

    def counted(*arguments: Any) -> object:
        compared.append(1)
        return real(*arguments)

    monkeypatch.setattr(difflib.SequenceMatcher, "find_longest_match", counted)
    diff = body_difference(before, after, "one", "other")
    assert compared == []
    assert applied(before, diff) == after
    assert body_difference("a\nb\n", "a\nc\n", "one", "other")
    assert compared


def test_fields_are_compared_under_their_written_names() -> None:
    one = parse_strict(skill_md("x", header="when_to_use: now\nowner: a\nuser-invocable: false\n")).header
    two = parse_strict(skill_md("x", header="when_to_use: now\nowner: b\nallowed-tools: []\n")).header
    found = [(f.field, f.before, f.after) for f in field_differences(one, two)]
    assert found == [("allowed-tools", "", "[]"), ("owner", '"a"', '"b"'), ("user-invocable", "false", "")]
    assert field_differences(one, one) == []


def test_files_differ_by_digest_and_by_being_there() -> None:
    one = [SkillFile("a", 1, "1"), SkillFile("b", 1, "2"), SkillFile("c", 1, "3")]
    two = [SkillFile("a", 1, "1"), SkillFile("b", 1, "9"), SkillFile("d", 1, "3")]
    assert differing_files(one, two) == ["b", "c", "d"]
