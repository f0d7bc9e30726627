"""Row-level security: whoever serves a tenant sees and writes the rows of that tenant, and of no other."""

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from substrate.domain.names import TenantId
from substrate.store.migrate import LOGIN_ROLE
from substrate.store.session import Database, check_roles
from tests.servers import Cluster, RunningServer
from tests.store.owner import connect, rows
from tests.store.roles import EVERY_COLUMN, GRANTS, TENANT_TABLES, Pair, acting_as, insert, row_of, select, used_pair


@pytest.fixture(scope="module")
def pair(cluster: Cluster, server: RunningServer) -> Pair:
    return used_pair(cluster, server)


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
    with acting_as(cluster, "substrate_app", pair.mine) as connection:
        query = sql.SQL("SELECT DISTINCT tenant_id FROM {}").format(sql.Identifier(table))
        assert connection.execute(query).fetchall() == [(pair.mine,)]
        assert connection.execute(select(table, "WHERE tenant_id = %s"), [pair.theirs]).fetchall() == []


@pytest.mark.parametrize("table", TENANT_TABLES)
def test_app_writes_nothing_under_another_tenant(cluster: Cluster, pair: Pair, table: str) -> None:
    statement, values = insert(table, row_of(cluster, table, pair.theirs))
    granted = GRANTS["substrate_app"][table]
    with acting_as(cluster, "substrate_app", pair.mine) as connection, pytest.raises(InsufficientPrivilege) as refused:
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
        with acting_as(cluster, "substrate_app", pair.mine) as connection:
            update = sql.SQL("UPDATE {} SET {} = {} WHERE {}").format(name, target, target, theirs)
            assert connection.execute(update).rowcount == 0
    if "DELETE" in granted:
        with acting_as(cluster, "substrate_app", pair.mine) as connection:
            assert connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(name, theirs)).rowcount == 0
            assert connection.execute(sql.SQL("DELETE FROM {}").format(name)).rowcount > 0
    if granted.get("UPDATE") == EVERY_COLUMN:
        with (
            acting_as(cluster, "substrate_app", pair.mine) as connection,
            pytest.raises(InsufficientPrivilege) as refused,
        ):
            connection.execute(sql.SQL("UPDATE {} SET tenant_id = {}").format(name, sql.Literal(pair.theirs)))
        assert "row-level security" in str(refused.value)


@pytest.mark.parametrize("table", TENANT_TABLES)
def test_app_sees_and_writes_nothing_while_no_tenant_is_set(cluster: Cluster, pair: Pair, table: str) -> None:
    with acting_as(cluster, "substrate_app") as connection:
        assert connection.execute(select(table)).fetchall() == []
    with acting_as(cluster, "substrate_app", "") as connection:
        assert connection.execute(select(table)).fetchall() == []
    if "INSERT" in GRANTS["substrate_app"][table]:
        statement, values = insert(table, row_of(cluster, table, pair.mine))
        with acting_as(cluster, "substrate_app") as connection, pytest.raises(InsufficientPrivilege) as refused:
            connection.execute(statement, values)
        assert "row-level security" in str(refused.value)


def test_app_forgets_its_tenant_when_the_transaction_ends(cluster: Cluster, pair: Pair) -> None:
    with psycopg.connect(cluster.login_url, options="-c role=substrate_app") as connection:
        connection.execute("SELECT set_config('app.tenant', %s, true)", [pair.mine])
        assert connection.execute("SELECT count(*) FROM skill_defs").fetchone() == (1,)
        connection.commit()
        assert connection.execute("SELECT current_setting('app.tenant', true)").fetchone() == ("",)
        for table in TENANT_TABLES:
            assert connection.execute(select(table)).fetchall() == []


def test_a_tenant_without_a_name_can_never_be_made_to_match_the_empty_setting(cluster: Cluster) -> None:
    with connect(cluster) as connection, connection.transaction(force_rollback=True):
        connection.execute(
            "INSERT INTO tenants (tenant_id, display_name, created_at, quotas) VALUES ('', '', now(), '{}')"
        )
        connection.execute("SET LOCAL ROLE substrate_app")
        connection.execute("SELECT set_config('app.tenant', '', true)")
        assert connection.execute("SELECT * FROM tenants").fetchall() == []


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
        check_roles(database)
    finally:
        database.close()
