import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from substrate.domain.errors import InvalidSkill
from substrate.domain.names import slug_problem
from substrate.domain.skillmd import (
    MAX_BODY_BYTES,
    MAX_FILE_BYTES,
    QuarantinedFile,
    Skill,
    body_of,
    made_slug,
    parse_lenient,
    parse_strict,
    to_skill_md,
)
from tests.domain.skill_files import file, lenient, mentioned, notes, problems, quarantined

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "skillmd.yaml").read_text())["skill_files"]

# Lines and characters that mean something to a SKILL.md come up often enough to meet each other.
_LINES = [
    "---",
    "name: demo",
    "description: one: two",
    "description: works",
    "allowed-tools: Read, Bash(a *)",
    "tools: [Read",
    "argument-hint: [a] [b",
    "paths: a/*,b",
    "disable-model-invocation: yes",
    "metadata:\n  a: [b]",
    "arguments: a b",
    "? [x]\n: y",
    "# Title",
    "Text.",
    "",
]
_TEXTS = st.lists(st.one_of(st.sampled_from(_LINES), st.text(max_size=20)), max_size=12).map("\n".join)
_FRONTMATTERS = _TEXTS.map(lambda text: f"---\nname: demo\ndescription: works\n{text}\n---\nBody\n")


def check_outcome(parse: Callable[[], Skill], expected: dict[str, Any]) -> None:
    if not expected["ok"]:
        with pytest.raises((InvalidSkill, QuarantinedFile)) as refused:
            parse()
        assert mentioned(expected.get("problems", []), str(refused.value).splitlines())
        return
    skill = parse()
    values = {**json.loads(json.dumps(dataclasses.asdict(skill.header))), "body": skill.body}
    named = {key: value for key, value in expected.items() if key not in ("ok", "diagnostics")}
    assert {key: values[key] for key in named} == named
    if "diagnostics" in expected:
        assert mentioned(expected["diagnostics"], notes(skill))
        assert bool(skill.diagnostics) == bool(expected["diagnostics"])


@pytest.mark.parametrize("case", [case for case in CASES if "strict" in case], ids=lambda case: case["case"])
def test_strict_case(case: dict[str, Any]) -> None:
    check_outcome(lambda: parse_strict(case["text"]), case["strict"])
    check_outcome(lambda: parse_strict(case["text"].encode()), case["strict"])


@pytest.mark.parametrize("case", [case for case in CASES if "lenient" in case], ids=lambda case: case["case"])
def test_lenient_case(case: dict[str, Any]) -> None:
    check_outcome(lambda: lenient(case["text"], case.get("folder", "demo")), case["lenient"])


def test_problems_name_the_field_and_the_line() -> None:
    text = '---\nname: Bad_Name\ndescription: "a\\u0007"\nuser-invocable: maybe\nlicense: [MIT]\n---\nB\u202e\n'
    with pytest.raises(InvalidSkill) as refused:
        parse_strict(text)
    assert [(v.field, v.description.partition(": ")[0]) for v in refused.value.violations] == [
        ("source.name", "line 2"),
        ("source.description", "line 3"),
        ("source.user-invocable", "line 4"),
        ("source.license", "line 5"),
        ("source.body", "line 7"),
    ]


def test_a_broken_header_does_not_hide_what_is_wrong_with_the_body() -> None:
    found = problems("---\nname: demo\ndescription: a: b\n---\n\n")
    assert mentioned(["line 3: description:", "body: must not be blank"], found)


