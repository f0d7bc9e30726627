"""Proof: however the audit is kept from writing, strict mode refuses by name and recovers, best effort counts exactly.

Four faults: the permission to insert is revoked, the table is locked, the connections are cut, and the disk takes no
more. Each is brought about while calls are made, and taken away again.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from substrate.rpc.client import CallFailed
from tests.metrics import counted
from tests.servers import Cluster, TestTenant, running_cluster, running_server
from tests.skills import skill_md
from tests.store.chain import events, faults
from tests.store.owner import change, rows, value, wait_until

INVOKE = {"agent": "doc-manager", "name": "doc/query"}
LOST = "substrate_audit_lost_events_total"
PATIENCE = 60.0

Fault = Callable[[Cluster], AbstractContextManager[None]]


@contextmanager
def revoked(cluster: Cluster) -> Iterator[None]:
    """Nobody may insert events."""
    change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit, substrate_app")
    try:
        yield
    finally:
        change(cluster, "GRANT INSERT ON audit_events TO substrate_audit, substrate_app")


@contextmanager
def locked(cluster: Cluster) -> Iterator[None]:
    """Somebody holds the table."""
    with psycopg.connect(cluster.owner_url) as holder:
        holder.execute("LOCK TABLE audit_events IN ACCESS EXCLUSIVE MODE")
        yield


@contextmanager
def cut(cluster: Cluster) -> Iterator[None]:
    """The writer's connection is cut again and again, at any moment of its batches."""
    ended = threading.Event()

    def cutting() -> None:
        with psycopg.connect(cluster.owner_url, autocommit=True) as connection:
            # With a pause, or no connection would live long enough for a revision to be read.
            while not ended.wait(0.03):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE usename = 'substrate_server' AND query LIKE '%chain_heads%'"
                )

    thread = threading.Thread(target=cutting)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def full(cluster: Cluster) -> Iterator[None]:
    """No file of the database may grow beyond the size that the table of events has now."""
    path = value(
        cluster,
        "SELECT pg_relation_filepath(relid) FROM pg_partition_tree('audit_events') WHERE isleaf"
        " ORDER BY pg_relation_size(relid) DESC LIMIT 1",
    )
    size = (Path(value(cluster, "SHOW data_directory")) / path).stat().st_size
    _limit_files(cluster, str(size))
    try:
        yield
    finally:
        _limit_files(cluster, "unlimited")


def _limit_files(cluster: Cluster, size: str) -> None:
    """Limit how large files of the database may become; only the account that runs it may do so."""
    owner = Path(f"/proc/{_postmaster(cluster)}").stat()
    for pid in _processes(cluster):
        # A process may have ended since, but not the one from which all others inherit.
        subprocess.run(  # noqa: S603 - a program of the system, with numbers.
            ["/usr/bin/prlimit", "--pid", str(pid), f"--fsize={size}:"],
            user=owner.st_uid,
            group=owner.st_gid,
            extra_groups=[],
            check=pid == _postmaster(cluster),
        )


