"""Several server processes on one port.

The parent owns what there is one of: embedded PostgreSQL, signals and the merged metrics. It starts each worker afresh
(a fork would copy the locks of gRPC's threads), and they share the port by SO_REUSEPORT. Parent and worker talk in
lines. A worker says ``loaded <digest>`` when it has read the files, and opens the port only on ``open``, which the
parent says if it serves that digest too; so no worker ever answers from other files than the rest. A worker whose
standard input ends has lost its parent and stops.

A reload happens in two steps: on ``prepare <n>`` all read the new files and say ``prepared <n> <digest>`` or
``refused <n>``, and only when all have the same digest do they ``switch``, and say ``switched``; else they ``drop``.

A worker that ends by itself is replaced. While the files on disk are not those that are served, that cannot succeed; it
is tried again with growing delays, and the other workers go on.
"""

import contextlib
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

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0

_SIGNAL_SECONDS = 0.5

_log = structlog.get_logger("substrate.workers")


@dataclass(eq=False)
class Worker:
    """A worker process as the parent sees it; `answer` is what it said to the reload in progress."""

    process: "subprocess.Popen[str]"
    is_open: bool = False
    answer: str = ""

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

    `environment` is what the workers get beside the parent's own. `on_ready` is called once all serve. `patience` is
    how many seconds a worker may take to end.
    """

    count: int
    environment: dict[str, str]
    config: Path | None
    static: StaticState
    events: "queue.SimpleQueue[object]"
    on_ready: Callable[[], None]
    patience: float
    workers: list[Worker] = field(default_factory=list)
    _reload: int = 0
    _wanted: StaticState | None = None
    _switching: set[Worker] = field(default_factory=set)
    _delay: float = FIRST_DELAY_SECONDS
    _announced: bool = False
    _reload_due: bool = False

    def run(self) -> int:
        """Start the workers, keep their number, and return the exit code once they have ended."""
        try:
            for _ in range(self.count):
                self._spawn()
            return self._loop()
        finally:
            self._end_all()

    def _loop(self) -> int:
        while True:
            match next_event(self.events):
                case signal.SIGTERM | signal.SIGINT:
                    return 0
                case signal.SIGHUP if self._announced:
                    self._prepare()
                case signal.SIGHUP:
                    self._reload_due = True
                case signal.SIGCHLD:
                    _log.error("postgres.ended", hint="The embedded PostgreSQL ended; start the server again.")
                    return 1
                case "spawn":
                    self._spawn()
                case (Worker() as worker, None) if worker in self.workers:
                    if not self._lose(worker):
                        return 1
                case (Worker() as worker, str(line)):
                    self._heard(worker, line.split(" "))

    def _heard(self, worker: Worker, words: list[str]) -> None:
        match words:
            case ["loaded", digest] if digest == self.static.digest and self._wanted is None:
                worker.tell("open")
            case ["loaded", _]:
                _log.error("worker.refused", hint="The files are not those that are served; reload with SIGHUP.")
                worker.process.terminate()
            case ["open"]:
                worker.is_open = True
                self._delay = FIRST_DELAY_SECONDS
                _log.info("worker.ready", pid=worker.process.pid, static_digest=self.static.digest)
                if not self._announced and sum(other.is_open for other in self.workers) == self.count:
                    self._announced = True
                    self.on_ready()
                    if self._reload_due:
                        self._prepare()
            case ["prepared" | "refused", number, *digest] if number == str(self._reload):
                worker.answer = digest[0] if digest else "refused"
                self._finish_reload()
            case ["switched"]:
                self._switched(worker)

    def _prepare(self) -> None:
        """First step of a reload: the parent reads the files, and if they are good, all workers do."""
        try:
            self._wanted = load_static(self.config)
        except InvalidConfig as error:
            refuse_reload(self.static, error)
            return
        self._reload += 1
        for worker in self.workers:
            worker.answer = ""
            worker.tell(f"prepare {self._reload}")
        self._finish_reload()

    def _finish_reload(self) -> None:
        """Second step, once all that serve have answered: they switch, if all read the same."""
        wanted = self._wanted
        serving = [worker for worker in self.workers if worker.is_open]
        if wanted is None or not all(worker.answer for worker in serving):
            return
        self._wanted = None
        agreed = all(worker.answer == wanted.digest for worker in serving)
        if agreed:
            report(wanted)
            self.static = wanted
            self._switching = set(serving)
        else:
            _log.error("reload.refused", kept=self.static.digest, hint="The files changed while they were read.")
        for worker in serving:
            worker.tell("switch" if agreed else "drop")

    def _switched(self, worker: Worker) -> None:
        """Note that `worker` serves the new files, or has ended; the reload is done when none is left that did not."""
        if worker in self._switching:
            self._switching.remove(worker)
            if not self._switching:
                serving = sum(other.is_open for other in self.workers)
                _log.info("reload.done", static_digest=self.static.digest, workers=serving)

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

    def _lose(self, worker: Worker) -> bool:
        """Note the end of a worker and see to another; False when the start as a whole has failed."""
        self.workers.remove(worker)
        _log.error("worker.ended", pid=worker.process.pid, code=worker.process.returncode)
        if not self._announced:
            return False
        self._switched(worker)
        self._finish_reload()
        if worker.is_open:
            self._spawn()
        else:
            timer = threading.Timer(self._delay, self.events.put, ["spawn"])
            timer.daemon = True
            timer.start()
            self._delay = min(2 * self._delay, LONGEST_DELAY_SECONDS)
        return True

    def _end_all(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            try:
                worker.process.wait(self.patience)
            except subprocess.TimeoutExpired:
                _log.error("worker.killed", pid=worker.process.pid, hint="It did not end when it was told to.")
                worker.process.kill()
                worker.process.wait()


def next_event(events: "queue.SimpleQueue[object]") -> object:
    """Return the next event; signals are among them.

    Only the main thread runs what Python does at a signal, but the kernel may give the signal to another one: then the
    main thread must not sleep for ever.
    """
    while True:
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=_SIGNAL_SECONDS)


def run_worker(app: App, settings: Settings, events: "queue.SimpleQueue[object]", serve: Callable[[], object]) -> int:
    """Do what the parent writes to standard input, until it ends or a signal comes; `serve` opens the port."""
    threading.Thread(target=_read_orders, args=(events,), daemon=True).start()
    prepared: StaticState | None = None
    _say("loaded", app.snapshots.static.digest)
    while True:
        match next_event(events):
            case signal.SIGTERM | signal.SIGINT | []:
                return 0
            case ["open"]:
                serve()
                freeze()
                _say("open")
            case ["prepare", str(number)]:
                try:
                    prepared = load_static(settings.config)
                    app.prepare_static(prepared)
                    _say("prepared", number, prepared.digest)
                except InvalidConfig:
                    _say("refused", number)
            case ["switch"] if prepared is not None:
                app.replace_static(prepared)
                prepared = None
                _say("switched")
                freeze()
            case ["drop"]:
                prepared = None


def _read_orders(events: "queue.SimpleQueue[object]") -> None:
    for line in sys.stdin:
        events.put(line.split())
    events.put([])


def _say(*words: str) -> None:
    print(*words, flush=True)  # noqa: T201 - the parent reads it.
