"""The database as its owner sees it: past every grant and policy, for looking at what is really stored."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from tests.servers import Cluster

_numbers = itertools.count(1)


def connect(cluster: Cluster) -> psycopg.Connection[tuple[Any, ...]]:
    """Return a connection of the owner that commits every statement at once; its context manager closes it."""
    return psycopg.connect(cluster.owner_url, autocommit=True)


def rows(cluster: Cluster, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Return what `query` finds."""
    with connect(cluster) as connection:
        return connection.execute(query, parameters).fetchall()


def value(cluster: Cluster, query: str, *parameters: object) -> Any:
    """Return the one value that `query` finds."""
    ((found,),) = rows(cluster, query, *parameters)
    return found


def change(cluster: Cluster, statement: str, *parameters: object) -> int:
    """Run `statement` and return how many rows it touched."""
    with connect(cluster) as connection:
        return connection.execute(statement, parameters).rowcount


def remove_tenant(cluster: Cluster, tenant: str) -> None:
    """Take away a tenant without events, as when an older copy of the database has taken its place."""
    for table in ("chain_heads", "keys", "tenants"):
        change(cluster, f"DELETE FROM {table} WHERE tenant_id = %s", tenant)  # noqa: S608 - names of our own tables.


@contextmanager
def empty_database(owner_url: str) -> Iterator[str]:
    """Make an empty database beside the one at `owner_url`, and drop it afterwards; yields its owner's URL."""
    name = f"scratch_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield make_url(owner_url).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def wait_until(cluster: Cluster, query: str, *parameters: object) -> None:
    """Ask `query` until it finds true; fail after ten seconds."""
    with connect(cluster) as connection:
        give_up = time.monotonic() + 10
        while connection.execute(query, parameters).fetchone() != (True,):
            assert time.monotonic() < give_up, f"never became true: {query} {parameters}"


@contextmanager
def unwritable_audit(cluster: Cluster) -> Iterator[None]:
    """Let audit writers lock chains and read revisions, but insert no event."""
    change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    try:
        yield
    finally:
        change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")


@contextmanager
def held_chain(cluster: Cluster, tenant: str) -> Iterator[None]:
    """Keep everybody from appending to the tenant's chain."""
    with psycopg.connect(cluster.owner_url) as holder:
        holder.execute("SELECT 1 FROM chain_heads WHERE tenant_id = %s FOR UPDATE", [tenant])
        yield
        holder.rollback()
