"""The audit log as it is read: found by conditions, in pages and as it grows.

Within one tenant events are read by their sequence, which is the order in which they were committed. Across tenants
they are read by (transaction id, tenant, sequence), and only those of transactions that none in progress can precede
any more: so whoever goes on after the last event that it saw misses none, however late another was committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, Text, and_, cast, func, literal, select, text, tuple_

from substrate.domain.audit import Verb
from substrate.domain.errors import SkillNotPermitted
from substrate.domain.names import TenantId
from substrate.domain.patterns import Pattern
from substrate.store.audit import StoredEvent
from substrate.store.tables import TransactionId, audit_events

_RUNTIME_VERBS = [verb.value for verb in (Verb.PREPARE, Verb.LIST, Verb.INVOKE, Verb.READ_FILE)]

_HORIZON = func.pg_snapshot_xmin(func.pg_current_snapshot(), type_=TransactionId())
"""Every transaction with a lower id has ended, as far as a statement with this in it can see."""

_FIRST_SINCE = text(
    # The inner one is kept apart so that it is found by the time and not by the order that the outer one asks for.
    "SELECT CAST(min(first.txid) AS text) FROM tenants CROSS JOIN LATERAL (SELECT min(found.txid) AS txid FROM ("
    "SELECT txid FROM audit_events WHERE tenant_id = tenants.tenant_id AND occurred_at >= :since OFFSET 0) AS found"
    ") AS first"
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events are wanted; an empty field asks for nothing. `pattern` is of skill names.

    `as_agent` is the actor of a key that is bound to the agent: of what others did with it in mind it sees runs alone.
    `arguments_hmac` is the HMAC, in hex, of the arguments.
    """

    agent: str = ""
    pattern: Pattern | None = None
    verb: str = ""
    outcome: str = ""
    event_id: str = ""
    call_id: str = ""
    as_agent: str = ""
    since: datetime | None = None
    until: datetime | None = None
    winner_layer: str = ""
    actor: str = ""
    version: int = 0
    shadowed_only: bool = False
    denied_only: bool = False
    reason: str = ""
    arguments_hmac: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """A place between events; what follows is what comes after it.

    Within one tenant `sequence` says it all, across tenants it is the last part of it. `txid` is a transaction id.
    """

    sequence: int
    txid: int = 0
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """An event, and the position after it."""

    event: StoredEvent
    position: Position


def query(
    connection: Connection,
    tenant: TenantId | None,
    wanted: Filter,
    after: Position | None,
    limit: int,
    *,
    oldest_first: bool,
) -> list[Found]:
    """Return up to `limit` events beyond `after`, of the tenant or, for None, of all that the connection sees."""
    columns = audit_events.c
    conditions = _conditions(wanted)
    if tenant is None:
        conditions.append(columns.txid < _HORIZON)
        order = [columns.txid, columns.tenant_id, columns.sequence]
    else:
        conditions.append(columns.tenant_id == tenant)
        order = [columns.sequence]
    if after is not None:
        conditions.append(_beyond(tenant, after, oldest_first=oldest_first))
    ordered = [column.asc() if oldest_first else column.desc() for column in order]
    return _read(connection, conditions, ordered, limit)


def grown(
    connection: Connection, tenant: TenantId | None, wanted: Filter, after: Position, limit: int
) -> tuple[Sequence[Found], Position]:
    """Return up to `limit` events after `after`, the oldest first, and the position up to which there are no others."""
    end = newest(connection, tenant)
    conditions = [*_conditions(wanted), _beyond(tenant, after, oldest_first=True)]
    columns = audit_events.c
    if tenant is None:
        conditions.append(columns.txid < _txid(end.txid))
        order = [columns.txid, columns.tenant_id, columns.sequence]
    else:
        conditions += [columns.tenant_id == tenant, columns.sequence <= end.sequence]
        order = [columns.sequence]
    found = _read(connection, conditions, order, limit)
    if len(found) == limit:
        end = found[-1].position
    return found, end


def newest(connection: Connection, tenant: TenantId | None) -> Position:
    """Return the position after all events that can be read now."""
    if tenant is None:
        horizon: str = connection.execute(select(cast(_HORIZON, Text))).scalar_one()
        return Position(0, int(horizon))
    last = select(func.max(audit_events.c.sequence)).where(audit_events.c.tenant_id == tenant)
    return Position(connection.execute(last).scalar() or 0)


