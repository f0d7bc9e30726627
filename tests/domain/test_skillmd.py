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
from substrate.domain.skillmd import (
    MAX_BODY_BYTES,
    MAX_FILE_BYTES,
    QuarantinedFile,
    Skill,
    SkillHeader,
    body_of,
    content_sha256,
    header_from_plain,
    header_to_plain,
    made_slug,
    parse_lenient,
    parse_strict,
    to_skill_md,
)

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


def file(*lines: str, body: str = "Body\n") -> str:
    return "\n".join(["---", "name: demo", "description: works", *lines, "---", body])


def problems(text: str | bytes, name: str | None = None) -> list[str]:
    with pytest.raises(InvalidSkill) as refused:
        parse_strict(text, name=name)
    return [violation.description for violation in refused.value.violations]


def quarantined(text: str, folder: str = "demo", *, keep_folder_name: bool = True) -> list[str]:
    with pytest.raises(QuarantinedFile) as refused:
        parse_lenient(text.encode(), folder=folder, keep_folder_name=keep_folder_name)
    return [str(problem) for problem in refused.value.problems]


def lenient(text: str, folder: str = "demo", *, keep_folder_name: bool = True) -> Skill:
    return parse_lenient(text.encode(), folder=folder, keep_folder_name=keep_folder_name)


def notes(skill: Skill) -> list[str]:
    return [str(problem) for problem in skill.diagnostics]


def mentioned(expected: list[str], messages: list[str]) -> bool:
    return all(any(part in message for message in messages) for part in expected)


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


@pytest.mark.parametrize(
    "line", ["license: a\x1bb", 'license: "a\\x1bb"', "other: [{a\x1b: b}]", "# a\x1bb", "x: &a 1\x1b"]
)
def test_control_characters_in_frontmatter_are_never_accepted_from_others(line: str) -> None:
    assert mentioned(["line 4", "U+001B"], problems(file(line)))
    assert mentioned(["line 4", "U+001B"], quarantined(file(line), keep_folder_name=False))


def test_a_raw_control_character_in_a_plain_value_of_a_bundle_is_kept_and_reported() -> None:
    skill = lenient(file("license: a\x1bb\x07"))
    assert skill.header.license == "a\x1bb\x07"
    assert mentioned(["line 4: license: holds the character U+", "U+001B", "U+0007"], notes(skill))


@pytest.mark.parametrize(
    "line",
    ["# \u202e", "other: {a: '\u202e'}", 'other: ["\\u202e"]', "license: \u202e", '"\\u202e": a', 'license: "\\u2028"'],
)
def test_invisible_characters_are_found_wherever_they_hide_in_the_frontmatter(line: str) -> None:
    assert mentioned(["line 4"], problems(file(line)))
    assert mentioned(["line 4"], notes(lenient(file(line))))


