"""Transactions: the only way to the database, each bound to a role, a tenant and a deadline.

The server logs in as one role that is a member, without inheritance, of three. A connection takes its role when it
is made and keeps it: **app** sees one tenant at a time, the one set at the outermost begin; **audit** inserts events
and advances chain heads of any tenant, on the one connection of `substrate.store.audit.ChainWriter`; **operator** has
its own grants. `Database` hands out transactions and nothing else, so no statement runs outside of one.
"""

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from substrate.domain.errors import DeadlineExceeded, StoreUnavailable
from substrate.domain.names import TenantId

_MAX_STATEMENT_SECONDS = 30.0
_CANCEL_SECONDS = 1.0
_OPERATOR_CONNECTIONS = 4
_MAX_WAIT_SECONDS = 5.0
_MAX_LOCK_MILLISECONDS = 5000
_SESSION = "-c timezone=UTC -c idle_in_transaction_session_timeout=35s"
"""A session in UTC, whose locks end soon after its server hangs: a little later than the longest statement may."""
_QUERY_CANCELED = "57014"
_SETTINGS = text(
    "SELECT set_config('app.tenant', :tenant, true), set_config('statement_timeout', :timeout, true),"
    " set_config('lock_timeout', :lock_timeout, true)"
)


Transaction = Connection
"""A transaction in progress, which services pass on and only the store looks into."""


class DatabaseRole(Enum):
    """The roles that a pool can take."""

    APP = "substrate_app"
    AUDIT = "substrate_audit"
    OPERATOR = "substrate_operator"


class Database:
    """The pools of one process, one for each role but the audit writer's.

    `url` is a libpq URL of the login role. `pool_size` bounds the connections of the app pool; the others are small.
    """

    def __init__(self, url: str, *, pool_size: int = 16) -> None:
        self._engines = {
            DatabaseRole.APP: _engine(url, DatabaseRole.APP, pool_size),
            DatabaseRole.OPERATOR: _engine(url, DatabaseRole.OPERATOR, _OPERATOR_CONNECTIONS),
        }
        # SQLAlchemy's pool would wait its own time for a connection, whatever is left of the call's.
        self._places = {
            DatabaseRole.APP: threading.BoundedSemaphore(pool_size),
            DatabaseRole.OPERATOR: threading.BoundedSemaphore(_OPERATOR_CONNECTIONS),
        }
        self._in_use: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        for engine in self._engines.values():
            event.listen(engine, "checkout", lambda connection, *_: self._in_use.add(connection))
            event.listen(engine, "checkin", self._returned)

    @contextmanager
    def tenant(
        self, tenant: TenantId, deadline: float | None = None, *, snapshot: bool = False
    ) -> Iterator[Connection]:
        """Open a transaction of the app role that sees `tenant` alone.

        `deadline` is in `time.monotonic()` seconds and bounds every statement. `snapshot` asks for REPEATABLE READ, so
        that all statements see one state. Raises StoreUnavailable or DeadlineExceeded.
        """
        with self._begin(DatabaseRole.APP, tenant, deadline, snapshot=snapshot) as connection:
            yield connection

    @contextmanager
    def operator(self, deadline: float | None = None) -> Iterator[Connection]:
        """Open a transaction of the operator role, which sees tenants, keys and audit events of all tenants."""
        with self._begin(DatabaseRole.OPERATOR, TenantId(""), deadline, snapshot=False) as connection:
            yield connection

    def login(self) -> Engine:
        """Return the app pool's engine, for the check of roles at the start."""
        return self._engines[DatabaseRole.APP]

    def interrupt(self) -> None:
        """Cancel every statement in progress; whoever waits for one gets DeadlineExceeded."""
        for connection in tuple(self._in_use):
            if not connection.closed:
                connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def close(self) -> None:
        """Close every idle connection."""
        for engine in self._engines.values():
            engine.dispose()

    def _returned(self, connection: "psycopg.Connection[Any] | None", _: object) -> None:
        # There is no connection any more when it was lost; the set forgets such ones by itself.
        if connection is not None:
            self._in_use.discard(connection)

    @contextmanager
    def _begin(
        self, role: DatabaseRole, tenant: TenantId, deadline: float | None, *, snapshot: bool
    ) -> Iterator[Connection]:
        left = _MAX_STATEMENT_SECONDS if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("The deadline passed before the database was asked.")
        if not self._places[role].acquire(timeout=min(left, _MAX_WAIT_SECONDS)):
            raise StoreUnavailable("All database connections are busy; try again shortly.")
        milliseconds = max(1, int(min(left, _MAX_STATEMENT_SECONDS) * 1000))
        try:
            with self._engines[role].connect() as connection:
                if snapshot:
                    connection = connection.execution_options(isolation_level="REPEATABLE READ")  # noqa: PLW2901 - the same connection, with the option set.
                with connection.begin():
                    connection.execute(
                        _SETTINGS,
                        {
                            "tenant": tenant,
                            "timeout": str(milliseconds),
                            "lock_timeout": str(min(milliseconds, _MAX_LOCK_MILLISECONDS)),
                        },
                    )
                    yield connection
        except DBAPIError as error:
            raise _translated(error, deadline) from error
        finally:
            self._places[role].release()


