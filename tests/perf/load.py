"""The client: sends one request many times at a fixed concurrency, and says how long each call took.

h2load (Debian's nghttp2-client) is used when it is on the PATH, since it costs far less than the servers it drives.
Otherwise processes of Python's own grpc client do the same; they need about as much processor time a call as a server
does, so they hide part of the difference between servers.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc

MAX_CONNECTIONS = 4
"""How many connections the concurrent calls are spread over, as far as they can be spread evenly."""

_FRAME = 5  # A gRPC message on the wire begins with a flag and its length in four bytes.
_TIMEOUT_SECONDS = 120.0
_DONE = re.compile(r"requests: (\d+) total, .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_DATA = re.compile(r"\((\d+)\) data")


class LoadFailedError(Exception):
    """A load of which some call was not answered in full."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to call: `address` is host:port, `answer_size` the bytes of the message that every answer must have."""

    address: str
    method: str
    request: bytes
    bearer: str
    answer_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a load went; `seconds` is from the first call's start to the last one's end, `micros` each call's time."""

    calls: int
    seconds: float
    micros: Sequence[int]


def clients() -> list[str]:
    """Return the clients that this machine has, the better one first."""
    return [*(["h2load"] if shutil.which("h2load") else []), "grpc"]


def run(client: str, target: Target, calls: int, concurrency: int, folder: Path) -> Outcome:
    """Make `calls` calls, `concurrency` at once; `folder` takes temporary files.

    Raises LoadFailedError unless every call was answered with status OK and a message of the expected size.
    """
    try:
        if client == "h2load":
            return _h2load(target, calls, concurrency, folder)
        return _grpc(target, calls, concurrency, folder)
    except subprocess.SubprocessError as error:
        raise LoadFailedError(f"The client failed: {error}") from error


def _h2load(target: Target, calls: int, concurrency: int, folder: Path) -> Outcome:
    connections = next(n for n in range(MAX_CONNECTIONS, 0, -1) if concurrency % n == 0)
    frame, log = folder / "request.bin", folder / "h2load.tsv"
    frame.write_bytes(bytes(1) + len(target.request).to_bytes(4, "big") + target.request)
    log.unlink(missing_ok=True)
    command = ["h2load", f"-n{calls}", f"-c{connections}", f"-m{concurrency // connections}", "-t1", f"-d{frame}"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "-H", "grpc-timeout: 30S"]
    command += ["-H", f"authorization: Bearer {target.bearer}", f"--log-file={log}"]
    command.append(f"http://{target.address}{target.method}")
    printed = subprocess.run(  # noqa: S603 - our own arguments.
        command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS
    ).stdout
    done, data = _DONE.search(printed), _DATA.search(printed)
    if done is None or data is None or [int(n) for n in done.groups()] != [calls, calls, 0, 0, 0]:
        raise LoadFailedError(f"h2load says:\n{printed}")
    # A refusal is HTTP 200 as well, but has no message: only when all answers are whole do the bytes add up.
    if int(data[1]) != calls * (_FRAME + target.answer_size):
        raise LoadFailedError(f"Some calls were refused: {data[1]} bytes came for {calls} calls of {target.method}.")
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    starts, micros = [int(row[0]) for row in rows], [int(row[2]) for row in rows]
    ends = map(int.__add__, starts, micros)
    return Outcome(calls, (max(ends) - min(starts)) / 1_000_000, micros)


def _grpc(target: Target, calls: int, concurrency: int, folder: Path) -> Outcome:
    processes = min(2, concurrency)
    request = folder / "request.bin"
    request.write_bytes(target.request)
    started = []
    for number in range(processes):
        share = [str((total + number) // processes) for total in (calls, concurrency)]
        command = [sys.executable, "-m", "tests.perf.load", target.address, target.method, str(request), *share]
        command += [str(target.answer_size)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))  # noqa: S603 - as above.
    results = []
    try:
        for process in started:  # All of them are connected before any begins.
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise LoadFailedError("A client process could not connect.")
        for process in started:
            click.echo(target.bearer, file=process.stdin)
        for process in started:
            printed, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
            if process.returncode:
                raise LoadFailedError("A client process failed.")
            results.append(json.loads(printed))
    finally:
        for process in started:
            process.kill()
            process.wait()
    begin, end = min(result["begin"] for result in results), max(result["end"] for result in results)
    return Outcome(calls, end - begin, [micros for result in results for micros in result["micros"]])


def _main() -> None:
    """Be one client process: connect, wait for the key on standard input, make the calls, print how they went."""
    parser = argparse.ArgumentParser()
    for name, kind in (("address", str), ("method", str), ("request", Path)):
        parser.add_argument(name, type=kind)
    for name in ("calls", "threads", "answer_size"):
        parser.add_argument(name, type=int)
    asked = parser.parse_args()
    request = asked.request.read_bytes()
    micros: list[int] = []
    failed: list[Exception] = []
    with grpc.insecure_channel(asked.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        send: Any = channel.unary_unary(asked.method)
        click.echo("ready")
        metadata = (("authorization", f"Bearer {sys.stdin.readline().strip()}"),)

        def work(calls: int) -> None:
            try:
                for _ in range(calls):
                    begin = time.monotonic()
                    answer = send(request, timeout=30, metadata=metadata)
                    micros.append(int((time.monotonic() - begin) * 1_000_000))
                    if len(answer) != asked.answer_size:
                        failed.append(ValueError(f"An answer has {len(answer)} bytes."))
            except grpc.RpcError as error:
                failed.append(error)

        shares = [(asked.calls + number) // asked.threads for number in range(asked.threads)]
        threads = [threading.Thread(target=work, args=(share,)) for share in shares]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = time.monotonic()
    if failed:
        sys.exit(f"{len(failed)} calls failed, the first with: {failed[0]}")
    click.echo(json.dumps({"begin": begin, "end": end, "micros": micros}))


if __name__ == "__main__":
    _main()
