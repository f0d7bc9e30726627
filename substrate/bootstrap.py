"""Puts the product together: the only file that knows every class.

`serve` runs a server in this process until a signal ends it; `assemble` makes all of one without starting it.
"""

import gc
import json
import os
import queue
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

from substrate import logs
from substrate.domain.agents import Agent
from substrate.domain.audit import event_id
from substrate.domain.catalog import Candidate
from substrate.domain.eligibility import CallerKind, barrier_of_caller, barrier_of_tools
from substrate.domain.errors import InvalidConfig, SubstrateError
from substrate.domain.identity import Role, authenticate
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.rpc.agents import AgentServicer
from substrate.rpc.audit import AuditServicer
from substrate.rpc.metrics import Metrics
from substrate.rpc.server import Listener, Server, Servicers, UnsafeListenerError
from substrate.rpc.skill_defs import SkillDefServicer
from substrate.rpc.skills import SkillServicer
from substrate.rpc.tenants import TenantServicer
from substrate.services.agents import Agents
from substrate.services.audit import Audit
from substrate.services.audit_writer import AuditWriter
from substrate.services.call import Call
from substrate.services.catalog import CatalogView
from substrate.services.decisions import Decisions
from substrate.services.skill_defs import SkillDefs
from substrate.services.skill_tool import SkillTool
from substrate.services.skills import Skills
from substrate.services.snapshots import Snapshots
from substrate.services.tenants import Tenants, issue_first_key
from substrate.settings import Settings, default_data_dir
from substrate.sources.bundles import SourceProblem
from substrate.sources.static import StaticState, load_static
from substrate.sources.tenant import TenantSource
from substrate.store import migrate as migrations
from substrate.store.audit import ChainWriter
from substrate.store.embedded import EmbeddedPostgres
from substrate.store.embedded_files import EmbeddedPostgresError
from substrate.store.session import Database, UnsafeRolesError, check_roles

DEFAULT_TENANT = TenantId("default")

START_ERRORS = (SubstrateError, EmbeddedPostgresError, UnsafeRolesError, UnsafeListenerError, OSError)
"""Why a start fails for a reason that the person who started it can act on."""

_log = structlog.get_logger("substrate")


