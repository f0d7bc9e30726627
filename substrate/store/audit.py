"""The audit's rows: appended under the lock of their tenant's chain head, never changed.

`append` writes in the transaction of a change. The other way in is `substrate.store.chain_writer`.
"""

from dataclasses import dataclass
from typing import Any

from psycopg.errors import DiskFull, InsufficientPrivilege, LockNotAvailable
from sqlalchemy import Connection, Row, and_, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError

from substrate.domain.audit import AuditEvent, Verb, chain_hash
from substrate.domain.errors import AuditUnavailable
from substrate.domain.names import TenantId
from substrate.domain.patterns import Pattern
from substrate.store.tables import audit_events, audit_inputs, chain_heads


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as stored: its place in the chain, its hashes and its text."""

    tenant: TenantId
    sequence: int
    previous_hash: bytes
    hash: bytes
    event: str


def row_of(event: AuditEvent, sequence: int, previous: bytes) -> dict[str, Any]:
    """Return the columns of `event` as the one after `previous` in its tenant's chain."""
    text = event.text()
    winner = event.winner or {}
    return {
        "tenant_id": event.tenant,
        "sequence": sequence,
        "event_id": event.id,
        "occurred_at": event.time,
        "call_id": event.call_id,
        "verb": event.verb.value,
        "outcome": event.outcome.value,
        "agent": event.agent,
        "name": event.name,
        "actor": event.actor,
        "winner_layer": winner.get("layer", ""),
        "version": winner.get("version"),
        "previous_hash": previous,
        "hash": chain_hash(previous, sequence, text),
        "event": text,
        "reason": event.reason,
        "shadowed": event.shadowed,
    }


def append(connection: Connection, event: AuditEvent) -> None:
    """Append `event` in the caller's transaction; call it last, since it holds the tenant's chain head until the end.

    Raises AuditUnavailable when the tenant has no chain, when somebody holds it for a second, without the grants, and
    when the disk is full.
    """
    this_head = chain_heads.c.tenant_id == event.tenant
    try:
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        head = connection.execute(
            select(chain_heads.c.sequence, chain_heads.c.hash).where(this_head).with_for_update()
        ).first()
        if head is None:
            raise AuditUnavailable(f"The tenant '{event.tenant}' has no audit chain.")
        row = row_of(event, head.sequence + 1, bytes(head.hash))
        for kept in event.inputs:
            values = {"tenant_id": event.tenant, "sha256": kept.sha256, "content": kept.content}
            connection.execute(upsert(audit_inputs).values(values).on_conflict_do_nothing())
        connection.execute(insert(audit_events).values(**row))
        connection.execute(update(chain_heads).where(this_head).values(sequence=row["sequence"], hash=row["hash"]))
    except DBAPIError as error:
        if isinstance(error.orig, LockNotAvailable | InsufficientPrivilege | DiskFull):
            raise AuditUnavailable("The change could not be recorded, so it is not made; try again shortly.") from error
        raise


_RUNTIME_VERBS = [verb.value for verb in (Verb.PREPARE, Verb.LIST, Verb.INVOKE, Verb.READ_FILE)]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events a query wants; an empty field asks for nothing. `pattern` is of skill names.

    `as_agent` is the actor of a key that is bound to the agent: of what others did with it in mind it sees runs alone.
    """

    agent: str = ""
    pattern: Pattern | None = None
    verb: str = ""
    outcome: str = ""
    event_id: str = ""
    call_id: str = ""
    as_agent: str = ""
    since: Any = None
    until: Any = None


def query(
    connection: Connection, tenant: TenantId, wanted: Filter, after: int | None, limit: int, *, oldest_first: bool
) -> list[StoredEvent]:
    """Return up to `limit` events of the tenant in order of their sequence, those beyond the sequence `after`."""
    columns = audit_events.c
    conditions = [columns.tenant_id == tenant]
    for column, value in (
        (columns.agent, wanted.agent),
        (columns.verb, wanted.verb),
        (columns.outcome, wanted.outcome),
        (columns.event_id, wanted.event_id),
        (columns.call_id, wanted.call_id),
    ):
        if value:
            conditions.append(column == value)
    if wanted.pattern is not None and not wanted.pattern.matches_all:
        conditions.append(_names_matching(wanted.pattern))
    if wanted.as_agent:
        conditions.append((columns.actor == wanted.as_agent) | columns.verb.in_(_RUNTIME_VERBS))
    if wanted.since is not None:
        conditions.append(columns.occurred_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(columns.occurred_at < wanted.until)
    if after is not None:
        conditions.append(columns.sequence > after if oldest_first else columns.sequence < after)
    order = columns.sequence.asc() if oldest_first else columns.sequence.desc()
    rows = connection.execute(select(audit_events).where(and_(*conditions)).order_by(order).limit(limit))
    return [_stored(row) for row in rows]


def _names_matching(pattern: Pattern) -> Any:
    """Return the condition that an event's name matches `pattern`; PostgreSQL's expressions do not backtrack either."""
    column = audit_events.c.name
    if not any(c in "*?" for segment in pattern.segments for c in segment):
        return column == "/".join(pattern.segments)
    return ("/" + column).bool_op("~")(f"^{pattern.regex}$") & (column != "")


def _stored(row: Row[Any]) -> StoredEvent:
    return StoredEvent(TenantId(row.tenant_id), row.sequence, bytes(row.previous_hash), bytes(row.hash), row.event)
