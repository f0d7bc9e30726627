import hashlib
import hmac
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain import identity
from substrate.domain.errors import Unauthenticated
from substrate.domain.identity import (
    Bearer,
    Key,
    Principal,
    Role,
    authenticate,
    bearer_text,
    missing_key,
    parse_bearer,
    secret_sha256,
    suspended,
)
from substrate.domain.names import KeyId, parse_agent_name, parse_tenant_id

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TICK = timedelta(microseconds=1)
TENANT = parse_tenant_id("acme")
KEY_ID = KeyId("k1")
SECRET = "q_-Zb0"  # noqa: S105 (It opens nothing but the key below.)
BEARER = Bearer(TENANT, KEY_ID, SECRET)
KEY = Key(TENANT, KEY_ID, secret_sha256(SECRET), Role.AUTHOR, created_at=NOW - timedelta(days=1))

SLUGS = st.from_regex(r"[a-z0-9]{1,4}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)
SECRETS = st.text(alphabet="abzABZ019_-", min_size=1, max_size=43)

MALFORMED = {
    "nothing": "",
    "prefix alone": "sub_",
    "another prefix": "tok_acme.k1_secret",
    "no prefix": "acme.k1_secret",
    "upper-case prefix": "SUB_acme.k1_secret",
    "prefix twice": "sub_sub_acme.k1_secret",
    "blank before": " sub_acme.k1_secret",
    "scheme left on": "Bearer sub_acme.k1_secret",
    "no tenant": "sub_.k1_secret",
    "no dot": "sub_acmek1_secret",
    "no id": "sub_acme._secret",
    "no secret": "sub_acme.k1_",
    "no underscore": "sub_acme.k1",
    "dot and underscore alone": "sub_._",
    "upper-case tenant": "sub_Acme.k1_secret",
    "tenant with a slash": "sub_a/b.k1_secret",
    "tenant with an underscore": "sub_a_b.k1_secret",
    "tenant that climbs": "sub_...k1_secret",
    "tenant with a line end": "sub_acme\n.k1_secret",
    "tenant of 41": f"sub_{'a' * 41}.k1_secret",
    "upper-case id": "sub_acme.K1_secret",
    "id with a dot": "sub_acme.k.1_secret",
    "id with a blank": "sub_acme.k1 _secret",
    "id with a line end": "sub_acme.k1\n_secret",
    "id of 65": f"sub_acme.{'k' * 65}_secret",
    "NUL in the tenant": "sub_ac\0me.k1_secret",
    "look-alike tenant": "sub_\u0430cme.k1_secret",
    "secret not ASCII": "sub_acme.k1_s\u00e9cret",
    "lone surrogate": "sub_acme.k1_\ud800",
    "too long": "sub_acme.k1_" + "s" * 245,
    "much too long": "sub_" + "a." * 2_000_000,
}


@settings(max_examples=300, deadline=None)
@given(SLUGS, SLUGS, SECRETS)
def test_a_key_reads_back_as_it_was_issued(tenant: str, key_id: str, secret: str) -> None:
    bearer = parse_bearer(bearer_text(parse_tenant_id(tenant), KeyId(key_id), secret))
    assert bearer == Bearer(parse_tenant_id(tenant), KeyId(key_id), secret)


@pytest.mark.parametrize("secret", ["_", "-", "__a", "a_b_c", "-_-", "a.b", "sub_x.y_z", "S3cr3t", "s" * 244])
def test_a_secret_may_hold_the_separators(secret: str) -> None:
    text = f"sub_acme.k1_{secret}"
    assert parse_bearer(text) == Bearer(TENANT, KEY_ID, secret)
    assert bearer_text(TENANT, KEY_ID, secret) == text


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_key_is_refused_without_saying_what_is_wrong(text: str) -> None:
    with pytest.raises(Unauthenticated) as raised:
        parse_bearer(text)
    assert raised.value.message == missing_key().message
    assert not raised.value.metadata
    assert not raised.value.violations


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=30)
    | st.text(alphabet="sub_.-aA1\n\0\u00e9", max_size=16).map("sub_".__add__)
    | st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4)).map(
        lambda parts: "sub_{}.{}_{}".format(*parts)
    )
)
def test_any_text_is_a_key_or_unauthenticated(text: str) -> None:
    try:
        bearer = parse_bearer(text)
    except Unauthenticated:
        return
    assert bearer_text(bearer.tenant, bearer.key_id, bearer.secret) == text
    with pytest.raises(Unauthenticated):
        authenticate(bearer, None, NOW)


