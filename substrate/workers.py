"""Several server processes on one port.

The parent owns what there is one of: embedded PostgreSQL, signals and the merged metrics. It starts each worker afresh
(a fork would copy gRPC's threads' locks), and they share the port by SO_REUSEPORT. Parent and worker talk in lines: the
parent writes ``prepare``, ``switch`` and ``drop`` to a worker's standard input, and reads ``ready``, ``prepared``,
``refused`` and ``switched`` with the digest of the static state. A worker whose standard input ends has lost its parent
and stops.

A reload happens in two steps, so that no two workers answer from different bundles for longer than it takes to read a
line: all read the new files, and only when all have the same digest do they switch to it.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import structlog

from substrate.bootstrap import App, freeze, refuse_reload, report
from substrate.domain.errors import InvalidConfig
from substrate.settings import Settings
from substrate.sources.static import StaticState, load_static

MAX_EARLY_DEATHS = 3

_log = structlog.get_logger("substrate.workers")


@dataclass(eq=False)
class Worker:
    """A worker process as the parent sees it; `heard` is its last word and digest."""

    process: "subprocess.Popen[str]"
    heard: tuple[str, str] = ("", "")

    def tell(self, line: str) -> None:
        """Write a line to the worker; one that has just ended will be noticed by its end."""
        stdin = self.process.stdin
        try:
            if stdin is not None:
                stdin.write(line + "\n")
                stdin.flush()
        except BrokenPipeError:
            return


@dataclass
class Supervisor:
    """Runs `count` workers until a signal comes, on the queue that signals and the end of PostgreSQL are put to.

    `environment` is what the workers get beside the parent's own. `on_ready` is called once all serve.
    """

    count: int
    environment: dict[str, str]
    config: Path | None
    static: StaticState
    events: "queue.SimpleQueue[object]"
    on_ready: Callable[[], None]
    workers: list[Worker] = field(default_factory=list)
    _early_deaths: int = 0
    _reloading: StaticState | None = None
    _announced: bool = False

    def run(self) -> int:
        """Start the workers, keep their number, and return the exit code once they have ended."""
        try:
            for _ in range(self.count):
                self._spawn()
            code = self._loop()
        finally:
            self._end_all()
        return code

    def _loop(self) -> int:
        while True:
            match self.events.get():
                case signal.SIGTERM | signal.SIGINT:
                    return 0
                case signal.SIGHUP:
                    self._prepare()
                case signal.SIGCHLD:
                    _log.error("postgres.ended", hint="The embedded PostgreSQL ended; start the server again.")
                    return 1
                case (Worker() as worker, None) if worker in self.workers:
                    if not self._replace(worker):
                        return 1
                case (Worker() as worker, str(line)):
                    word, _, digest = line.partition(" ")
                    worker.heard = (word, digest)
                    self._heard(worker)

    def _heard(self, worker: Worker) -> None:
        words = [other.heard[0] for other in self.workers]
        if worker.heard[0] == "ready":
            _log.info("worker.ready", pid=worker.process.pid, static_digest=worker.heard[1])
            if self._reloading is not None:
                worker.tell("prepare")
            elif worker.heard[1] != self.static.digest:
                # The files changed while it started: bring everybody to one state.
                self._prepare()
            if not self._announced and all(word == "ready" for word in words):
                self._announced = True
                self.on_ready()
        elif worker.heard[0] in ("prepared", "refused") and all(word in ("prepared", "refused") for word in words):
            self._finish_reload()

    def _prepare(self) -> None:
        """First step of a reload: the parent reads the files, and if they are good, all workers do."""
        try:
            self._reloading = load_static(self.config)
        except InvalidConfig as error:
            refuse_reload(self.static, error)
            return
        for worker in self.workers:
            worker.heard = ("asked", "")
            worker.tell("prepare")

    def _finish_reload(self) -> None:
        """Second step: all switch, if all read the same."""
        wanted = self._reloading
        self._reloading = None
        agreed = wanted is not None and all(worker.heard == ("prepared", wanted.digest) for worker in self.workers)
        for worker in self.workers:
            worker.tell("switch" if agreed else "drop")
        if wanted is not None and agreed:
            report(wanted)
            self.static = wanted
            _log.info("reload.done", static_digest=wanted.digest, workers=len(self.workers))
        else:
            _log.error("reload.refused", kept=self.static.digest, hint="The files changed while they were read.")

    def _spawn(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "substrate", "serve", "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
            # A signal typed at a terminal must reach the parent alone, which ends the workers in order.
            start_new_session=True,
        )
        worker = Worker(process)
        self.workers.append(worker)
        if process.stdout is not None:
            threading.Thread(target=self._listen, args=(worker, process.stdout), daemon=True).start()

    def _listen(self, worker: Worker, lines: IO[str]) -> None:
        for line in lines:
            self.events.put((worker, line.strip()))
        worker.process.wait()
        self.events.put((worker, None))

    def _replace(self, worker: Worker) -> bool:
        """Start another worker for one that ended by itself; False when they keep ending before they serve."""
        self.workers.remove(worker)
        _log.error("worker.ended", pid=worker.process.pid, code=worker.process.returncode)
        if worker.heard[0] == "":
            self._early_deaths += 1
            if self._early_deaths >= MAX_EARLY_DEATHS:
                return False
        self._spawn()
        return True

    def _end_all(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.wait()


def run_worker(app: App, settings: Settings, events: "queue.SimpleQueue[object]") -> int:
    """Serve as one of several: do what the parent writes to standard input, until it ends or a signal comes."""
    threading.Thread(target=_read_orders, args=(events,), daemon=True).start()
    prepared: StaticState | None = None
    _say("ready", app.snapshots.static.digest)
    while True:
        match events.get():
            case signal.SIGTERM | signal.SIGINT | "":
                return 0
            case "prepare":
                try:
                    prepared = load_static(settings.config)
                    _say("prepared", prepared.digest)
                except InvalidConfig:
                    _say("refused", "")
            case "switch" if prepared is not None:
                app.replace_static(prepared)
                freeze()
                _say("switched", prepared.digest)
            case "drop":
                prepared = None


def _read_orders(events: "queue.SimpleQueue[object]") -> None:
    for line in sys.stdin:
        events.put(line.strip())
    events.put("")


def _say(word: str, digest: str) -> None:
    print(word, digest, flush=True)  # noqa: T201 - the parent reads it.
