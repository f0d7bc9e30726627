"""What every change of a SkillDef has in common: who may, on which state, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from substrate.domain.candidates import Standing
from substrate.domain.catalog import Catalog, NameMode
from substrate.domain.effect import Effect, effect_of
from substrate.domain.eligibility import barrier_of_tools, tools_of
from substrate.domain.errors import (
    EtagMismatch,
    InvalidArgument,
    InvalidSkill,
    NameLocked,
    ReviewRequired,
    RoleRequired,
    SkillDefNotFound,
    TooLarge,
    Violation,
)
from substrate.domain.identity import Role
from substrate.domain.names import (
    PLATFORM_TENANT,
    SkillName,
    TenantId,
    parse_skill_name,
    parse_tenant_id,
    slug_problem,
)
from substrate.domain.skillheader import SkillHeader
from substrate.domain.skillmd import Skill, parse_strict
from substrate.services.access import acting_agent, gate, require_role
from substrate.services.call import Call
from substrate.services.trace import Trace
from substrate.sources.tenant import read_layers, read_versions
from substrate.store import labels, skill_defs, tenants
from substrate.store.labels import Label
from substrate.store.session import Transaction
from substrate.store.skill_defs import SkillDef, Version

MAX_SOURCE_LENGTH = 256 * 1024


@dataclass(frozen=True, slots=True)
class Authored:
    """A SkillDef after a change or as it was read.

    `skill_def` is None when the tenant has none of the name, `version` when no version is meant. `etag` is the name's.
    """

    skill_def: SkillDef | None
    version: Version | None
    effect: Effect
    labels: tuple[Label, ...] = ()
    etag: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def disabled(self) -> bool:
        """Whether a tombstone of the tenant stands on the name."""
        return any(ruling.candidate.standing is Standing.DISABLED for ruling in self.effect.after.rulings)


def inside(call: Call, tenant: str) -> TenantId | None:
    """Return the tenant that an operator named to work in; None for everybody else, who may name none."""
    named = call.bearer.tenant == PLATFORM_TENANT and tenant and not slug_problem(tenant)
    return TenantId(tenant) if named else None


def begin(trace: Trace, agent: str, name: str, *, reviews: bool = False, tenant: str = "") -> SkillName:
    """Check role, tenant, agent and name, and put the name to the gate; nothing has been looked up by then.

    With `reviews` operators are admitted too, who must name a `tenant`.
    """
    require_role(trace, *((Role.AUTHOR, Role.OPERATOR) if reviews else (Role.AUTHOR,)))
    if trace.principal.role is Role.OPERATOR:
        named = parse_tenant_id(tenant)
        if trace.subject is None:
            raise tenants.no_tenant(named)
        if agent:
            raise InvalidArgument("agent", "Operators act for themselves; leave it empty.")
    elif tenant:
        raise RoleRequired("Only operators name a tenant; yours is that of your key.", roles=Role.OPERATOR.value)
    else:
        acting_agent(trace, agent)
    bare = parse_skill_name(name)
    trace.requested = name
    gate(trace, bare)
    return bare


def author_of(trace: Trace) -> str:
    """Return whom versions record: the principal, with its tenant before it when that is another."""
    principal = trace.principal
    return principal.name if trace.tenant == principal.tenant else f"{principal.tenant}/{principal.name}"


def parse_source(source: str, name: SkillName) -> Skill:
    """Read a SKILL.md for `name` by the strict rules; raise TooLarge or InvalidSkill."""
    if len(source) > MAX_SOURCE_LENGTH:
        raise TooLarge(f"The source has more than {MAX_SOURCE_LENGTH} characters.", limit=str(MAX_SOURCE_LENGTH))
    return parse_strict(source, name=name.rpartition("/")[2])


def parse_bytes(source: bytes, name: SkillName) -> Skill:
    """Read an archived SKILL.md for `name`; raise InvalidSkill with violations of the field ``archive/<name>``."""
    try:
        return parse_strict(source, name=name.rpartition("/")[2])
    except InvalidSkill as error:
        placed = [
            Violation(f"archive/{name}/SKILL.md", f"{found.field.removeprefix('source.')}: {found.description}")
            for found in error.violations
        ]
        raise InvalidSkill(*placed) from None


def check_base(positional_base: int) -> None:
    """Raise InvalidArgument unless the first argument is ``$0`` or ``$1``."""
    if positional_base not in (0, 1):
        raise InvalidArgument("positional_base", "Must be 0 or 1.")


def check_mode(trace: Trace, name: SkillName, *, promotes: bool) -> None:
    """Raise NameLocked, or ReviewRequired when a new version is to be promoted by the one who makes it."""
    mode = trace.snapshot.catalog.mode_of(name)
    if mode is NameMode.LOCKED:
        raise NameLocked(f"Operators have locked the name '{name}'; tenants may not define or disable it.", name=name)
    if promotes and mode is NameMode.REVIEW:
        raise review_required(name)


def review_required(name: SkillName) -> ReviewRequired:
    """Return the error for a promotion that needs somebody else."""
    return ReviewRequired(
        f"Names like '{name}' need a review: create the version unpromoted, and let another author or an operator "
        "promote it.",
        name=name,
    )


def check_tools(trace: Trace, name: SkillName, header: SkillHeader, lineage: Mapping[str, object] | None) -> None:
    """Refuse an agent a skill with more tools than it has, or than the version has that it was forked from."""
    if trace.agent is None:
        return
    tools = lineage.get("allowed_tools") if lineage else None
    forked_from = [str(tool) for tool in tools] if isinstance(tools, list) else None
    barrier = barrier_of_tools(name, header.allowed_tools, trace.agent, forked_from)
    if barrier is not None:
        raise barrier


def require_etag(etag: str, current: str, name: SkillName) -> None:
    """Raise InvalidArgument when the etag is wanting, EtagMismatch when it is not the `current` one."""
    if not etag:
        raise InvalidArgument("etag", "Give the etag as last read, by GetSkillDef or ListCatalog.")
    if etag != current:
        raise EtagMismatch(f"The skill '{name}' is not as it was when its etag was read; read it again.", name=name)


def existing(connection: Transaction, trace: Trace, name: SkillName) -> SkillDef:
    """Return the tenant's SkillDef of this name; raise SkillDefNotFound."""
    row = skill_defs.get(connection, trace.tenant, name)
    if row is None:
        raise SkillDefNotFound(f"The tenant has no SkillDef '{name}'.", name=name)
    return row