def before(connection: Connection, tenant: TenantId | None, since: datetime) -> Position:
    """Return a position that all events since then come after, and not many others."""
    if tenant is None:
        first: str | None = connection.execute(_FIRST_SINCE, {"since": since}).scalar()
        return newest(connection, None) if first is None else Position(0, int(first))
    times = (audit_events.c.tenant_id == tenant) & (audit_events.c.occurred_at >= since)
    sequence = connection.execute(select(func.min(audit_events.c.sequence)).where(times)).scalar()
    return newest(connection, tenant) if sequence is None else Position(sequence - 1)


def get(connection: Connection, tenant: TenantId | None, wanted: Filter) -> StoredEvent | None:
    """Return the event with the id that `wanted` names, of the tenant or of any; None when it is not to be seen."""
    conditions = _conditions(wanted)
    if tenant is not None:
        conditions.append(audit_events.c.tenant_id == tenant)
    found = _read(connection, conditions, [], 1)
    return found[0].event if found else None


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    columns = audit_events.c
    conditions: list[ColumnElement[bool]] = []
    for column, value in (
        (columns.agent, wanted.agent),
        (columns.verb, wanted.verb),
        (columns.outcome, wanted.outcome),
        (columns.event_id, wanted.event_id),
        (columns.call_id, wanted.call_id),
        (columns.winner_layer, wanted.winner_layer),
        (columns.actor, wanted.actor),
        (columns.version, wanted.version),
        (columns.reason, wanted.reason),
    ):
        if value:
            conditions.append(column == value)
    if wanted.pattern is not None and not wanted.pattern.matches_all:
        conditions.append(names_matching(wanted.pattern))
    if wanted.as_agent:
        conditions.append((columns.actor == wanted.as_agent) | columns.verb.in_(_RUNTIME_VERBS))
    if wanted.since is not None:
        conditions.append(columns.occurred_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(columns.occurred_at < wanted.until)
    if wanted.shadowed_only:
        conditions.append(columns.shadowed)
    if wanted.denied_only:
        conditions.append(columns.reason == SkillNotPermitted.reason)
    if wanted.arguments_hmac:
        # What callers wrote stands in the text with its quotation marks escaped, so that it cannot pass for the field.
        conditions.append(func.strpos(columns.event, f'"arguments_hmac":"{wanted.arguments_hmac}"') > 0)
    return conditions


def names_matching(pattern: Pattern) -> ColumnElement[bool]:
    """Return the condition that an event's name matches `pattern`; PostgreSQL's expressions do not backtrack either."""
    column = audit_events.c.name
    if not any(c in "*?" for segment in pattern.segments for c in segment):
        return column == "/".join(pattern.segments)
    return ("/" + column).bool_op("~")(f"^{pattern.regex}$") & (column != "")


def _beyond(tenant: TenantId | None, after: Position, *, oldest_first: bool) -> ColumnElement[bool]:
    columns = audit_events.c
    if tenant is not None:
        return columns.sequence > after.sequence if oldest_first else columns.sequence < after.sequence
    place = tuple_(columns.txid, columns.tenant_id, columns.sequence)
    there = tuple_(_txid(after.txid), literal(after.tenant), literal(after.sequence, BigInteger))
    return place > there if oldest_first else place < there


def _txid(number: int) -> ColumnElement[Any]:
    return cast(literal(str(number)), TransactionId())


def _read(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], order: Sequence[ColumnElement[Any]], limit: int
) -> list[Found]:
    columns = audit_events.c
    wanted = (columns.tenant_id, columns.sequence, columns.previous_hash, columns.hash, columns.event)
    statement = select(*wanted, cast(columns.txid, Text).label("transaction")).where(and_(*conditions))
    return [_found(row) for row in connection.execute(statement.order_by(*order).limit(limit))]


def _found(row: Row[Any]) -> Found:
    event = StoredEvent(TenantId(row.tenant_id), row.sequence, bytes(row.previous_hash), bytes(row.hash), row.event)
    return Found(event, Position(row.sequence, int(row.transaction), row.tenant_id))
