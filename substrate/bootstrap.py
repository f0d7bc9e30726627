"""Puts the parts of a server together: the only file that knows them all.

`assemble` makes all parts of a server without starting it; the rest is what is done to a server or its database as a
whole. Running one as a process is the business of `substrate.serving`.
"""

import gc
import os
import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import structlog

from substrate.domain.audit import event_id
from substrate.domain.errors import InvalidConfig, SubstrateError
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.rpc.admission import Admission
from substrate.rpc.agents import AgentServicer
from substrate.rpc.audit import AuditServicer
from substrate.rpc.metrics import Metrics
from substrate.rpc.server import Server, Servicers, UnsafeListenerError
from substrate.rpc.skill_defs import SkillDefServicer
from substrate.rpc.skills import SkillServicer
from substrate.rpc.tenants import TenantServicer
from substrate.services.agents import Agents
from substrate.services.archives import Archives
from substrate.services.audit import Audit
from substrate.services.audit_writer import AuditWriter
from substrate.services.catalog import CatalogView
from substrate.services.checkpoints import Checkpointer
from substrate.services.decisions import Decisions
from substrate.services.explain import Explain
from substrate.services.history import History
from substrate.services.keys import Keys, issue_first_key
from substrate.services.retention import ChainsNotIntactError, DroppedMonth, Retention
from substrate.services.skill_def_views import SkillDefViews
from substrate.services.skill_defs import SkillDefs
from substrate.services.skill_tool import SkillTool
from substrate.services.skills import Skills
from substrate.services.snapshots import Snapshots
from substrate.services.static_states import keep_static, load_event
from substrate.services.tallies import Tallies
from substrate.services.tenants import Tenants
from substrate.services.usage import Usage
from substrate.services.verification import KeptCheckpoints, Verification
from substrate.services.who_can import WhoCan
from substrate.services.writers import Writers
from substrate.settings import Settings
from substrate.sources.bundles import SourceProblem
from substrate.sources.static import StaticState, load_static
from substrate.sources.tenant import TenantSource
from substrate.store import migrate as migrations
from substrate.store.chain_writer import ChainWriter
from substrate.store.checkpoint_file import CheckpointFile
from substrate.store.embedded import running_owner_url
from substrate.store.embedded_files import EmbeddedPostgresError
from substrate.store.retention import OwnedAudit, TooManyStragglersError
from substrate.store.session import Database, UnsafeRolesError, check_roles
from substrate.store.signing_keys import made_signing_key, signing_key

DEFAULT_TENANT = TenantId("default")

START_ERRORS = (SubstrateError, EmbeddedPostgresError, UnsafeRolesError, UnsafeListenerError, OSError)
"""Why a start fails for a reason that the person who started it can act on."""

RETENTION_ERRORS = (*START_ERRORS, ChainsNotIntactError, TooManyStragglersError)
"""Why months of the audit are not dropped."""

_GC_THRESHOLD = 10_000

_log = structlog.get_logger("substrate")


