import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.agents import MAX_DEFINITION_BYTES, Agent, parse_agent
from substrate.domain.candidates import LayerKind
from substrate.domain.errors import InvalidAgent
from substrate.domain.names import SkillName
from substrate.domain.skillmatch import Reason

EDITOR: dict[str, Any] = {
    "description": "Edits documents.",
    "tools": ["Read", "Bash(git *)", "Skill"],
    "skills": ["doc/*", "-doc/secret-*"],
    "definition": {"model": "small", "providers": ["one", "two"], "limits": {"turns": 5, "heat": 0.5, "stop": None}},
}


def agent(**changes: Any) -> Agent:
    return parse_agent("editor", {**EDITOR, **changes}, LayerKind.INLINE, "agents.editor")


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in EDITOR.items() if key not in keys}


def refused(data: object, name: str = "editor") -> list[str]:
    """The fields that a refusal lists."""
    with pytest.raises(InvalidAgent) as raised:
        parse_agent(name, data, LayerKind.INLINE, "agents.editor")
    assert all(violation.description in raised.value.message for violation in raised.value.violations)
    return [violation.field for violation in raised.value.violations]


def nested(depth: int, leaf: object = None) -> dict[str, Any]:
    value: dict[str, Any] = {"a": leaf}
    for _ in range(depth):
        value = {"a": value}
    return value


def test_an_agent_is_what_its_data_says() -> None:
    parsed = agent()
    assert (parsed.name, parsed.description) == ("editor", "Edits documents.")
    assert parsed.tools == ("Read", "Bash(git *)", "Skill")
    assert parsed.allowlist.texts() == ["doc/*", "-doc/secret-*"]
    assert json.loads(parsed.definition_json) == EDITOR["definition"]
    assert (parsed.kind, parsed.origin) == (LayerKind.INLINE, "agents.editor")


@pytest.mark.parametrize("key", ["skills", "absent"])
def test_an_absent_or_empty_allowlist_allows_everything(key: str) -> None:
    data = {**without("skills"), **({"skills": []} if key == "skills" else {})}
    parsed = parse_agent("editor", data, LayerKind.INLINE, "x")
    assert parsed.allowlist.decide(SkillName("any/name")).reason is Reason.EMPTY_ALLOWLIST


def test_an_agent_may_say_nothing() -> None:
    parsed = parse_agent("editor", {}, LayerKind.TENANT, "tenant")
    assert (parsed.description, parsed.tools, parsed.definition_json) == ("", None, "{}")
    assert parsed.lacks(["Bash", "anything"]) == []


def test_every_problem_is_reported_at_once() -> None:
    data = {
        "description": 7,
        "tools": ["Read", "", "a\nb", "x" * 257],
        "skills": ["doc/*", "Doc", "", "-"],
        "definition": "text",
        "model": "small",
        "skill_def_scopes": [],
    }
    assert sorted(refused(data)) == [
        "definition",
        "description",
        "model",
        "skill_def_scopes",
        "skills[1]",
        "skills[2]",
        "skills[3]",
        "tools[1]",
        "tools[2]",
        "tools[3]",
    ]


@pytest.mark.parametrize("name", ["", "Editor", "doc/editor", "a b", "a\0", "x" * 65, "../x", "\u0435ditor"], ids=ascii)
def test_a_bad_name_is_refused(name: str) -> None:
    assert refused(EDITOR, name) == ["name"]


def test_a_bad_name_does_not_keep_the_other_problems_back() -> None:
    assert sorted(refused({"tools": "Read", "skill_def_scopes": None}, "Editor")) == [
        "name",
        "skill_def_scopes",
        "tools",
    ]


@pytest.mark.parametrize("data", [None, "", "editor", 7, [], [("tools", [])], {"tools"}], ids=repr)
def test_an_agent_that_is_no_mapping_is_refused(data: object) -> None:
    assert refused(data) == [""]


@pytest.mark.parametrize(
    "value", ["", None, [], {}, ["doc/*"], "doc/*", 0, False, "absent"], ids=lambda value: f"{value!r}"
)
def test_scopes_are_refused_whatever_they_hold_with_both_ways_to_migrate(value: object) -> None:
    with pytest.raises(InvalidAgent) as raised:
        agent(skill_def_scopes=value)
    (violation,) = raised.value.violations
    assert violation.field == "skill_def_scopes"
    assert re.search(r"move its patterns into the agent's `skills`", violation.description)
    assert re.search(r"delete the field", violation.description)


@pytest.mark.parametrize(
    "definition", [{"skill_def_scopes": None}, {"a": {"skill_def_scopes": []}}, {"a": [{"b": {"skill_def_scopes": 0}}]}]
)
def test_scopes_are_refused_anywhere_in_a_definition(definition: dict[str, Any]) -> None:
    assert refused({**EDITOR, "definition": definition}) == ["definition"]


