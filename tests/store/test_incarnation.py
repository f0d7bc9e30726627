"""The incarnation tells a database from every other, copies and restored ones included."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.domain.tokens import CatalogToken
from substrate.store import tenants
from substrate.store.chain_writer import ChainWriter, Entry, Verdict
from substrate.store.embedded import DATABASE
from substrate.store.migrate import LOGIN_ROLE, migrate
from substrate.store.session import Database
from tests.processes import COMMAND, run
from tests.servers import Cluster, running_cluster
from tests.store.copies import dump, load, load_over, running_copy
from tests.store.owner import change, connect, empty_database, value

MARK = "SELECT incarnation::text FROM deployment"


@pytest.fixture(scope="module")
def original() -> Iterator[Cluster]:
    """A PostgreSQL that may be stopped and copied."""
    with running_cluster() as cluster:
        yield cluster


def of(login_url: str) -> str:
    """Return the incarnation, which must be the same for everybody who asks for it."""
    database = Database(login_url)
    try:
        with database.tenant(PLATFORM_TENANT) as connection:
            seen = tenants.incarnation(connection)
        with database.operator() as connection:
            assert tenants.incarnation(connection) == seen
    finally:
        database.close()
    writer = ChainWriter(login_url)
    try:
        entry = Entry(PLATFORM_TENANT, check=True, revision=1, event=None, incarnation=seen)
        assert writer.write([entry]) == [Verdict.CURRENT]
    finally:
        writer.close()
    return seen


def login(owner_url: str) -> str:
    return make_url(owner_url).set(username=LOGIN_ROLE).render_as_string(hide_password=False)


def mark(owner_url: str) -> str:
    with psycopg.connect(owner_url) as connection:
        ((found,),) = connection.execute(MARK).fetchall()
    return str(found)


def test_it_stays_while_the_database_is_used_migrated_and_restarted(original: Cluster) -> None:
    before = of(original.login_url)
    with connect(original) as owner:
        owner.execute("CHECKPOINT")
        owner.execute("SELECT pg_switch_wal()")
    migrate(original.owner_url)
    assert of(original.login_url) == before
    original.postgres.stop()
    original.postgres.start()
    assert of(original.login_url) == before
    process = original.postgres.process
    assert process is not None
    process.kill()
    original.postgres.stop()
    original.postgres.start()
    assert of(original.login_url) == before


def test_a_dump_has_another_wherever_it_is_loaded(original: Cluster, tmp_path: Path) -> None:
    seen = {of(original.login_url)}
    dumped = tmp_path / "dump"
    with empty_database(original.owner_url) as beside:
        dump(original.owner_url, dumped)
        for place in (load, load_over, load):
            place(beside, dumped)
            assert mark(beside) == mark(original.owner_url)
            assert of(login(beside)) not in seen
            seen.add(of(login(beside)))
    with running_cluster() as other:
        load(other.owner_url, dumped)
        assert mark(other.owner_url) == mark(original.owner_url)
        assert of(other.login_url) not in seen


def test_a_cluster_of_its_own_makes_another_where_all_else_is_the_same() -> None:
    seen = set()
    for _ in range(2):
        with running_cluster() as fresh:
            change(fresh, "UPDATE deployment SET incarnation = '00000000-0000-4000-8000-000000000000'")
            seen.add(of(fresh.login_url))
    assert len(seen) == 2


def test_a_copy_within_the_cluster_has_another(original: Cluster) -> None:
    maintenance, beside = (
        make_url(original.owner_url).set(database=name).render_as_string(hide_password=False)
        for name in ("postgres", "beside")
    )
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE beside TEMPLATE {DATABASE}")
        assert mark(beside) == mark(original.owner_url)
        assert of(login(beside)) != of(original.login_url)
        connection.execute("DROP DATABASE beside WITH (FORCE)")


def test_a_copy_of_the_files_has_another_once_it_is_said_to_be_one(original: Cluster) -> None:
    before = of(original.login_url)
    with running_copy(original) as copy:
        assert of(copy.login_url) == before
        migrate(copy.owner_url)
        assert of(copy.login_url) == before
        done = run(*COMMAND, "migrate", "--database-url", copy.owner_url, "--restored")
        assert done.returncode == 0, done.stderr
        assert of(copy.login_url) != before
    assert of(original.login_url) == before


def test_a_recovered_copy_of_the_files_has_another(original: Cluster) -> None:
    with running_copy(original, recovered=True) as copy:
        assert mark(copy.owner_url) == mark(original.owner_url)
        assert of(copy.login_url) != of(original.login_url)


def test_the_longest_token_fits_its_field(original: Cluster) -> None:
    token = CatalogToken(of(original.login_url), TenantId("t" * 40), 2**63 - 1, "f" * 64)
    assert len(str(token)) <= 256


def test_a_call_that_decided_on_another_incarnation_is_stale_whatever_its_revision(original: Cluster) -> None:
    before = of(original.login_url)
    revision = value(original, "SELECT catalog_revision FROM tenants WHERE tenant_id = 'platform'")
    writer = ChainWriter(original.login_url)

    def verdict(incarnation: str, *, check: bool = True) -> Verdict:
        entry = Entry(PLATFORM_TENANT, check=check, revision=revision, event=None, incarnation=incarnation)
        (found,) = writer.write([entry])
        return found

    try:
        assert verdict(before) is verdict("") is Verdict.CURRENT
        assert verdict("0" * 32) is Verdict.STALE
        assert verdict("0" * 32, check=False) is Verdict.CURRENT
        # Under a connection that goes on, the one to believe is the newer of the two.
        change(original, "UPDATE deployment SET incarnation = gen_random_uuid()")
        after = of(original.login_url)
        assert after != before
        assert verdict(after) is Verdict.CURRENT
        assert verdict(before) is Verdict.STALE
        # A new connection may be one to another database.
        change(original, "UPDATE deployment SET incarnation = gen_random_uuid()")
        writer.close()
        assert verdict(after) is Verdict.STALE
        assert verdict(of(original.login_url)) is Verdict.CURRENT
    finally:
        writer.close()
