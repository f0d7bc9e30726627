import dataclasses
import hashlib
import json
import struct
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.audit import (
    GENESIS_HASH,
    AuditEvent,
    DecidingEntry,
    EventOutcome,
    KeptInput,
    Verb,
    candidate_fields,
    chain_hash,
    deciding_entry,
    event_id,
)
from substrate.domain.candidates import Candidate, Layer, LayerKind, Outcome, Standing
from substrate.domain.catalog import Catalog, StaticCatalog
from substrate.domain.names import parse_skill_name, parse_skill_ref, parse_tenant_id
from substrate.domain.skillmatch import Allowlist

BARE = AuditEvent(
    id="017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
    tenant=parse_tenant_id("acme"),
    time=datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
    call_id="c-1",
    verb=Verb.INVOKE,
    outcome=EventOutcome.ALLOWED,
)
CANDIDATE = {"layer": "BUNDLE", "state": "WON", "version": None, "digest": "ab", "origin": "bundle:core"}
FULL = replace(
    BARE,
    actor="runtime:acme.k1",
    key_id="k1",
    role="runtime",
    agent="editor",
    run_id="r-1",
    turn=3,
    requested="doc/query@bundle",
    name="doc/query",
    caller_kind="MODEL",
    pin="v2",
    drafts=True,
    touched=2,
    touched_path="src/a.py",
    arguments_hmac="ee",
    reason="SKILL_QUARANTINED",
    decision=DecidingEntry(allowed=True, reason="ALLOW_RULE", index=0, entry="doc/*"),
    candidates=(CANDIDATE,),
    winner=CANDIDATE,
    revision=7,
    allowlist_sha256="aa",
    agent_sha256="dd",
    static_digest="bb",
    filter="doc/*",
    admitted=0,
    left_out=2,
    entries_sha256="cc",
    details={"version": 2},
    server="s-1",
    decide_us=40,
    inputs=(KeptInput("dd", "{}"),),
)
FULL_TEXT = (
    '{"id":"017f22e2-79b0-7cc3-98c4-dc0c0c07398f","tenant":"acme","time":"2026-03-01T12:00:00.000005+00:00",'
    '"call_id":"c-1","verb":"invoke","outcome":"ALLOWED","actor":"runtime:acme.k1","key_id":"k1","role":"runtime",'
    '"agent":"editor","run_id":"r-1","turn":3,"requested":"doc/query@bundle","name":"doc/query",'
    '"caller_kind":"MODEL","pin":"v2","drafts":true,"touched":2,"touched_path":"src/a.py","arguments_hmac":"ee",'
    '"reason":"SKILL_QUARANTINED","decision":{"allowed":true,"reason":"ALLOW_RULE","index":0,"entry":"doc/*"},'
    '"candidates":[{"layer":"BUNDLE","state":"WON","version":null,"digest":"ab","origin":"bundle:core"}],'
    '"winner":{"layer":"BUNDLE","state":"WON","version":null,"digest":"ab","origin":"bundle:core"},'
    '"revision":7,"allowlist_sha256":"aa","agent_sha256":"dd","static_digest":"bb","filter":"doc/*","admitted":0,"left_out":2,'
    '"entries_sha256":"cc","details":{"version":2},"server":"s-1","decide_us":40}'
)


def test_the_text_is_compact_json_of_all_fields_in_order() -> None:
    assert FULL.text() == FULL_TEXT
    assert list(json.loads(FULL.text())) == [
        field.name for field in dataclasses.fields(AuditEvent) if field.name != "inputs"
    ]


def test_equal_events_have_equal_text() -> None:
    assert replace(FULL).text() == FULL.text()
    assert replace(FULL, turn=4).text() != FULL.text()


def test_empty_fields_are_left_out() -> None:
    written = json.loads(BARE.text())
    assert set(written) <= {"id", "tenant", "time", "call_id", "verb", "outcome", "turn"}
    assert written["verb"] == "invoke"
    assert written["time"] == "2026-03-01T12:00:00.000005+00:00"


@pytest.mark.parametrize(
    "empty",
    [{"candidates": ()}, {"candidates": []}, {"details": {}}, {"reason": ""}, {"winner": None}, {"decide_us": None}],
    ids=str,
)
def test_whatever_kind_of_empty_a_field_is(empty: dict[str, Any]) -> None:
    assert replace(BARE, **empty).text() == BARE.text()