@pytest.mark.parametrize("key", ["Skills", "skill", "tool", "name", "model", "skill_def_scope", " skills", "", 7, None])
def test_an_unknown_field_is_refused_by_name(key: object) -> None:
    data: dict[Any, Any] = {**EDITOR, key: []}
    assert refused(data) == [str(key)]


@pytest.mark.parametrize("key", ["tools", "skills"])
@pytest.mark.parametrize("value", [None, "", "doc/*", 7, {}, {"doc/*": True}, [None], ["x", 7], [["x"]]], ids=repr)
def test_tools_and_skills_are_lists_of_text(key: str, value: object) -> None:
    assert refused({**EDITOR, key: value}) == [key]


@pytest.mark.parametrize(
    "value", [None, 7, [], {}, ["text"], "x" * 1025, "a\0b", "\ud800"], ids=lambda v: ascii(v)[:12]
)
def test_a_description_is_storable_text_of_at_most_1024_characters(value: object) -> None:
    assert refused({**EDITOR, "description": value}) == ["description"]
    assert agent(description="\u00e9" * 1024).description == "\u00e9" * 1024


@pytest.mark.parametrize("tool", ["", " ", "\t", "a\nb", "a\0", "\ud800", "a\u202eb", "a\u200bb", "x" * 257], ids=ascii)
def test_a_tool_is_printable_text(tool: str) -> None:
    assert refused({**EDITOR, "tools": ["Read", tool]}) == ["tools[1]"]


def test_limits_of_tools_stand_at_their_edge() -> None:
    assert agent(tools=["x" * 256] * 200).tools == ("x" * 256,) * 200
    assert refused({**EDITOR, "tools": ["x"] * 201}) == ["tools"]


def test_an_allowlist_that_is_too_long_is_refused() -> None:
    assert refused({**EDITOR, "skills": ["doc/*"] * 10_000}) == ["skills"]


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE
BAD_DEFINITIONS: dict[str, object] = {
    "null": None,
    "text": "text",
    "list": [],
    "NaN": {"a": float("nan")},
    "infinity": {"a": [float("inf")]},
    "minus infinity": {"a": {"b": float("-inf")}},
    "set": {"a": {1}},
    "bytes": {"a": b""},
    "time": {"a": datetime(2026, 1, 1, tzinfo=UTC)},
    "object": {"a": object()},
    "keys of two kinds": {1: "a", "1": "b"},
    "a key that is no scalar": {(1, 2): "a"},
    "itself": CIRCLE,
    "lone surrogate": {"a": "\ud800"},
    "lone surrogate in a key": {"\ud800": "a"},
    "huge number": {"a": 10**5000},
    "deep": nested(100_000),
    "deep lists": {"a": nested(3000)["a"]},
}


@pytest.mark.parametrize("definition", BAD_DEFINITIONS.values(), ids=BAD_DEFINITIONS.keys())
def test_a_definition_that_is_no_json_object_is_refused(definition: object) -> None:
    assert refused({**EDITOR, "definition": definition}) == ["definition"]


def test_the_limit_of_a_definition_counts_bytes_at_its_edge() -> None:
    frame = len('{"a":""}')
    for letter in ("x", "\u00e9", "\U0001f600"):
        room, rest = divmod(MAX_DEFINITION_BYTES - frame, len(letter.encode()))
        longest = letter * room + "x" * rest
        assert len(agent(definition={"a": longest}).definition_json.encode()) == MAX_DEFINITION_BYTES
        assert refused({**EDITOR, "definition": {"a": longest + "x"}}) == ["definition"]


def test_a_definition_that_was_accepted_can_be_read_again() -> None:
    """As deep as the interpreter writes JSON it may not read it again, further down its stack."""

    def further_down(levels: int, call: Callable[[], str]) -> str:
        return further_down(levels - 1, call) if levels else call()

    accepted = []
    for depth in range(0, 1000, 9):
        try:
            accepted.append(agent(definition=nested(depth)))
        except InvalidAgent:
            break
    assert further_down(100, lambda: accepted[-1].content_sha256)


def test_the_definition_is_kept_as_canonical_json() -> None:
    one = agent(definition={"b": [1, 2.5, True, None], "a": {"d": "\u00e9", "c": ""}})
    assert one.definition_json == '{"a":{"c":"","d":"\u00e9"},"b":[1,2.5,true,null]}'


def test_the_digests_are_sha256_of_canonical_json() -> None:
    parsed = agent()
    content = (
        '{"definition":{"limits":{"heat":0.5,"stop":null,"turns":5},"model":"small","providers":["one","two"]},'
        '"description":"Edits documents.","tools":["Read","Bash(git *)"]}'
    )
    assert parsed.content_sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert parsed.allowlist_sha256 == hashlib.sha256(b'["doc/*","-doc/secret-*"]').hexdigest()


