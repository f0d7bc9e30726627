"""What each of the server's database roles may do: exactly its own work, and for one tenant at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from substrate.domain.names import TenantId
from substrate.store.migrate import LOGIN_ROLE
from substrate.store.session import Database, DatabaseRole, check_roles
from substrate.store.tables import metadata
from tests.servers import Cluster, RunningServer
from tests.skills import skill_md
from tests.store.owner import connect, rows

TENANT_TABLES = sorted(table.name for table in metadata.tables.values() if "tenant_id" in table.c)
ROLES = [role.value for role in DatabaseRole]

EVERY_COLUMN = ("*",)
GRANTS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "substrate_app": {
        "deployment": {"SELECT": EVERY_COLUMN},
        "tenants": {"SELECT": EVERY_COLUMN, "UPDATE": ("catalog_revision",)},
        "skill_defs": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("active_version", "latest_version", "retired_at", "revision", "updated_at"),
        },
        "skill_def_versions": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("promoted_at", "promoted_by"),
        },
        "disabled_names": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN, "DELETE": EVERY_COLUMN},
        "agents": dict.fromkeys(("SELECT", "INSERT", "UPDATE", "DELETE"), EVERY_COLUMN),
        "keys": {"SELECT": EVERY_COLUMN},
        "chain_heads": {"SELECT": EVERY_COLUMN, "UPDATE": ("hash", "sequence")},
        "audit_events": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
    },
    "substrate_audit": {
        "tenants": {"SELECT": ("catalog_revision", "tenant_id")},
        "chain_heads": {"SELECT": EVERY_COLUMN, "UPDATE": ("hash", "sequence")},
        "audit_events": {"INSERT": EVERY_COLUMN},
    },
    "substrate_operator": {
        "deployment": {"SELECT": EVERY_COLUMN},
        "tenants": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("catalog_revision", "display_name"),
        },
        "keys": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN, "UPDATE": ("revoked_at",)},
        "chain_heads": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN, "UPDATE": ("hash", "sequence")},
        "audit_events": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
    },
}


@dataclass(frozen=True)
class Pair:
    """Two tenants with at least one row in every table."""

    mine: str
    theirs: str


@pytest.fixture(scope="module")
def pair(server: RunningServer) -> Pair:
    names = []
    for _ in range(2):
        tenant = server.tenant()
        tenant.author.call("SkillDefService.CreateSkillDef", name="doc/mine", source=skill_md("mine"))
        tenant.author.call("SkillDefService.SetSkillDisabled", name="doc/query", disabled=True)
        tenant.author.call("AgentService.PutAgent", agent={"name": "helper"})
        names.append(tenant.name)
    return Pair(*names)


@contextmanager
def _as(cluster: Cluster, role: str, tenant: str | None = None) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Open a transaction as the server does, in the role of one of its pools, and roll it back."""
    with psycopg.connect(cluster.login_url, options=f"-c role={role}") as connection:
        if tenant is not None:
            connection.execute("SELECT set_config('app.tenant', %s, true)", [tenant])
        yield connection
        connection.rollback()


def _row(cluster: Cluster, table: str, tenant: str) -> dict[str, Any]:
    with connect(cluster) as connection:
        query = sql.SQL("SELECT * FROM {} WHERE tenant_id = %s LIMIT 1").format(sql.Identifier(table))
        cursor = connection.execute(query, [tenant])
        found = cursor.fetchone()
        assert found is not None, f"the fixture leaves no row in {table}"
        assert cursor.description is not None
        return dict(zip((column.name for column in cursor.description), found, strict=True))


def _insert(table: str, row: dict[str, Any]) -> tuple[sql.Composed, list[Any]]:
    """Return a statement that inserts `row`; the id of its transaction is PostgreSQL's to set."""
    columns = [name for name in row if name != "txid"]
    values = [psycopg.types.json.Json(row[name]) if isinstance(row[name], dict) else row[name] for name in columns]
    return (
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join(sql.Placeholder() * len(columns)),
        ),
        values,
    )


