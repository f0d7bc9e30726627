"""A server as a process: its own PostgreSQL if it needs one, its first keys, signals, reloads, and an orderly end."""

import json
import os
import queue
import shlex
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog

from substrate import logs
from substrate.bootstrap import (
    DEFAULT_TENANT,
    App,
    SystemClock,
    assemble,
    checkpointing,
    freeze,
    reload_static,
    report,
)
from substrate.domain.agents import Agent
from substrate.domain.candidates import Candidate
from substrate.domain.eligibility import CallerKind, barrier_of_caller, barrier_of_tools, tools_of
from substrate.domain.errors import InvalidConfig
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.metrics import serve_merged
from substrate.rpc.server import Listener, require_safe
from substrate.services.checkpoints import Checkpointer
from substrate.services.keys import issue_first_key
from substrate.settings import Settings, default_data_dir
from substrate.sources.static import StaticState, load_static
from substrate.store import migrate as migrations
from substrate.store.embedded import EmbeddedPostgres
from substrate.store.session import Database
from substrate.workers import Supervisor, next_event, run_worker

_CONNECTIONS_BESIDE_THREADS = 12
_LEAST_CONNECTIONS = 100
_END_SECONDS = 10.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared with, not listened on.

_log = structlog.get_logger("substrate")


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; reload bundles and config on SIGHUP. Return the exit code.

    Raises one of START_ERRORS when the start fails; nothing is left running then.
    """
    logs.configure(settings.log_level, settings.log_format)
    listener = _listener(settings)
    static = load_static(settings.config)
    report(static)
    events = _events()
    # The checkpoints end last, so that they hold what the server records when it ends.
    with _database(settings, events) as (url, embedded), checkpointing(settings, url) as checkpointer:
        run = _serve_alone if settings.workers == 1 else _serve_with_workers
        return run(settings, listener, url, static, events, checkpointer, embedded=embedded)


def serve_worker(settings: Settings) -> int:
    """Serve as one of the workers that a parent started, on the port and the database that it names."""
    logs.configure(settings.log_level, settings.log_format)
    if settings.database_url is None:
        raise InvalidConfig(summary="A worker is given its database by its parent.")
    events = _events()
    try:
        static = load_static(settings.config)
    except InvalidConfig as error:
        _log.error("worker.config_refused", problems=[f"{v.field}: {v.description}" for v in error.violations])
        return 1
    app = assemble(settings, settings.database_url, static, share_port=True)
    try:
        return run_worker(app, settings, events, partial(app.server.start, _listener(settings)))
    finally:
        app.close(settings.drain_seconds, settings.probe_seconds)


def _events() -> "queue.SimpleQueue[object]":
    """Return a queue that signals are put to from now on."""
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: events.put(received))
    return events


@contextmanager
def _database(settings: Settings, events: "queue.SimpleQueue[object]") -> Iterator[tuple[str, bool]]:
    """Give the login URL of the database to use, and whether it is our own, which then runs meanwhile."""
    if settings.database_url is not None:
        yield settings.database_url, False
        return
    connections = settings.workers * (settings.threads + _CONNECTIONS_BESIDE_THREADS)
    own = {"max_connections": str(max(_LEAST_CONNECTIONS, connections))}
    with EmbeddedPostgres(settings.data_dir, user=settings.postgres_user, settings=own) as postgres:
        migrations.migrate(postgres.owner_url)
        _watch(postgres, events)
        yield postgres.url(migrations.LOGIN_ROLE, "substrate"), True


def _serve_alone(
    settings: Settings,
    listener: Listener,
    url: str,
    static: StaticState,
    events: "queue.SimpleQueue[object]",
    checkpointer: Checkpointer,
    *,
    embedded: bool,
) -> int:
    app = assemble(settings, url, static)
    try:
        port = app.server.start(listener)
        checkpointer.start()
        address = f"{settings.listen.rpartition(':')[0]}:{port}"
        if settings.metrics_port is not None:
            app.metrics.serve(settings.metrics_port)
        keys_file = _write_first_keys(app.database, settings.data_dir, address) if embedded else None
        freeze()
        _greet(settings, address, static, keys_file)
        return _until_told(settings, app, events)
    finally:
        app.close(settings.drain_seconds, settings.probe_seconds)
        _log.info("server.stopped")


def _until_told(settings: Settings, app: App, events: "queue.SimpleQueue[object]") -> int:
    while True:
        match next_event(events):
            case signal.SIGHUP:
                reload_static(app, settings.config)
            case signal.SIGCHLD:
                _log.error("postgres.ended", hint="The embedded PostgreSQL ended; start the server again to recover.")
                return 1
            case _:
                return 0


def _serve_with_workers(
    settings: Settings,
    listener: Listener,
    url: str,
    static: StaticState,
    events: "queue.SimpleQueue[object]",
    checkpointer: Checkpointer,
    *,
    embedded: bool,
) -> int:
    require_safe(listener)
    host, _, port = settings.listen.rpartition(":")
    if port == "0":
        raise InvalidConfig(summary="Several workers need a port to share; name one other than 0.")
    # The workers share the port, so that a second server on it would go unnoticed if nobody looked beforehand.
    socket.create_server(
        (host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ).close()
    with tempfile.TemporaryDirectory(prefix="substrate-metrics-") as counters:

        def on_ready() -> None:
            checkpointer.start()
            if settings.metrics_port is not None:
                serve_merged(settings.metrics_port, counters)
            keys_file = None
            if embedded:
                database = Database(url, pool_size=1)
                keys_file = _write_first_keys(database, settings.data_dir, settings.listen)
                database.close()
            _greet(settings, settings.listen, static, keys_file)

        # The number of workers is left in: each of them divides the tenants' quotas of calls by it.
        environment = settings.environment(database_url=url, metrics_port=None)
        supervisor = Supervisor(
            count=settings.workers,
            environment={**environment, "PROMETHEUS_MULTIPROC_DIR": counters},
            config=settings.config,
            static=static,
            events=events,
            on_ready=on_ready,
            patience=settings.drain_seconds + settings.probe_seconds + _END_SECONDS,
        )
        code = supervisor.run()
        _log.info("server.stopped")
        return code


def _listener(settings: Settings) -> Listener:
    if (settings.tls_certificate is None) is not (settings.tls_key is None):
        raise InvalidConfig(summary="Set both the TLS certificate and the TLS key, or neither.")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise InvalidConfig(
            summary="Set the TLS certificate and key too: clients show theirs on TLS connections alone."
        )
    certificate, key, client_ca = (
        path.read_bytes() if path is not None else None
        for path in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    )
    return Listener(settings.listen, certificate, key, settings.insecure, client_ca)


def _reachable(address: str) -> str:
    """Return where commands on this machine reach a server that listens on `address`."""
    host, _, port = address.rpartition(":")
    return f"{_ANY_ADDRESS.get(host, host)}:{port}"


def _write_first_keys(database: Database, data_dir: Path, address: str) -> Path:
    """Make the first tenant and keys of a new embedded database, or refresh the address beside those made before."""
    path = data_dir / "keys.json"
    try:
        known = json.loads(path.read_text())
    except FileNotFoundError:
        owners = {Role.OPERATOR: PLATFORM_TENANT, Role.AUTHOR: DEFAULT_TENANT, Role.RUNTIME: DEFAULT_TENANT}
        # Keys are replaced where the file is gone, or where the server was killed before it had written the file.
        keys = {
            role.value: issue_first_key(database, SystemClock(), owner, role, "first", replace=True)
            for role, owner in owners.items()
        }
        known = {"tenant": DEFAULT_TENANT, "keys": keys}
    except ValueError:
        raise InvalidConfig(summary=f"{path} is damaged; remove it, and the start makes new keys.") from None
    known["address"] = _reachable(address)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(known, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return path


def _watch(postgres: EmbeddedPostgres, events: "queue.SimpleQueue[object]") -> None:
    """Tell the main loop when the embedded PostgreSQL ends by itself."""
    process = postgres.process
    if process is None:
        return

    def wait() -> None:
        process.wait()
        events.put(signal.SIGCHLD)

    threading.Thread(target=wait, name="postgres-watch", daemon=True).start()


def _greet(settings: Settings, address: str, static: StaticState, keys_file: Path | None) -> None:
    """Tell the person who started the server where it is and what to try."""
    skills, agents, bundles = len(static.catalog.resolutions), len(static.agents), len(static.bundles)
    lines = [f"Serving on {address}: {skills} skills, {agents} agents, {bundles} bundles."]
    if keys_file is not None:
        keys = f"Tenant '{DEFAULT_TENANT}'; its keys, and the operator's, are in {keys_file}, where commands find them."
        lines += [keys, *_commands_to_try(settings, static)]
    print("\n".join(lines), flush=True)  # noqa: T201 - this is meant for people, not for the log.
    _log.info("server.started", address=address, static_digest=static.digest)


def _commands_to_try(settings: Settings, static: StaticState) -> list[str]:
    usable = (
        (agent.name, name)
        for agent in static.agents.values()
        for name, resolution in static.catalog.resolutions.items()
        if agent.allowlist.decide(name).allowed and resolution.winner and _usable(agent, resolution.winner)
    )
    agent_and_skill = next(usable, None)
    if agent_and_skill is None:
        return []
    agent, skill = agent_and_skill
    program = [sys.argv[0]] if Path(sys.argv[0]).name == "substrate" else [sys.executable, "-m", "substrate"]
    options = ["--agent", agent]
    if settings.data_dir != default_data_dir():
        options += ["--data-dir", str(settings.data_dir.absolute())]
    if settings.tls_certificate is not None:
        options += ["--root-certificates", str(settings.tls_certificate.absolute())]
    if settings.tls_client_ca is not None:
        options += ["--client-certificate", "CLIENT.pem", "--client-key", "CLIENT-KEY.pem"]
    commands = (["skill", "list"], ["skill", "invoke", skill], ["audit", "explain", skill])
    return ["In another shell:", *(f"  {shlex.join([*program, *command, *options])}" for command in commands)]


def _usable(agent: Agent, skill: Candidate) -> bool:
    """Whether a model that runs as `agent` may invoke the skill, whatever it works on."""
    return (
        barrier_of_tools(skill.name, tools_of(skill), agent) or barrier_of_caller(skill, CallerKind.MODEL, ())
    ) is None
