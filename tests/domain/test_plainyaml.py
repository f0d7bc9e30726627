import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from substrate.domain.characters import LINE_BREAKERS, UNPRINTABLE
from substrate.domain.plainyaml import PlainYamlError, YamlProblem, load

# Letters that mean something to YAML come up often enough to meet each other.
_SYNTAX = st.sampled_from([*"ab: #-\n\t'\"[]{},&*!|>%@`?~.<=\\\r\x85\u2028\ufeff\0\x07", "---", "...", "<<", "\\u0000"])
_YAMLISH = st.lists(st.one_of(_SYNTAX, st.characters()), max_size=60).map("".join)


def problems(text: str, **limits: int) -> list[YamlProblem]:
    with pytest.raises(PlainYamlError) as refused:
        load(text, **limits)
    return list(refused.value.problems)


def test_every_scalar_is_text() -> None:
    text = "a: yes\nb: 1.10\nc: 2026-01-02\nd: ~\ne:\nf: 0o17\n? g\n: [null, {h: 1_000}]\n"
    assert load(text).data == {
        "a": "yes",
        "b": "1.10",
        "c": "2026-01-02",
        "d": "~",
        "e": "",
        "f": "0o17",
        "g": ["null", {"h": "1_000"}],
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n", "\ufeff", "---\n", "---\n...\n"])
def test_a_text_without_content_is_an_empty_mapping(text: str) -> None:
    assert load(text).data == {}


def test_a_byte_order_mark_and_crlf_do_not_shift_places() -> None:
    document = load("\ufeffa: b\r\nc: [d,\r\n  é]\r\ne: f\r\n")
    assert document.data == {"a": "b", "c": ["d", "é"], "e": "f"}
    assert document.source("c") == "[d,\n  é]"
    assert document.line("e") == 4


def test_lines_are_known_by_path() -> None:
    document = load("a:\n  b:\n    - c\n    - d: e\nf:\n  |\n  g\n", first_line=10)
    assert document.line("a") == 10
    assert document.line("a", "b", 0) == 12
    assert document.line("a", "b", 1, "d") == 13
    assert document.line("f") == 14
    assert document.places["f",].line == 15


def test_the_line_of_what_is_absent_is_that_of_what_is_around_it() -> None:
    document = load("\na:\n  b: c\n", first_line=5)
    assert document.line("a", "missing", "deeper") == 6
    assert document.line("missing") == 5
    assert document.line() == 5


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hint: [one] # two\n", "[one]"),
        ("hint: {é: one}\n", "{é: one}"),
        ("hint:\n  - one\n  - two\n\nnext: x\n", "- one\n  - two"),
        ("hint: 'one'\n", "'one'"),
    ],
)
def test_the_source_of_a_value_is_what_was_written(text: str, source: str) -> None:
    assert load(text).source("hint") == source


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: b\nc: d\na: e\n", 3, "the key 'a' is given twice, first in line 1"),
        ("a:\n  b: c\n  b: d\n", 3, "the key 'b' is given twice, first in line 2"),
        ("a: {'': b, '': c}\n", 1, "the key '' is given twice"),
        ("a: &x b\n", 1, "anchors and aliases"),
        ("a:\n  &x [b]\n", 2, "anchors and aliases"),
        ("&x a: b\n", 1, "anchors and aliases"),
        ("a: *x\n", 1, "anchors and aliases"),
        ("a: b\n*x : c\n", 2, "anchors and aliases"),
        ("a: !!str b\n", 1, "tags"),
        ("a: ! b\n", 1, "tags"),
        ("a: !x [b]\n", 1, "tags"),
        ("%TAG !e! tag:example,2000:\n---\na: !e!x b\n", 3, "tags"),
        ("[a]: b\n", 1, "a key must be text"),
        ("? {a: b}\n: c\n", 1, "a key must be text"),
        ("a: b\n---\nc: d\n", 2, "a second document"),
        ("a: b\n...\n---\nc: d\n", 3, "a second document"),
        ("a: b\n...\nc: d\n", 3, "is not valid YAML"),
        ("just text\n", 1, "must hold lines of the form"),
        ("\n- a\n", 2, "must hold lines of the form"),
        ('a: "b\\0c"\n', 1, "U+0000"),
        ('"\\0": b\n', 1, "U+0000"),
        ('a: "\\ud83d\\ude00"\n', 1, "is not valid YAML"),
        ("a: b\nc: d: e\n", 2, "put the value in quotes"),
        ("a: b\nc: [d,\ne: f\n", 2, "is not valid YAML"),
        ('a: b\nc: "d\ne: f\n', 2, "is not valid YAML"),
        ("a: b\n\tc: d\n", 2, "is not valid YAML"),
    ],
)
def test_refused_with_line(text: str, line: int, message: str) -> None:
    found = problems(text)
    assert found[0][0] == line
    assert message in found[0][1]


def test_the_first_line_moves_every_line() -> None:
    assert [line for line, _ in problems("a: b\na: &x c\nd: !t e\n", first_line=100)] == [101, 101, 102]


@pytest.mark.parametrize(
    "character", ["\0", "\r", "\x85", "\u2028", "\u2029", "\ud800", "\x07", "\x1b", "\x7f", "\x9f", "\uffff"]
)
def test_characters_refused_raw(character: str) -> None:
    found = problems(f"a: b\nc: d{character}e: f\n")
    assert found == [YamlProblem(2, f"holds the character U+{ord(character):04X}.")]


def test_the_refused_characters_are_those_that_libyaml_would_refuse_or_break_lines_at() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    allowed = LINE_BREAKERS.sub("", UNPRINTABLE.sub("", everything)).replace("\n", "").replace("'", "").strip()
    for start in range(0, len(allowed), 10_000):
        chunk = allowed[start : start + 10_000].strip(" ")
        assert load(f"a: '{chunk}'\n").data == {"a": chunk}


def test_an_escape_stands_for_a_character_that_may_not_stand_raw() -> None:
    assert load('a: "b\\u2028\\r\\x07"\n').data == {"a": "b\u2028\r\x07"}


def test_limits_count_bytes_and_levels() -> None:
    assert load("a: " + "b" * 7, max_bytes=10).data == {"a": "b" * 7}
    assert "more than 10 bytes" in problems("a: " + "é" * 4, max_bytes=10)[0][1]
    assert load("a: {b: [c]}", max_depth=3).data == {"a": {"b": ["c"]}}
    assert "more than 2 levels" in problems("a: {b: [c]}", max_depth=2)[0][1]
    assert "more than 16 levels" in problems("a: " + "[" * 20)[0][1]


@settings(deadline=None, max_examples=500)
@given(_YAMLISH)
@example("%YAML 99999999999999999999.1\n---\na: b")
@example("a: !!int 99999999999999999999")
@example("a: !!timestamp 2026-99-99")
@example("{" * 60_000)
@example("? " * 1000)
@example("- " * 1000)
def test_any_text_is_read_or_refused_with_a_line_in_it(text: str) -> None:
    try:
        document = load(text)
    except PlainYamlError as refused:
        lines = [line for line, _ in refused.problems]
    else:
        lines = [line for place in document.places.values() for line in (place.key_line, place.line)] or [1]
    assert lines
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)