def test_strict_limits() -> None:
    long, wide = "d" * 1024, "é" * (MAX_BODY_BYTES // 2)
    assert parse_strict(f"---\nname: demo\ndescription: {long}\n---\n{wide}").body == wide
    found = problems(f"---\nname: demo\ndescription: {long}d\n---\n{wide}b")
    assert mentioned(["line 3: description: has 1,025 characters", "body: has 131,073 bytes"], found)


def test_lenient_keeps_what_is_too_long_and_says_so() -> None:
    skill = lenient(f"---\nname: demo\ndescription: {'d' * 1025}\n---\n{'b' * (MAX_BODY_BYTES + 1)}")
    assert (len(skill.header.description), len(skill.body)) == (1025, MAX_BODY_BYTES + 1)
    assert mentioned(["description: has 1,025", "body: has 131,073"], notes(skill))


def test_no_mode_reads_a_file_above_one_mebibyte() -> None:
    whole = file(body="")
    assert lenient(whole + "b" * (MAX_FILE_BYTES - len(whole))).body
    assert mentioned(["at most 1,048,576"], quarantined(whole + "b" * MAX_FILE_BYTES))
    assert mentioned(["at most 1,048,576"], problems(whole + "b" * MAX_FILE_BYTES))


def test_a_name_given_from_outside_must_be_the_files() -> None:
    assert parse_strict(file(), name="demo").header.name == "demo"
    assert problems(file(), name="other") == ["line 2: name: is 'demo', but the skill is called 'other'."]


@pytest.mark.parametrize(
    "data", [b"\xff\xfe-\0-\0-\0", b"---\nname: \xe9\n---\nBody\n", "---\n\ud800".encode("utf-8", "surrogatepass")]
)
def test_only_utf8_is_read(data: bytes) -> None:
    assert mentioned(["not UTF-8"], problems(data))
    with pytest.raises(QuarantinedFile, match=r"line [12]: holds bytes that are not UTF-8"):
        parse_lenient(data, folder="demo")


def test_a_lone_surrogate_in_text_is_refused() -> None:
    assert mentioned(["line 5: holds"], problems("---\nname: demo\ndescription: a\n---\n\ud800"))


@pytest.mark.parametrize("odd", ["\x07", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\U000e0041", "\r"])
def test_deceptive_characters_are_refused_but_for_bundles_where_they_are_reported(odd: str) -> None:
    where = f"line 5: body: holds the control or invisible character U+{ord(odd):04X}"
    text = file(body=f"a{odd}b\n")
    assert mentioned([where], problems(text))
    assert mentioned([where], quarantined(text, keep_folder_name=False))
    skill = lenient(text)
    assert skill.body == f"a{odd}b\n"
    assert mentioned([where], notes(skill))


def test_nul_is_refused_in_every_mode_even_as_an_escape() -> None:
    assert mentioned(["line 5: body", "U+0000"], quarantined(file(body="a\0")))
    assert mentioned(["line 4: license", "U+0000"], quarantined(file('license: "\\0"')))


@pytest.mark.parametrize(
    "opening", ["\n---", " ---", "\t\n---", "---\u00a0", "\ufeff\ufeff---", "---\rname: a\r", "\u2028---"]
)
def test_a_displaced_opening_is_not_read_as_a_body(opening: str) -> None:
    text = f"{opening}\nname: demo\ndescription: a\nallowed-tools: Read\n---\nBody\n"
    refusal = ["line 1: frontmatter: must open with exactly --- on the first line of the file."]
    assert problems(text) == refusal
    assert quarantined(text) == refusal


@pytest.mark.parametrize(
    ("after", "body"),
    [
        ("\n\n \t\n  Body\n\n", "  Body\n\n"),
        ("---\nBody", "---\nBody"),
        ("\r\nA\r\nB", "A\nB"),
        ("\u00a0\nBody", "\u00a0\nBody"),
    ],
)
def test_the_body_begins_at_the_first_line_that_is_not_blank(after: str, body: str) -> None:
    text = file(body=after)
    assert parse_strict(text).body == body
    assert lenient(text).body == body
    assert body_of(text.encode()) == body


@pytest.mark.parametrize("rule", ["---", "----", "--- a title ---", "- - -"])
def test_a_body_without_frontmatter_may_begin_with_dashes_that_open_nothing(rule: str) -> None:
    text = f"{rule} x\nUse it.\n"
    assert lenient(text).body == text


@pytest.mark.parametrize(
    ("folder", "name", "from_bundle", "from_import"),
    [
        ("demo", "demo", "demo", "demo"),
        ("demo", "", "demo", "demo"),
        ("other", "demo", "other", "demo"),
        ("Other One", "demo", "other-one", "demo"),
        ("other", "Not a slug", "other", "other"),
        ("Caf\u00e9 \u2014 M\u00fcnchen", "", "cafe-munchen", "cafe-munchen"),
        ("__My--Skill__", "my-skill", "my-skill", "my-skill"),
    ],
)
def test_who_names_a_skill(folder: str, name: str, from_bundle: str, from_import: str) -> None:
    text = f"---\nname: {name}\ndescription: a\n---\nBody\n"
    bundled, imported = lenient(text, folder), lenient(text, folder, keep_folder_name=False)
    assert (bundled.header.name, imported.header.name) == (from_bundle, from_import)
    assert bool(bundled.diagnostics) == (not folder == name == from_bundle)
    assert bool(imported.diagnostics) == (name != from_import)


@pytest.mark.parametrize("folder", ["", "...", "\u6280\u80fd", "\udcff"])
def test_a_folder_that_leaves_no_name_quarantines(folder: str) -> None:
    assert mentioned(["name: the folder"], quarantined("---\ndescription: a\n---\nBody\n", folder))
    assert lenient(file(), folder, keep_folder_name=False).header.name == "demo"


@given(st.text())
def test_a_slug_is_made_once(text: str) -> None:
    assert made_slug(made_slug(text)) == made_slug(text)
    assert len(made_slug(text)) <= 64


@pytest.mark.parametrize("lines", [[], ["description:"], ["description: ''"]])
def test_the_first_line_of_text_stands_in_for_a_missing_description(lines: list[str]) -> None:
    text = "\n".join(["---", "name: demo", *lines, "---", "# Title", "", "  ## Part", "  Use it: often.  ", "More."])
    skill = lenient(text)
    assert skill.header.description == "Use it: often."
    assert mentioned(["description: is missing"], notes(skill))
    assert mentioned(["description: is missing"], problems(text))
    assert mentioned(["description: is missing"], quarantined("# Title\n## Part\n"))
    assert len(lenient("x" * 2000).header.description) == 1024


def read_both(data: bytes) -> None:
    """Read in every mode; anything but the two documented errors fails the test."""
    with contextlib.suppress(InvalidSkill):
        skill = parse_strict(data)
        assert body_of(data) == skill.body
        again = parse_strict(to_skill_md(skill.header, skill.body))
        assert (again.header, again.body) == (skill.header, skill.body)
        assert list(again.header.extra) == list(skill.header.extra)
    for keep_folder_name in (True, False):
        with contextlib.suppress(QuarantinedFile):
            skill = parse_lenient(data, folder="demo", keep_folder_name=keep_folder_name)
            assert body_of(data) == skill.body
            assert slug_problem(skill.header.name) is None
            assert skill.header.description


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_both(data)


@settings(max_examples=500, deadline=None)
@given(st.one_of(_TEXTS, _FRONTMATTERS))
@example("---\nname: demo\ndescription: 'x'\n? {a: b}\n---\nBody\n")
@example("---\nname: demo\ndescription: a\nx: " + "[" * 60_000 + "\n---\nBody\n")
@example("---\nname: demo\ndescription: a\nx: !!int 9999\ny: !!timestamp 2026-99-99\n---\nBody\n")
def test_any_text_is_read_or_refused(text: str) -> None:
    read_both(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(InvalidSkill):
        parse_strict(text)