def _translated(error: DBAPIError, deadline: float | None) -> Exception:
    """Return the domain's error for a failure of the database's own, or the error itself for a fault of ours."""
    state = getattr(error.orig, "sqlstate", None)
    if state == _QUERY_CANCELED and deadline is None:
        return StoreUnavailable("The database took too long; try again shortly.")
    if state == _QUERY_CANCELED:
        return DeadlineExceeded("The deadline passed while the database was working.")
    # Without a state no connection was had; 08 is its loss, 57P and 25P the server's end of it, 53 its exhaustion.
    lost = isinstance(error, OperationalError) if state is None else state[:2] in ("08", "53", "55")
    if error.connection_invalidated or lost or (state or "").startswith(("57P", "25P")):
        return StoreUnavailable("The database cannot be reached or is busy; try again shortly.")
    return error


def _engine(url: str, role: DatabaseRole, pool_size: int) -> Engine:
    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise StoreUnavailable("The database URL cannot be read; write postgresql://role@host:port/name.") from None
    return create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=True,
        connect_args={"options": f"-c role={role.value} {_SESSION}", "connect_timeout": 5, "tcp_user_timeout": 10_000},
        hide_parameters=True,
    )


class UnsafeRolesError(Exception):
    """The database's roles would let the server past row-level security, so it must not start."""


def check_roles(database: Database) -> None:
    """Raise UnsafeRolesError when a role of the server is a superuser, bypasses row-level security or owns a table."""
    names = [role.value for role in DatabaseRole]
    try:
        with database.login().connect() as connection:
            powerful = connection.execute(
                text(
                    "SELECT rolname FROM pg_roles WHERE (rolsuper OR rolbypassrls)"
                    " AND (rolname = session_user OR rolname = ANY(:names)) ORDER BY 1"
                ),
                {"names": names},
            ).scalars()
            owning = connection.execute(
                text(
                    "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class"
                    " WHERE pg_get_userbyid(relowner) = session_user OR pg_get_userbyid(relowner) = ANY(:names)"
                ),
                {"names": names},
            ).scalars()
            inherited = connection.execute(
                text(
                    "SELECT name FROM unnest(CAST(:names AS text[])) AS name"
                    " WHERE pg_has_role(session_user, name, 'USAGE')"
                ),
                {"names": names},
            ).scalars()
            problems = [f"{name} is a superuser or has BYPASSRLS" for name in powerful]
            problems += [f"the login role inherits from {name}" for name in inherited]
            problems += [f"{name} owns tables" for name in owning]
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"The database cannot be used: {error.__cause__ or error}") from error
    if problems:
        raise UnsafeRolesError(
            "The server will not start with these database roles: " + "; ".join(problems) + ". "
            "Use the login role that `substrate migrate` creates, and let another role own the tables."
        )