@pytest.mark.parametrize("odd", ["\0", "\r", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("value", ["a", "a: b", "'a"])
def test_no_mode_reads_a_character_that_could_hide_a_key(value: str, odd: str) -> None:
    text = file(f"license: {value}{odd}disable-model-invocation: true")
    assert mentioned(["line 4", f"U+{ord(odd):04X}"], problems(text))
    assert mentioned(["line 4", f"U+{ord(odd):04X}"], quarantined(text))


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
    ("line", "field", "value"),
    [
        ("license: MIT: see LICENSE", "license", "MIT: see LICENSE"),
        ("license:   two: blanks  ", "license", "two: blanks"),
        ("license: ends with:", "license", "ends with:"),
        ('license: it\'s: "quoted" \\n', "license", 'it\'s: "quoted" \\n'),
        ("license: a: b #c", "license", "a: b #c"),
        ("argument-hint: [a] [b]", "argument_hint", "[a] [b]"),
        ("argument-hint: [a", "argument_hint", "[a"),
        ("argument-hint: [*] b: c", "argument_hint", "[*] b: c"),
        ("when_to_use: Use when: always", "when_to_use", "Use when: always"),
        ("triggers: Use when: always", "extra", {"triggers": "Use when: always"}),
    ],
)
def test_one_line_that_yaml_refuses_is_read_as_the_text_it_shows(line: str, field: str, value: object) -> None:
    skill = lenient(file(line, "allowed-tools: Read"))
    assert getattr(skill.header, field) == value
    assert skill.header.allowed_tools == ("Read",)
    assert len(skill.diagnostics) == 1
    assert mentioned(["line 4", "It is read as plain text."], notes(skill))
    assert mentioned(["line 4"], problems(file(line, "allowed-tools: Read")))


def test_several_lines_are_repaired_each_with_its_diagnostic() -> None:
    skill = lenient(file("license: a: b", "compatibility: c: d", "argument-hint: [e] f"))
    assert (skill.header.license, skill.header.compatibility, skill.header.argument_hint) == ("a: b", "c: d", "[e] f")
    assert [problem.line for problem in skill.diagnostics] == [4, 5, 6]


@pytest.mark.parametrize(
    "lines",
    [
        ["allowed-tools: Bash(a: b) Read"],
        ["tools: [Read"],
        ["disable-model-invocation: true: x"],
        ["user-invocable: [no"],
        ["paths: a: b"],
        ["metadata: a: b"],
        ["arguments: a: b"],
        ["license: a: b", "  disable-model-invocation: true"],
        ["license: a", "  b: c"],
        ["license: 'a': b"],
        ["license: [a] b"],
        ["license: a: b", "license: c"],
        ["license: a: b", "user-invocable: perhaps"],
        ["license: a: b"] * 2,
        [f"k{number}: a: b" for number in range(17)],
    ],
)
def test_what_a_repair_could_misread_is_quarantined(lines: list[str]) -> None:
    quarantined(file(*lines))
    problems(file(*lines))


@pytest.mark.parametrize(
    "line",
    [
        "allowed-tools: {Read: true}",
        "allowed-tools: [Read, [Grep]]",
        "allowed-tools: [Bash(a:*,b:*), Read]",
        "allowed-tools: Bash(a",
        "allowed-tools: Bash a)",
        "allowed-tools: Bash (a *)",
        "allowed-tools: ','",
        "tools: ['']",
        "paths: [a, '']",
        "paths: {a: b}",
        "paths: a/{b,c",
        "paths: ','",
        "disable-model-invocation:",
        "disable-model-invocation: [true]",
        "user-invocable: 2",
        "allowed-tools: Read\ntools: Grep",
        "allowed-tools: []\ntools: Grep",
    ],
)
def test_a_restriction_that_is_not_certain_is_refused_in_every_mode(line: str) -> None:
    key = line.partition(":")[0]
    assert mentioned([key], problems(file(line)))
    assert mentioned([key], quarantined(file(line)))
    assert mentioned([key], quarantined(file(line), keep_folder_name=False))


@pytest.mark.parametrize(
    ("written", "tools"),
    [
        ("", None),
        ("allowed-tools:", ()),
        ("allowed-tools: []", ()),
        ("tools: Read, Grep", ("Read", "Grep")),
        ("tools: Read Grep\nallowed-tools: [Grep, Read]", ("Grep", "Read")),
        ("allowed-tools: Read,Grep, ", ("Read", "Grep")),
        ("allowed-tools: |\n  Read\n  Bash(a\n  b)", ("Read", "Bash(a\nb)")),
        ("allowed-tools: ['Bash(a, b)', Read Grep]", ("Bash(a, b)", "Read", "Grep")),
        ("allowed-tools: Bash(echo $(date) *) mcp__a__b", ("Bash(echo $(date) *)", "mcp__a__b")),
    ],
)
def test_allowed_tools(written: str, tools: tuple[str, ...] | None) -> None:
    assert parse_strict(file(*filter(None, [written]))).header.allowed_tools == tools


@pytest.mark.parametrize(
    ("written", "paths"),
    [
        ("paths:", ()),
        ("paths: src/**", ("src/**",)),
        ("paths: src/**, (app)/{a,b}/*,", ("src/**", "(app)/{a,b}/*")),
        ("paths:\n  - a b\n  - c", ("a b", "c")),
    ],
)
def test_paths(written: str, paths: tuple[str, ...]) -> None:
    assert parse_strict(file(written)).header.paths == paths


@pytest.mark.parametrize("written", ["[a, _b2, c-d]", "a _b2 c-d", "a,_b2, c-d"])
def test_arguments(written: str) -> None:
    assert parse_strict(file(f"arguments: {written}")).header.arguments == ("a", "_b2", "c-d")


@pytest.mark.parametrize(
    "line",
    ["arguments: 1a", "arguments: a a", "arguments: [{name: a}]", "arguments: {a: b}", "metadata: a", "metadata: [a]"],
)
def test_what_no_restriction_hangs_on_is_left_out_when_it_cannot_be_read(line: str) -> None:
    key = line.partition(":")[0]
    assert mentioned([f"line 4: {key}: must be"], problems(file(line)))
    skill = lenient(file(line))
    assert not getattr(skill.header, key)
    assert mentioned([f"line 4: {key}: must be", "left out"], notes(skill))


def test_a_text_given_as_a_list_is_read_as_its_source_by_the_tolerant() -> None:
    line = "compatibility: [one,  two]"
    assert mentioned(["line 4: compatibility: must be one text"], problems(file(line)))
    skill = lenient(file(line))
    assert skill.header.compatibility == "[one,  two]"
    assert mentioned(["line 4: compatibility"], notes(skill))


@pytest.mark.parametrize(
    ("written", "hint"),
    [("[a | b]", "[a | b]"), ("{a: b}", "{a: b}"), ("'[a] [b]'", "[a] [b]"), ("a [b]", "a [b]"), ("''", None)],
)
def test_an_argument_hint_is_the_source_text(written: str, hint: str | None) -> None:
    assert parse_strict(file(f"argument-hint: {written}")).header.argument_hint == hint


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("user-invokable", "user-invocable"),
        ("user_invocable", "user-invocable"),
        ("userInvocable", "user-invocable"),
        ("disable_model_invocation", "disable-model-invocation"),
        ("Disable-Model-Invokation", "disable-model-invocation"),
        ("allowed_tools", "allowed-tools"),
        ("' paths'", "paths"),
    ],
)
def test_a_misspelt_key_is_reported_and_kept(key: str, meant: str) -> None:
    for skill in (parse_strict(file(f"{key}: x")), lenient(file(f"{key}: x"))):
        assert mentioned(
            [f"line 4: frontmatter: the key '{key.strip(chr(39))}' has no meaning; {meant} may"], notes(skill)
        )
        assert skill.header.extra == {key.strip("'"): "x"}
    assert not parse_strict(file("model: opus", "context: fork")).diagnostics


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