class SystemClock:
    """The machine's time, and ids that no two processes share."""

    def __init__(self) -> None:
        # Seeded by the system, but without a system call for every id, which no secret depends on.
        self._random = random.Random()  # noqa: S311 - ids are no secrets.

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(UTC)

    def event_id(self) -> str:
        """Return a new UUIDv7."""
        return event_id(time.time_ns() // 1_000_000, self._random.randbytes(10))


@dataclass(frozen=True, slots=True)
class App:
    """All parts of one server."""

    database: Database
    snapshots: Snapshots
    writer: AuditWriter
    server: Server
    metrics: Metrics
    clock: SystemClock
    name: str

    def prepare_static(self, static: StaticState) -> None:
        """Do what takes time before `static` can be served."""
        keep_static(self.database, static)

    def replace_static(self, static: StaticState) -> None:
        """Let every later call see `static`, which was prepared, and record that."""
        self.writer.announce(load_event(self.clock, self.name, static, self.snapshots.static))
        self.snapshots.replace_static(static)
        self.metrics.static_skills(len(static.catalog.resolutions))

    def close(self, drain_seconds: float = 0.0, probe_seconds: float = 0.0) -> None:
        """Stop serving, settle what is in hand, and close every connection."""
        self.server.stop(drain_seconds, probe_seconds)
        self.database.interrupt()
        self.server.join()
        self.writer.stop()
        self.database.close()


def assemble(settings: Settings, url: str, static: StaticState, *, share_port: bool = False) -> App:
    """Make a server on the database at `url`, its audit writer running; raise UnsafeRolesError or StoreUnavailable.

    `share_port` lets other processes serve on the same port.
    """
    clock = SystemClock()
    metrics = Metrics()
    database = Database(url, pool_size=settings.threads)
    try:
        check_roles(database)
        migrations.check_schema(database)
    except BaseException:
        database.close()
        raise
    source = TenantSource(database)
    snapshots = Snapshots(source, static, metrics)
    name = f"{socket.gethostname()}/{os.getpid()}"
    writer = AuditWriter(ChainWriter(url), Tallies(clock, name), metrics)
    decisions = Decisions(
        snapshots=snapshots,
        writer=writer,
        database=database,
        clock=clock,
        server=name,
        writers=Writers(settings.threads),
        resolved=metrics.resolved,
        strict=settings.audit_mode == "strict",
        strict_lists=settings.audit_lists == "strict",
    )
    skills = Skills(decisions, source)

    server = Server(
        Servicers(
            skills=SkillServicer(skills, SkillTool(skills, decisions)),
            skill_defs=SkillDefServicer(
                SkillDefs(decisions), SkillDefViews(decisions), Archives(decisions), CatalogView(decisions)
            ),
            agents=AgentServicer(Agents(decisions)),
            tenants=TenantServicer(Tenants(decisions), Keys(decisions)),
            audit=AuditServicer(
                Audit(decisions),
                Explain(decisions),
                WhoCan(decisions),
                History(decisions),
                Usage(decisions),
                Verification(decisions, KeptCheckpoints(settings.checkpoints_file, settings.signing_key_file)),
            ),
        ),
        admission=Admission(
            settings.threads,
            settings.max_calls,
            settings.workers,
            lambda bearer: snapshots.standing(bearer, clock.now()),
        ),
        clock=clock,
        authenticate=decisions.authenticate,
        keyless=lambda: writer.unproven(PLATFORM_TENANT, "none"),
        finished=metrics.finished,
        share_port=share_port,
    )
    metrics.static_skills(len(static.catalog.resolutions))
    if decisions.strict:
        writer.tell(lambda healthy: server.set_healthy(healthy=healthy))
    writer.start()
    keep_static(database, static)
    writer.announce(load_event(clock, name, static, None))
    return App(database, snapshots, writer, server, metrics, clock, name)


@contextmanager
def checkpointing(settings: Settings, url: str) -> Iterator[Checkpointer]:
    """Give what signs the audit's chains in the database at `url`, yet to be started; it ends with the block.

    The key is made when none is named. Raises InvalidConfig when key or file cannot be used.
    """
    named = settings.audit_signing_key
    key = signing_key(named) if named is not None else made_signing_key(settings.signing_key_file)
    file = CheckpointFile(settings.checkpoints_file, key)
    database = Database(url, pool_size=1)
    checkpointer = Checkpointer(database, file, SystemClock())
    try:
        yield checkpointer
    finally:
        checkpointer.stop()
        database.close()


def reload_static(app: App, config: Path | None) -> bool:
    """Read bundles and config again; keep the old state whole, and say so, when they cannot be accepted."""
    try:
        static = load_static(config)
    except InvalidConfig as error:
        refuse_reload(app.snapshots.static, error)
        return False
    report(static)
    app.prepare_static(static)
    app.replace_static(static)
    freeze()
    _log.info("reload.done", static_digest=static.digest)
    return True


def refuse_reload(kept: StaticState, error: InvalidConfig) -> None:
    """Log every reason why new files cannot be accepted, and which state is kept."""
    problems = [f"{violation.field}: {violation.description}" for violation in error.violations]
    _log.error("reload.refused", kept=kept.digest, problems=problems)


def report(static: StaticState) -> None:
    """Log what is odd about the files of `static`."""
    for problem in static.problems:
        say = _log.error if problem.fatal else _log.warning
        say("skill.quarantined" if problem.fatal else "skill.noted", place=problem.place, message=problem.message)


def freeze() -> None:
    """Take what was loaded by now, which lives as long as the process, out of the collector's sight.

    The collector then looks at what is new a tenth as often: the calls in hand alone are more than its usual threshold,
    and nothing in them is for it to find.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def migrate(
    owner_url: str,
    login_role: str = migrations.LOGIN_ROLE,
    login_password: str | None = None,
    *,
    restored: bool = False,
) -> None:
    """Bring the database to the newest schema and make the role that the server logs in as.

    `restored` says that it is an older copy of the database that servers were on.
    """
    migrations.migrate(owner_url, login_role=login_role, login_password=login_password, restored=restored)


def retention(settings: Settings, before: date) -> Iterator[DroppedMonth]:
    """Drop the months of the audit before the one that begins with `before`, one after the other; yields each.

    The database URL is the owner's; without one it is the embedded database that a server runs in the data folder.
    Raises one of RETENTION_ERRORS.
    """
    url = settings.database_url or running_owner_url(settings.data_dir, settings.postgres_user)
    kept = KeptCheckpoints(settings.checkpoints_file, settings.signing_key_file)
    if not kept.file.exists():
        raise InvalidConfig(summary=f"{kept.file} is not there; name the server's own file of checkpoints.")
    file = CheckpointFile(kept.file, signing_key(kept.key))
    yield from Retention(OwnedAudit(url), kept, file, SystemClock()).drop_before(before)


def bootstrap_operator(settings: Settings) -> str:
    """Make the first operator key of the database in `settings` and return its text; raise KeyExists."""
    if settings.database_url is None:
        raise InvalidConfig(summary="Set the database URL; an embedded server makes its first keys itself.")
    database = Database(settings.database_url)
    try:
        check_roles(database)
        migrations.check_schema(database)
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
    skills = sum(resolution.winner is not None for resolution in static.catalog.resolutions.values())
    return CheckReport(static.problems, warnings, skills, len(static.agents))