def test_only_the_hash_of_the_secret_is_kept() -> None:
    assert secret_sha256(SECRET) == hashlib.sha256(b"q_-Zb0").digest()
    assert SECRET not in repr(KEY)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("agent", [None, parse_agent_name("doc-manager")])
def test_a_live_key_proves_its_principal(role: Role, agent: str | None) -> None:
    bound = None if agent is None else parse_agent_name(agent)
    principal = authenticate(BEARER, replace(KEY, role=role, agent=bound), NOW)
    assert principal == Principal(TENANT, KEY_ID, role, bound, name="k1")
    assert principal.actor == f"{role.value}:acme.k1"


@pytest.mark.parametrize(
    "secret", ["", SECRET[:-1], SECRET + "x", SECRET + "\0", SECRET.lower(), SECRET[::-1], SECRET + "\n"]
)
def test_a_wrong_secret_proves_nothing(secret: str) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(replace(BEARER, secret=secret), KEY, NOW)


def test_who_uses_a_key_is_its_principal_or_its_id() -> None:
    assert authenticate(BEARER, KEY, NOW).name == "k1"
    assert authenticate(BEARER, replace(KEY, principal="ada"), NOW).name == "ada"


def test_digests_of_one_length_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    class Spy:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(identity, "hmac", Spy)
    secrets = (SECRET, "x", "x" * 200)
    assert [KEY.admits(secret, NOW) for secret in secrets] == [True, False, False]
    assert compared == [(secret_sha256(secret), KEY.secret_sha256) for secret in secrets]
    assert {len(side) for pair in compared for side in pair} == {32}


@pytest.mark.parametrize("place", [0, 15, 31])
def test_every_byte_of_the_hash_counts(place: int) -> None:
    stored = bytearray(secret_sha256(SECRET))
    stored[place] ^= 1
    assert KEY.admits(SECRET, NOW)
    assert not replace(KEY, secret_sha256=bytes(stored)).admits(SECRET, NOW)


def test_an_unknown_key_proves_nothing() -> None:
    with pytest.raises(Unauthenticated):
        authenticate(BEARER, None, NOW)


@pytest.mark.parametrize(
    "key",
    [replace(KEY, tenant=parse_tenant_id("other")), replace(KEY, key_id=KeyId("k2"))],
    ids=["another tenant's", "another id's"],
)
def test_a_key_answers_only_the_claim_made_on_it(key: Key) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(BEARER, key, NOW)


@pytest.mark.parametrize(
    ("left", "live"),
    [(timedelta(days=1), True), (TICK, True), (timedelta(0), False), (-TICK, False), (timedelta(days=-1), False)],
)
def test_a_key_lives_until_the_moment_it_expires(left: timedelta, *, live: bool) -> None:
    key = replace(KEY, expires_at=NOW + left)
    assert key.admits(SECRET, NOW) is live
    if live:
        assert authenticate(BEARER, key, NOW).key_id == KEY_ID
    else:
        with pytest.raises(Unauthenticated):
            authenticate(BEARER, key, NOW)


@pytest.mark.parametrize("revoked_at", [NOW - timedelta(days=1), NOW - TICK, NOW])
@pytest.mark.parametrize("expires_at", [None, NOW + timedelta(days=1)])
def test_a_revoked_key_proves_nothing(revoked_at: datetime, expires_at: datetime | None) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(BEARER, replace(KEY, revoked_at=revoked_at, expires_at=expires_at), NOW)


def test_every_refusal_reads_the_same() -> None:
    refused = {
        "unknown": (BEARER, None),
        "wrong secret": (replace(BEARER, secret=SECRET + "x"), KEY),
        "expired": (BEARER, replace(KEY, expires_at=NOW)),
        "revoked": (BEARER, replace(KEY, revoked_at=NOW)),
    }
    messages = set()
    for bearer, key in refused.values():
        with pytest.raises(Unauthenticated) as raised:
            authenticate(bearer, key, NOW)
        messages.add(raised.value.message)
    assert messages == {missing_key().message}


def test_a_suspended_tenant_is_told_so_and_why() -> None:
    bare = suspended(TENANT, "")
    assert (bare.reason, bare.metadata) == ("TENANT_SUSPENDED", {"tenant": "acme"})
    assert bare.message == "The tenant 'acme' is suspended. Ask an operator."
    told = suspended(TENANT, "unpaid")
    assert told.metadata == {"tenant": "acme", "suspend_reason": "unpaid"}
    assert told.message == "The tenant 'acme' is suspended: unpaid. Ask an operator."
