"""Changes that came with a request id, and their answers, so that a change sent again is not made twice."""

from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects.postgresql import insert

from substrate.domain.errors import RequestIdReused
from substrate.domain.names import TenantId
from substrate.store.tables import requests

KEPT = timedelta(hours=24)
"""How long a request id is remembered."""


def claim(connection: Connection, tenant: TenantId, request_id: str, fingerprint: bytes, now: datetime) -> bytes | None:
    """Take `request_id` for the caller's transaction, or return the answer that it was given before.

    Waits for a transaction that has taken it and not ended. Raises RequestIdReused when it came with another request.
    """
    columns = requests.c
    connection.execute(delete(requests).where((columns.tenant_id == tenant) & (columns.created_at <= now - KEPT)))
    taken = connection.execute(
        insert(requests)
        .values(tenant_id=tenant, request_id=request_id, fingerprint=fingerprint, created_at=now)
        .on_conflict_do_nothing()
        .returning(columns.request_id)
    ).scalar()
    if taken is not None:
        return None
    row = connection.execute(
        select(columns.fingerprint, columns.answer).where(
            (columns.tenant_id == tenant) & (columns.request_id == request_id)
        )
    ).one()
    if bytes(row.fingerprint) != fingerprint:
        raise RequestIdReused("request_id", "This id came with another request within 24 hours; make a new one.")
    return bytes(row.answer)


def answer(connection: Connection, tenant: TenantId, request_id: str, answer: bytes) -> None:
    """Keep the answer to a request that the caller's transaction has taken."""
    this = (requests.c.tenant_id == tenant) & (requests.c.request_id == request_id)
    connection.execute(update(requests).where(this).values(answer=answer))