def _select(table: str, tail: LiteralString = "") -> sql.Composed:
    return sql.SQL("SELECT * FROM {} {}").format(sql.Identifier(table), sql.SQL(tail))


def test_every_role_has_exactly_its_grants(cluster: Cluster) -> None:
    on_tables = rows(
        cluster,
        "SELECT grantee, table_name, privilege_type FROM information_schema.role_table_grants"
        " WHERE table_schema = 'public' AND (grantee LIKE 'substrate%%' OR grantee = 'PUBLIC') AND grantee <> grantor",
    )
    on_columns = rows(
        cluster,
        "SELECT a.grantee::regrole::text, c.relname, a.privilege_type, t.attname"
        " FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) AS a"
        " WHERE c.relnamespace = 'public'::regnamespace ORDER BY t.attname",
    )
    found: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for role, table, privilege in on_tables:
        found.setdefault(role, {}).setdefault(table, {})[privilege] = EVERY_COLUMN
    for role, table, privilege, column in on_columns:
        columns = found.setdefault(role, {}).setdefault(table, {})
        columns[privilege] = (*columns.get(privilege, ()), column)
    assert found == GRANTS


def test_roles_have_no_other_way_in(cluster: Cluster) -> None:
    powers = (
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)"
        " AND (rolsuper OR rolbypassrls OR rolcreatedb OR rolcreaterole OR rolreplication)"
    )
    assert rows(cluster, powers, [*ROLES, LOGIN_ROLE]) == []
    assert rows(cluster, "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND rolcanlogin", ROLES) == []
    owned = (
        "SELECT deptype, refobjid::regrole FROM pg_shdepend WHERE deptype = 'o' AND refobjid::regrole::text = ANY(%s)"
    )
    assert rows(cluster, owned, [*ROLES, LOGIN_ROLE]) == []
    executable = (
        "SELECT oid::regprocedure FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
        " UNION ALL SELECT oid FROM pg_class WHERE relkind IN ('v', 'm') AND relnamespace = 'public'::regnamespace"
    )
    assert rows(cluster, executable) == []


def test_the_login_role_is_a_member_of_three_roles_and_inherits_nothing(cluster: Cluster) -> None:
    members = (
        "SELECT roleid::regrole::text, inherit_option, admin_option FROM pg_auth_members"
        " WHERE member = %s::regrole ORDER BY 1"
    )
    assert rows(cluster, members, LOGIN_ROLE) == [(role, False, False) for role in sorted(ROLES)]
    with psycopg.connect(cluster.login_url, autocommit=True) as connection:
        for table in metadata.tables:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(_select(table))


def test_row_level_security_is_enabled_and_forced_wherever_there_is_a_tenant(cluster: Cluster) -> None:
    of_tenants = (
        "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity FROM pg_class c JOIN pg_attribute a"
        " ON a.attrelid = c.oid AND a.attname = 'tenant_id' WHERE c.relkind IN ('r', 'p') ORDER BY 1"
    )
    found = rows(cluster, of_tenants)
    assert set(TENANT_TABLES) < {name for name, *_ in found}
    assert [row for row in found if row[1:] != (True, True)] == []


@pytest.mark.parametrize("table", TENANT_TABLES)
def test_app_sees_the_rows_of_its_own_tenant_alone(cluster: Cluster, pair: Pair, table: str) -> None:
    with _as(cluster, "substrate_app", pair.mine) as connection:
        query = sql.SQL("SELECT DISTINCT tenant_id FROM {}").format(sql.Identifier(table))
        assert connection.execute(query).fetchall() == [(pair.mine,)]
        assert connection.execute(_select(table, "WHERE tenant_id = %s"), [pair.theirs]).fetchall() == []