@pytest.mark.parametrize(
    "numbers",
    [{"admitted": 0}, {"left_out": 0}, {"revision": 0}, {"decide_us": 0}],
    ids=lambda numbers: next(iter(numbers)),
)
def test_a_count_of_nothing_is_not_empty(numbers: dict[str, int]) -> None:
    assert json.loads(replace(BARE, **numbers).text()) == {**json.loads(BARE.text()), **numbers}  # type: ignore[arg-type]


def test_a_time_on_the_second_has_its_microseconds_too() -> None:
    event = replace(BARE, time=datetime(2026, 3, 1, tzinfo=UTC))
    assert event.fields()["time"] == "2026-03-01T00:00:00.000000+00:00"


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters()), st.text())
def test_any_text_is_kept_and_the_event_stays_one_line_of_ascii(requested: str, name: str) -> None:
    text = replace(BARE, requested=requested, filter="\ud800\0\u2028", details={"name": name}).text()
    assert text.isascii()
    assert text.isprintable()
    read = json.loads(text)
    assert read.get("requested", "") == requested
    assert read["filter"] == "\ud800\0\u2028"
    assert read["details"] == {"name": name}


def test_the_chain_starts_at_zero_and_takes_in_all_of_its_inputs() -> None:
    # Made with `printf` and `sha256sum`: 32 zero bytes, 8 bytes of sequence, {"a":1}.
    first = bytes.fromhex("efdc0e2f8a22c30683385791552f8455b898f59e1aa4d1a6c77f0457bd1d5947")
    second = bytes.fromhex("d6f6fce4b78ec90b1cba419376926967a31c3d567802983d1bbe0a228db12622")
    assert bytes(32) == GENESIS_HASH
    assert chain_hash(GENESIS_HASH, 1, '{"a":1}') == first
    assert chain_hash(first, 2, '{"a":2}') == second
    assert chain_hash(first, 3, '{"a":2}') != second
    assert chain_hash(GENESIS_HASH, 2, '{"a":2}') != second
    assert chain_hash(first, 2, '{"a": 2}') != second


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 2**63 - 1), st.text())
def test_the_hash_is_sha256_of_the_documented_bytes(previous: bytes, sequence: int, text: str) -> None:
    stored = previous + struct.pack(">q", sequence) + text.encode("utf-8")
    assert chain_hash(previous, sequence, text) == hashlib.sha256(stored).digest()


def test_a_cancelled_call_is_the_same_event_with_another_end() -> None:
    answered = replace(FULL, reason="")
    cancelled = answered.cancelled()
    assert json.loads(cancelled.text()) == {**json.loads(FULL_TEXT), "outcome": "CANCELLED", "reason": "CANCELLED"}
    assert answered.outcome is EventOutcome.ALLOWED
    assert cancelled.cancelled() == cancelled


def test_a_refusal_that_nobody_waited_for_keeps_its_reason() -> None:
    refusal = replace(FULL, outcome=EventOutcome.REFUSED)
    cancelled = refusal.cancelled()
    assert cancelled == replace(refusal, outcome=EventOutcome.CANCELLED)
    assert cancelled.reason == "SKILL_QUARANTINED"
    assert cancelled.cancelled() == cancelled


@pytest.mark.parametrize(
    ("entries", "name", "wanted"),
    [
        ([], "seo", DecidingEntry(allowed=True, reason="EMPTY_ALLOWLIST")),
        (["-doc/*"], "seo", DecidingEntry(allowed=True, reason="NOT_DENIED")),
        (["doc/*"], "seo", DecidingEntry(allowed=False, reason="UNLISTED")),
        (["seo", "+doc/*"], "doc/x", DecidingEntry(allowed=True, reason="ALLOW_RULE", index=1, entry="+doc/*")),
        (["+doc/*", "-doc/x"], "doc/x", DecidingEntry(allowed=False, reason="DENY_RULE", index=1, entry="-doc/x")),
        (["-*"], "seo", DecidingEntry(allowed=False, reason="DENY_RULE", index=0, entry="-*")),
    ],
    ids=str,
)
def test_the_deciding_entry_is_told_as_it_was_written(entries: list[str], name: str, wanted: DecidingEntry) -> None:
    allowlist = Allowlist.parse(entries)
    assert deciding_entry(allowlist, allowlist.decide(parse_skill_name(name))) == wanted


