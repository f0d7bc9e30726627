"""Prepares a database: runs the migrations, makes the login role, and keeps audit partitions months ahead."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, func, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from substrate.domain.errors import StoreUnavailable
from substrate.domain.names import PLATFORM_TENANT
from substrate.store.session import Database, DatabaseRole
from substrate.store.tables import deployment
from substrate.store.tenants import incarnation

LOGIN_ROLE = "substrate_server"
MONTHS_AHEAD = 6

_LOCK = 0x5B57_A7E0
_DECEMBER = 12
_FIRST_TRANSACTION = "3"
"""The lowest id that a transaction can have."""


def migrations_dir() -> Path:
    """Return where the migrations lie: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def migrate(
    owner_url: str, *, login_role: str = LOGIN_ROLE, login_password: str | None = None, restored: bool = False
) -> None:
    """Bring the database at `owner_url` to the newest schema, in one transaction that others wait for.

    `owner_url` must be of a role that may create tables and roles. Safe to run again, and at the same time from several
    places. `login_password` sets the login role's password; None leaves it as it is. `restored` says that the database
    is an older copy: it becomes another incarnation, and catalog tokens given before are refused. Raises
    StoreUnavailable.
    """
    engine = create_engine(make_url(owner_url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            make_login_role(connection, login_role, login_password)
            make_partitions(connection, datetime.now(UTC).date())
            if restored:
                connection.execute(update(deployment).values(incarnation=func.gen_random_uuid()))
            settle_events(connection)
    except DBAPIError as error:
        raise StoreUnavailable(f"The database could not be migrated: {error.orig}") from error


def check_schema(database: Database) -> None:
    """Raise StoreUnavailable unless the database has exactly the schema that this version of the server knows."""
    known = ScriptDirectory(str(migrations_dir())).get_current_head()
    with database.tenant(PLATFORM_TENANT) as connection:
        prepared = connection.execute(text("SELECT to_regclass('public.alembic_version') IS NOT NULL")).scalar()
        query = text("SELECT version_num FROM public.alembic_version")
        found = connection.execute(query).scalar() if prepared else None
    if found != known:
        raise StoreUnavailable(
            f"The database has schema {found or 'none'}, and this server needs {known}: run `substrate migrate` with "
            "the owner's URL, or the server that belongs to the schema."
        )


def make_login_role(connection: Connection, login_role: str, password: str | None) -> None:
    """Create the role that the server logs in as: a member of the three roles that inherits nothing from them."""
    exists = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :name"), {"name": login_role}).scalar()
    quoted = connection.dialect.identifier_preparer.quote(login_role)
    if not exists:
        # Another database of the cluster may create it between the look and the leap.
        connection.execute(
            text(
                f"DO $$ BEGIN CREATE ROLE {quoted} LOGIN NOINHERIT NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;"
                " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            )
        )
    for role in DatabaseRole:
        connection.execute(text(f"GRANT {role.value} TO {quoted}"))
    if password is not None:
        literal = connection.execute(text("SELECT quote_literal(:password)"), {"password": password}).scalar_one()
        connection.exec_driver_sql(f"ALTER ROLE {quoted} PASSWORD {literal.replace('%', '%%')}")


def make_partitions(connection: Connection, today: date) -> list[str]:
    """Create the audit's monthly partitions from this month to `MONTHS_AHEAD` later; return the names of new ones.

    A month that the default partition already holds rows of is left to it.
    """
    made = []
    first = today.replace(day=1)
    for _ in range(MONTHS_AHEAD + 1):
        after = _next_month(first)
        name = f"audit_events_{first:%Y_%m}"
        known = connection.execute(text("SELECT to_regclass(:name)"), {"name": name}).scalar()
        if known is None and not _default_holds(connection, first, after):
            connection.execute(
                text(f"CREATE TABLE {name} PARTITION OF audit_events FOR VALUES FROM ('{first}') TO ('{after}')")
            )
            connection.execute(text(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"))
            connection.execute(text(f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY"))
            made.append(name)
        first = after
    return made


def settle_events(connection: Connection) -> None:
    """Let events that were loaded from a dump come before all that are written here.

    They came with the transaction ids of another cluster. Those that are still to come in this one would be taken for
    ids of transactions in progress, and kept from whoever reads the log of all tenants.
    """
    here = incarnation(connection)
    if connection.execute(select(deployment.c.settled_as)).scalar() == here:
        return
    connection.execute(text("ALTER TABLE audit_events NO FORCE ROW LEVEL SECURITY"))
    connection.execute(
        text("UPDATE audit_events SET txid = :first WHERE txid >= pg_snapshot_xmax(pg_current_snapshot())"),
        {"first": _FIRST_TRANSACTION},
    )
    connection.execute(text("ALTER TABLE audit_events FORCE ROW LEVEL SECURITY"))
    connection.execute(update(deployment).values(settled_as=here))


def _default_holds(connection: Connection, first: date, after: date) -> bool:
    # The owner is subject to the forced policies, of which none is for it; they are lifted for the look alone.
    connection.execute(text("ALTER TABLE audit_events_default NO FORCE ROW LEVEL SECURITY"))
    held = connection.execute(
        text("SELECT 1 FROM audit_events_default WHERE occurred_at >= :first AND occurred_at < :after LIMIT 1"),
        {"first": first, "after": after},
    ).scalar()
    connection.execute(text("ALTER TABLE audit_events_default FORCE ROW LEVEL SECURITY"))
    return held is not None


def _next_month(first: date) -> date:
    if first.month == _DECEMBER:
        return first.replace(year=first.year + 1, month=1)
    return (first + timedelta(days=31)).replace(day=1)
