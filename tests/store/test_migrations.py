"""Migrations make exactly the tables that the store expects, however often and from wherever they are run."""

import base64
import hashlib
import hmac
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from substrate.domain.errors import StoreUnavailable
from substrate.store.migrate import LOGIN_ROLE, MONTHS_AHEAD, make_partitions, migrate
from substrate.store.tables import metadata
from tests.servers import Cluster
from tests.store.owner import empty_database

_ROLES = ("substrate_app", "substrate_audit", "substrate_operator")
_PARTITION = "SELECT oid, relname FROM pg_class WHERE relispartition AND relkind = 'r' ORDER BY relname"
# What of a table can make a difference, as PostgreSQL itself puts it into words. Partitions copy their parent.
_DESCRIPTION = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE {ours} AND c.relkind IN ('r', 'p') ORDER BY 1, a.attnum""",
    "constraints": """
        SELECT c.relname, k.conname, k.contype::text, pg_get_constraintdef(k.oid)
        FROM pg_class c JOIN pg_constraint k ON k.conrelid = c.oid WHERE {ours} ORDER BY 1, 2""",
    "indexes": """
        SELECT c.relname, pg_get_indexdef(i.indexrelid)
        FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid WHERE {ours} ORDER BY 1, 2""",
    "tables": """
        SELECT c.relname, obj_description(c.oid, 'pg_class'), c.relkind::text, pg_get_partkeydef(c.oid)
        FROM pg_class c WHERE {ours} AND c.relkind IN ('r', 'p') ORDER BY 1""",
}
_OURS = "c.relnamespace = 'public'::regnamespace AND NOT c.relispartition AND c.relname <> 'alembic_version'"


@contextmanager
def _owner(url: str) -> Iterator[Connection]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _described(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(url) as connection:
        return {what: connection.execute(query.format(ours=_OURS)).fetchall() for what, query in _DESCRIPTION.items()}


def _whole(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Describe all that a migration makes: tables, partitions, grants, policies and the first rows."""
    with psycopg.connect(url) as connection:
        return _described(url) | {
            what: connection.execute(query).fetchall()
            for what, query in {
                "classes": "SELECT oid, relname, relacl::text, relrowsecurity, relforcerowsecurity FROM pg_class"
                " WHERE relnamespace = 'public'::regnamespace ORDER BY relname",
                "policies": "SELECT * FROM pg_policies ORDER BY tablename, policyname",
                "columns": "SELECT attrelid::regclass::text, attname, attacl::text FROM pg_attribute"
                " WHERE attacl IS NOT NULL ORDER BY 1, 2",
                "roles": "SELECT rolname, rolsuper, rolinherit, rolcanlogin, rolbypassrls, rolpassword FROM pg_authid"
                " WHERE rolname LIKE 'substrate%' ORDER BY 1",
                "members": "SELECT roleid::regrole::text, member::regrole::text, inherit_option FROM pg_auth_members"
                " ORDER BY 1, 2",
                "deployment": "SELECT * FROM deployment",
                "tenants": "SELECT * FROM tenants",
                "heads": "SELECT * FROM chain_heads",
                "version": "SELECT * FROM alembic_version",
            }.items()
        }


@pytest.fixture(scope="module")
def migrated(cluster: Cluster) -> Iterator[str]:
    """The owner's URL of a database that nobody serves from."""
    with empty_database(cluster.owner_url) as url:
        migrate(url)
        yield url


# SQLAlchemy cannot read the type of transaction ids back; the next test compares it in PostgreSQL's words.
@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8':sqlalchemy.exc.SAWarning")
def test_a_migrated_database_has_the_tables_that_the_store_declares(migrated: str) -> None:
    def ours(_: object, name: str | None, kind: str, *__: object) -> bool:
        return not (kind == "table" and name is not None and name.startswith("audit_events_"))

    options = {"compare_type": True, "compare_server_default": True, "include_object": ours}
    with _owner(migrated) as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_postgresql_describes_migrated_and_declared_tables_in_the_same_words(cluster: Cluster, migrated: str) -> None:
    with empty_database(cluster.owner_url) as declared:
        with _owner(declared) as connection:
            metadata.create_all(connection)
            connection.commit()
        expected, found = _described(declared), _described(migrated)
    assert {name for name, *_ in found["tables"]} == set(metadata.tables)
    assert found == expected


def test_migrating_again_changes_nothing(migrated: str) -> None:
    before = _whole(migrated)
    migrate(migrated)
    assert _whole(migrated) == before
    assert len(before["deployment"]) == 1
    assert [name for name, *_ in before["tenants"]] == ["platform"]


def test_migrating_from_several_threads_at_once_makes_one_database(cluster: Cluster) -> None:
    with empty_database(cluster.owner_url) as url, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate, url) for _ in range(4)]:
            done.result()
        made = _whole(url)
        migrate(url)
        assert _whole(url) == made
        assert len(made["deployment"]) == 1


def test_migrating_from_several_processes_at_once_makes_one_database(cluster: Cluster) -> None:
    with empty_database(cluster.owner_url) as url:
        program = "import sys; from substrate.store.migrate import migrate; migrate(sys.argv[1])"
        running = [
            subprocess.Popen([sys.executable, "-c", program, url], stderr=subprocess.PIPE)  # noqa: S603 - ourselves.
            for _ in range(2)
        ]
        ends = [(process.communicate(timeout=60)[1], process.returncode) for process in running]
        assert ends == [(b"", 0), (b"", 0)]
        assert len(_whole(url)["deployment"]) == 1


