import re
import string
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.errors import InvalidName
from substrate.domain.names import (
    Qualifier,
    QualifierKind,
    SkillRef,
    parse_agent_name,
    parse_skill_name,
    parse_skill_ref,
    parse_tenant_id,
    skill_name_problem,
    slug_problem,
)

EIGHT_SEGMENTS = "/".join("abcdefgh")
LONGEST_SEGMENT = "a" * 64
LONGEST_NAME = "/".join(["a" * 64, "b" * 64, "c" * 64, "d" * 61])

NO_SLUG = [
    "",
    " ",
    "abc ",
    " abc",
    "a b",
    "abc\n",
    "\nabc",
    "abc\r\n",
    "a\tb",
    "a\0b",
    "abc\0",
    "Abc",
    "aBC",
    "-abc",
    "abc-",
    "a--b",
    "-",
    "a_b",
    "a.b",
    ".",
    "..",
    "a:b",
    "a\\b",
    "a@b",
    "a*",
    "a?",
    "a%2fb",
    "caf\u00e9",
    "\u0430bc",  # A Cyrillic a.
    "d\u03bfc",  # A Greek omicron.
    "\uff41bc",  # A full-width a.
    "\u0131d",  # A dotless i.
    "a\u0301bc",  # A combining accent.
    "ab\u200bc",  # A zero-width blank.
    "ab\u202ec",  # A right-to-left override.
    "v\u0661",  # An Arabic digit one.
    "v\u00b2",  # A superscript two, which str.isdigit takes.
    "stra\u00dfe",
    "\ud800",
]


def slowly_a_slug(text: str) -> bool:
    """Decide by cutting at the hyphens, as the rule is told, with no regular expression."""
    runs = text.split("-")
    return len(text) <= 64 and all(run and set(run) <= set(string.ascii_lowercase + string.digits) for run in runs)


@pytest.mark.parametrize(
    "name",
    ["a", "0", "seo", "doc/query", "a-b-c", "0-0", "v1/2-3/x", LONGEST_SEGMENT, EIGHT_SEGMENTS, LONGEST_NAME],
)
def test_a_skill_name_comes_back_unchanged(name: str) -> None:
    assert parse_skill_name(name) == name
    assert skill_name_problem(name) is None
    assert parse_skill_ref(name) == SkillRef(parse_skill_name(name), None)


@pytest.mark.parametrize("text", NO_SLUG, ids=ascii)
@pytest.mark.parametrize("frame", ["{}", "doc/{}", "{}/x", "doc/{}/x"])
def test_a_bad_segment_is_refused_wherever_it_stands(text: str, frame: str) -> None:
    with pytest.raises(InvalidName):
        parse_skill_name(frame.format(text))


@pytest.mark.parametrize("text", [*NO_SLUG, "a/b"], ids=ascii)
@pytest.mark.parametrize("parse", [parse_agent_name, parse_tenant_id])
def test_agents_and_tenants_are_one_slug(parse: Callable[[str], str], text: str) -> None:
    with pytest.raises(InvalidName):
        parse(text)
    assert parse("doc-manager-2") == "doc-manager-2"


@pytest.mark.parametrize(
    "text", ["/", "/doc", "doc/", "doc//x", "doc/../x", "../doc", "doc/.", "doc/x\n", "doc\n/x", "DOC/x", "doc\\x"]
)
def test_a_path_is_no_name(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_skill_name(text)


@pytest.mark.parametrize(
    ("parse", "allowed", "refused"),
    [
        (parse_skill_name, LONGEST_SEGMENT, LONGEST_SEGMENT + "a"),
        (parse_skill_name, f"x/{LONGEST_SEGMENT}/y", f"x/{LONGEST_SEGMENT}a/y"),
        (parse_skill_name, LONGEST_NAME, LONGEST_NAME + "d"),
        (parse_skill_name, EIGHT_SEGMENTS, EIGHT_SEGMENTS + "/i"),
        (parse_agent_name, "a" * 64, "a" * 65),
        (parse_tenant_id, "a" * 40, "a" * 41),
    ],
    ids=["segment", "inner segment", "whole name", "segments", "agent", "tenant"],
)
def test_limits_stand_at_their_edge(parse: Callable[[str], str], allowed: str, refused: str) -> None:
    assert parse(allowed) == allowed
    with pytest.raises(InvalidName):
        parse(refused)


def test_the_longest_name_is_that_long() -> None:
    assert len(LONGEST_NAME) == 256
    assert len(max(LONGEST_NAME.split("/"), key=len)) == 64


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("Doc/x", "upper-case"),
        ("doc/\u0430bc", "'\\u0430'"),
        ("doc//x", "empty segment"),
        ("doc/a--b", "hyphen"),
        ("a" * 65, "65 characters"),
        ("a" * 257, "257 characters"),
        (EIGHT_SEGMENTS + "/i", "9 segments"),
        ("abc\n", "'\\n'"),
    ],
    ids=ascii,
)
def test_a_refusal_says_what_is_wrong_and_where(text: str, why: str) -> None:
    with pytest.raises(InvalidName, match=re.escape(why)) as raised:
        parse_skill_name(text, "skills[3].name")
    assert [violation.field for violation in raised.value.violations] == ["skills[3].name"]


