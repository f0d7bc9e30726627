"""Who calls: tenants, keys, roles and the principal that a key proves.

A bearer key reads ``sub_<tenant>.<id>_<secret>``. The tenant of a call is the key's, never the message's. Only the
SHA-256 of the secret is stored; the secret has 256 bits, so a plain hash cannot be searched. Keys are compared in
constant time.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from substrate.domain.errors import InvalidName, TenantSuspended, Unauthenticated
from substrate.domain.names import AgentName, KeyId, TenantId, parse_tenant_id, slug_problem

MAX_BEARER_LENGTH = 256

_PREFIX = "sub_"
_REFUSED = (
    "No valid key came with the call; send the metadata 'authorization: Bearer sub_<tenant>.<id>_<secret>' "
    "with a key that is neither expired nor revoked."
)


class Role(Enum):
    """What a key is for: running skills, authoring them, or operating the server."""

    RUNTIME = "runtime"
    AUTHOR = "author"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as stored: the SHA-256 of its secret, its role, and the agent it is bound to, if any.

    `principal` is who uses the key; keys that replace each other share it. `last_used_at` is known only in lists of
    keys, where it is read from the audit log.
    """

    tenant: TenantId
    key_id: KeyId
    secret_sha256: bytes
    role: Role
    agent: AgentName | None = None
    label: str = ""
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    principal: str = ""
    last_used_at: datetime | None = None

    def admits(self, secret: str, now: datetime) -> bool:
        """Whether `secret` is this key's, and the key is live at `now`."""
        same = hmac.compare_digest(secret_sha256(secret), self.secret_sha256)
        return same and self.is_live(now)

    def is_live(self, now: datetime) -> bool:
        """Whether the key is neither revoked nor expired at `now`."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call comes from, as proved by its key.

    `name` is what versions record as their author: the key's principal, or its id where it names none.
    """

    tenant: TenantId
    key_id: KeyId
    role: Role
    agent: AgentName | None = None
    name: str = ""

    @property
    def actor(self) -> str:
        """The principal's name in audit events: ``<role>:<tenant>.<key id>``."""
        return f"{self.role.value}:{self.tenant}.{self.key_id}"


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a caller presents: a claim on a key, not yet proved."""

    tenant: TenantId
    key_id: KeyId
    secret: str = field(repr=False)


def secret_sha256(secret: str) -> bytes:
    """Return the 32 bytes that are stored in place of `secret`."""
    return hashlib.sha256(secret.encode()).digest()


def bearer_text(tenant: TenantId, key_id: KeyId, secret: str) -> str:
    """Return the whole key, as it is shown to its owner once."""
    return f"{_PREFIX}{tenant}.{key_id}_{secret}"


def parse_bearer(text: str) -> Bearer:
    """Read a whole key; raise Unauthenticated, without saying what is wrong with it, when it is malformed."""
    body = text.removeprefix(_PREFIX)
    tenant, _, rest = body.partition(".")
    key_id, _, secret = rest.partition("_")
    whole = text.startswith(_PREFIX) and len(text) <= MAX_BEARER_LENGTH and text.isascii() and secret
    if not whole or slug_problem(key_id):
        raise Unauthenticated(_REFUSED)
    try:
        return Bearer(parse_tenant_id(tenant), KeyId(key_id), secret)
    except InvalidName:
        raise Unauthenticated(_REFUSED) from None


def authenticate(bearer: Bearer, key: Key | None, now: datetime) -> Principal:
    """Return the principal that `bearer` proves against the stored `key`; raise Unauthenticated otherwise."""
    same = key is not None and (key.tenant, key.key_id) == (bearer.tenant, bearer.key_id)
    if key is None or not same or not key.admits(bearer.secret, now):
        raise Unauthenticated(_REFUSED)
    return Principal(key.tenant, key.key_id, key.role, key.agent, key.principal or key.key_id)


def missing_key() -> Unauthenticated:
    """Return the error for a call without any key."""
    return Unauthenticated(_REFUSED)


def suspended(tenant: TenantId, reason: str) -> TenantSuspended:
    """Return the error for a call with a key of a suspended tenant; `reason` is the operator's, or empty."""
    metadata = {"tenant": tenant} | ({"suspend_reason": reason} if reason else {})
    why = f": {reason}" if reason else ""
    return TenantSuspended(f"The tenant '{tenant}' is suspended{why}. Ask an operator.", **metadata)
