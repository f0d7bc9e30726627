import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.errors import InvalidSkill
from substrate.domain.plainyaml import Plain
from substrate.domain.skillmd import (
    SkillHeader,
    content_sha256,
    header_from_plain,
    header_to_plain,
    parse_strict,
    to_skill_md,
)

BARE = SkillHeader(name="demo", description="Does one thing.")
FULL = SkillHeader(
    name="demo",
    description="Does one thing:\n  well.",
    allowed_tools=("Read", "Bash(git add *)"),
    license="MIT",
    compatibility="any: model",
    when_to_use="Always #1",
    argument_hint="[title] [message]",
    metadata={"version": "1.10", "by": ["a", {"b": "c"}]},
    arguments=("title", "message"),
    disable_model_invocation=True,
    user_invocable=False,
    paths=("src/**", "(app)/{a,b}"),
    extra={"zeta": "two\nlines\n", "alpha": {"a: b": ["", "- c"]}},
)

_CHARACTERS = st.one_of(
    st.characters(
        exclude_categories=["Cs", "Cc", "Zl", "Zp"],
        exclude_characters="\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
        max_codepoint=0xDFFFF,
    ),
    st.sampled_from("a: #-\n\t'\"[]{},&*!|>%@`\\"),
)
_TEXT = st.text(_CHARACTERS)
_STRIPPED = _TEXT.map(str.strip)
_FILLED = _STRIPPED.filter(bool)
_OPTIONAL = st.none() | _FILLED


def plain(texts: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Plain]]:
    nested: st.SearchStrategy[Plain] = st.recursive(
        texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=6
    )
    return st.dictionaries(_TEXT, nested, max_size=3)


_HEADERS = st.builds(
    SkillHeader,
    name=st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,3}", fullmatch=True),
    description=_FILLED,
    allowed_tools=st.none() | st.lists(st.sampled_from(["Read", "Bash(a, b)", "mcp__x(é: (#))"])).map(tuple),
    license=_OPTIONAL,
    compatibility=_OPTIONAL,
    when_to_use=_OPTIONAL,
    argument_hint=_OPTIONAL,
    metadata=plain(_STRIPPED),
    arguments=st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,9}", fullmatch=True), unique=True).map(tuple),
    disable_model_invocation=st.booleans(),
    user_invocable=st.booleans(),
    paths=st.lists(st.sampled_from(["a b", "src/**", "{c,d}/#", "- e: f"])).map(tuple),
    extra=plain(_TEXT),
)
_BODIES = st.text(_CHARACTERS).map(lambda text: f"Body{text}")
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(_HEADERS, _BODIES)
def test_a_skill_survives_being_written_out_and_read_again(header: SkillHeader, body: str) -> None:
    skill = parse_strict(to_skill_md(header, body))
    assert (skill.header, skill.body) == (header, body)
    assert list(skill.header.extra) == list(header.extra)


@settings(deadline=None)
@given(_HEADERS)
def test_a_header_survives_storage_that_sorts_keys(header: SkillHeader) -> None:
    stored = json.loads(json.dumps(header_to_plain(header), sort_keys=True))
    assert header_from_plain(stored) == header
    assert list(header_from_plain(stored).extra) == list(header.extra)


def test_what_a_written_skill_looks_like() -> None:
    assert (
        to_skill_md(FULL, "Body\n")
        == """---
name: demo
description: |-
  Does one thing:
    well.
license: MIT
compatibility: "any: model"
allowed-tools: Read, Bash(git add *)
metadata:
  version: 1.10
  by:
    - a
    - b: c
when_to_use: "Always #1"
argument-hint: "[title] [message]"
arguments: [title, message]
disable-model-invocation: true
user-invocable: false
paths: [src/**, "(app)/{a,b}"]
zeta: |
  two
  lines
alpha:
  "a: b": ["", "- c"]
---

Body
"""
    )
    assert parse_strict(to_skill_md(FULL, "Body\n")).header == FULL


def test_defaults_are_not_stored() -> None:
    assert header_to_plain(BARE) == {"name": "demo", "description": "Does one thing."}
    assert header_to_plain(dataclasses.replace(BARE, allowed_tools=())) == {
        **header_to_plain(BARE),
        "allowed_tools": [],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Not a slug"},
        {"name": None},
        {"description": " "},
        {"description": 1},
        {"allowed_tools": "Read"},
        {"allowed_tools": [""]},
        {"license": ""},
        {"metadata": []},
        {"metadata": {"a": 1}},
        {"arguments": {}},
        {"disable_model_invocation": "yes"},
        {"user_invocable": None},
        {"paths": [["a"]]},
        {"extra": {"a": "b"}},
        {"extra": [["a"]]},
        {"extra": [[["a"], "b"]]},
        {"extra": [["a", None]]},
        {"version": "1"},
    ],
)
def test_a_corrupt_row_is_refused_by_field(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidSkill) as refused:
        header_from_plain({**header_to_plain(FULL), **change})
    assert [violation.field for violation in refused.value.violations] == [f"header.{field}" for field in change]


def test_a_row_without_its_required_fields_is_refused() -> None:
    with pytest.raises(InvalidSkill, match=r"'name' is malformed.*'description' is malformed"):
        header_from_plain({})
    with pytest.raises(InvalidSkill, match="not an object"):
        header_from_plain([])


@settings(deadline=None)
@given(
    _JSON
    | st.fixed_dictionaries(
        {"name": st.just("demo"), "description": st.just("a"), "extra": _JSON, "metadata": _JSON, "paths": _JSON}
    )
)
def test_any_json_is_a_header_or_refused(data: Any) -> None:
    try:
        header = header_from_plain(data)
    except InvalidSkill:
        return
    assert header_from_plain(header_to_plain(header)) == header


def test_the_digest_covers_every_field() -> None:
    changes = {field.name: getattr(FULL, field.name) for field in dataclasses.fields(FULL) if field.name != "name"}
    variants = [dataclasses.replace(BARE, **{name: value}) for name, value in changes.items()]
    digests = {
        content_sha256(header, "Body\n") for header in [BARE, dataclasses.replace(BARE, name="other"), *variants]
    }
    digests |= {
        content_sha256(dataclasses.replace(BARE, allowed_tools=()), "Body\n"),
        content_sha256(BARE, "Body"),
        content_sha256(BARE, "Body\n", [("a", "00")]),
        content_sha256(BARE, "Body\n", [("a", "01")]),
        content_sha256(BARE, "Body\n", [("b", "00")]),
        content_sha256(BARE, "Body\n", [("a", "00"), ("b", "00")]),
    }
    assert len(digests) == len(variants) + 8


def test_the_digest_does_not_depend_on_order() -> None:
    turned = dataclasses.replace(
        FULL, extra=dict(reversed(list(FULL.extra.items()))), metadata=dict(reversed(list(FULL.metadata.items())))
    )
    files = [("b", "00"), ("a", "01")]
    assert content_sha256(turned, "é", files) == content_sha256(FULL, "é", files[::-1])


def test_the_digest_never_changes() -> None:
    # Stored digests are compared with new ones for ever, so the form that is hashed is pinned here.
    canonical = (
        '{"allowed_tools":null,"body":"é\\n","description":"Does one thing.","files":[["a","00"]],'
        '"frontmatter":{"extra":{}},"name":"demo"}'
    )
    assert content_sha256(BARE, "é\n", [("a", "00")]) == hashlib.sha256(canonical.encode()).hexdigest()
