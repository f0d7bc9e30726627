"""What tenant authors do: create SkillDefs, promote and retire their versions, and disable names.

Every verb, reads included, passes the allowlist of the agent that the call acts as; without one the role decides.
"""

from dataclasses import dataclass, replace

from substrate.domain.audit import Verb
from substrate.domain.catalog import Catalog, NameMode, Resolution, Standing
from substrate.domain.eligibility import tools_exceed
from substrate.domain.errors import (
    EtagMismatch,
    InvalidArgument,
    NameLocked,
    ReviewRequired,
    SkillDefExists,
    SkillDefNotFound,
    SkillQuarantined,
    TooLarge,
    VersionNotFound,
)
from substrate.domain.identity import Role
from substrate.domain.names import SkillName, SkillRef, parse_skill_name
from substrate.domain.skillheader import SkillHeader, content_sha256, header_from_plain, header_to_plain
from substrate.domain.skillmd import Skill, parse_strict
from substrate.services.access import acting_agent, gate, require_role
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, page_of_names
from substrate.services.trace import Trace
from substrate.sources.tenant import read_layers, version_candidate
from substrate.store import skill_defs
from substrate.store.session import Transaction
from substrate.store.skill_defs import DisabledName, SkillDef, Version

MAX_SOURCE_LENGTH = 256 * 1024
MAX_REASON_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Authored:
    """A SkillDef after a change or as it was read: its row (None when the tenant has none), version and resolution."""

    skill_def: SkillDef | None
    version: Version | None
    resolution: Resolution
    warnings: tuple[str, ...] = ()

    @property
    def disabled(self) -> bool:
        """Whether a tombstone of the tenant stands on the name."""
        return any(ruling.candidate.standing is Standing.DISABLED for ruling in self.resolution.rulings)


