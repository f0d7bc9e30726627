"""Copies of databases, made and loaded with PostgreSQL's own tools."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from substrate.store.embedded import DATABASE, EmbeddedPostgres
from substrate.store.embedded_files import account_for, binaries_for
from substrate.store.migrate import LOGIN_ROLE
from tests.processes import open_folder
from tests.servers import Cluster
from tests.store.owner import wait_until


def _run(program: str, *arguments: str) -> None:
    command = [str(binaries_for(account_for(None)) / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - PostgreSQL's own.
    assert done.returncode == 0, done.stderr


def dump(url: str, into: Path) -> None:
    """Write a dump of the database at `url`."""
    _run("pg_dump", "--format=custom", f"--file={into}", f"--dbname={url}")


def load(url: str, dumped: Path) -> None:
    """Drop the database at `url`, whoever is connected, and load a dump in its place."""
    maintenance = make_url(url).set(database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(maintenance, autocommit=True) as connection:
        name = make_url(url).database
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    _run("pg_restore", f"--dbname={url}", "--exit-on-error", str(dumped))


def load_over(url: str, dumped: Path) -> None:
    """Drop all tables of the database at `url`, and load a dump in their place."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    _run("pg_restore", f"--dbname={url}", "--exit-on-error", str(dumped))


@contextmanager
def running_copy(cluster: Cluster, *, recovered: bool = False) -> Iterator[Cluster]:
    """Run a copy of the files of `cluster`, which is stopped for it; `recovered` as backups are, on a new timeline."""
    with open_folder() as folder:
        cluster.postgres.stop()
        try:
            # With their owner, who alone may run it.
            _run("/bin/cp", "-a", str(cluster.postgres._data_dir / "postgres"), str(folder))
        finally:
            cluster.postgres.start()
        settings = {"fsync": "off"}
        if recovered:
            (folder / "postgres" / "recovery.signal").touch()
            settings["restore_command"] = "false"
        with EmbeddedPostgres(folder, settings=settings) as postgres:
            copy = Cluster(postgres, postgres.owner_url, postgres.url(LOGIN_ROLE, DATABASE))
            wait_until(copy, "SELECT NOT pg_is_in_recovery()")
            yield copy
