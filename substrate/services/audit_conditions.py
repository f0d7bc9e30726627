"""What callers may ask of the audit log: their conditions, checked, and the positions that they go on from."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from substrate.domain.audit import EventOutcome, Verb, is_uuid
from substrate.domain.candidates import LayerKind
from substrate.domain.errors import (
    InvalidArgument,
    InvalidPageToken,
    RevisionUnknown,
    RoleRequired,
    SubstrateError,
)
from substrate.domain.names import TenantId, parse_agent_name
from substrate.domain.patterns import parse_query_pattern
from substrate.domain.tokens import page_token, read_page_token
from substrate.services.trace import Trace
from substrate.store.audit_log import Filter, Position

MAX_CALL_ID_LENGTH = 128
MAX_ACTOR_LENGTH = 256
MAX_ARGUMENTS_LENGTH = 65_536
MAX_VERSION = 2**31 - 1

_KEY = re.compile(r"([0-9a-f]{32}):([0-9]{1,20}):([a-z0-9-]*):([0-9]{1,18})", re.ASCII)
_MAX_TXID = 2**64 - 1


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """What a caller asks for; empty fields ask for nothing."""

    tenant: str = ""
    agent: str = ""
    pattern: str = ""
    verb: str = ""
    outcome: EventOutcome | None = None
    decision_id: str = ""
    call_id: str = ""
    since: datetime | None = None
    until: datetime | None = None
    oldest_first: bool = False
    winner_layer: LayerKind | None = None
    actor: str = ""
    version: int = 0
    shadowed_only: bool = False
    denied_only: bool = False
    reason: str = ""
    arguments: str = ""

    def described(self) -> str:
        """Return what is asked as text, for the event that records it; of the arguments only that there are some."""
        asked_for = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}
        if self.arguments:
            asked_for["arguments"] = True
        return json.dumps(asked_for, default=lambda value: getattr(value, "value", None) or str(value))


def filter_of(trace: Trace, asked: AuditQuery) -> Filter:
    """Return the filter of what is asked, but for the arguments, as far as the caller may see.

    Raises InvalidArgument, InvalidName, and RoleRequired for another agent than the one that the key is bound to.
    """
    _require_sound(asked)
    bound = trace.principal.agent
    if bound is not None and asked.agent not in ("", bound):
        raise RoleRequired(f"This key is bound to the agent '{bound}' and sees no other's events.", agent=bound)
    return Filter(
        agent=bound or (parse_agent_name(asked.agent) if asked.agent else ""),
        pattern=parse_query_pattern(asked.pattern),
        verb=asked.verb,
        outcome=asked.outcome.value if asked.outcome else "",
        event_id=asked.decision_id,
        call_id=asked.call_id,
        as_agent=trace.principal.actor if bound else "",
        since=asked.since,
        until=asked.until,
        winner_layer=asked.winner_layer.value if asked.winner_layer else "",
        actor=asked.actor,
        version=asked.version,
        shadowed_only=asked.shadowed_only,
        denied_only=asked.denied_only,
        reason=asked.reason,
    )


def _require_sound(asked: AuditQuery) -> None:
    if asked.verb and asked.verb not in {verb.value for verb in Verb}:
        raise InvalidArgument("verb", f"Unknown verb; the verbs are {', '.join(verb.value for verb in Verb)}.")
    if asked.reason and asked.reason not in set(_reasons(SubstrateError)):
        raise InvalidArgument("reason", "Unknown reason; they are spelt as in errors, such as SKILL_NOT_PERMITTED.")
    if asked.decision_id and not is_uuid(asked.decision_id):
        raise InvalidArgument("decision_id", "Must be the id of an audit event, a UUID.")
    for field, text, most in (("call_id", asked.call_id, MAX_CALL_ID_LENGTH), ("actor", asked.actor, MAX_ACTOR_LENGTH)):
        if len(text) > most or "\0" in text:
            raise InvalidArgument(field, f"Must be at most {most} characters, and none of them NUL.")
    if not 0 <= asked.version <= MAX_VERSION:
        raise InvalidArgument("version", "Must be a version of a SkillDef, from 1, or 0 for any.")
    if len(asked.arguments) > MAX_ARGUMENTS_LENGTH:
        raise InvalidArgument("arguments", f"Must be at most {MAX_ARGUMENTS_LENGTH:,} characters.")
    if asked.since and asked.until and asked.since >= asked.until:
        raise InvalidArgument("until", "Must be later than `since`.")


def _reasons(kind: type[SubstrateError]) -> Iterator[str]:
    yield kind.reason
    for narrower in kind.__subclasses__():
        yield from _reasons(narrower)


def position_token(position: Position, incarnation: str, *bound: object) -> str:
    """Return the token for what follows `position` in the database, for a request that selects the same (`bound`)."""
    return page_token(f"{incarnation}:{position.txid}:{position.tenant}:{position.sequence}", *bound)


def read_position(token: str, incarnation: str, *bound: object, field: str) -> Position | None:
    """Return the position that `token`, the request's `field`, stands for; None for no token.

    Raises InvalidPageToken, for a token of other conditions too, and RevisionUnknown for one of another database.
    """
    key = read_page_token(token, *bound, field=field)
    if not key:
        return None
    found = _KEY.fullmatch(key)
    if found is None or int(found[2]) > _MAX_TXID:
        raise InvalidPageToken(field, "The token was not issued by this server; start again.")
    if found[1] != incarnation:
        raise RevisionUnknown(f"The {field} is of another database than this one; start again without it.")
    return Position(int(found[4]), int(found[2]), TenantId(found[3]))