def effect_after(trace: Trace, connection: Transaction, name: SkillName) -> Effect:
    """Return what the caller's transaction does to `name`; an agent-bound caller learns of its own agent alone."""
    snapshot = trace.snapshot
    layers = read_layers(connection, trace.tenant, name)
    versions = read_versions(connection, trace.tenant, snapshot.state.agents.values(), name)
    after = Catalog(layers, snapshot.static.catalog, versions)
    bound = trace.principal.agent
    agents = [agent for agent in snapshot.agents() if bound in (None, agent.name)]
    effect = effect_of(name, snapshot.catalog, after, agents)
    _check_narrows(trace, effect)
    trace.resolution = effect.after
    # The agent that the call acts as may read this event, and must not learn of other agents there.
    acting = trace.agent.name if trace.agent else None
    for way, named in (("gaining", effect.gaining), ("losing", effect.losing), ("changing", effect.changing)):
        told = [agent for agent in named if acting in (None, agent)]
        trace.details = {**(trace.details or {}), way: told}
    return effect


def _check_narrows(trace: Trace, effect: Effect) -> None:
    """Refuse an agent a change that lets a skill take the place of one that allows itself less.

    Tombstones are looked through, or what happens beneath one would come to light when it is lifted.
    """
    before, after = effect.before.beneath, effect.after.beneath
    if trace.agent is None or before is None or after is None or before == after:
        return
    barrier = barrier_of_tools(after.name, tools_of(after), trace.agent, tools_of(before))
    if barrier is not None:
        raise barrier


def authored(
    trace: Trace,
    connection: Transaction,
    name: SkillName,
    row: SkillDef | None,
    version: Version | None,
    warnings: tuple[str, ...] = (),
) -> Authored:
    """Return what a change made of `name`."""
    pointing = labels.of_tenant(connection, trace.tenant, [name]) if row else []
    etag = skill_defs.etags(connection, trace.tenant, [name])[name]
    if trace.rehearses:
        # The next change that is made will have this revision, so its etag must not get out before.
        row, etag = replace(row, revision=0) if row else None, ""
    return Authored(row, version, effect_after(trace, connection, name), tuple(pointing), etag, warnings)
