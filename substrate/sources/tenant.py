"""The tenant source: SkillDefs and tombstones in PostgreSQL as two layers, with the tenant's agents and keys.

Everything is read in one REPEATABLE READ transaction together with the catalog revision it stands for. A row whose
digest does not match its content, or whose parts cannot be read, becomes a quarantined candidate: an error for that
name, never a fall-through to the layer below.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import Candidate, Layer, LayerKind, Resolution, Standing, Versions, pairs_of
from substrate.domain.catalog import Catalog
from substrate.domain.errors import InvalidInput, SkillQuarantined
from substrate.domain.identity import Key
from substrate.domain.names import AgentName, KeyId, SkillName, SkillRef, TenantId
from substrate.domain.quotas import Quotas
from substrate.domain.skillheader import content_sha256, header_from_plain
from substrate.store import agents, labels, skill_defs, tenants
from substrate.store.session import Database, Transaction
from substrate.store.skill_defs import SkillDef, Version


@dataclass(frozen=True, slots=True)
class TenantState:
    """What the database says of one tenant at one revision; `revision` is None when there is no such tenant.

    `layers` holds the tombstones above the SkillDefs. An agent whose row cannot be read is None: it is refused rather
    than replaced by one of a lower layer. `versions` are those that labels and agents' pins point at; `suspended` is
    why the tenant is suspended, and None when it is not; `arguments_key` is what the arguments of its calls are
    recorded under.
    """

    tenant: TenantId
    incarnation: str
    revision: int | None
    layers: tuple[Layer, ...] = ()
    agents: Mapping[AgentName, Agent | None] = field(default_factory=dict)
    keys: Mapping[KeyId, Key] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    quotas: Quotas = field(default_factory=Quotas)
    suspended: str | None = None
    arguments_key: bytes = field(default=b"", repr=False)


def read_state(connection: Transaction, tenant: TenantId) -> TenantState:
    """Read everything of `tenant` in the caller's transaction, which must be of that tenant."""
    row = tenants.get(connection, tenant)
    incarnation = tenants.incarnation(connection)
    if row is None:
        return TenantState(tenant, incarnation, None)
    own = _agents(connection, tenant)
    return TenantState(
        tenant=tenant,
        incarnation=incarnation,
        revision=row.catalog_revision,
        layers=read_layers(connection, tenant),
        agents=own,
        keys=tenants.keys_of(connection, tenant),
        versions=read_versions(connection, tenant, own.values()),
        quotas=row.quotas,
        suspended=None if row.suspended_at is None else row.suspend_reason,
        arguments_key=row.arguments_key,
    )


def read_name(connection: Transaction, tenant: TenantId, name: SkillName) -> TenantState:
    """Read of `tenant` what decides about `name`: its agents, and of skills that name's alone; neither keys nor quotas.

    Otherwise as `read_state`.
    """
    row = tenants.get(connection, tenant)
    incarnation = tenants.incarnation(connection)
    if row is None:
        return TenantState(tenant, incarnation, None)
    own = _agents(connection, tenant)
    return TenantState(
        tenant=tenant,
        incarnation=incarnation,
        revision=row.catalog_revision,
        layers=read_layers(connection, tenant, name),
        agents=own,
        versions=read_versions(connection, tenant, own.values(), name),
        suspended=None if row.suspended_at is None else row.suspend_reason,
    )


def read_versions(
    connection: Transaction, tenant: TenantId, own: Iterable[Agent | None], only: SkillName | None = None
) -> Versions:
    """Read the tenant's labels, and the versions that they and the pins of its agents point at; of `only` one name."""
    pointing: dict[SkillName, dict[str, int]] = {}
    for label in labels.of_tenant(connection, tenant, None if only is None else [only]):
        pointing.setdefault(label.name, {})[label.label] = label.version
    wanted = {(name, number) for name, of_name in pointing.items() for number in of_name.values()}
    pinned = Versions(labels=pointing)
    for agent in own:
        for name, pin in (agent.pins if agent else {}).items():
            number = pinned.number_of(name, pin)
            if number is not None and only in (None, name):
                wanted.add((name, number))
    found = skill_defs.some_versions(connection, tenant, sorted(wanted))
    return Versions({(row.name, row.version): version_candidate(row) for row in found}, pointing)


def read_layers(connection: Transaction, tenant: TenantId, name: SkillName | None = None) -> tuple[Layer, Layer]:
    """Read the tenant's tombstones and SkillDefs as layers, the upper first; only those of `name` when it is given."""
    tombstones = {
        row.name: Candidate(row.name, LayerKind.TENANT, "tenant", Standing.DISABLED, problem=row.reason)
        for row in skill_defs.disabled(connection, tenant)
        if name in (None, row.name)
    }
    definitions = {row.name: candidate_of(row, active) for row, active in skill_defs.all_of(connection, tenant, name)}
    return (
        Layer(LayerKind.TENANT, "tenant:disabled", tombstones),
        Layer(LayerKind.TENANT, "tenant", definitions),
    )