def _processes(cluster: Cluster) -> list[int]:
    return [
        _postmaster(cluster),
        *(pid for (pid,) in rows(cluster, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")),
    ]


def _postmaster(cluster: Cluster) -> int:
    process = cluster.postgres.process
    assert process is not None
    return process.pid


@dataclass
class Callers:
    """Threads that invoke until they are told to stop, and what they were told."""

    tenant: TestTenant
    answered: set[str] = field(default_factory=set)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    slowest: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def calling(self, threads: int = 4) -> Iterator[None]:
        """Call until the block ends."""
        with ThreadPoolExecutor(threads) as pool:
            calls = [pool.submit(self._call) for _ in range(threads)]
            try:
                yield
            finally:
                self._ended.set()
            for call in calls:
                call.result()

    def wait(self, true: Callable[[], bool]) -> None:
        """Wait until the callers have made something true."""
        give_up = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < give_up, self.refusals[-5:]
            time.sleep(0.01)

    def _call(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self.answered.add(self.tenant.runtime.call("SkillService.InvokeSkill", **INVOKE).decision_id)
            except CallFailed as error:
                self.refusals.append((error.code, error.reason))
            self.slowest = max(self.slowest, time.monotonic() - began)


@pytest.fixture(scope="module")
def large_cluster() -> Iterator[Cluster]:
    """A database of its own, whose table of events is larger than a segment of its write-ahead log."""
    with running_cluster() as cluster:
        change(
            cluster,
            "INSERT INTO tenants (tenant_id, display_name, created_at, quotas) VALUES ('filler', '', now(), '{}')",
        )
        change(
            cluster,
            "INSERT INTO audit_events (tenant_id, sequence, event_id, occurred_at, call_id, verb, outcome, agent, name,"
            " actor, winner_layer, previous_hash, hash, event)"
            " SELECT 'filler', n, gen_random_uuid(), now(), '', '', '', '', '', '', '', '', '',"
            " (SELECT string_agg(md5(n::text || part::text), '') FROM generate_series(1, 55) AS part)"
            " FROM generate_series(1, 11000) AS n",
        )
        yield cluster


@pytest.mark.parametrize("fault", [revoked, locked, cut, full])
def test_strict_refuses_by_name_and_recovers(large_cluster: Cluster, fault: Fault) -> None:
    with running_server(large_cluster) as server:
        callers = Callers(server.tenant())
        with callers.calling():
            callers.wait(lambda: len(callers.answered) > 20)
            with fault(large_cluster):
                callers.wait(lambda: len(callers.refusals) > 10)
                refusals = set(callers.refusals)
            healthy = len(callers.answered)
            callers.wait(lambda: len(callers.answered) > healthy + 20)
        assert refusals == {("UNAVAILABLE", "AUDIT_UNAVAILABLE")}
        # What was answered has its event, whatever happened around it.
        recorded = {event["id"] for event in events(large_cluster, callers.tenant.name)}
        assert callers.answered <= recorded
        assert faults(large_cluster, callers.tenant.name) == []


@pytest.mark.parametrize("fault", [revoked, locked, cut, full])
def test_best_effort_goes_on_and_counts_exactly_what_it_lost(large_cluster: Cluster, fault: Fault) -> None:
    with running_server(large_cluster, audit_mode="best_effort") as server:
        callers = Callers(server.tenant())
        with callers.calling():
            callers.wait(lambda: len(callers.answered) > 20)
            with fault(large_cluster):
                callers.wait(lambda: counted(server, LOST) > 10)
            healthy = len(callers.answered)
            callers.wait(lambda: len(callers.answered) > healthy + 20)
        name = callers.tenant.name
        wait_until(
            large_cluster, "SELECT EXISTS (SELECT FROM audit_events WHERE tenant_id = %s AND verb = 'gap')", name
        )
        lost = counted(server, LOST)
    found = events(large_cluster, name)
    recorded = {event["id"] for event in found}
    gaps = [event["details"] for event in found if event["verb"] == "gap"]
    assert sum(gap["count"] for gap in gaps) == lost == len(callers.answered - recorded)
    assert sum(sum(gap["causes"].values()) for gap in gaps) == lost
    assert faults(large_cluster, name) == []


def test_a_change_is_not_made_while_it_cannot_be_recorded(large_cluster: Cluster) -> None:
    with running_server(large_cluster) as server:
        tenant = server.tenant()
        with full(large_cluster):
            for number in range(200):
                name = f"own/s{number}"
                try:
                    tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md(f"s{number}"))
                except CallFailed as error:
                    failed = (error.code, error.reason)
                    break
            else:
                raise AssertionError("The disk never filled up.")
        assert failed in (("UNAVAILABLE", "AUDIT_UNAVAILABLE"), ("UNAVAILABLE", "STORE_UNAVAILABLE"))
        made = rows(large_cluster, "SELECT name FROM skill_defs WHERE tenant_id = %s ORDER BY 1", tenant.name)
        recorded = sorted(e["name"] for e in events(large_cluster, tenant.name) if e["verb"] == "create")
        assert [name for (name,) in made] == recorded
        assert tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md(name.partition("/")[2]))