@pytest.mark.parametrize("parse", [parse_skill_name, parse_agent_name, parse_tenant_id, parse_skill_ref])
@pytest.mark.parametrize("letter", ["\u202e", "\0", "\ud800", "/", "a/", "a", "'"], ids=ascii)
def test_a_hostile_name_cannot_garble_or_swell_the_message(parse: Callable[[str], object], letter: str) -> None:
    with pytest.raises(InvalidName) as raised:
        parse(letter * 1_000_000)
    assert raised.value.message.isascii()
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 1000


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aZ09-/@._ \n\u0430\u00e9", max_size=12) | st.text(max_size=8))
def test_exactly_the_grammar_is_accepted(text: str) -> None:
    segments = text.split("/")
    assert (slug_problem(text) is None) == slowly_a_slug(text)
    assert (skill_name_problem(text) is None) == (len(segments) <= 8 and all(map(slowly_a_slug, segments)))


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"[a-z0-9]{1,3}(-[a-z0-9]{1,3}){0,2}(/[a-z0-9]{1,4}(-[a-z0-9]){0,2}){0,7}", fullmatch=True))
def test_every_name_of_the_grammar_is_accepted(text: str) -> None:
    assert parse_skill_name(text) == text


@pytest.mark.parametrize(
    ("suffix", "qualifier"),
    [
        ("bundle", Qualifier(QualifierKind.BUNDLE)),
        ("inline", Qualifier(QualifierKind.INLINE)),
        ("v1", Qualifier(QualifierKind.VERSION, 1)),
        ("v10", Qualifier(QualifierKind.VERSION, 10)),
        ("v999999999", Qualifier(QualifierKind.VERSION, 999_999_999)),
    ],
)
def test_a_qualifier_is_read_and_written_the_same_way(suffix: str, qualifier: Qualifier) -> None:
    ref = parse_skill_ref(f"doc/chunk-review@{suffix}")
    assert ref == SkillRef(parse_skill_name("doc/chunk-review"), qualifier)
    assert str(ref) == f"doc/chunk-review@{suffix}"
    assert str(SkillRef(ref.name)) == "doc/chunk-review"


@pytest.mark.parametrize(
    "suffix",
    [
        "",
        "x",
        "v",
        "v0",
        "v01",
        "v00",
        "v-1",
        "v+1",
        "v1.0",
        "v1_0",
        "v 1",
        "v1 ",
        "v1\n",
        "V1",
        "1",
        "v1x",
        "v\u0661",
        "v\xb2",
        "v1000000000",
        "v" + "9" * 5000,
        "tenant",
        "version",
        "Bundle",
        "BUNDLE",
        "bundle ",
        "bundle\n",
        " bundle",
        "bundle@v1",
        "v1@bundle",
        "@v1",
    ],
    ids=lambda suffix: ascii(suffix[:12]),
)
def test_any_other_qualifier_is_refused(suffix: str) -> None:
    with pytest.raises(InvalidName) as raised:
        parse_skill_ref(f"doc/query@{suffix}", "ref")
    assert [violation.field for violation in raised.value.violations] == ["ref"]
    assert "@bundle, @inline or @v<number>" in raised.value.message
    assert raised.value.message.isascii()


@pytest.mark.parametrize("text", ["@v1", "@bundle", "Doc@v1", "doc/@v1", "doc\n@v1", "doc @v1"])
def test_a_qualifier_does_not_excuse_the_name(text: str) -> None:
    with pytest.raises(InvalidName, match="skill name"):
        parse_skill_ref(text)
