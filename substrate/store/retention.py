"""Dropping whole months of the audit, as the owner of its tables: the only way in which events ever go.

The owner is held to row-level security like everybody, and no policy admits it; so it reads and appends as the
operators' role, which it may take since it can give it to others, and which it gives itself for the moment if need be.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime

from psycopg.errors import InsufficientPrivilege, LockNotAvailable
from sqlalchemy import Connection, create_engine, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from substrate.domain.audit import AuditEvent
from substrate.domain.chain import Point, Start
from substrate.domain.errors import StoreUnavailable
from substrate.store.audit import append
from substrate.store.session import DatabaseRole
from substrate.store.tables import audit_starts

MAX_STRAGGLERS = 10_000

_OPERATOR = DatabaseRole.OPERATOR.value
_ATTEMPTS = 60
_PAUSE_SECONDS = 0.2
_RANGE = re.compile(r"FOR VALUES FROM \('(\d{4}-\d\d-\d\d) 00:00:00\+00'\) TO \('(\d{4}-\d\d-\d\d) 00:00:00\+00'\)")
_PARTITIONS = text(
    "SELECT child.relname, pg_get_expr(child.relpartbound, child.oid) FROM pg_inherits"
    " JOIN pg_class AS child ON child.oid = inhrelid WHERE inhparent = 'public.audit_events'::regclass"
)
_LAST_OF_MONTH = text(
    "SELECT DISTINCT ON (tenant_id) tenant_id, sequence, hash, count(*) OVER (PARTITION BY tenant_id) AS events"
    " FROM audit_events WHERE occurred_at >= :first AND occurred_at < :after ORDER BY tenant_id, sequence DESC"
)
_STRAGGLERS = text(
    "SELECT sequence, hash FROM audit_events WHERE tenant_id = :tenant AND sequence < :sequence"
    " AND (occurred_at < :first OR occurred_at >= :after) ORDER BY sequence LIMIT :limit"
)


class TooManyStragglersError(Exception):
    """So many events would lie before the start of a chain that the start could not be signed in one line."""


@dataclass(frozen=True, slots=True)
class Month:
    """A monthly partition, of calls that arrived from `first` to before `after`, both in UTC."""

    partition: str
    first: date
    after: date


@dataclass(frozen=True, slots=True)
class Dropped:
    """What goes of one tenant's chain: how many events, where the chain then begins, and all months that are gone."""

    tenant: str
    events: int
    start: Start
    months: Sequence[str]


