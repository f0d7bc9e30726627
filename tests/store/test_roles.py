"""What each of the server's database roles may do: exactly its own work."""

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from substrate.domain.names import PLATFORM_TENANT
from substrate.store.migrate import LOGIN_ROLE
from substrate.store.tables import metadata
from tests.servers import Cluster, RunningServer
from tests.store.owner import rows
from tests.store.roles import (
    EVERY_COLUMN,
    GRANTS,
    ROLES,
    TENANT_TABLES,
    Pair,
    acting_as,
    insert,
    row_of,
    select,
    used_pair,
)


@pytest.fixture(scope="module")
def pair(cluster: Cluster, server: RunningServer) -> Pair:
    return used_pair(cluster, server)


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
                connection.execute(select(table))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("table", TENANT_TABLES)
def test_no_role_does_what_it_is_not_granted(cluster: Cluster, pair: Pair, role: str, table: str) -> None:
    granted = GRANTS[role].get(table, {})
    name = sql.Identifier(table)
    statements = {
        "SELECT": select(table),
        "UPDATE": sql.SQL("UPDATE {} SET tenant_id = tenant_id").format(name),
        "DELETE": sql.SQL("DELETE FROM {}").format(name),
        "TRUNCATE": sql.SQL("TRUNCATE {} CASCADE").format(name),
    }
    for privilege, statement in statements.items():
        if granted.get(privilege) != EVERY_COLUMN:
            with acting_as(cluster, role, pair.mine) as connection, pytest.raises(InsufficientPrivilege):
                connection.execute(statement)
    if "INSERT" not in granted:
        statement, values = insert(table, row_of(cluster, table, pair.mine))
        with acting_as(cluster, role, pair.mine) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(statement, values)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_reaches_a_partition_directly(cluster: Cluster, pair: Pair, role: str) -> None:
    partitions = [
        name for (name,) in rows(cluster, "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")
    ]
    assert len(partitions) >= 8
    for partition in partitions:
        with acting_as(cluster, role, pair.mine) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(select(partition))


def test_audit_appends_for_any_tenant_and_reads_revisions_alone(cluster: Cluster, pair: Pair) -> None:
    event = row_of(cluster, "audit_events", pair.theirs) | {"event_id": "00000000-0000-7000-8000-000000000000"}
    statement, values = insert("audit_events", event)
    with acting_as(cluster, "substrate_audit") as connection:
        assert connection.execute(statement, values).rowcount == 1
        advance = "UPDATE chain_heads SET sequence = sequence + 1, hash = hash WHERE tenant_id = ANY(%s)"
        assert connection.execute(advance, [[pair.mine, pair.theirs]]).rowcount == 2
        read = "SELECT tenant_id, catalog_revision FROM tenants WHERE tenant_id = ANY(%s)"
        assert len(connection.execute(read, [[pair.mine, pair.theirs]]).fetchall()) == 2
    with acting_as(cluster, "substrate_audit") as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("SELECT display_name FROM tenants")
    with acting_as(cluster, "substrate_audit") as connection, pytest.raises(InsufficientPrivilege):
        connection.execute("UPDATE chain_heads SET tenant_id = tenant_id")


def test_operator_manages_tenants_and_keys_of_all(cluster: Cluster, pair: Pair) -> None:
    key = row_of(cluster, "keys", pair.theirs) | {"key_id": "another"}
    with acting_as(cluster, "substrate_operator") as connection:
        for table in ("tenants", "keys", "chain_heads", "audit_events"):
            found = connection.execute(sql.SQL("SELECT DISTINCT tenant_id FROM {}").format(sql.Identifier(table)))
            assert {pair.mine, pair.theirs} <= {name for (name,) in found}
        statement, values = insert("keys", key)
        assert connection.execute(statement, values).rowcount == 1
        revoke = "UPDATE keys SET revoked_at = now() WHERE tenant_id = %s AND key_id = 'another'"
        assert connection.execute(revoke, [pair.theirs]).rowcount == 1
        shorten = "UPDATE keys SET expires_at = now() WHERE tenant_id = %s AND key_id = 'another'"
        assert connection.execute(shorten, [pair.theirs]).rowcount == 1
    for column in ("secret_sha256", "role", "agent", "principal"):
        update = sql.SQL("UPDATE keys SET {} = {}").format(sql.Identifier(column), sql.Identifier(column))
        with acting_as(cluster, "substrate_operator") as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(update)


def test_operator_keeps_the_requests_of_the_platform_alone(cluster: Cluster, pair: Pair) -> None:
    theirs = row_of(cluster, "requests", pair.theirs)
    statement, values = insert("requests", theirs)
    with acting_as(cluster, "substrate_operator") as connection, pytest.raises(InsufficientPrivilege) as refused:
        connection.execute(statement, values)
    assert "row-level security" in str(refused.value)
    own, values = insert("requests", theirs | {"tenant_id": PLATFORM_TENANT})
    with acting_as(cluster, "substrate_operator") as connection:
        assert connection.execute(own, values).rowcount == 1
        seen = connection.execute("SELECT DISTINCT tenant_id FROM requests").fetchall()
        assert seen == [(PLATFORM_TENANT,)]