@pytest.mark.parametrize("table", TENANT_TABLES)
def test_app_writes_nothing_under_another_tenant(cluster: Cluster, pair: Pair, table: str) -> None:
    statement, values = _insert(table, _row(cluster, table, pair.theirs))
    granted = GRANTS["substrate_app"][table]
    with _as(cluster, "substrate_app", pair.mine) as connection, pytest.raises(InsufficientPrivilege) as refused:
        connection.execute(statement, values)
    wall = "row-level security" if "INSERT" in granted else "permission denied"
    assert wall in str(refused.value)


@pytest.mark.parametrize("table", TENANT_TABLES)
def test_app_changes_and_deletes_no_row_of_another_tenant(cluster: Cluster, pair: Pair, table: str) -> None:
    granted = GRANTS["substrate_app"][table]
    name = sql.Identifier(table)
    theirs = sql.SQL("tenant_id = {}").format(sql.Literal(pair.theirs))
    for column in granted.get("UPDATE", ()):
        target = sql.Identifier("name" if column == "*" else column)
        with _as(cluster, "substrate_app", pair.mine) as connection:
            update = sql.SQL("UPDATE {} SET {} = {} WHERE {}").format(name, target, target, theirs)
            assert connection.execute(update).rowcount == 0
    if "DELETE" in granted:
        with _as(cluster, "substrate_app", pair.mine) as connection:
            assert connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(name, theirs)).rowcount == 0
            assert connection.execute(sql.SQL("DELETE FROM {}").format(name)).rowcount > 0
    if granted.get("UPDATE") == EVERY_COLUMN:
        with _as(cluster, "substrate_app", pair.mine) as connection, pytest.raises(InsufficientPrivilege) as refused:
            connection.execute(sql.SQL("UPDATE {} SET tenant_id = {}").format(name, sql.Literal(pair.theirs)))
        assert "row-level security" in str(refused.value)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("table", TENANT_TABLES)
def test_no_role_does_what_it_is_not_granted(cluster: Cluster, pair: Pair, role: str, table: str) -> None:
    granted = GRANTS[role].get(table, {})
    name = sql.Identifier(table)
    statements = {
        "SELECT": _select(table),
        "UPDATE": sql.SQL("UPDATE {} SET tenant_id = tenant_id").format(name),
        "DELETE": sql.SQL("DELETE FROM {}").format(name),
        "TRUNCATE": sql.SQL("TRUNCATE {} CASCADE").format(name),
    }
    for privilege, statement in statements.items():
        if granted.get(privilege) != EVERY_COLUMN:
            with _as(cluster, role, pair.mine) as connection, pytest.raises(InsufficientPrivilege):
                connection.execute(statement)
    if "INSERT" not in granted:
        insert, values = _insert(table, _row(cluster, table, pair.mine))
        with _as(cluster, role, pair.mine) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(insert, values)


@pytest.mark.parametrize("table", TENANT_TABLES)
def test_app_sees_and_writes_nothing_while_no_tenant_is_set(cluster: Cluster, pair: Pair, table: str) -> None:
    with _as(cluster, "substrate_app") as connection:
        assert connection.execute(_select(table)).fetchall() == []
    with _as(cluster, "substrate_app", "") as connection:
        assert connection.execute(_select(table)).fetchall() == []
    if "INSERT" in GRANTS["substrate_app"][table]:
        statement, values = _insert(table, _row(cluster, table, pair.mine))
        with _as(cluster, "substrate_app") as connection, pytest.raises(InsufficientPrivilege) as refused:
            connection.execute(statement, values)
        assert "row-level security" in str(refused.value)


def test_app_forgets_its_tenant_when_the_transaction_ends(cluster: Cluster, pair: Pair) -> None:
    with psycopg.connect(cluster.login_url, options="-c role=substrate_app") as connection:
        connection.execute("SELECT set_config('app.tenant', %s, true)", [pair.mine])
        assert connection.execute("SELECT count(*) FROM skill_defs").fetchone() == (1,)
        connection.commit()
        assert connection.execute("SELECT current_setting('app.tenant', true)").fetchone() == ("",)
        for table in TENANT_TABLES:
            assert connection.execute(_select(table)).fetchall() == []


