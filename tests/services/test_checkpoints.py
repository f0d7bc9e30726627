"""Checkpoints as a server signs them while it runs, and the file that keeps them."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.chain import Point
from substrate.domain.checkpoints import Checkpoint
from substrate.domain.errors import InvalidConfig
from substrate.domain.names import TenantId
from substrate.services.checkpoints import Checkpointer
from substrate.store import audit_chain
from substrate.store.audit import append
from substrate.store.checkpoint_file import CheckpointFile, read_checkpoints
from substrate.store.session import Database
from substrate.store.signing_keys import made_signing_key, public_key, signing_key
from tests.processes import client, open_folder, serving
from tests.servers import Cluster, RunningServer, running_cluster

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Clock:
    """A clock that is set by hand; its ids are good for events."""

    def __init__(self) -> None:
        self.time = NOW
        self._ids = 0

    def now(self) -> datetime:
        return self.time

    def event_id(self) -> str:
        self._ids += 1
        return f"{os.urandom(4).hex()}-0000-7000-8000-{self._ids:012}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "checkpoints.jsonl"


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    own = Database(cluster.login_url, pool_size=1)
    yield own
    own.close()


def write(database: Database, clock: Clock, tenant: str, count: int) -> None:
    for _ in range(count):
        with database.tenant(TenantId(tenant)) as connection:
            event = AuditEvent(clock.event_id(), TenantId(tenant), NOW, "c", Verb.LIST, EventOutcome.ALLOWED)
            append(connection, event)


def signed(path: Path, tenant: str) -> list[int]:
    """Return the numbers that were signed of a chain; the file must be in order."""
    found = read_checkpoints(path, KEY.public_key(), None)
    assert found.problems == []
    return [point.sequence for point in found.points(tenant)]


def test_a_clock_that_was_set_back_is_followed(
    database: Database, server: RunningServer, clock: Clock, path: Path
) -> None:
    tenant = server.tenant().name
    checkpointer = Checkpointer(database, CheckpointFile(path, KEY), clock)
    write(database, clock, tenant, 1)
    checkpointer.poll()
    clock.time -= timedelta(days=1)
    checkpointer.poll()
    assert signed(path, tenant) == [1]
    write(database, clock, tenant, 1)
    checkpointer.poll()
    assert signed(path, tenant) == [1, 2]
    # From then on it is waited for as before.
    write(database, clock, tenant, 1)
    checkpointer.poll()
    assert signed(path, tenant) == [1, 2]
    clock.time += timedelta(seconds=60)
    checkpointer.poll()
    assert signed(path, tenant) == [1, 2, 3]


def of(number: int) -> Checkpoint:
    return Checkpoint("acme", Point(number, bytes(32)), NOW)


def test_a_chain_is_signed_once_it_has_grown_enough_or_waited_enough(
    database: Database, server: RunningServer, clock: Clock, path: Path
) -> None:
    tenant, idle = server.tenant().name, server.tenant().name
    checkpointer = Checkpointer(database, CheckpointFile(path, KEY), clock, every_events=5, every=timedelta(seconds=60))
    write(database, clock, tenant, 2)
    # What has grown and was never signed is signed at once.
    assert checkpointer.poll() >= 1
    write(database, clock, tenant, 4)
    checkpointer.poll()
    assert signed(path, tenant) == [2]
    write(database, clock, tenant, 1)
    checkpointer.poll()
    assert signed(path, tenant) == [2, 7]
    write(database, clock, tenant, 1)
    clock.time += timedelta(seconds=59)
    checkpointer.poll()
    assert signed(path, tenant) == [2, 7]
    clock.time += timedelta(seconds=1)
    checkpointer.poll()
    assert signed(path, tenant) == [2, 7, 8]
    clock.time += timedelta(days=1)
    checkpointer.poll()
    checkpointer.poll(last=True)
    assert signed(path, tenant) == [2, 7, 8]
    write(database, clock, tenant, 1)
    checkpointer.poll(last=True)
    assert signed(path, tenant) == [2, 7, 8, 9]
    assert signed(path, idle) == []
    with database.operator() as connection:
        head = audit_chain.heads(connection)[tenant]
    assert read_checkpoints(path, KEY.public_key()).points(tenant)[-1] == head


def test_several_servers_share_a_file(database: Database, server: RunningServer, clock: Clock, path: Path) -> None:
    tenant = server.tenant().name
    ones = [Checkpointer(database, CheckpointFile(path, KEY), clock, every_events=2) for _ in range(2)]
    for number in range(6):
        write(database, clock, tenant, 1)
        ones[number % 2].poll()
    # Whichever looks, it knows what the other has signed.
    assert signed(path, tenant) == [1, 3, 5]


def test_a_file_that_is_taken_away_from_a_running_server_is_told_and_signed_again(
    database: Database, server: RunningServer, clock: Clock, path: Path
) -> None:
    grown, idle = server.tenant().name, server.tenant().name
    write(database, clock, grown, 2)
    write(database, clock, idle, 3)
    checkpointer = Checkpointer(database, CheckpointFile(path, KEY), clock, every_events=1)
    checkpointer.poll()
    for last, numbers in ((False, [2, 3]), (True, [3])):
        path.unlink()
        if not last:
            write(database, clock, grown, 1)
        with capture_logs() as logs:
            # The last time is not too late, even if no chain has grown.
            checkpointer.poll(last=last)
        assert [log["event"] for log in logs if log["event"].startswith("checkpoints.")] == ["checkpoints.replaced"]
        assert (signed(path, grown), signed(path, idle)) == (numbers, [3])


def test_a_chain_that_is_shorter_than_it_was_is_told_once_and_not_signed(
    database: Database, server: RunningServer, clock: Clock, path: Path
) -> None:
    tenant = server.tenant().name
    write(database, clock, tenant, 2)
    file = CheckpointFile(path, KEY)
    checkpointer = Checkpointer(database, file, clock, every_events=1)
    checkpointer.poll()
    file.append(lambda _: [Checkpoint(tenant, Point(9, bytes(32)), NOW)])
    write(database, clock, tenant, 1)
    with capture_logs() as logs:
        checkpointer.poll()
        checkpointer.poll()
    (line,) = [log for log in logs if log.get("tenant") == tenant]
    assert (line["event"], line["signed"], line["found"]) == ("checkpoints.chain_is_short", 9, 3)
    assert signed(path, tenant) == [2, 9]


def test_a_database_that_is_away_is_told_once_and_tried_again(clock: Clock, path: Path) -> None:
    states: dict[str, threading.Event] = {"failed": threading.Event(), "worked": threading.Event()}

    class Watched(Checkpointer):
        def poll(self, *, last: bool = False) -> int:
            try:
                done = super().poll(last=last)
            except Exception:
                states["failed"].set()
                raise
            states["worked"].set()
            return done

    with running_cluster() as other, capture_logs() as logs:
        database = Database(other.login_url, pool_size=1)
        checkpointer = Watched(database, CheckpointFile(path, KEY), clock, poll_seconds=0.01)
        checkpointer.start()
        assert states["worked"].wait(20)
        other.postgres.stop()
        states["failed"].clear()
        assert states["failed"].wait(20)
        states["failed"].clear()
        assert states["failed"].wait(20)
        other.postgres.start()
        states["worked"].clear()
        assert states["worked"].wait(20)
        checkpointer.stop()
        database.close()
    said = [log["event"] for log in logs if log["event"].startswith("checkpoints.")]
    assert said == ["checkpoints.failing", "checkpoints.working"]


def test_what_is_stopped_before_it_began_does_nothing(database: Database, clock: Clock, path: Path) -> None:
    Checkpointer(database, CheckpointFile(path, KEY), clock).stop()
    assert path.read_bytes() == b""


def test_a_thread_signs_at_once_and_when_it_is_stopped(
    database: Database, server: RunningServer, clock: Clock, path: Path
) -> None:
    tenant = server.tenant().name
    write(database, clock, tenant, 1)
    polled = threading.Event()

    class Watched(Checkpointer):
        def poll(self, *, last: bool = False) -> int:
            done = super().poll(last=last)
            polled.set()
            return done

    checkpointer = Watched(database, CheckpointFile(path, KEY), clock, poll_seconds=600)
    checkpointer.start()
    assert polled.wait(20)
    assert signed(path, tenant) == [1]
    write(server.database, clock, tenant, 1)
    checkpointer.stop()
    assert signed(path, tenant) == [1, 2]


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "audit-signing-key.pem"
    with ThreadPoolExecutor(8) as pool:
        keys = {key.private_bytes_raw() for key in pool.map(made_signing_key, [path] * 8)}
    assert len(keys) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in path.parent.iterdir()) == ["audit-signing-key.pem", "audit-signing-key.pub.pem"]
    public = public_key(path.with_suffix(".pub.pem"))
    assert public.public_bytes_raw() == signing_key(path).public_key().public_bytes_raw()


BAD_KEYS = {
    "missing": (None, "cannot be read (No such file or directory); name the PEM file of an Ed25519 key"),
    "no PEM": (b"nonsense", "holds no Ed25519"),
    "empty": (b"", "holds no Ed25519"),
    "another kind": (
        (Path(__file__).parents[1] / "tls" / "key.pem").read_bytes(),
        "holds no Ed25519",
    ),
}


@pytest.mark.parametrize("kind", BAD_KEYS)
@pytest.mark.parametrize("read", [signing_key, public_key])
def test_a_file_that_holds_no_key_is_named(tmp_path: Path, kind: str, read: Any) -> None:
    content, problem = BAD_KEYS[kind]
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidConfig) as refused:
        read(path)
    assert str(path) in refused.value.message
    assert problem in refused.value.message


def test_a_place_that_cannot_be_written_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="SUBSTRATE_AUDIT_CHECKPOINTS"):
        CheckpointFile(tmp_path / "file" / "checkpoints.jsonl", KEY)
    with pytest.raises(InvalidConfig, match="SUBSTRATE_AUDIT_SIGNING_KEY"):
        made_signing_key(tmp_path / "file" / "key.pem")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_signs_its_chains_until_it_ends(workers: int) -> None:
    with open_folder() as data_dir:
        options = ["--data-dir", str(data_dir)]
        if workers > 1:
            options += ["--workers", str(workers), "--listen", f"127.0.0.1:{free_port()}"]
        path = data_dir / "audit-checkpoints.jsonl"
        with serving(*options) as server:
            with client(server, data_dir, "author") as author:
                author.call("AgentService.ListAgents")
                reports = list(author.stream("AuditService.VerifyAudit", timeout=60))
            assert [(report.done, report.intact) for report in reports] == [(True, True)]
            assert server.stop(signal.SIGTERM) == 0
        found = read_checkpoints(path, public_key(data_dir / "audit-signing-key.pub.pem"))
        assert found.problems == []
        # Two events for the first keys, the list, and the verification after it.
        assert found.points("default")[-1].sequence == 4
        assert found.points("platform")
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_server_with_a_key_that_is_not_there_does_not_start() -> None:
    with open_folder() as data_dir:
        missing = data_dir / "missing.pem"
        with (
            pytest.raises(AssertionError, match="cannot be read"),
            serving("--data-dir", str(data_dir), "--audit-signing-key", str(missing)),
        ):
            pass
        assert not missing.exists()
