"""Stored events as they are read back: whole when they are as written, and never more than what they hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.domain.recorded import readable, whole
from tests.domain.test_audit_event import BARE, FULL

FIELDS: dict[str, Any] = json.loads(FULL.text())
BROKEN = ["", "x", "'x'", "[]", "{}", "null", "1", '"x"', "[" * 200_000, "1" * 5000, '{"a":' * 100_000]


@pytest.mark.parametrize("event", [BARE, FULL])
def test_an_event_that_was_written_is_whole(event: Any) -> None:
    fields = json.loads(event.text())
    assert whole(event.text(), "acme") == fields
    assert readable(event.text()) == fields


@pytest.mark.parametrize("text", BROKEN)
def test_a_text_that_is_no_event_has_no_fields(text: str) -> None:
    assert whole(text, "acme") is None
    assert readable(text) == {}


WRONG: dict[str, list[Any]] = {
    "id": ["", 7, None, "not-a-uuid", "017f22e2-79b0-7cc3-98c4-dc0c0c07398\u0660"],
    "tenant": [7, None, ["acme"]],
    "time": ["", "yesterday", 7, "2026-03-01T12:00:00", "0001-01-01T00:00:00+14:00"],
    "call_id": [1, None, "\0", "\ud800"],
    "verb": [[], 7],
    "outcome": ["allowed", "MAYBE", 1, []],
    "actor": [{}, "\udfff"],
    "role": ["king", 1],
    "turn": [2**70, -(2**31) - 1, 1.5, "1", True],
    "caller_kind": ["ROBOT", {}],
    "drafts": [1, "yes"],
    "touched": [2**31, "2"],
    "decision": [[], {}, {"allowed": 1}, {"allowed": True, "reason": "WHIM", "index": 0, "entry": "a"}],
    "candidates": [{}, [1], [{"layer": "SKY"}], [{**FULL.candidates[0], "version": 2**40}]],
    "winner": [[], {"layer": "BUNDLE"}, {**FULL.candidates[0], "state": "LOST"}],
    "revision": [2**63, "7", float("inf")],
    "details": [[], "x", {"note": "\ud800"}],
    "decide_us": [2**64, None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_that_holds_something_else_is_left_out_and_the_event_is_not_whole(field: str, value: Any) -> None:
    text = json.dumps({**FIELDS, field: value})
    assert whole(text, "acme") is None
    expected = {name: kept for name, kept in FIELDS.items() if name != field}
    assert readable(text) == expected


def test_an_event_of_another_tenant_or_of_a_verb_that_nobody_knows_is_not_whole() -> None:
    assert whole(FULL.text(), "other") is None
    assert whole(json.dumps({**FIELDS, "verb": "wish"}), "acme") is None
    assert readable(json.dumps({**FIELDS, "verb": "wish"}))["verb"] == "wish"


def test_a_field_that_is_not_known_is_no_fault() -> None:
    text = json.dumps({**FIELDS, "colour": "green"})
    assert whole(text, "acme") == {**FIELDS, "colour": "green"}
    assert readable(text) == FIELDS


CHANGE = {**BARE.fields(), "actor": "author:acme.k1", "server": "s-1", "static_digest": "bb"}
IMPORT = {"skills": [["doc/a", 1, True, "ab"]], "promoted": True, "revision": 7}


@pytest.mark.parametrize(
    ("verb", "details"),
    [
        ("create", {"version": "1"}),
        ("promote", {"version": 1, "revision": "7"}),
        ("fork", {"version": 1, "promoted": "no"}),
        ("disable", {"reason": 7}),
        ("import", {**IMPORT, "skills": [["doc/a", 1, True]]}),
        ("import", {**IMPORT, "skills": {"doc/a": 1}}),
        ("load_static", {"previous": None}),
    ],
)
def test_what_the_history_reads_of_a_change_must_be_there_as_written(verb: str, details: dict[str, Any]) -> None:
    others: dict[str, Any] = {"import": IMPORT, "load_static": {"previous": ""}}
    good = others.get(verb, {"version": 1})
    assert whole(json.dumps({**CHANGE, "verb": verb, "details": good}), "acme") is not None
    assert whole(json.dumps({**CHANGE, "verb": verb, "details": details}), "acme") is None
    for field in ("actor", "server", "static_digest"):
        without = {name: value for name, value in CHANGE.items() if name != field}
        assert whole(json.dumps({**without, "verb": verb, "details": good}), "acme") is None


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), PLAIN))
def test_nothing_in_any_field_raises(damage: dict[str, Any]) -> None:
    text = json.dumps({**FIELDS, **damage})
    read = readable(text)
    assert set(FIELDS) - set(damage) <= set(read) <= set(FIELDS)
    stored = json.loads(text)
    assert read == {name: stored[name] for name in read}
