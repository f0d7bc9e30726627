"""What an agent may pin, and which agents may."""

from dataclasses import replace

import pytest

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import LayerKind
from substrate.domain.errors import InvalidAgent


def own(pins: object) -> Agent:
    return parse_agent("editor", {"skills": ["doc/*"], "pins": pins}, LayerKind.TENANT, "tenant:r7")


def test_a_tenants_agent_may_pin_names() -> None:
    pins = {"own/b": "staging", "own/a": "v1", "doc/query": "v999999999", "n": "x" * 64, "m": "7"}
    parsed = own(pins)
    assert parsed.pins == pins
    assert list(parsed.pins) == sorted(pins)
    assert own({f"own/n{number}": "v1" for number in range(200)}).pins.keys() == {f"own/n{n}" for n in range(200)}
    assert (parsed.content_sha256, parsed.allowlist_sha256) == (own({}).content_sha256, own({}).allowlist_sha256)
    assert own({}).pins == parse_agent("editor", {}, LayerKind.INLINE, "x").pins == {}


@pytest.mark.parametrize("kind", [LayerKind.INLINE, LayerKind.BUNDLE])
@pytest.mark.parametrize("pins", [{}, {"own/a": "v1"}, {"A": ""}, None], ids=repr)
def test_no_other_agent_may(kind: LayerKind, pins: object) -> None:
    with pytest.raises(InvalidAgent) as raised:
        parse_agent("editor", {"skills": ["doc/*"], "pins": pins}, kind, "x")
    ((field, text),) = [(found.field, found.description) for found in raised.value.violations]
    assert field == "pins"
    assert text == "Unknown field; an agent has description, tools, skills, definition."


@pytest.mark.parametrize(
    ("pins", "fields"),
    [
        (None, ["pins"]),
        (["own/a"], ["pins"]),
        ("own/a=v1", ["pins"]),
        ({f"own/n{number}": "v1" for number in range(201)}, ["pins"]),
        ({"own/a": 3}, ["pins[own/a]"]),
        ({"own/a": None}, ["pins[own/a]"]),
        ({7: "v1"}, ["pins[7]"]),
        ({"Own": "V1", "own/a": "bundle", "own/b": "v3", "c": "v0"}, ["pins[Own]"] * 2 + ["pins[own/a]", "pins[c]"]),
        ({"x" * 300: "v1"}, [f"pins[{'x' * 80}]"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_every_wrong_pin_is_reported(pins: object, fields: list[str]) -> None:
    with pytest.raises(InvalidAgent) as raised:
        own(pins)
    assert [violation.field for violation in raised.value.violations] == fields


def test_the_etag_is_of_the_last_change() -> None:
    assert replace(own({}), revision=7).etag == "r7"
    assert replace(own({}), kind=LayerKind.INLINE, revision=7).etag == ""
