"""The log across tenants, in databases that are not what they were."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.names import TenantId
from substrate.store import audit_log, tenants
from substrate.store.audit_log import Filter
from substrate.store.chain_writer import ChainWriter, Entry, Verdict
from substrate.store.migrate import migrate
from substrate.store.session import Database
from tests.servers import Cluster, running_cluster
from tests.store.copies import dump, load
from tests.store.owner import connect, value, wait_until

NAMES = (TenantId("one"), TenantId("two"))
NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
SETTLED = "SELECT max(txid) < pg_snapshot_xmin(pg_current_snapshot()) FROM audit_events"


@pytest.fixture
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    with running_cluster() as old, running_cluster() as new:
        yield old, new


def write(cluster: Cluster, count: int) -> None:
    """Add so many events to each of two tenants, each in a transaction of its own."""
    clock, writer = SystemClock(), ChainWriter(cluster.login_url)
    for _ in range(count):
        for tenant in NAMES:
            event = AuditEvent(
                clock.event_id(), tenant, clock.now(), str(uuid.uuid4()), Verb.INVOKE, EventOutcome.ALLOWED
            )
            assert writer.write([Entry(tenant, check=False, revision=None, event=event)]) == [Verdict.CURRENT]
    writer.close()


def read(cluster: Cluster) -> list[tuple[str, int]]:
    """Return tenant and sequence of what an operator finds, oldest first."""
    database = Database(cluster.login_url, pool_size=1)
    try:
        with database.operator() as connection:
            found = audit_log.query(connection, None, Filter(verb="invoke"), None, 1000, oldest_first=True)
    finally:
        database.close()
    return [(each.event.tenant, each.event.sequence) for each in found]


def test_events_loaded_from_another_cluster_come_before_those_written_here(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    old, new = clusters
    database = Database(old.login_url)
    with database.operator() as connection:
        for tenant in NAMES:
            tenants.create(connection, tenant, tenant, SystemClock().now())
    database.close()
    with connect(old) as owner:
        while value(old, NEXT) < value(new, NEXT) + 1000:
            owner.execute("SELECT pg_current_xact_id()")
    write(old, 3)
    wait_until(old, SETTLED)
    assert read(old) == [("one", 1), ("two", 1), ("one", 2), ("two", 2), ("one", 3), ("two", 3)]
    dumped = tmp_path / "dump"
    dump(old.owner_url, dumped)
    load(new.owner_url, dumped)
    # As if they were being written.
    assert read(new) == []
    migrate(new.owner_url)
    loaded = [("one", 1), ("one", 2), ("one", 3), ("two", 1), ("two", 2), ("two", 3)]
    wait_until(new, SETTLED)
    assert read(new) == loaded
    write(new, 1)
    wait_until(new, SETTLED)
    assert read(new) == [*loaded, ("one", 4), ("two", 4)]
    # Once is enough: what is written later keeps its place.
    migrate(new.owner_url)
    write(new, 1)
    wait_until(new, SETTLED)
    assert read(new) == [*loaded, ("one", 4), ("two", 4), ("one", 5), ("two", 5)]
