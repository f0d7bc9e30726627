"""The servers compared: the product as it ships, and two bare gRPC servers that answer with kept bytes.

Each is a process of its own. The servers share one core; whoever calls them, and PostgreSQL, has the others.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc

BARE_THREADS = 8
"""Threads of the bare synchronous server: with calls that wait for nothing, more of them are slower."""

_TICK = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))
SERVER_CORES = {_CORES[0]}
OTHER_CORES = set(_CORES[1:]) or SERVER_CORES

Answers = Mapping[str, Mapping[bytes, bytes]]
"""What a bare server returns, by method and request."""


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """Let processes that are started within run on `cores` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server process."""

    process: subprocess.Popen[str]
    address: str

    def cpu_seconds(self) -> float:
        """Return the processor time that the server itself has used."""
        return _cpu_seconds(self.process.pid)

    def database_cpu_seconds(self) -> float:
        """Return the processor time that the database processes below the server have used."""
        return sum(_cpu_seconds(pid) for pid in _descendants(self.process.pid))

    def move_database(self) -> None:
        """Put the database processes below the server on the other cores."""
        for pid in _descendants(self.process.pid):
            os.sched_setaffinity(pid, OTHER_CORES)


@contextmanager
def running(command: Sequence[str], errors: Path) -> Iterator[Server]:
    """Run `command` on the servers' core until the end of the block; its first line must name its address."""
    with errors.open("w") as log, on_cores(SERVER_CORES):
        process = subprocess.Popen(  # noqa: S603 - our own arguments.
            command, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        line = process.stdout.readline() if process.stdout else ""
        address = next((word.rstrip(":") for word in line.split() if word.startswith("127.0.0.1:")), "")
        if not address:
            raise RuntimeError(f"{' '.join(command)} did not start:\n{errors.read_text()[-2000:]}")
        yield Server(process, address)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def product(folder: Path, config: Path) -> Iterator[Server]:
    """Run the product with an embedded database in `folder`, its log in ``server.log`` there."""
    command = [
        sys.executable,
        "-m",
        "substrate",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(folder / "data"),
    ]
    command += ["--config", str(config), "--log-level", "info", "--log-format", "json"]
    with running(command, folder / "server.log") as server:
        server.move_database()
        yield server


@contextmanager
def bare(kind: str, folder: Path, answers: Answers) -> Iterator[Server]:
    """Run a bare server, `kind` sync or aio, that returns `answers`."""
    kept = folder / "answers.json"
    kept.write_text(
        json.dumps({method: [(r.hex(), a.hex()) for r, a in known.items()] for method, known in answers.items()})
    )
    command = [sys.executable, "-m", "tests.perf.servers", kind, str(kept)]
    with running(command, folder / f"{kind}.log") as server:
        yield server


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


class _Answering(grpc.GenericRpcHandler):
    def __init__(self, answers: Answers, *, aio: bool) -> None:
        self._handlers: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler((_later if aio else _at_once)(known))
            for method, known in answers.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(details.method)


def _at_once(known: Mapping[bytes, bytes]) -> Any:
    return lambda request, _: known[request]


def _later(known: Mapping[bytes, bytes]) -> Any:
    async def answer(request: bytes, _: Any) -> bytes:
        return known[request]

    return answer


def _announce(port: int) -> None:
    click.echo(f"127.0.0.1:{port}")


def _serve(answers: Answers) -> None:
    server = grpc.server(ThreadPoolExecutor(BARE_THREADS))
    server.add_generic_rpc_handlers((_Answering(answers, aio=False),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _announce(port)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    server.stop(0).wait()


async def _serve_aio(answers: Answers) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Answering(answers, aio=True),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    _announce(port)
    await ended.wait()
    await server.stop(0)


def _main() -> None:
    """Be one bare server until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("sync", "aio"))
    parser.add_argument("answers", type=Path)
    asked = parser.parse_args()
    kept = json.loads(asked.answers.read_text())
    answers = {m: {bytes.fromhex(r): bytes.fromhex(a) for r, a in known} for m, known in kept.items()}
    if asked.kind == "sync":
        _serve(answers)
    else:
        asyncio.run(_serve_aio(answers))


if __name__ == "__main__":
    _main()