def test_a_database_that_cannot_be_reached_is_a_typed_error(cluster: Cluster) -> None:
    with pytest.raises(StoreUnavailable):
        migrate(make_url(cluster.owner_url).set(database="nowhere").render_as_string(hide_password=False))


def test_the_login_roles_password_is_set_as_it_was_given(migrated: str) -> None:
    password = 'it\'s 100% \\ "odd" :name %s {x} $1'  # noqa: S105 - it opens nothing.
    migrate(migrated, login_role="odd-login", login_password=password)
    try:
        with psycopg.connect(migrated) as connection:
            query = "SELECT rolpassword FROM pg_authid WHERE rolname = 'odd-login'"
            (stored,) = connection.execute(query).fetchone() or ("",)
    finally:
        with psycopg.connect(migrated) as connection:
            connection.execute('DROP ROLE "odd-login"')
    scheme, parameters, keys = stored.split("$")
    rounds, salt = parameters.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
    key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    assert (scheme, base64.b64decode(keys.split(":")[0])) == ("SCRAM-SHA-256", key)


def test_partitions_reach_six_months_ahead_and_none_is_missing(migrated: str) -> None:
    today = datetime.now(UTC).date()
    months = [divmod(today.year * 12 + today.month - 1 + ahead, 12) for ahead in range(MONTHS_AHEAD + 1)]
    with psycopg.connect(migrated) as connection:
        names = [name for _, name in connection.execute(_PARTITION).fetchall()]
    assert MONTHS_AHEAD == 6
    assert names == [*(f"audit_events_{year}_{month + 1:02}" for year, month in months), "audit_events_default"]


def test_partitions_are_closed_to_every_role_and_guarded_by_forced_policies(migrated: str) -> None:
    with psycopg.connect(migrated) as connection:
        partitions = connection.execute(_PARTITION).fetchall()
        for oid, name in partitions:
            guarded = "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s"
            assert connection.execute(guarded, [oid]).fetchone() == (True, True), name
            for role in (*_ROLES, LOGIN_ROLE, "public"):
                asked = "SELECT has_table_privilege(%s, %s, %s) OR has_any_column_privilege(%s, %s, %s)"
                table = ("SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER", "SELECT, INSERT, UPDATE")
                (granted,) = connection.execute(asked, [role, oid, table[0], role, oid, table[1]]).fetchone() or (None,)
                assert granted is False, (role, name)
    assert len(partitions) == MONTHS_AHEAD + 2


def test_partitions_are_made_across_the_turn_of_the_year_once(migrated: str) -> None:
    with _owner(migrated) as connection:
        made = make_partitions(connection, date(2098, 10, 31))
        assert made == [f"audit_events_{month}" for month in ("2098_10", "2098_11", "2098_12")] + [
            f"audit_events_2099_{month:02}" for month in range(1, 5)
        ]
        assert make_partitions(connection, date(2098, 10, 1)) == []
        assert make_partitions(connection, date(2098, 12, 31)) == ["audit_events_2099_05", "audit_events_2099_06"]


def test_a_month_that_the_default_partition_has_events_of_is_left_to_it(migrated: str) -> None:
    insert = (
        "INSERT INTO audit_events (tenant_id, sequence, event_id, occurred_at, call_id, verb, outcome, agent, name,"
        " actor, winner_layer, previous_hash, hash, event)"
        " VALUES ('platform', 1, gen_random_uuid(), '2098-11-30 23:59:59Z', '', '', '', '', '', '', '', '', '', '')"
    )
    with _owner(migrated) as connection:
        connection.exec_driver_sql(insert)
        made = make_partitions(connection, date(2098, 10, 1))
        assert made[:2] == ["audit_events_2098_10", "audit_events_2098_12"]
        held = connection.exec_driver_sql("SELECT tableoid::regclass::text FROM audit_events").scalars().all()
        assert held == ["audit_events_default"]
        forced = "SELECT relforcerowsecurity FROM pg_class WHERE relname = 'audit_events_default'"
        assert connection.exec_driver_sql(forced).scalar_one() is True


def test_every_key_unique_index_and_foreign_key_starts_with_the_tenant(migrated: str) -> None:
    unique = """
        SELECT c.relname, i.indexrelid::regclass::text, a.attname
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
        WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace"""
    foreign = """
        SELECT k.conrelid::regclass::text, k.conname, near.attname, far.attname
        FROM pg_constraint k
        JOIN pg_attribute near ON near.attrelid = k.conrelid AND near.attnum = k.conkey[1]
        JOIN pg_attribute far ON far.attrelid = k.confrelid AND far.attnum = k.confkey[1]
        WHERE k.contype = 'f'"""
    of_no_tenant = {"deployment", "alembic_version"}
    with psycopg.connect(migrated) as connection:
        keys = [row for row in connection.execute(unique).fetchall() if row[0] not in of_no_tenant]
        references = connection.execute(foreign).fetchall()
    assert {table for table, *_ in keys} >= set(metadata.tables) - of_no_tenant
    assert [row for row in keys if row[2] != "tenant_id"] == []
    assert {table for table, *_ in references} >= set(metadata.tables) - {*of_no_tenant, "tenants"}
    assert [row for row in references if row[2:] != ("tenant_id", "tenant_id")] == []