class SystemClock:
    """The machine's time and random source."""

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(UTC)

    def event_id(self) -> str:
        """Return a new UUIDv7."""
        return event_id(time.time_ns() // 1_000_000, secrets.token_bytes(10))


@dataclass(frozen=True, slots=True)
class App:
    """All parts of one server."""

    database: Database
    snapshots: Snapshots
    writer: AuditWriter
    server: Server
    metrics: Metrics

    def close(self, drain_seconds: float = 0.0, probe_seconds: float = 0.0) -> None:
        """Stop serving, settle what is in hand, and close every connection."""
        self.server.stop(drain_seconds, probe_seconds)
        self.writer.stop()
        self.database.close()


def assemble(settings: Settings, url: str, static: StaticState) -> App:
    """Make a server on the database at `url`, with its audit writer running; raise UnsafeRolesError."""
    clock = SystemClock()
    metrics = Metrics()
    database = Database(url)
    try:
        check_roles(database)
    except BaseException:
        database.close()
        raise
    source = TenantSource(database)
    snapshots = Snapshots(source, static)
    writer = AuditWriter(ChainWriter(url), metrics.lost)
    decisions = Decisions(
        snapshots=snapshots,
        writer=writer,
        database=database,
        clock=clock,
        server=f"{socket.gethostname()}/{os.getpid()}",
        strict=settings.audit_mode == "strict",
    )
    skills = Skills(decisions, source)

    def admit(call: Call) -> None:
        keys = snapshots.load(call.bearer.tenant, call.started, call.deadline).state.keys
        authenticate(call.bearer, keys.get(call.bearer.key_id), clock.now())

    server = Server(
        Servicers(
            skills=SkillServicer(skills, SkillTool(skills, decisions)),
            skill_defs=SkillDefServicer(SkillDefs(decisions), CatalogView(decisions)),
            agents=AgentServicer(Agents(decisions)),
            tenants=TenantServicer(Tenants(decisions)),
            audit=AuditServicer(Audit(decisions, source)),
        ),
        threads=settings.threads,
        max_calls=settings.max_calls,
        clock=clock,
        authenticate=admit,
        finished=metrics.finished,
    )
    metrics.static_skills(len(static.catalog.resolutions))
    writer.start()
    return App(database, snapshots, writer, server, metrics)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; reload bundles and config on SIGHUP. Return the exit code.

    Raises one of START_ERRORS when the start fails; nothing is left running then.
    """
    logs.configure(settings.log_level, settings.log_format)
    listener = _listener(settings)
    static = load_static(settings.config)
    _report(static)
    if settings.database_url is not None:
        return _serve_on(settings, listener, settings.database_url, static, None)
    with EmbeddedPostgres(settings.data_dir, user=settings.postgres_user) as postgres:
        migrations.migrate(postgres.owner_url)
        url = postgres.url(migrations.LOGIN_ROLE, "substrate")
        return _serve_on(settings, listener, url, static, postgres)


def _serve_on(
    settings: Settings, listener: Listener, url: str, static: StaticState, postgres: EmbeddedPostgres | None
) -> int:
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: signals.put(received))
    app = assemble(settings, url, static)
    try:
        port = app.server.start(listener)
        address = f"{settings.listen.rpartition(':')[0]}:{port}"
        if settings.metrics_port is not None:
            app.metrics.serve(settings.metrics_port)
        keys_file = None
        if postgres is not None:
            keys_file = _write_first_keys(app.database, settings.data_dir, address)
            _watch(postgres, signals)
        # What was loaded by now lives as long as the process, so the collector need not look at it again.
        gc.collect()
        gc.freeze()
        print(_greeting(settings, address, static, keys_file), flush=True)  # noqa: T201 - for the person who started it.
        _log.info("server.started", address=address, static_digest=static.digest)
        return _until_told(settings, app, signals)
    finally:
        app.close(settings.drain_seconds, settings.probe_seconds)
        _log.info("server.stopped")


def _until_told(settings: Settings, app: App, signals: "queue.SimpleQueue[int]") -> int:
    while True:
        received = signals.get()
        if received == signal.SIGHUP:
            reload_static(app, settings.config)
        elif received == signal.SIGCHLD:
            _log.error("postgres.ended", hint="The embedded PostgreSQL ended; start the server again to recover.")
            return 1
        else:
            return 0


def reload_static(app: App, config: Path | None) -> bool:
    """Read bundles and config again; keep the old state whole, and say so, when they cannot be accepted."""
    try:
        static = load_static(config)
    except InvalidConfig as error:
        _log.error(
            "reload.refused",
            kept=app.snapshots.static.digest,
            problems=[f"{v.field}: {v.description}" for v in error.violations],
        )
        return False
    _report(static)
    app.snapshots.replace_static(static)
    app.metrics.static_skills(len(static.catalog.resolutions))
    _log.info("reload.done", static_digest=static.digest)
    return True


def migrate(owner_url: str, login_role: str = migrations.LOGIN_ROLE, login_password: str | None = None) -> None:
    """Bring the database to the newest schema and make the role that the server logs in as."""
    migrations.migrate(owner_url, login_role=login_role, login_password=login_password)


def bootstrap_operator(settings: Settings) -> str:
    """Make the first operator key of the database in `settings` and return its text; raise KeyExists."""
    if settings.database_url is None:
        raise InvalidConfig(summary="Set the database URL; an embedded server makes its first keys itself.")
    database = Database(settings.database_url)
    try:
        check_roles(database)
        return issue_first_key(database, SystemClock(), PLATFORM_TENANT, Role.OPERATOR, "bootstrap")
    finally:
        database.close()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found: problems of files (`fatal` ones quarantine or refuse), and warnings as (place, message)."""

    problems: Sequence[SourceProblem] = ()
    warnings: Sequence[tuple[str, str]] = ()
    skills: int = 0
    agents: int = 0
    refused: Sequence[tuple[str, str]] = field(default_factory=tuple)


def check(config: Path | None, bundles: Sequence[Path] = ()) -> CheckReport:
    """Load what the server would load, or `bundles` in place of the configured ones, and report everything odd."""
    try:
        static = load_static(config, bundles)
    except InvalidConfig as error:
        return CheckReport(refused=[(v.field, v.description) for v in error.violations])
    warnings = [
        (f"{agent.origin}: agents.{agent.name}.skills[{warning.index}]", f"'{warning.entry}' {warning.message}")
        for agent in static.agents.values()
        for warning in agent.allowlist.warnings
    ]
    return CheckReport(static.problems, warnings, len(static.catalog.resolutions), len(static.agents))


def _listener(settings: Settings) -> Listener:
    if (settings.tls_certificate is None) is not (settings.tls_key is None):
        raise InvalidConfig(summary="Set both the TLS certificate and the TLS key, or neither.")
    certificate = settings.tls_certificate.read_bytes() if settings.tls_certificate else None
    key = settings.tls_key.read_bytes() if settings.tls_key else None
    return Listener(settings.listen, certificate, key, settings.insecure)


def _report(static: StaticState) -> None:
    for problem in static.problems:
        say = _log.error if problem.fatal else _log.warning
        say("skill.quarantined" if problem.fatal else "skill.noted", place=problem.place, message=problem.message)


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
    known["address"] = address
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(known, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return path


def _watch(postgres: EmbeddedPostgres, signals: "queue.SimpleQueue[int]") -> None:
    """Tell the main loop when the embedded PostgreSQL ends by itself."""
    process = postgres.process
    if process is None:
        return

    def wait() -> None:
        process.wait()
        signals.put(signal.SIGCHLD)

    threading.Thread(target=wait, name="postgres-watch", daemon=True).start()


def _greeting(settings: Settings, address: str, static: StaticState, keys_file: Path | None) -> str:
    skills, agents, bundles = len(static.catalog.resolutions), len(static.agents), len(static.bundles)
    lines = [f"Serving on {address}: {skills} skills, {agents} agents, {bundles} bundles."]
    if keys_file is not None:
        keys = f"Tenant '{DEFAULT_TENANT}'; its keys, and the operator's, are in {keys_file}, where commands find them."
        lines += [keys, *_commands_to_try(settings, static)]
    return "\n".join(lines)


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
    commands = (["skill", "list"], ["skill", "invoke", skill], ["audit", "explain", skill])
    return ["In another shell:", *(f"  {shlex.join([*program, *command, *options])}" for command in commands)]


def _usable(agent: Agent, skill: Candidate) -> bool:
    """Whether a model that runs as `agent` may invoke the skill, whatever it works on."""
    return (barrier_of_tools(agent, skill) or barrier_of_caller(skill, CallerKind.MODEL, ())) is None