class SkillDefs:
    """The use cases of `SkillDefService`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._database = decisions.database
        self._clock = decisions.clock

    def create(
        self, call: Call, agent: str, name: str, source: str, *, promote: bool = True, positional_base: int = 0
    ) -> Authored:
        """Add a SkillDef with version 1, made from the SKILL.md text `source`, and promote it unless told not to."""
        parsed: list[Skill] = []

        def check(trace: Trace) -> None:
            bare = _begin(trace, agent, name)
            parsed[:] = [_parse(source, bare)]
            if positional_base not in (0, 1):
                raise InvalidArgument("positional_base", "Must be 0 or 1.")
            _check_mode(trace, bare, promoting=promote)
            _check_tools(trace, parsed[0].header, bare)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            tenant = trace.principal.tenant
            bare = SkillName(name)
            if skill_defs.get(connection, tenant, bare) is not None:
                raise SkillDefExists(
                    f"The tenant has a SkillDef '{bare}' already, in effect, draft or retired; "
                    "promote one of its versions, or bring it back if it is retired.",
                    name=bare,
                )
            now = self._clock.now()
            author = trace.principal.key_id
            skill = parsed[0]
            version = Version(
                name=bare,
                version=1,
                header=header_to_plain(skill.header),
                body=skill.body,
                positional_base=positional_base,
                content_sha256=content_sha256(skill.header, skill.body),
                created_at=now,
                created_by=author,
                promoted_at=now if promote else None,
                promoted_by=author if promote else None,
            )
            row = SkillDef(bare, 1 if promote else None, 1, None, revision, now, author, now)
            skill_defs.create(connection, tenant, row, version)
            trace.details = {"version": 1, "digest": version.content_sha256, "promoted": promote}
            warnings = tuple(str(problem) for problem in skill.diagnostics)
            return Authored(row, version, self._after(trace, connection, bare), warnings=warnings)

        return self._decisions.change(call, Verb.CREATE, check, apply)

    def get(self, call: Call, agent: str, name: str, version: int) -> Authored:
        """Return a SkillDef with one version: `version`, or for 0 the active one, or the latest when none is active."""

        def judge(trace: Trace) -> Authored:
            bare = _begin(trace, agent, name)
            if version < 0:
                raise InvalidArgument("version", "Must be 0 (the active version) or a version number.")
            tenant = trace.principal.tenant
            with self._database.tenant(tenant, call.deadline, snapshot=True) as connection:
                row = _existing(connection, trace, bare)
                number = version or row.active_version or row.latest_version
                found = skill_defs.version(connection, tenant, bare, number)
            if found is None:
                raise _no_version(bare, number)
            _check_sound(found)
            trace.resolution = trace.snapshot.catalog.resolve(SkillRef(bare))
            return Authored(row, found, trace.resolution)

        return self._decisions.settle(call, Verb.GET, judge, required=False)

    def list(
        self, call: Call, agent: str, pattern: str, page_size: int, token: str, *, include_retired: bool
    ) -> Page[tuple[SkillDef, bool]]:
        """Return one page of the tenant's SkillDefs, each with whether its name is disabled."""

        def judge(trace: Trace) -> Page[tuple[SkillDef, bool]]:
            require_role(trace, Role.AUTHOR)
            acting_agent(trace, agent)
            own = trace.snapshot.catalog.skill_defs()
            names = [c.name for c in own if include_retired or c.standing is not Standing.RETIRED]
            bound = ("ListSkillDefs", agent, include_retired)
            page = page_of_names(trace, names, bound, pattern, page_size, token)
            tenant = trace.principal.tenant
            with self._database.tenant(tenant, call.deadline, snapshot=True) as connection:
                rows = skill_defs.some_of(connection, tenant, page.rows)
                disabled = {tombstone.name for tombstone in skill_defs.disabled(connection, tenant)}
            return page.of([(row, row.name in disabled) for row in rows])

        return self._decisions.settle(call, Verb.LIST_SKILL_DEFS, judge, required=False)

    def promote(self, call: Call, agent: str, name: str, version: int, etag: str) -> Authored:
        """Make `version` the active one."""

        def check(trace: Trace) -> None:
            bare = _begin(trace, agent, name)
            if version < 1:
                raise InvalidArgument("version", "Name the version to promote, from 1.")
            _check_mode(trace, bare, promoting=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            tenant = trace.principal.tenant
            bare = SkillName(name)
            row = _existing(connection, trace, bare)
            _check_etag(row, etag)
            found = skill_defs.version(connection, tenant, bare, version)
            if found is None:
                raise _no_version(bare, version)
            _check_sound(found)
            trace.details = {"version": version, "before": row.active_version}
            if version != row.active_version:
                author = trace.principal.key_id
                if trace.snapshot.catalog.mode_of(bare) is NameMode.REVIEW and found.created_by == author:
                    raise _review_required(bare)
                _check_tools(trace, header_from_plain(found.header), bare)
                now = self._clock.now()
                row = replace(row, active_version=version, revision=revision, updated_at=now)
                skill_defs.save(connection, tenant, row)
                skill_defs.mark_promoted(connection, tenant, bare, version, now, author)
                found = skill_defs.version(connection, tenant, bare, version)
            return Authored(row, found, self._after(trace, connection, bare))

        return self._decisions.change(call, Verb.PROMOTE, check, apply)

    def retire(self, call: Call, agent: str, name: str, etag: str, *, retired: bool) -> Authored:
        """Retire a SkillDef, so that its name falls through to the layers below, or bring it back."""

        def check(trace: Trace) -> None:
            bare = _begin(trace, agent, name)
            if not retired:
                _check_mode(trace, bare, promoting=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            tenant = trace.principal.tenant
            bare = SkillName(name)
            row = _existing(connection, trace, bare)
            _check_etag(row, etag)
            if not retired and row.active_version is not None:
                found = skill_defs.version(connection, tenant, bare, row.active_version)
                if found is not None:
                    _check_sound(found)
                    _check_tools(trace, header_from_plain(found.header), bare)
            now = self._clock.now()
            if (row.retired_at is not None) is not retired:
                row = replace(row, retired_at=now if retired else None, revision=revision, updated_at=now)
                skill_defs.save(connection, tenant, row)
            trace.details = {"retired": retired, "version": row.active_version}
            return Authored(row, None, self._after(trace, connection, bare))

        return self._decisions.change(call, Verb.RETIRE if retired else Verb.UNRETIRE, check, apply)

    def set_disabled(self, call: Call, agent: str, name: str, reason: str, etag: str, *, disabled: bool) -> Authored:
        """Hide a name whatever layer defines it, or take the tombstone away."""

        def check(trace: Trace) -> None:
            bare = _begin(trace, agent, name)
            if len(reason) > MAX_REASON_LENGTH or "\0" in reason:
                raise InvalidArgument("reason", f"Must be text of at most {MAX_REASON_LENGTH} characters.")
            if disabled:
                _check_mode(trace, bare, promoting=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            tenant = trace.principal.tenant
            bare = SkillName(name)
            row = skill_defs.get(connection, tenant, bare)
            if etag and (row is None or row.etag != etag):
                raise _stale(bare)
            now = self._clock.now()
            before = Authored(row, None, trace.snapshot.catalog.resolve(SkillRef(bare)))
            if row is not None and before.disabled is not disabled:
                row = replace(row, revision=revision, updated_at=now)
                skill_defs.save(connection, tenant, row)
            if disabled:
                tombstone = DisabledName(bare, reason, now, trace.principal.key_id)
                skill_defs.disable(connection, tenant, tombstone, revision)
            else:
                skill_defs.enable(connection, tenant, bare)
            trace.details = {"disabled": disabled, "reason": reason}
            return Authored(row, None, self._after(trace, connection, bare))

        return self._decisions.change(call, Verb.DISABLE if disabled else Verb.ENABLE, check, apply)

    def _after(self, trace: Trace, connection: Transaction, name: SkillName) -> Resolution:
        """Return what `name` resolves to once the caller's transaction commits."""
        tenant = trace.principal.tenant
        layers = read_layers(connection, tenant, name)
        trace.resolution = Catalog(layers, trace.snapshot.static.catalog).resolve(SkillRef(name))
        return trace.resolution


def _begin(trace: Trace, agent: str, name: str) -> SkillName:
    """Check role, agent and name, and put the name to the gate; nothing has been looked up by then."""
    require_role(trace, Role.AUTHOR)
    acting_agent(trace, agent)
    bare = parse_skill_name(name)
    trace.requested = name
    gate(trace, bare)
    return bare


def _parse(source: str, name: SkillName) -> Skill:
    if len(source) > MAX_SOURCE_LENGTH:
        raise TooLarge(f"The source has more than {MAX_SOURCE_LENGTH} characters.", limit=str(MAX_SOURCE_LENGTH))
    return parse_strict(source, name=name.rpartition("/")[2])


def _check_mode(trace: Trace, name: SkillName, *, promoting: bool) -> None:
    mode = trace.snapshot.catalog.mode_of(name)
    if mode is NameMode.LOCKED:
        raise NameLocked(f"Operators have locked the name '{name}'; tenants may not define or disable it.", name=name)
    if promoting and mode is NameMode.REVIEW:
        raise _review_required(name)


def _review_required(name: SkillName) -> ReviewRequired:
    return ReviewRequired(
        f"Names like '{name}' need a review: create the version unpromoted, and let another author promote it.",
        name=name,
    )


def _check_tools(trace: Trace, header: SkillHeader, name: SkillName) -> None:
    """Refuse a skill that needs more tools than the agent that authors it has."""
    lacking = trace.agent.lacks(header.allowed_tools or ()) if trace.agent else []
    if trace.agent and lacking:
        raise tools_exceed(trace.agent, name, lacking)


def _check_etag(row: SkillDef, etag: str) -> None:
    if etag and etag != row.etag:
        raise _stale(row.name)


def _stale(name: SkillName) -> EtagMismatch:
    return EtagMismatch(f"The SkillDef '{name}' is not as it was when its etag was read; read it again.", name=name)


def _check_sound(version: Version) -> None:
    candidate = version_candidate(version)
    if candidate.standing is Standing.QUARANTINED:
        raise SkillQuarantined(
            f"The version {version.version} of '{version.name}' is quarantined. {candidate.problem}", name=version.name
        )


def _existing(connection: Transaction, trace: Trace, name: SkillName) -> SkillDef:
    row = skill_defs.get(connection, trace.principal.tenant, name)
    if row is None:
        raise SkillDefNotFound(f"The tenant has no SkillDef '{name}'.", name=name)
    return row


def _no_version(name: SkillName, number: int) -> VersionNotFound:
    return VersionNotFound(f"The SkillDef '{name}' has no version {number}.", name=name, version=str(number))
