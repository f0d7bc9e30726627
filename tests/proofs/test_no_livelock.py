"""Proof: however often a tenant is written to, each of its calls is answered within its deadline."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from substrate.domain.names import TenantId
from substrate.rpc.client import Client
from substrate.services.snapshots import Snapshot, Snapshots
from tests.proofs.replicas import NAME, Replicated, invoked
from tests.servers import Cluster, RunningServer
from tests.store.owner import connect

WRITES = 600
WRITES_A_SECOND = 200
INVOKERS = 4
DEADLINE = 10.0

# What every change of a SkillDef does, first the revision and last the head of the audit chain.
WRITE = """
    WITH bumped AS (
        UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %(tenant)s
        RETURNING catalog_revision
    )
    UPDATE skill_defs SET active_version = 3 - active_version, revision = bumped.catalog_revision
    FROM bumped WHERE tenant_id = %(tenant)s AND name = %(name)s"""
LOCK = "SELECT sequence FROM chain_heads WHERE tenant_id = %(tenant)s FOR UPDATE"


def unanswered(runtimes: Sequence[Client], over: Callable[[], bool]) -> list[str]:
    """Invoke at full rate, a thread for each client, until it is `over`; return what was no answer."""

    def work(runtime: Client) -> list[str]:
        got = [invoked(runtime, NAME)]
        while not over():
            got.append(invoked(runtime, NAME))
        return got

    with ThreadPoolExecutor(len(runtimes)) as pool:
        done = [pool.submit(work, runtime) for runtime in runtimes]
        return [got for each in done for got in each.result() if got not in ("Version 1.\n", "Version 2.\n")]


def _write(owner: psycopg.Connection[tuple[object, ...]], tenant: str) -> None:
    parameters = {"tenant": tenant, "name": NAME}
    with owner.transaction():
        assert owner.execute(WRITE, parameters).rowcount == 1
        owner.execute(LOCK, parameters)


@contextmanager
def _written_to(cluster: Cluster, tenant: str) -> Iterator[threading.Event]:
    """Write to the tenant at a steady rate; the event is set after the last write."""
    over = threading.Event()
    start = time.monotonic()

    def work() -> None:
        try:
            with connect(cluster) as owner:
                for number in range(WRITES):
                    _write(owner, tenant)
                    over.wait(max(0.0, start + number / WRITES_A_SECOND - time.monotonic()))
        finally:
            over.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(work)
        yield over
        writing.result()


def test_every_invocation_is_answered_while_its_tenant_is_written_to_all_the_time(
    cluster: Cluster, server: RunningServer, processes: list[str]
) -> None:
    tenant = _tenant(server, [processes[number % len(processes)] for number in range(INVOKERS)])
    with _written_to(cluster, tenant.tenant) as over:
        assert unanswered(tenant.runtimes, over.is_set) == []


def _write_after_each_load(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no snapshot in this process be current by the time that anybody decides on it."""
    load = Snapshots.load

    def loaded(snapshots: Snapshots, tenant: TenantId, after: float, deadline: float | None) -> Snapshot:
        found = load(snapshots, tenant, after, deadline)
        with connect(cluster) as owner:
            _write(owner, tenant)
        return found

    monkeypatch.setattr(Snapshots, "load", loaded)


def test_a_call_is_answered_although_every_state_is_old_when_it_has_been_read(
    cluster: Cluster, server: RunningServer, mutants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = _tenant(server, mutants)
    _write_after_each_load(cluster, monkeypatch)
    assert unanswered(tenant.runtimes, _times(60)) == []


def test_a_server_that_answers_on_the_newest_state_alone_is_found(
    cluster: Cluster, server: RunningServer, mutants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = _tenant(server, mutants, timeout=1.0)
    _write_after_each_load(cluster, monkeypatch)
    load = Snapshots.load

    def never_fresh(snapshots: Snapshots, tenant: TenantId, after: float, deadline: float | None) -> Snapshot:
        found = load(snapshots, tenant, after, deadline)
        return Snapshot(found.state, found.static, began=0.0)

    monkeypatch.setattr(Snapshots, "load", never_fresh)
    assert len(unanswered(tenant.runtimes, _times(0))) == len(mutants)


def _tenant(server: RunningServer, addresses: Sequence[str], timeout: float = DEADLINE) -> Replicated:
    """Make a tenant whose skill has two versions that have been in effect."""
    tenant = Replicated.on(server, addresses, timeout)
    tenant.promote(tenant.authors[0], 2)
    return tenant


def _times(calls: int) -> Callable[[], bool]:
    """Return what is true from the call number `calls` on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None
