import itertools
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import re2
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.errors import InvalidAllowlist, InvalidArgument
from substrate.domain.names import parse_skill_name, skill_name_problem
from substrate.domain.patterns import PatternSet, parse_pattern, parse_query_pattern
from substrate.domain.skillmatch import Allowlist, Decision, Reason

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "skillmatch.yaml").read_text(encoding="utf-8"))
DECISIONS = [
    pytest.param(case["skills"], line, id=f"{case['case']}: {line['name']}")
    for case in CASES["decisions"]
    for line in case["expect"]
]
REFUSED = [pytest.param(case["entry"], case["why"], id=ascii(case["entry"][:20])) for case in CASES["refused_entries"]]


# The rules once more, as slowly and plainly as they can be told. A text is a name's segments or a pattern's; in a
# pattern's the wildcards are letters that only an equal or wider wildcard takes.


def cut(pattern: str) -> list[str]:
    return ["**"] if pattern == "*" else pattern.split("/")


def takes(pattern: Sequence[str], text: Sequence[str]) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "**":
        return takes(pattern[1:], text) or (bool(text) and takes(pattern, text[1:]))
    if not text or text[0] == "**":
        return False
    return takes_segment(pattern[0], text[0]) and takes(pattern[1:], text[1:])


def takes_segment(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return takes_segment(pattern[1:], text) or (bool(text) and takes_segment(pattern, text[1:]))
    if not text:
        return False
    same = text[0] != "*" if pattern[0] == "?" else text[0] == pattern[0]
    return same and takes_segment(pattern[1:], text[1:])


def covers(broad: str, narrow: str) -> bool:
    return takes(cut(broad), cut(narrow))


def matches(entry: str, name: str) -> bool:
    return takes(cut(bare(entry)), name.split("/"))


def bare(entry: str) -> str:
    return entry[1:] if entry[0] in "+-" else entry


def slowly_decided(entries: Sequence[str], name: str) -> Decision:
    first = next((index for index, entry in enumerate(entries) if matches(entry, name)), None)
    if first is None:
        if any(not entry.startswith("-") for entry in entries):
            return Decision(allowed=False, reason=Reason.UNLISTED, index=None)
        return Decision(allowed=True, reason=Reason.NOT_DENIED if entries else Reason.EMPTY_ALLOWLIST, index=None)
    if entries[first].startswith("-"):
        return Decision(allowed=False, reason=Reason.DENY_RULE, index=first)
    allow = bare(entries[first])
    for later in range(first + 1, len(entries)):
        deny = bare(entries[later])
        broader = covers(deny, allow) and not covers(allow, deny)
        if entries[later].startswith("-") and matches(deny, name) and not broader:
            return Decision(allowed=False, reason=Reason.DENY_RULE, index=later)
    return Decision(allowed=True, reason=Reason.ALLOW_RULE, index=first)


# Small alphabets, so that patterns and names often meet, and a universe that holds a witness against every pattern
# that does not match all names.

NAMES = [
    parse_skill_name("/".join(segments))
    for depth in (1, 2, 3)
    for segments in itertools.product(("a", "b", "ab", "a-b"), repeat=depth)
] + [parse_skill_name(name) for name in ("c", "cc", "a/cc", "b-a", "aba/b", "a/b/a/b", "c/c/c/c/c", "a/a/a/a/a/a/a/a")]

SEGMENTS = [
    text
    for size in (1, 2, 3)
    for letters in itertools.product("ab*?-", repeat=size)
    if "**" not in (text := "".join(letters)) and not text.startswith("-") and not text.endswith("-")
]
SEGMENT = st.sampled_from(["*", "**", "a", "a*", "*b", "?", "*?"]) | st.sampled_from(SEGMENTS)
PATTERN = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)
ENTRY = st.tuples(st.sampled_from(["", "+", "-", "-"]), PATTERN).map("".join)
ENTRIES = st.lists(ENTRY, max_size=6)


def allowlist(*entries: str) -> Allowlist:
    return Allowlist.parse(entries)


@pytest.mark.parametrize(("skills", "line"), DECISIONS)
def test_decision_case(skills: list[str], line: dict[str, Any]) -> None:
    decision = Allowlist.parse(skills).decide(parse_skill_name(line["name"]))
    assert decision == Decision(line["allowed"], Reason(line["reason"]), line["index"])


@pytest.mark.parametrize("case", CASES["deny_all"], ids=lambda case: str(case["skills"]))
def test_deny_all_case(case: dict[str, Any]) -> None:
    assert Allowlist.parse(case["skills"]).denies_all is case["deny_all"]


