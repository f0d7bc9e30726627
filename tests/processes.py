"""Servers as processes of their own, started, signalled and ended as an operator does it."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from substrate.rpc.client import Client
from substrate.store.embedded import EmbeddedPostgres
from tests.servers import Cluster

SECONDS = 60
"""How long to wait for what takes a second on an idle machine."""

log_folder: list[Path] = []
"""The folder, if there is one, that keeps what servers log, for whoever looks whether it is all fit to be read."""

COMMAND = (sys.executable, "-m", "substrate")

# Self-signed, for 127.0.0.1 and localhost; the key guards nothing.
CERTIFICATE, KEY = (str(Path(__file__).parent / "tls" / name) for name in ("certificate.pem", "key.pem"))

# An authority for clients, and a client's certificate that it has signed.
CLIENT_CA, CLIENT_CERTIFICATE, CLIENT_KEY = (
    str(Path(__file__).parent / "tls" / name) for name in ("client-ca.pem", "client.pem", "client-key.pem")
)


def environment() -> dict[str, str]:
    """Return the environment without what the developer, or the suite, has set for the product."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SUBSTRATE_", "GRPC_"))}


def run(*command: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    done = subprocess.run(  # noqa: S603 - our own programs.
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    keep("commands", done.stderr)
    return done


def keep(name: str, text: str) -> None:
    """Add `text` to what is kept of the log called `name`."""
    for folder in log_folder:
        with (folder / f"{name}.log").open("a") as file:
            file.write(text)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a short folder that any account can enter, which pytest's own temporary folders are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="substrate-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Serving:
    """A `substrate serve` that serves at `address`; `greeting` is all that it has printed on stdout."""

    def __init__(self, popen: subprocess.Popen[bytes], greeting: str) -> None:
        self._popen = popen
        self._log: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.greeting = greeting.splitlines()
        self.address = self.greeting[0].removeprefix("Serving on ").rpartition(": ")[0]
        self.lines: list[str] = []
        threading.Thread(target=self._read, args=(popen.stderr,), daemon=True).start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def logged(self, event: str) -> dict[str, Any]:
        """Return the next line that logs `event`, when it is there; what is passed over goes to `lines`."""
        while (line := self._next_line()) is not None:
            self.lines.append(line)
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"The server ended without {event}: {self.lines}")

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def ended(self) -> int:
        """Return the exit code when the process ends, with the rest of the log in `lines`."""
        code = self._popen.wait(SECONDS)
        while (line := self._next_line()) is not None:
            self.lines.append(line)
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal that ends the process, and return its exit code."""
        self.send(number)
        return self.ended()

    def _next_line(self) -> str | None:
        try:
            return self._log.get(timeout=SECONDS)
        except queue.Empty:
            raise AssertionError(f"The server has said no more than this: {self.lines[-20:]}") from None

    def _read(self, stderr: IO[bytes]) -> None:
        for line in stderr:
            keep(str(self.pid), line.decode())
            self._log.put(line.decode().rstrip("\n"))
        self._log.put(None)


@contextmanager
def serving(*options: str) -> Iterator[Serving]:
    """Start a server on a free port and yield it as soon as it says that it serves; kill it if it is still there."""
    command = [*COMMAND, "serve", "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(  # noqa: S603 - our own program.
        command, cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as popen:
        try:
            # The greeting is one write, and shorter than what a pipe takes at once.
            greeting = os.read(popen.stdout.fileno(), 4096).decode() if popen.stdout else ""
            assert greeting, popen.stderr.read().decode() if popen.stderr else ""
            yield Serving(popen, greeting)
        finally:
            popen.kill()


def keys(data_dir: Path) -> dict[str, str]:
    """Return the first keys by role, as the server has left them."""
    found: dict[str, str] = json.loads((data_dir / "keys.json").read_text())["keys"]
    return found


@contextmanager
def client(server: Serving, data_dir: Path, role: str) -> Iterator[Client]:
    """Connect with one of the first keys."""
    with Client(server.address, keys(data_dir)[role], timeout=20) as connected:
        yield connected


def own_cluster(data_dir: Path) -> Cluster:
    """Return the running database of a server with this data folder, as its owner can look into it."""
    url = f"postgresql://postgres@/substrate?host={quote(str(data_dir / 'socket'), safe='')}&port=5432"
    return Cluster(EmbeddedPostgres(data_dir), url, url)


def postgres_pid(data_dir: Path) -> int:
    """Return the process id of the running database."""
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])


def is_running(pid: int) -> bool:
    """Whether there is such a process, dead ones that nobody has asked about aside."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