class OwnedAudit:
    """The audit of the database at `owner_url`, which must be of the role that owns its tables."""

    def __init__(self, owner_url: str) -> None:
        try:
            url = make_url(owner_url).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError):
            raise StoreUnavailable("The database URL cannot be read; write postgresql://role@host/name.") from None
        options = {"options": "-c timezone=UTC -c search_path=public -c lock_timeout=10s", "connect_timeout": 10}
        self._engine = create_engine(url, poolclass=NullPool, connect_args=options, hide_parameters=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees the audit of all tenants, and is rolled back."""
        with _translated(), self._engine.connect() as connection, connection.begin() as transaction:
            with _as_operator(connection):
                yield connection
            transaction.rollback()

    def months(self, before: date) -> list[Month]:
        """Return the monthly partitions of which every day lies before `before`, the oldest first.

        What the default partition holds is of no month, however old.
        """
        with _translated(), self._engine.connect() as connection:
            found = connection.execute(_PARTITIONS).all()
        months = [
            Month(name, date.fromisoformat(bounds[1]), date.fromisoformat(bounds[2]))
            for name, bound in found
            if (bounds := _RANGE.fullmatch(bound)) is not None
        ]
        return sorted((month for month in months if month.after <= before), key=lambda month: month.first)

    def drop(
        self,
        month: Month,
        now: datetime,
        event_of: Callable[[Sequence[Dropped]], AuditEvent],
        sign: Callable[[Sequence[Dropped]], object],
    ) -> Sequence[Dropped]:
        """Drop a month in one transaction, with the event that records it, and return what has gone.

        `sign` is called last, before the commit: should that fail, starts have been signed that no chain has, which
        says nothing. Raises StoreUnavailable, AuditUnavailable, TooManyStragglersError and whatever `sign` raises, with
        nothing dropped.
        """
        with _translated(), self._engine.begin() as connection:
            quoted = connection.dialect.identifier_preparer.quote(month.partition)
            # A call of that month could still be recorded.
            connection.execute(text(f"LOCK TABLE {quoted} IN SHARE MODE"))
            with _as_operator(connection):
                dropped = _dropped(connection, month)
            _put_starts(connection, dropped, now)
            _record(connection, event_of(dropped))
            connection.execute(text(f"DROP TABLE {quoted}"))
            sign(dropped)
            return dropped


def _record(connection: Connection, event: AuditEvent) -> None:
    """Append `event`, and lock the table of events for the drop.

    Whoever waits for that lock keeps all others from writing events. So it is asked for in short, less than they wait
    themselves, as often as it takes, and given up together with the head of the chain, which is locked before it as by
    all who write. Raises StoreUnavailable when somebody reads all along.
    """
    for _ in range(_ATTEMPTS):
        try:
            with connection.begin_nested():
                with _as_operator(connection):
                    append(connection, event)
                connection.execute(text("SET LOCAL lock_timeout = '20ms'"))
                connection.execute(text("LOCK TABLE audit_events IN ACCESS EXCLUSIVE MODE"))
        except DBAPIError as error:
            if not isinstance(error.orig, LockNotAvailable):
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            return
    raise StoreUnavailable("Somebody reads the audit all along, so nothing was dropped; try again when it is quiet.")


@contextmanager
def _as_operator(connection: Connection) -> Iterator[None]:
    """Take the operators' role inside a transaction; who may only give it gives it to itself meanwhile."""
    take, give_back = text(f"SET LOCAL ROLE {_OPERATOR}"), text("SET LOCAL ROLE NONE")
    given = False
    try:
        with connection.begin_nested():
            connection.execute(take)
    except DBAPIError as error:
        if not isinstance(error.orig, InsufficientPrivilege):
            raise
        connection.execute(text(f"GRANT {_OPERATOR} TO CURRENT_USER"))
        connection.execute(take)
        given = True
    yield
    connection.execute(give_back)
    if given:
        connection.execute(text(f"REVOKE {_OPERATOR} FROM CURRENT_USER"))


def _dropped(connection: Connection, month: Month) -> list[Dropped]:
    span = {"first": month.first, "after": month.after}
    before = {
        row.tenant_id: (Point(row.sequence, bytes(row.hash)), list(row.dropped))
        for row in connection.execute(select(audit_starts))
    }
    found = []
    for row in connection.execute(_LAST_OF_MONTH, span).all():
        point = Point(row.sequence, bytes(row.hash))
        known, months = before.get(row.tenant_id, (point, []))
        # Of this month there may be only events that were recorded before others of a month that has gone.
        point = max(point, known, key=lambda each: each.sequence)
        limits = {"tenant": row.tenant_id, "sequence": point.sequence, "limit": MAX_STRAGGLERS + 1}
        stragglers = connection.execute(_STRAGGLERS, {**span, **limits}).all()
        if len(stragglers) > MAX_STRAGGLERS:
            raise TooManyStragglersError(
                f"{month.partition} is not dropped: more than {MAX_STRAGGLERS} earlier events of tenant "
                f"'{row.tenant_id}' would be left before its start."
            )
        start = Start(point, {sequence: bytes(digest).hex() for sequence, digest in stragglers})
        found.append(Dropped(row.tenant_id, row.events, start, [*months, f"{month.first:%Y-%m}"]))
    return found


def _put_starts(connection: Connection, dropped: Sequence[Dropped], now: datetime) -> None:
    if not dropped:
        return
    rows = [
        {
            "tenant_id": each.tenant,
            "sequence": each.start.point.sequence,
            "hash": each.start.point.hash,
            "stragglers": {str(sequence): digest for sequence, digest in each.start.stragglers.items()},
            "dropped": list(each.months),
            "created_at": now,
        }
        for each in dropped
    ]
    statement = upsert(audit_starts)
    changed = {name: statement.excluded[name] for name in rows[0] if name != "tenant_id"}
    # No policy lets anybody write there, the owner included; they are lifted for the owner alone.
    connection.execute(text("ALTER TABLE audit_starts NO FORCE ROW LEVEL SECURITY"))
    connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id"], set_=changed), rows)
    connection.execute(text("ALTER TABLE audit_starts FORCE ROW LEVEL SECURITY"))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, InsufficientPrivilege):
            raise StoreUnavailable(f"The URL must be of the role that owns the tables: {error.orig}") from error
        raise StoreUnavailable(f"The database refused, and nothing was dropped: {error.orig}") from error