@pytest.mark.parametrize(
    "same",
    [
        agent(skills=[]),
        agent(skills=["-*"]),
        parse_agent("editor", without("skills"), LayerKind.INLINE, "x"),
        agent(tools=["Read", "Bash(git *)"]),
        agent(tools=["Skill", "Read", "Skill", "Bash(git *)"]),
        agent(definition=dict(reversed(EDITOR["definition"].items()))),
        replace(agent(), kind=LayerKind.TENANT, origin="tenant", updated_at=datetime(2026, 1, 1, tzinfo=UTC)),
    ],
    ids=["empty list", "deny all", "no list", "no Skill tool", "two Skill tools", "other key order", "other origin"],
)
def test_what_is_no_part_of_the_content(same: Agent) -> None:
    assert same.content_sha256 == agent().content_sha256


@pytest.mark.parametrize(
    "other",
    [
        agent(description="Edits."),
        agent(tools=["Read"]),
        agent(tools=[]),
        agent(tools=["Bash(git *)", "Read"]),
        agent(tools=["Read", "Bash(git *)", "Skills"]),
        parse_agent("editor", without("tools"), LayerKind.INLINE, "x"),
        agent(definition={}),
        agent(definition={**EDITOR["definition"], "model": "large"}),
        agent(definition={**EDITOR["definition"], "providers": ["two", "one"]}),
    ],
    ids=[
        "description",
        "fewer tools",
        "no tools",
        "order of tools",
        "another tool",
        "unrestricted",
        "no definition",
        "model",
        "order of a list",
    ],
)
def test_what_the_content_digest_tells_apart(other: Agent) -> None:
    assert other.content_sha256 != agent().content_sha256


def test_unrestricted_tools_are_not_no_tools() -> None:
    unrestricted = parse_agent("editor", without("tools"), LayerKind.INLINE, "x")
    assert unrestricted.tools is None
    assert unrestricted.content_sha256 != agent(tools=[]).content_sha256
    assert unrestricted.lacks(["Bash", "Bash(git *)"]) == []
    assert agent(tools=[]).tools == ()
    assert agent(tools=[]).lacks(["Bash", "Bash(git *)"]) == ["Bash", "Bash(git *)"]
    assert agent(tools=[]).lacks([]) == []


def test_the_allowlist_digest_tells_lists_apart() -> None:
    lists: list[list[str]] = [[], ["doc/*"], ["+doc/*"], ["doc/*", "-*"], ["-*", "doc/*"], ["doc/*", "doc/*"]]
    assert len({agent(skills=entries).allowlist_sha256 for entries in lists}) == len(lists)


@pytest.mark.parametrize(
    ("own", "wanted", "lacking"),
    [
        (["Bash"], ["Bash(git *)", "Bash"], []),
        (["Bash"], ["Bash (git *)"], []),
        (["Bash"], ["BashX", "Bashx(git *)", "bash", "bash(git *)"], ["BashX", "Bashx(git *)", "bash", "bash(git *)"]),
        (["Bash(git *)"], ["Bash(git *)"], []),
        (["Bash(git *)"], ["Bash", "Bash(*)", "Bash(git status)"], ["Bash", "Bash(*)", "Bash(git status)"]),
        (["Bash", "Read"], ["Read", "Write", "Bash(ls)", "Edit"], ["Write", "Edit"]),
        (["mcp__docs"], ["mcp__docs__search"], ["mcp__docs__search"]),
        (["Bash"], ["(git *)", "Read(Bash)"], ["(git *)", "Read(Bash)"]),
        (["Read"], ["Write", "Write"], ["Write", "Write"]),
    ],
    ids=str,
)
def test_a_bare_tool_covers_its_restricted_forms_and_nothing_else(
    own: list[str], wanted: list[str], lacking: list[str]
) -> None:
    assert agent(tools=own).lacks(wanted) == lacking


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["description", "tools", "skills", "definition", "pins", "skill_def_scopes", "x"])


@settings(max_examples=300, deadline=None)
@given(PLAIN | st.dictionaries(FIELDS, PLAIN | st.lists(st.sampled_from(["Read", "doc/*", "-*", ""])), max_size=5))
def test_any_data_is_an_agent_or_a_refusal(data: object) -> None:
    try:
        parsed = parse_agent("editor", data, LayerKind.TENANT, "tenant")
    except InvalidAgent:
        return
    assert isinstance(data, dict)
    assert set(data) <= {"description", "tools", "skills", "definition", "pins"}
    assert parsed.pins == data.get("pins", {})
    assert parsed.allowlist.texts() == data.get("skills", [])
    assert parsed.tools == (tuple(data["tools"]) if "tools" in data else None)
    assert json.loads(parsed.definition_json) == data.get("definition", {})
    assert len(parsed.content_sha256) == 64
