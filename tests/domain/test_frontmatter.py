import pytest

from substrate.domain.skillmd import parse_strict
from tests.domain.skill_files import file, lenient, mentioned, notes, problems, quarantined


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
