"""The audit's rows: appended under the lock of their tenant's chain head, never changed.

`append` writes in the transaction of a change. The other way in is `substrate.store.chain_writer`; they are read by
`substrate.store.audit_log`.
"""

from dataclasses import dataclass
from typing import Any

from psycopg.errors import DiskFull, InsufficientPrivilege, InternalError_, IoError, LockNotAvailable
from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import DBAPIError

from substrate.domain.audit import AuditEvent, KeptInput, chain_hash
from substrate.domain.errors import AuditUnavailable
from substrate.domain.names import TenantId
from substrate.store.tables import audit_events, audit_inputs, chain_heads

_UNWRITABLE = (LockNotAvailable, InsufficientPrivilege, DiskFull, IoError, InternalError_)
"""How the database says that it takes no event; a file that cannot grow is an internal error to it."""


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


def keep(connection: Connection, tenant: TenantId, kept: KeptInput) -> None:
    """Keep what decisions are made from, unless it is kept already."""
    known = select(audit_inputs.c.sha256).where(
        audit_inputs.c.tenant_id == tenant, audit_inputs.c.sha256 == kept.sha256
    )
    if connection.execute(known).first() is None:
        values = {"tenant_id": tenant, "sha256": kept.sha256, "content": kept.content}
        connection.execute(upsert(audit_inputs).values(values).on_conflict_do_nothing())


def append(connection: Connection, event: AuditEvent) -> None:
    """Append `event` in the caller's transaction; call it last, since it holds the tenant's chain head until the end.

    Raises AuditUnavailable when the tenant has no chain, when somebody holds it for a second, without the grants, and
    when the disk takes no more.
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
            keep(connection, event.tenant, kept)
        connection.execute(insert(audit_events).values(**row))
        connection.execute(update(chain_heads).where(this_head).values(sequence=row["sequence"], hash=row["hash"]))
    except DBAPIError as error:
        if isinstance(error.orig, _UNWRITABLE):
            raise AuditUnavailable("The change could not be recorded, so it is not made; try again shortly.") from error
        raise