def test_a_tenant_without_a_name_can_never_be_made_to_match_the_empty_setting(cluster: Cluster) -> None:
    with connect(cluster) as connection, connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO tenants (tenant_id, display_name, created_at) VALUES ('', '', now())")
        connection.execute("SET LOCAL ROLE substrate_app")
        connection.execute("SELECT set_config('app.tenant', '', true)")
        assert connection.execute("SELECT * FROM tenants").fetchall() == []


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reaches_a_partition_directly(cluster: Cluster, pair: Pair, role: str) -> None:
    partitions = [
        name for (name,) in rows(cluster, "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")
    ]
    assert len(partitions) >= 8
    for partition in partitions:
        with _as(cluster, role, pair.mine) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(_select(partition))


def test_audit_appends_for_any_tenant_and_reads_revisions_alone(cluster: Cluster, pair: Pair) -> None:
    event = _row(cluster, "audit_events", pair.theirs) | {"event_id": "00000000-0000-7000-8000-000000000000"}
    statement, values = _insert("audit_events", event)
    with _as(cluster, "substrate_audit") as connection:
        assert connection.execute(statement, values).rowcount == 1
        advance = "UPDATE chain_heads SET sequence = sequence + 1, hash = hash WHERE tenant_id = ANY(%s)"
        assert connection.execute(advance, [[pair.mine, pair.theirs]]).rowcount == 2
        read = "SELECT tenant_id, catalog_revision FROM tenants WHERE tenant_id = ANY(%s)"
        assert len(connection.execute(read, [[pair.mine, pair.theirs]]).fetchall()) == 2
    with _as(cluster, "substrate_audit") as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("SELECT display_name FROM tenants")
    with _as(cluster, "substrate_audit") as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("UPDATE chain_heads SET tenant_id = tenant_id")


def test_operator_manages_tenants_and_keys_of_all(cluster: Cluster, pair: Pair) -> None:
    key = _row(cluster, "keys", pair.theirs) | {"key_id": "another"}
    with _as(cluster, "substrate_operator") as connection:
        for table in ("tenants", "keys", "chain_heads", "audit_events"):
            found = connection.execute(sql.SQL("SELECT DISTINCT tenant_id FROM {}").format(sql.Identifier(table)))
            assert {pair.mine, pair.theirs} <= {name for (name,) in found}
        statement, values = _insert("keys", key)
        assert connection.execute(statement, values).rowcount == 1
        revoke = "UPDATE keys SET revoked_at = now() WHERE tenant_id = %s AND key_id = 'another'"
        assert connection.execute(revoke, [pair.theirs]).rowcount == 1
    for column in ("secret_sha256", "role", "agent", "expires_at"):
        update = sql.SQL("UPDATE keys SET {} = {}").format(sql.Identifier(column), sql.Identifier(column))
        with _as(cluster, "substrate_operator") as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(update)


def test_a_pool_stays_in_its_role_and_tenant(cluster: Cluster, pair: Pair) -> None:
    database = Database(cluster.login_url, pool_size=1)
    try:
        with database.tenant(TenantId(pair.mine)) as connection:
            found = connection.exec_driver_sql("SELECT current_user, session_user, tenant_id FROM skill_defs").all()
            assert found == [("substrate_app", LOGIN_ROLE, pair.mine)]
        # The one connection of the pool comes back without the tenant that it served before.
        with database.tenant(TenantId(pair.theirs)) as connection:
            assert connection.exec_driver_sql("SELECT tenant_id FROM skill_defs").all() == [(pair.theirs,)]
        with database.operator() as connection:
            assert connection.exec_driver_sql("SELECT current_user").scalar_one() == "substrate_operator"
        with database.audit() as connection:
            assert connection.exec_driver_sql("SELECT current_user").scalar_one() == "substrate_audit"
        check_roles(database)
    finally:
        database.close()