@pytest.mark.parametrize("case", CASES["covers"], ids=lambda case: f"{case['pattern']} covers {case['covers']}")
def test_covers_case(case: dict[str, Any]) -> None:
    broad = PatternSet([parse_pattern(case["pattern"])])
    assert broad.covering(parse_pattern(case["covers"])) == ([0] if case["expect"] else [])
    assert covers(case["pattern"], case["covers"]) is case["expect"]


@pytest.mark.parametrize(("entry", "why"), REFUSED)
def test_a_refused_entry_is_named_with_the_reason(entry: str, why: str) -> None:
    with pytest.raises(InvalidAllowlist) as raised:
        allowlist("doc/*", entry)
    (violation,) = raised.value.violations
    assert violation.field == "skills[1]"
    assert why in violation.description
    assert ascii(entry)[:-1][:80] in violation.description
    assert violation.description in raised.value.message


@pytest.mark.parametrize(
    "entry",
    [
        " ",
        "\n",
        "\t",
        "\u00a0",
        "doc/x ",
        " doc/x",
        "doc/x\n",
        "doc /x",
        "- doc",
        "doc\0",
        "doc/\0",
        "\0",
        "doc/\ud800",
        "d\u03bfc/*",
        "doc/\uff0a",
        "\u0661",
        "doc/\u00b2",
        "\u2212doc",
        "doc/#",
        "#",
        "+-doc",
        "-+doc",
        "++doc",
        "+ ",
        "-/",
        "/",
        "//",
        "+/doc",
        "-doc/",
        "**/",
        "/**",
        "***",
        "a**",
        "**a/b",
        "doc/-x",
        "doc/x-",
        "doc-/x",
        "*-",
        "a/-*",
        "doc/X",
        "doc/.",
        "..",
        "doc/x@v1",
        "doc/x,doc/y",
        "doc/(a|b)",
        "^doc$",
        "doc/a+",
        "~doc",
        "%64oc",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("sign", ["", "-"])
def test_anything_else_is_refused_never_skipped(sign: str, entry: str) -> None:
    with pytest.raises(InvalidAllowlist) as raised:
        allowlist(sign + entry)
    assert [violation.field for violation in raised.value.violations] == ["skills[0]"]


@pytest.mark.parametrize("entry", ["a--b", "a-*-b", "?*?", "*-*", "?", "**/**", "a/**/*/**", "0", "+**", "-?-?"])
def test_unusual_entries_that_are_patterns(entry: str) -> None:
    assert allowlist(entry).texts() == [entry]


def test_every_bad_entry_is_listed_at_once() -> None:
    entries = ["doc/*", "Doc/*", "", "-seo", "doc_x", "\0", "-*"]
    with pytest.raises(InvalidAllowlist) as raised:
        Allowlist.parse(entries, "agents.editor.skills")
    assert [violation.field for violation in raised.value.violations] == [
        f"agents.editor.skills[{index}]" for index in (1, 2, 4, 5)
    ]
    assert all(violation.description in raised.value.message for violation in raised.value.violations)


@pytest.mark.parametrize("count", [201, 10_000])
def test_a_list_has_at_most_200_entries(count: int) -> None:
    assert len(Allowlist.parse(f"doc/{index}" for index in range(200)).entries) == 200
    with pytest.raises(InvalidAllowlist, match=f"200 entries; this one has {count}") as raised:
        Allowlist.parse(["Not a pattern"] * count)
    assert [violation.field for violation in raised.value.violations] == ["skills"]


@pytest.mark.parametrize("letter", ["a", "?", "a/", "*/"])
@pytest.mark.parametrize("sign", ["", "+", "-"])
def test_an_entry_has_at_most_256_characters(sign: str, letter: str) -> None:
    longest = (sign + letter * 256)[:255] + "a"
    assert len(longest) == 256
    assert allowlist(longest).texts() == [longest]
    with pytest.raises(InvalidAllowlist, match="too long: 257 characters, at most 256"):
        allowlist(longest + "a")


@pytest.mark.parametrize("letter", ["\u202e", "\0", "\ud800", "a", "'"], ids=ascii)
def test_a_hostile_entry_cannot_garble_or_swell_the_message(letter: str) -> None:
    with pytest.raises(InvalidAllowlist) as raised:
        allowlist(letter * 1_000_000)
    assert raised.value.message.isascii()
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 1000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("+doc/*", "sign"),
        ("-doc/*", "sign"),
        ("-", "sign"),
        ("doc/", "empty segment"),
        (" ", "character"),
        ("doc/*\n", "character"),
        ("Doc", "upper case"),
        ("d\u03bfc", "character"),
        ("doc/a**", "stand alone"),
        ("a" * 257, "longer than 256"),
        ("\0" * 1_000_000, "longer than 256"),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_a_pattern_that_narrows_a_list_is_refused_by_the_same_rules(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as raised:
        parse_query_pattern(text, "filter")
    assert [violation.field for violation in raised.value.violations] == ["filter"]
    assert raised.value.message.isascii()


def test_a_pattern_that_narrows_a_list_may_be_absent() -> None:
    assert parse_query_pattern("") is None
    assert parse_query_pattern("doc/*") == parse_pattern("doc/*")
    assert parse_query_pattern("a" * 256) == parse_pattern("a" * 256)
    assert parse_query_pattern("*") == parse_pattern("**")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aA0-*?/+_ \n\u00e9", max_size=10))
def test_exactly_the_grammar_is_accepted(text: str) -> None:
    pattern = text[1:] if text.startswith(("+", "-")) else text
    wanted = all(
        segment == "**"
        or (segment and set(segment) <= set("a0-*?") and "**" not in segment and segment.strip("-") == segment)
        for segment in pattern.split("/")
    )
    try:
        assert allowlist(text).texts() == [text]
    except InvalidAllowlist:
        assert not wanted
    else:
        assert wanted


@settings(max_examples=250, deadline=None)
@given(ENTRIES)
def test_the_decision_agrees_with_the_slow_matcher(entries: list[str]) -> None:
    parsed = Allowlist.parse(entries)
    for name in NAMES:
        assert parsed.decide(name) == slowly_decided(entries, name), name
        assert parsed.matching(name) == [i for i, entry in enumerate(entries) if matches(entry, name)], name


@settings(max_examples=250, deadline=None)
@given(st.lists(PATTERN, min_size=1, max_size=6), PATTERN)
def test_covering_agrees_with_the_slow_matcher_and_is_sound(broad: list[str], narrow: str) -> None:
    covering = PatternSet([parse_pattern(text) for text in broad]).covering(parse_pattern(narrow))
    assert covering == [index for index, text in enumerate(broad) if covers(text, narrow)]
    for index in covering:
        assert all(matches(broad[index], name) for name in NAMES if matches(narrow, name))


@settings(max_examples=200, deadline=None)
@given(st.lists(PATTERN, min_size=2, max_size=4))
def test_strictly_broader_is_a_cover_in_one_direction_only(patterns: list[str]) -> None:
    parsed = Allowlist.parse(patterns)
    for one, other in itertools.product(range(len(patterns)), repeat=2):
        wanted = covers(patterns[one], patterns[other]) and not covers(patterns[other], patterns[one])
        assert parsed.strictly_broader(one, other) is wanted


@settings(max_examples=150, deadline=None)
@given(st.lists(PATTERN, min_size=1, max_size=12))
def test_one_pass_and_a_pass_for_each_agree(patterns: list[str]) -> None:
    together = PatternSet([parse_pattern(text) for text in patterns])
    for name in NAMES:
        assert together.matching(name) == together.find_one_by_one(f"/{name}"), name


# Lists made to be slow, or large, for one way of matching or the other, and names of the letters they wait for.

LETTERS = random.Random(7)  # noqa: S311 - test data, the same in every run.
LONG_NAMES = [
    parse_skill_name("/".join("".join(LETTERS.choices("ab", k=60)) for _ in range(depth))) for depth in (1, 2, 3, 4) * 3
]
PAIRS = ["".join(letters) for letters in itertools.product("abcdefghijklmno", repeat=2)][:200]
HOSTILE = {
    "many stars": ["*a" * 120 + f"{index:03}" for index in range(200)],
    "stars and letters": ["*" + "*".join(LETTERS.choices("ab", k=100)) + "*" for _ in range(200)],
    "one star, far look-ahead": ["*a" + "?" * (index % 60) for index in range(200)],
    "any depth, far look-ahead": ["**/*a" + "?" * (index % 40) + "/**" for index in range(100)],
    "any depth, many times": ["**/" + "/**/".join(LETTERS.choices(["a*", "*b", "?*"], k=30)) for _ in range(200)],
    "many segments": ["a/" * 126 + f"{index:03}" for index in range(200)],
    "no wildcard": [f"{pair}{'a' * 61}" + f"/{'a' * 63}" * 3 for pair in PAIRS],
    "question marks": [f"{pair}{'?' * 61}" + f"/{'?' * 63}" * 3 for pair in PAIRS],
    "question marks and stars": [f"*{pair}{'?' * 60}" + f"/{'?' * 63}" * 3 for pair in PAIRS],
}


def spelled_out(pattern: str) -> str:
    return pattern.replace("**/", "").replace("/**", "").replace("*", "").replace("?", "b")


@pytest.mark.parametrize("patterns", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_list_is_answered_as_its_entries_are_one_by_one(patterns: list[str]) -> None:
    entries = [*patterns[:-1], "-**/*b"]
    last = len(entries) - 1
    parsed = Allowlist.parse(entries)
    alone = [allowlist(entry) for entry in entries]
    fitting = [text for text in map(spelled_out, patterns[:5]) if skill_name_problem(text) is None]
    for name in [*LONG_NAMES, *map(parse_skill_name, [*fitting, "x/ab", "x"])]:
        found = [index for index, one in enumerate(alone) if one.matching(name)]
        assert parsed.matching(name) == found
        decision = parsed.decide(name)
        if last in found:
            pair = allowlist(entries[found[0]], entries[last]).decide(name)
            assert (decision.reason, decision.index) == (pair.reason, found[0] if pair.index == 0 else last)
        else:
            assert decision == Decision(bool(found), Reason.ALLOW_RULE if found else Reason.UNLISTED, *found[:1])


def test_an_automaton_that_reports_nothing_never_passes_for_an_answer() -> None:
    entries = ["doc/*", "-doc/secret-*", "-seo"]
    parsed = Allowlist.parse(entries)
    patterns = parsed._patterns()
    blind = re2.Set.FullMatchSet()  # It reports nothing for any text, as an automaton short of memory does.
    blind.Add("never")
    blind.Compile()
    for text in ("doc/x", "doc/secret-x", "seo", "other"):
        patterns._set = blind
        for _ in range(2):
            assert parsed.decide(parse_skill_name(text)) == slowly_decided(entries, text)
        assert patterns._set is None
    patterns._set = blind
    assert patterns.covering(parse_pattern("doc/secret-x")) == [0, 1]


def test_threads_may_share_a_list_from_its_first_decision() -> None:
    entries = ["doc/*", "-doc/a*", "**/b", "-**", "-*/b"]
    wanted = [slowly_decided(entries, name) for name in NAMES]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            shared = Allowlist.parse(entries)
            answers = pool.map(lambda _, shared=shared: [shared.decide(name) for name in NAMES], range(8))
            assert all(answer == wanted for answer in answers)


@settings(max_examples=250, deadline=None)
@given(ENTRIES)
def test_deny_all_is_a_match_all_deny_before_any_allow(entries: list[str]) -> None:
    parsed = Allowlist.parse(entries)
    leading = itertools.takewhile(lambda entry: entry.startswith("-"), entries)
    assert parsed.has_allow is any(not entry.startswith("-") for entry in entries)
    assert parsed.denies_all is any(all(matches(entry, name) for name in NAMES) for entry in leading)
    if parsed.denies_all:
        assert {parsed.decide(name).reason for name in NAMES} == {Reason.DENY_RULE}


@pytest.mark.parametrize(
    ("pattern", "everything"),
    [
        ("*", True),
        ("**", True),
        ("**/**", True),
        ("**/*", True),
        ("*/**", True),
        ("**/*/**", True),
        ("**/?*", True),
        ("*?/**", True),
        ("*?*/**", True),
        ("?", False),
        ("*?", False),
        ("?*", False),
        ("*/*", False),
        ("**/*/*", False),
        ("*/**/*", False),
        ("**/?", False),
        ("**/?*?", False),
        ("**/*-*", False),
        ("**/*a", False),
        ("a/**", False),
        ("**/a*/**", False),
    ],
)
def test_every_spelling_of_match_all_denies_all(pattern: str, *, everything: bool) -> None:
    assert all(matches(pattern, name) for name in NAMES) is everything
    assert allowlist(f"-{pattern}").denies_all is everything
    assert allowlist("-a", f"-{pattern}", "doc/*").denies_all is everything
    assert not allowlist("doc/*", f"-{pattern}").denies_all
    assert not allowlist(pattern).denies_all


@pytest.mark.parametrize(
    ("entries", "warned"),
    [
        ([], {}),
        (["doc/*"], {}),
        (["-*"], {}),
        (["doc/*", "writing/*", "-writing/adversarial-*"], {}),
        (["-writing/adversarial-*", "writing/*"], {}),
        (["doc/public", "-doc/*"], {}),
        (["doc/*", "-*"], {}),
        (["doc/*", "-**"], {}),
        (["*", "-doc/secret"], {}),
        (["doc/a", "doc/*"], {}),
        (["-doc/a", "-doc/*"], {}),
        (["-doc/*", "-doc/**"], {}),
        (["doc/a*", "-doc/*b"], {}),
        (["doc/*", "-doc/a-*", "-doc/*-b"], {}),
        (["doc/*", "doc/*"], {1: "never decides: entry 0 'doc/*'"}),
        (["doc/*", "+doc/x"], {1: "never decides: entry 0 'doc/*'"}),
        (["-doc/*", "-doc/x"], {1: "never decides: entry 0 '-doc/*'"}),
        (["-doc/*", "doc/*"], {1: "never decides: entry 0 '-doc/*'"}),
        (["doc/*", "-doc/*"], {0: "never decides: entry 1 '-doc/*' denies all it allows"}),
        (["*", "-**"], {0: "never decides: entry 1 '-**' denies all it allows"}),
        (["doc/**", "-doc/**/**"], {0: "never decides: entry 1 '-doc/**/**' denies all it allows"}),
        (["-*", "doc/*", "-seo"], {1: "never decides: entry 0 '-*'", 2: "never decides: entry 0 '-*'"}),
        (["-writing/*", "writing/post"], {1: "never decides: entry 0 '-writing/*'"}),
        (["doc/*", "-doc/s-*", "doc/s-x"], {2: "never decides: entry 0 'doc/*'"}),
        (["doc/*", "-doc/s-*", "-doc/s-x"], {2: "never decides: entry 0 'doc/*'"}),
        (["-doc/a", "*", "-doc/a"], {2: "never decides: entry 0 '-doc/a'"}),
        (["doc/*", "-doc/**"], {1: "does not deny what entry 0 'doc/*' allows, since it is broader"}),
        (["doc/v?", "-doc/v*"], {1: "does not deny what entry 0 'doc/v?' allows, since it is broader"}),
        (["doc/v?", "-doc/v?", "-doc/v*"], {0: "never decides: entry 1 '-doc/v?' denies all it allows"}),
        (["a/x", "*/*", "-*"], {2: "does not deny what entry 1 '*/*' allows, since it is broader"}),
    ],
    ids=str,
)
def test_warnings(entries: list[str], warned: dict[int, str]) -> None:
    warnings = Allowlist.parse(entries).warnings
    assert [(warning.index, warning.entry) for warning in warnings] == [(index, entries[index]) for index in warned]
    for warning in warnings:
        assert warning.message.startswith(warned[warning.index])


# A few patterns that cover, equal and cross each other, so that most lists have entries that never decide.
RELATED = st.sampled_from(["a", "a*", "*b", "?", "*", "*/*", "a/*", "*/b", "a/b", "a/**", "a/**/**", "**/b", "**/*"])
RELATED_ENTRIES = st.lists(st.tuples(st.sampled_from(["", "-"]), RELATED).map("".join), min_size=2, max_size=6)


@settings(max_examples=300, deadline=None)
@given(RELATED_ENTRIES | ENTRIES)
def test_an_entry_warned_of_never_decides(entries: list[str]) -> None:
    parsed = Allowlist.parse(entries)
    deciding = {parsed.decide(name).index for name in NAMES}
    dead = [warning.index for warning in parsed.warnings if warning.message.startswith("never decides")]
    assert deciding.isdisjoint(dead)


@settings(max_examples=200, deadline=None)
@given(RELATED_ENTRIES)
def test_an_entry_behind_a_copy_of_itself_is_always_warned_of(entries: list[str]) -> None:
    doubled = [*entries, *entries]
    warned = {warning.index for warning in Allowlist.parse(doubled).warnings}
    assert warned >= set(range(len(entries), len(doubled)))


def test_entries_keep_their_spelling_and_order() -> None:
    entries = ["+doc/*", "doc/*", "-doc/x", "*"]
    parsed = Allowlist.parse(iter(entries))
    assert parsed.texts() == entries
    assert [entry.denies for entry in parsed.entries] == [False, False, True, False]
