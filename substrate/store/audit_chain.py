"""The audit's chains as verification reads them: heads, starts, and rows in the order of their numbers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select, text

from substrate.domain.chain import ChainRow, Ends, Point, Start
from substrate.domain.names import TenantId
from substrate.store.tables import chain_heads, tenants

_ENDS = text(
    "SELECT heads.sequence, heads.hash, starts.sequence AS start_sequence, starts.hash AS start_hash,"
    " starts.stragglers, (SELECT max(sequence) FROM audit_events WHERE tenant_id = :tenant) AS last_sequence"
    " FROM (SELECT CAST(:tenant AS text) AS tenant_id) AS wanted"
    " LEFT JOIN chain_heads AS heads USING (tenant_id) LEFT JOIN audit_starts AS starts USING (tenant_id)"
)

# WITH TIES, since a forged row can have a number that there is already. A time that Python has no value for is left
# out, and so is not what the text says.
_ROWS = (
    "SELECT tenant_id, sequence, previous_hash, hash, event, event_id::text,"
    " CASE WHEN occurred_at BETWEEN '0001-01-02' AND '9999-12-30' THEN occurred_at END,"
    " call_id, verb, outcome, agent, name, actor, winner_layer, version, reason, shadowed"
    " FROM audit_events WHERE tenant_id = %(tenant)s AND sequence > %(after)s AND sequence <= %(last)s"
    " ORDER BY sequence FETCH FIRST %(limit)s ROWS WITH TIES"
)

BEFORE_ALL = -(2**63)
"""Comes before every number that a row can have, a forged one included, but the lowest of them."""


def heads(connection: Connection) -> Mapping[str, Point]:
    """Return the head of every chain that the connection sees, by tenant."""
    columns = chain_heads.c
    found = connection.execute(select(columns.tenant_id, columns.sequence, columns.hash))
    return {row.tenant_id: Point(row.sequence, bytes(row.hash)) for row in found}


def tenant_ids(connection: Connection) -> list[TenantId]:
    """Return the ids of all tenants that the connection sees, in order."""
    found = connection.execute(select(tenants.c.tenant_id).order_by(tenants.c.tenant_id)).scalars()
    return [TenantId(tenant) for tenant in found]


def ends(connection: Connection, tenant: TenantId) -> Ends:
    """Return where the tenant's chain begins and ends, all of one moment; a chain without a head ends at its start."""
    row = connection.execute(_ENDS, {"tenant": tenant}).one()
    start = Start()
    if row.start_sequence is not None:
        start = Start(Point(row.start_sequence, bytes(row.start_hash)), _stragglers(row.stragglers))
    head = start.point if row.sequence is None else Point(row.sequence, bytes(row.hash))
    return Ends(start, head, row.last_sequence)


def rows(connection: Connection, tenant: TenantId, after: int, last: int, limit: int) -> list[ChainRow]:
    """Return the next rows after number `after` up to `last`: `limit` of them, and all with the number of the last."""
    wanted = {"tenant": tenant, "after": after, "last": last, "limit": limit}
    found = connection.exec_driver_sql(_ROWS, wanted)
    return [
        ChainRow(tenant_id, sequence, previous_hash, digest, event, columns)
        for tenant_id, sequence, previous_hash, digest, event, *columns in found
    ]


def _stragglers(kept: Any) -> dict[int, str]:
    try:
        return {int(sequence): str(digest) for sequence, digest in kept.items()}
    except (AttributeError, ValueError):
        # Nobody who may write there has written that; no signed start has such a thing.
        return {0: ""}
