"""The server does not start on a database whose roles would let it past row-level security."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy.engine import make_url

from substrate.bootstrap import assemble
from substrate.domain.errors import StoreUnavailable
from substrate.settings import Settings
from substrate.sources.static import load_static
from substrate.store.session import Database, UnsafeRolesError, check_roles
from tests.servers import Cluster
from tests.store.owner import change


@contextmanager
def _login(cluster: Cluster, attributes: str) -> Iterator[str]:
    """Make a login role that may take the server's three roles; yields its URL and drops it with all it owns."""
    change(cluster, f"CREATE ROLE odd LOGIN NOINHERIT {attributes}")
    try:
        change(cluster, "GRANT substrate_app, substrate_audit, substrate_operator TO odd")
        yield make_url(cluster.login_url).set(username="odd").render_as_string(hide_password=False)
    finally:
        change(cluster, "DROP OWNED BY odd")
        change(cluster, "DROP ROLE odd")


@contextmanager
def _database(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def test_the_login_role_of_a_migration_is_accepted(cluster: Cluster) -> None:
    with _database(cluster.login_url) as database:
        check_roles(database)
    with _login(cluster, "") as url, _database(url) as database:
        check_roles(database)


def test_a_superuser_is_refused(cluster: Cluster) -> None:
    with _database(cluster.owner_url) as database, pytest.raises(UnsafeRolesError) as refused:
        check_roles(database)
    assert f"{make_url(cluster.owner_url).username} is a superuser" in str(refused.value)


def test_a_login_role_that_bypasses_row_level_security_is_refused(cluster: Cluster) -> None:
    with _login(cluster, "BYPASSRLS") as url, _database(url) as database, pytest.raises(UnsafeRolesError) as refused:
        check_roles(database)
    assert "odd is a superuser or has BYPASSRLS" in str(refused.value)


@pytest.mark.parametrize("role", ["substrate_app", "substrate_audit", "substrate_operator"])
def test_a_pools_role_that_bypasses_row_level_security_is_refused(cluster: Cluster, role: str) -> None:
    change(cluster, f"ALTER ROLE {role} BYPASSRLS")
    try:
        with _database(cluster.login_url) as database, pytest.raises(UnsafeRolesError) as refused:
            check_roles(database)
    finally:
        change(cluster, f"ALTER ROLE {role} NOBYPASSRLS")
    assert f"{role} is a superuser or has BYPASSRLS" in str(refused.value)


@pytest.mark.parametrize("what", ["TABLE odd_table ()", "VIEW odd_view AS SELECT 1", "SEQUENCE odd_sequence"])
def test_a_role_that_owns_something_is_refused(cluster: Cluster, what: str) -> None:
    with _login(cluster, "") as url:
        change(cluster, f"CREATE {what}")
        change(cluster, f"ALTER {' '.join(what.split()[:2])} OWNER TO odd")
        with _database(url) as database, pytest.raises(UnsafeRolesError) as refused:
            check_roles(database)
    assert "odd owns tables" in str(refused.value)


def test_a_server_is_not_even_assembled_on_an_unsafe_role(cluster: Cluster) -> None:
    with pytest.raises(UnsafeRolesError):
        assemble(Settings(), cluster.owner_url, load_static(None))


def test_a_role_that_may_not_take_the_pools_roles_is_a_typed_error(cluster: Cluster) -> None:
    change(cluster, "CREATE ROLE stranger LOGIN")
    try:
        url = make_url(cluster.login_url).set(username="stranger").render_as_string(hide_password=False)
        with _database(url) as database, pytest.raises(StoreUnavailable):
            check_roles(database)
    finally:
        change(cluster, "DROP ROLE stranger")
