"""Audit events: the record of one decision, as text that is hashed into its tenant's chain.

The text of an event is compact JSON with the fields of `AuditEvent` under their own names, empty ones left out. It is
stored and hashed byte for byte: SHA-256 over the previous hash, the sequence as 8 bytes (big-endian) and the text as
UTF-8, in this order. The first event of a tenant has sequence 1 and a previous hash of 32 zero bytes. Bodies and raw
arguments are never part of an event.

What a decision was made from is named by digest and kept beside the events: the acting agent by `agent_sha256`, the
static state by `static_digest` (under the platform's tenant). Each text is kept once, and hashes to the digest.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from substrate.domain.candidates import Resolution
from substrate.domain.names import TenantId
from substrate.domain.skillmatch import Allowlist, Decision

GENESIS_HASH = bytes(32)

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


class Verb(Enum):
    """What the caller wanted to do."""

    PREPARE = "prepare"
    LIST = "list"
    INVOKE = "invoke"
    READ_FILE = "read_file"
    LIST_CATALOG = "list_catalog"
    LIST_SKILL_DEFS = "list_skill_defs"
    CREATE = "create"
    FORK = "fork"
    IMPORT = "import"
    SET_LABEL = "set_label"
    LIST_VERSIONS = "list_versions"
    DIFF = "diff"
    VERIFY = "verify"
    EXPORT = "export"
    GET = "get"
    PROMOTE = "promote"
    RETIRE = "retire"
    UNRETIRE = "unretire"
    DISABLE = "disable"
    ENABLE = "enable"
    PUT_AGENT = "put_agent"
    DELETE_AGENT = "delete_agent"
    GET_AGENT = "get_agent"
    LIST_AGENTS = "list_agents"
    TEST_ALLOWLIST = "test_allowlist"
    QUERY_AUDIT = "query_audit"
    TAIL_AUDIT = "tail_audit"
    GET_EVENT = "get_event"
    EXPLAIN = "explain"
    WHO_CAN = "who_can"
    GET_HISTORY = "get_history"
    GET_USAGE = "get_usage"
    VERIFY_AUDIT = "verify_audit"
    CREATE_TENANT = "create_tenant"
    LIST_TENANTS = "list_tenants"
    SUSPEND_TENANT = "suspend_tenant"
    RESUME_TENANT = "resume_tenant"
    GET_QUOTAS = "get_quotas"
    SET_QUOTAS = "set_quotas"
    ISSUE_KEY = "issue_key"
    REVOKE_KEY = "revoke_key"
    ROTATE_KEY = "rotate_key"
    LIST_KEYS = "list_keys"
    AUTHENTICATE = "authenticate"
    GAP = "gap"
    LOAD_STATIC = "load_static"
    RETENTION = "retention"


class EventOutcome(Enum):
    """How the call ended for its caller."""

    ALLOWED = "ALLOWED"
    REFUSED = "REFUSED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class DecidingEntry:
    """The allowlist's part in a decision: `index` and `entry` are None when no entry decided."""

    allowed: bool
    reason: str
    index: int | None = None
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class KeptInput:
    """A text that decisions were made from, and its SHA-256 in hex."""

    sha256: str
    content: str


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One decision: who asked for what, how it was decided, and on which state.

    `time` is when the call arrived, in UTC. `requested` is the reference as the caller wrote it, `name` the bare name.
    `reason` is the error reason of a refusal. `candidates` holds a mapping of layer, state, version, digest and origin
    for each; `pin` is the agent's pin that picked the version, `drafts` says whether one never promoted could be
    reached. `caller_kind` is ``MODEL`` or ``USER``; `touched` counts the paths that the caller gave, of which
    `touched_path` made the winner eligible. `agent_sha256` names the acting agent as it was, `arguments_hmac` the
    arguments under a key of the tenant. `admitted`, `left_out` and `entries_sha256` describe a list or a prepared run;
    `details` is what a change changed. `decide_us` is the time from arrival to the decision, in microseconds. `inputs`
    are kept beside the event and are no part of its text.
    """

    id: str
    tenant: TenantId
    time: datetime
    call_id: str
    verb: Verb
    outcome: EventOutcome
    actor: str = ""
    key_id: str = ""
    role: str = ""
    agent: str = ""
    run_id: str = ""
    turn: int = 0
    requested: str = ""
    name: str = ""
    caller_kind: str = ""
    pin: str = ""
    drafts: bool = False
    touched: int | None = None
    touched_path: str = ""
    arguments_hmac: str = ""
    reason: str = ""
    decision: DecidingEntry | None = None
    candidates: Sequence[dict[str, Any]] = ()
    winner: dict[str, Any] | None = None
    revision: int | None = None
    allowlist_sha256: str = ""
    agent_sha256: str = ""
    static_digest: str = ""
    filter: str = ""
    admitted: int | None = None
    left_out: int | None = None
    entries_sha256: str = ""
    details: dict[str, Any] | None = None
    server: str = ""
    decide_us: int | None = None
    inputs: tuple[KeptInput, ...] = ()

    @property
    def shadowed(self) -> bool:
        """Whether the winner shadows another candidate."""
        return self.winner is not None and any(found["state"] == "SHADOWED" for found in self.candidates)

    def cancelled(self) -> "AuditEvent":
        """Return the event of the same call, whose caller went away before it was answered.

        A refusal keeps its reason: whoever hangs up must not hide what was denied.
        """
        return replace(self, outcome=EventOutcome.CANCELLED, reason=self.reason or "CANCELLED")

    def fields(self) -> dict[str, Any]:
        """Return the fields that have a value, as plain data, in a fixed order."""
        decision = self.decision
        # Written out field by field, since this runs for every call: a loop over the fields takes three times as long.
        fields = {
            "id": self.id,
            "tenant": self.tenant,
            "time": self.time.isoformat(timespec="microseconds"),
            "call_id": self.call_id,
            "verb": self.verb.value,
            "outcome": self.outcome.value,
            "actor": self.actor,
            "key_id": self.key_id,
            "role": self.role,
            "agent": self.agent,
            "run_id": self.run_id,
            "turn": self.turn,
            "requested": self.requested,
            "name": self.name,
            "caller_kind": self.caller_kind,
            "pin": self.pin,
            "drafts": self.drafts,
            "touched": self.touched,
            "touched_path": self.touched_path,
            "arguments_hmac": self.arguments_hmac,
            "reason": self.reason,
            "decision": decision
            and {
                "allowed": decision.allowed,
                "reason": decision.reason,
                "index": decision.index,
                "entry": decision.entry,
            },
            "candidates": self.candidates,
            "winner": self.winner,
            "revision": self.revision,
            "allowlist_sha256": self.allowlist_sha256,
            "agent_sha256": self.agent_sha256,
            "static_digest": self.static_digest,
            "filter": self.filter,
            "admitted": self.admitted,
            "left_out": self.left_out,
            "entries_sha256": self.entries_sha256,
            "details": self.details,
            "server": self.server,
            "decide_us": self.decide_us,
        }
        return {name: value for name, value in fields.items() if value or (value == 0 and value is not False)}

    def text(self) -> str:
        """Return the event as the JSON text that is stored and hashed."""
        return _encode(self.fields())


def chain_hash(previous: bytes, sequence: int, text: str) -> bytes:
    """Return the hash of the event with this `sequence` and `text` that follows the event hashed `previous`."""
    return hashlib.sha256(previous + sequence.to_bytes(8, "big") + text.encode()).digest()


def hmac_of(key: bytes, arguments: str) -> str:
    """Return the HMAC-SHA-256, in hex, under which `arguments` are recorded; empty when there are none."""
    return hmac.digest(key, arguments.encode("utf-8", "surrogatepass"), "sha256").hex() if arguments else ""


def deciding_entry(allowlist: Allowlist, decision: Decision) -> DecidingEntry:
    """Return `decision` with the text of the entry that decided."""
    entry = None if decision.index is None else allowlist.entries[decision.index].text
    return DecidingEntry(decision.allowed, decision.reason.value, decision.index, entry)


def candidate_fields(resolution: Resolution) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return all candidates of `resolution` as plain data, and the winner among them."""
    found = []
    winner = None
    for ruling in resolution.rulings:
        candidate = ruling.candidate
        fields = {
            "layer": candidate.kind.value,
            "state": ruling.state.value,
            "version": candidate.version,
            "digest": candidate.content_sha256,
            "origin": candidate.origin,
        }
        found.append(fields)
        if candidate is resolution.winner:
            winner = fields
    return found, winner


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID in its usual form of 36 characters."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def event_id(milliseconds: int, entropy: bytes) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) for a Unix time in `milliseconds` and 10 bytes of `entropy`."""
    digits = ((milliseconds & 0xFFFF_FFFF_FFFF).to_bytes(6, "big") + entropy[:10]).hex()
    variant = "89ab"[entropy[2] >> 4 & 0b11]
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
