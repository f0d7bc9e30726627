"""Opaque tokens that travel through callers: where a page ended, and which catalog an answer was given from."""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass

from substrate.domain.errors import InvalidPageToken
from substrate.domain.names import TenantId

MAX_TOKEN_LENGTH = 2048


def page_token(after: str, *request: object) -> str:
    """Return the token for the page that follows the key `after` of this `request` (everything that selects rows)."""
    return _encode([after, _bound(after, request)])


def read_page_token(token: str, *request: object, field: str = "page_token") -> str:
    """Return the key that `token`, the request's `field`, continues after, or "" for no token.

    Raises InvalidPageToken when it is malformed, altered, or of a request that selects other rows.
    """
    if not token:
        return ""
    value = _decode(token, field)
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)):  # noqa: PLR2004 - key and digest.
        raise InvalidPageToken(field, "The token was not issued by this server; start from the beginning.")
    after, bound = value
    # Whoever makes up a token may get the digest right; what is no key of any list stays out of the queries.
    if bound != _bound(after, request) or not (after.isascii() and after.isprintable()):
        raise InvalidPageToken(field, "The token belongs to a request with other fields; repeat them or start again.")
    return str(after)


@dataclass(frozen=True, slots=True)
class CatalogToken:
    """Names the catalog an answer was given from: database, tenant, catalog revision and static digest."""

    incarnation: str
    tenant: TenantId
    revision: int
    static_digest: str

    def __str__(self) -> str:
        return _encode([self.incarnation, self.tenant, self.revision, self.static_digest[:16]])

    def differs_from(self, older: "CatalogToken") -> bool:
        """Whether the catalog has changed since the answer that carried `older`, by a tenant's write or a reload."""
        return (self.revision, self.static_digest[:16]) != (older.revision, older.static_digest)


def read_catalog_token(token: str) -> CatalogToken:
    """Return what `token` says; raise InvalidPageToken when this kind of server never issued it."""
    value = _decode(token, "catalog_token")
    match value:
        case [str(incarnation), str(tenant), int(revision), str(digest)]:
            return CatalogToken(incarnation, TenantId(tenant), revision, digest)
        case _:
            raise InvalidPageToken("catalog_token", "The catalog token is malformed; send one as it was received.")


def _bound(after: str, request: tuple[object, ...]) -> str:
    return hashlib.sha256(json.dumps([after, *request], default=str).encode()).hexdigest()[:16]


def _encode(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(token: str, field: str) -> object:
    malformed = InvalidPageToken(field, "The token is malformed; send it exactly as it was received.")
    if len(token) > MAX_TOKEN_LENGTH:
        raise malformed
    try:
        raw = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return json.loads(raw)
    except (binascii.Error, ValueError, RecursionError):
        raise malformed from None