def candidate_of(row: SkillDef, active: Version | None) -> Candidate:
    """Return what a SkillDef says: a draft as long as no version was promoted, an active one, or a retired one."""
    if active is None and row.active_version is not None:
        problem = f"Its version {row.active_version}, which is in effect, is missing."
        return Candidate(row.name, LayerKind.TENANT, "tenant", Standing.QUARANTINED, problem=problem)
    if active is None:
        standing = Standing.DRAFT if row.retired_at is None else Standing.RETIRED
        return Candidate(row.name, LayerKind.TENANT, "tenant", standing)
    candidate = version_candidate(active)
    if row.retired_at is not None and candidate.standing is Standing.ACTIVE:
        return replace(candidate, standing=Standing.RETIRED)
    return candidate


def version_candidate(version: Version) -> Candidate:
    """Return one version as a candidate: active once it was promoted, quarantined when its row is corrupt."""
    candidate = Candidate(
        name=version.name,
        kind=LayerKind.TENANT,
        origin=f"tenant:v{version.version}",
        version=version.version,
        content_sha256=version.content_sha256,
        positional_base=version.positional_base,
        files=version.files,
    )
    try:
        header = header_from_plain(version.header)
        sound = content_sha256(header, version.body, pairs_of(version.files)) == version.content_sha256
    except InvalidInput as error:
        return replace(candidate, standing=Standing.QUARANTINED, problem=f"Its stored header is invalid: {error}")
    if not sound:
        problem = "Its stored content does not match its digest."
        return replace(candidate, standing=Standing.QUARANTINED, problem=problem)
    standing = Standing.DRAFT if version.promoted_at is None else Standing.ACTIVE
    return replace(candidate, standing=standing, header=header)


def _agents(connection: Transaction, tenant: TenantId) -> Mapping[AgentName, Agent | None]:
    found: dict[AgentName, Agent | None] = {}
    for name, plain, row in agents.all_of(connection, tenant):
        try:
            agent = parse_agent(name, plain, LayerKind.TENANT, f"tenant:r{row.revision}")
            found[name] = replace(agent, created_at=row.created_at, updated_at=row.updated_at, revision=row.revision)
        except InvalidInput:
            found[name] = None
    return found


class TenantSource:
    """Reads tenants' states, and bodies as they are invoked; bodies are kept by digest within a byte budget."""

    def __init__(self, database: Database, body_budget: int = 32 * 1024 * 1024) -> None:
        self._database = database
        self._budget = body_budget
        self._held = 0
        self._bodies: OrderedDict[tuple[TenantId, SkillName, str], str] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, tenant: TenantId, deadline: float | None) -> TenantState:
        """Read the state of `tenant` in a transaction of its own."""
        with self._database.tenant(tenant, deadline, snapshot=True) as connection:
            return read_state(connection, tenant)

    def resolve(
        self, catalog: Catalog, tenant: TenantId, ref: SkillRef, deadline: float | None, *, drafts: bool = False
    ) -> Resolution:
        """Resolve `ref` in the tenant's `catalog`; a version other than the active one is read from the database.

        `drafts` lets it be one that was never promoted.
        """
        number = ref.qualifier.version if ref.qualifier else None
        if number is None:
            return catalog.resolve(ref)
        own = catalog.skill_def(ref.name)
        if own is None or own.version == number:
            return catalog.resolve(ref)
        return catalog.resolve(ref, self.version(tenant, ref.name, number, deadline), drafts=drafts)

    def version(self, tenant: TenantId, name: SkillName, number: int, deadline: float | None) -> Candidate | None:
        """Return one version of a SkillDef as it is stored; None when there is no such version."""
        with self._database.tenant(tenant, deadline) as connection:
            found = skill_defs.version(connection, tenant, name, number)
        return version_candidate(found) if found else None

    def file(self, tenant: TenantId, candidate: Candidate, path: str, deadline: float | None) -> bytes:
        """Return a file of a version; raise SkillQuarantined when what is stored is not what was decided on."""
        file = next(file for file in candidate.files if file.path == path)
        with self._database.tenant(tenant, deadline) as connection:
            content = skill_defs.file(connection, tenant, file.sha256)
        if content is None or hashlib.sha256(content).hexdigest() != file.sha256:
            raise SkillQuarantined(f"The stored file '{path}' of '{candidate.name}' is corrupt.", name=candidate.name)
        return content

    def body(self, tenant: TenantId, candidate: Candidate, deadline: float | None) -> str:
        """Return the body of a version; raise SkillQuarantined when the row no longer gives what was decided on."""
        key = (tenant, candidate.name, candidate.content_sha256)
        with self._lock:
            known = self._bodies.get(key)
            if known is not None:
                self._bodies.move_to_end(key)
                return known
        with self._database.tenant(tenant, deadline) as connection:
            found = skill_defs.version(connection, tenant, candidate.name, candidate.version or 0)
        if found is None or version_candidate(found).standing is Standing.QUARANTINED:
            raise SkillQuarantined(
                f"The stored version {candidate.version} of '{candidate.name}' is corrupt.", name=candidate.name
            )
        if found.content_sha256 != candidate.content_sha256:
            raise SkillQuarantined(
                f"The stored version {candidate.version} of '{candidate.name}' was replaced.", name=candidate.name
            )
        self._keep(key, found.body)
        return found.body

    def _keep(self, key: tuple[TenantId, SkillName, str], body: str) -> None:
        with self._lock:
            if key not in self._bodies:
                self._bodies[key] = body
                self._held += len(body)
            while self._held > self._budget:
                _, dropped = self._bodies.popitem(last=False)
                self._held -= len(dropped)