def test_a_denial_by_the_first_entry_is_written_whole() -> None:
    decision = DecidingEntry(allowed=False, reason="DENY_RULE", index=0, entry="-*")
    unlisted = DecidingEntry(allowed=False, reason="UNLISTED")
    assert json.loads(replace(BARE, decision=decision).text())["decision"] == {
        "allowed": False,
        "reason": "DENY_RULE",
        "index": 0,
        "entry": "-*",
    }
    assert json.loads(replace(BARE, decision=unlisted).text())["decision"]["index"] is None


NAME = parse_skill_name("doc/x")
TENANT = Candidate(NAME, LayerKind.TENANT, "tenant:v2", content_sha256="t2", version=2)
OLD = Candidate(NAME, LayerKind.TENANT, "tenant:v1", content_sha256="t1", version=1)
INLINE = Candidate(NAME, LayerKind.INLINE, "inline", content_sha256="i")
BUNDLE = Candidate(NAME, LayerKind.BUNDLE, "bundle:core", content_sha256="b")


def catalog(*candidates: Candidate) -> Catalog:
    layers = [Layer(candidate.kind, candidate.origin, {NAME: candidate}) for candidate in candidates]
    return Catalog(
        [layer for layer in layers if layer.kind is LayerKind.TENANT],
        StaticCatalog(tuple(layer for layer in layers if layer.kind is not LayerKind.TENANT)),
    )


@pytest.mark.parametrize(
    ("suffix", "winner"), [("", "tenant:v2"), ("@inline", "inline"), ("@bundle", "bundle:core"), ("@v1", "tenant:v1")]
)
def test_the_winner_is_one_of_the_candidates(suffix: str, winner: str) -> None:
    resolution = catalog(TENANT, INLINE, BUNDLE).resolve(parse_skill_ref(f"doc/x{suffix}"), OLD)
    candidates, won = candidate_fields(resolution)
    assert candidates[0] == {"layer": "TENANT", "state": "WON", "version": 2, "digest": "t2", "origin": "tenant:v2"}
    assert {"layer": "INLINE", "state": "SHADOWED", "version": None, "digest": "i", "origin": "inline"} in candidates
    assert [candidate["origin"] for candidate in candidates if candidate is won] == [winner]


@pytest.mark.parametrize(
    ("standing", "outcome", "states"),
    [
        (Standing.DISABLED, Outcome.DISABLED, ["DISABLED", "SHADOWED"]),
        (Standing.QUARANTINED, Outcome.QUARANTINED, ["QUARANTINED", "SHADOWED"]),
    ],
)
def test_without_a_winner_every_candidate_is_still_told(
    standing: Standing, outcome: Outcome, states: list[str]
) -> None:
    resolution = catalog(replace(TENANT, standing=standing), BUNDLE).resolve(parse_skill_ref("doc/x"))
    candidates, winner = candidate_fields(resolution)
    assert resolution.outcome is outcome
    assert winner is None
    assert [candidate["state"] for candidate in candidates] == states


def test_an_unknown_name_leaves_candidates_and_winner_out_of_the_event() -> None:
    candidates, winner = candidate_fields(catalog().resolve(parse_skill_ref("doc/x")))
    assert replace(BARE, candidates=candidates, winner=winner).text() == BARE.text()


def test_event_ids_are_uuids_of_version_7() -> None:
    # The example of RFC 9562, appendix A.6; the bits of version and variant are not the caller's.
    for entropy in ("0cc398c4dc0c0c07398f", "fcc358c4dc0c0c07398f", "7cc3d8c4dc0c0c07398f"):
        assert event_id(0x017F22E279B0, bytes.fromhex(entropy)) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**48 - 2), st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_event_ids_sort_by_time_and_keep_their_entropy(milliseconds: int, one: bytes, other: bytes) -> None:
    text = event_id(milliseconds, one)
    parsed = uuid.UUID(text)
    kept = (1 << 76) - 1 & ~(0b11 << 62)
    assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)
    assert parsed.int >> 80 == milliseconds
    assert parsed.int & kept == int.from_bytes(one, "big") & kept
    assert text < event_id(milliseconds + 1, other)
