"""What tenant authors change: SkillDefs and their versions, which of them is in effect, labels, and disabled names.

Every verb passes the allowlist of the agent that the call acts as; without one the role decides. A change answers with
its effect, and can be rehearsed. What is read is in `skill_def_views.py`, archives in `archives.py`.
"""

from collections.abc import Mapping
from dataclasses import replace

from substrate.domain.audit import Verb
from substrate.domain.catalog import NameMode
from substrate.domain.errors import InvalidArgument, SkillDefExists
from substrate.domain.identity import Role
from substrate.domain.names import SkillName, parse_label
from substrate.domain.skillmd import Skill
from substrate.services.authoring import (
    Authored,
    author_of,
    authored,
    begin,
    check_base,
    check_mode,
    check_tools,
    existing,
    inside,
    parse_source,
    require_etag,
    review_required,
)
from substrate.services.call import Call
from substrate.services.contents import (
    Content,
    content_of,
    no_version,
    parse_content,
    static_content,
    static_files,
    version_content,
)
from substrate.services.decisions import Decisions
from substrate.services.trace import Trace
from substrate.services.versions import Draft, as_written, check_files, lineage_of, made_of, narrows_from, store_version
from substrate.store import labels, skill_defs
from substrate.store.labels import Label
from substrate.store.session import Transaction
from substrate.store.skill_defs import DisabledName

MAX_REASON_LENGTH = 1024


class SkillDefs:
    """The changing use cases of `SkillDefService`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._clock = decisions.clock

    def create(self, call: Call, agent: str, name: str, draft: Draft, *, validate_only: bool = False) -> Authored:
        """Add a SkillDef, or take up the name of a retired one, with a version made from the SKILL.md in `draft`."""
        parsed: list[Skill] = []

        def check(trace: Trace) -> None:
            bare = begin(trace, agent, name)
            parsed[:] = [parse_source(draft.source, bare)]
            check_base(draft.positional_base or 0)
            check_files(draft.files)
            check_mode(trace, bare, promotes=draft.promote)
            check_tools(trace, bare, parsed[0].header, None)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            bare = SkillName(name)
            row = skill_defs.get(connection, trace.tenant, bare)
            if row is not None and row.retired_at is None:
                message = f"The tenant has a SkillDef '{bare}' already, in effect or as a draft; fork it to change it."
                raise SkillDefExists(message, name=bare)
            skill = parsed[0]
            made = made_of(skill, draft.files or {}, draft.positional_base or 0, promote=draft.promote)
            lineage = narrows_from(trace, connection, bare, row)
            check_tools(trace, bare, skill.header, lineage)
            now = self._clock.now()
            made = replace(made, lineage=lineage)
            row, version = store_version(trace, connection, bare, row, made, revision, now, revives=True)
            trace.details = {"version": version.version, "digest": version.content_sha256, "promoted": draft.promote}
            return authored(trace, connection, bare, row, version, tuple(map(str, skill.diagnostics)))

        return self._decisions.change(call, Verb.CREATE, check, apply, rehearse=validate_only)

    def fork(
        self, call: Call, agent: str, name: str, origin: str, draft: Draft, etag: str, *, validate_only: bool = False
    ) -> Authored:
        """Add a version made from another content of the name, `origin`, with the changes in `draft`."""
        parsed: list[Skill] = []
        outside: list[tuple[Content, Mapping[str, bytes]]] = []

        def check(trace: Trace) -> None:
            bare = begin(trace, agent, name)
            asked = parse_content(bare, origin, "from")
            parsed[:] = [parse_source(draft.source, bare)] if draft.source else []
            check_base(draft.positional_base or 0)
            check_files(draft.files)
            check_mode(trace, bare, promotes=draft.promote)
            # Files on disk are read here, and again only if the tenant's state has moved: before its writers must wait.
            found = static_content(trace, asked)
            if found is None:
                outside.clear()
            elif not outside or outside[0][0] != found:
                outside[:] = [(found, static_files(found.candidate) if draft.files is None else {})]

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            bare = SkillName(name)
            row = skill_defs.get(connection, trace.tenant, bare)
            if draft.promote and row is not None:
                require_etag(etag, row.etag, bare)
            if outside:
                parent, inherited = outside[0]
            else:
                parent = content_of(connection, trace, bare, parse_content(bare, origin, "from"))
                inherited = {}
            skill = parsed[0] if parsed else as_written(bare, parent)
            lineage = lineage_of(parent.candidate)
            check_tools(trace, bare, skill.header, lineage)
            base = parent.candidate.positional_base if draft.positional_base is None else draft.positional_base
            made = made_of(skill, inherited if draft.files is None else draft.files, base, promote=draft.promote)
            if draft.files is None and not outside:
                made = replace(made, files=parent.candidate.files)
            made = replace(made, lineage=lineage)
            row, version = store_version(trace, connection, bare, row, made, revision, self._clock.now())
            trace.details = {
                "version": version.version,
                "digest": version.content_sha256,
                "promoted": draft.promote,
                "forked_from": lineage["origin"],
                "forked_digest": lineage["content_sha256"],
            }
            return authored(trace, connection, bare, row, version, tuple(map(str, skill.diagnostics)))

        return self._decisions.change(call, Verb.FORK, check, apply, rehearse=validate_only)

    def promote(
        self,
        call: Call,
        agent: str,
        name: str,
        version: int,
        etag: str,
        *,
        tenant: str = "",
        validate_only: bool = False,
    ) -> Authored:
        """Make `version` the active one; operators may, in the `tenant` they name, to review it."""

        def check(trace: Trace) -> None:
            bare = begin(trace, agent, name, reviews=True, tenant=tenant)
            if version < 1:
                raise InvalidArgument("version", "Name the version to promote, from 1.")
            check_mode(trace, bare, promotes=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            bare = SkillName(name)
            row = existing(connection, trace, bare)
            require_etag(etag, row.etag, bare)
            found = skill_defs.version(connection, trace.tenant, bare, version)
            if found is None:
                raise no_version(bare, version)
            header = version_content(found).header
            trace.details = {"version": version, "before": row.active_version, "author": found.created_by}
            if version != row.active_version:
                by = author_of(trace)
                if trace.snapshot.catalog.mode_of(bare) is NameMode.REVIEW:
                    # An agent is nobody's second pair of eyes.
                    second = found.created_by != by and trace.principal.agent is None
                    if trace.principal.role is not Role.OPERATOR and not second:
                        raise review_required(bare)
                    trace.details = {**trace.details, "reviewed_by": by}
                check_tools(trace, bare, header, found.lineage)
                now = self._clock.now()
                row = replace(row, active_version=version, revision=revision, updated_at=now)
                skill_defs.save(connection, trace.tenant, row)
                skill_defs.mark_promoted(connection, trace.tenant, bare, version, now, by)
                found = skill_defs.version(connection, trace.tenant, bare, version)
            return authored(trace, connection, bare, row, found)

        within = inside(call, tenant)
        return self._decisions.change(call, Verb.PROMOTE, check, apply, inside=within, rehearse=validate_only)

    def retire(
        self, call: Call, agent: str, name: str, etag: str, *, retired: bool, validate_only: bool = False
    ) -> Authored:
        """Retire a SkillDef, so that its name falls through to the layers below, or bring it back."""

        def check(trace: Trace) -> None:
            bare = begin(trace, agent, name)
            if not retired:
                check_mode(trace, bare, promotes=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            bare = SkillName(name)
            row = existing(connection, trace, bare)
            require_etag(etag, row.etag, bare)
            if not retired and row.active_version is not None:
                found = skill_defs.version(connection, trace.tenant, bare, row.active_version)
                if found is not None:
                    check_tools(trace, bare, version_content(found).header, found.lineage)
            now = self._clock.now()
            if (row.retired_at is not None) is not retired:
                row = replace(row, retired_at=now if retired else None, revision=revision, updated_at=now)
                skill_defs.save(connection, trace.tenant, row)
            trace.details = {"retired": retired, "version": row.active_version}
            return authored(trace, connection, bare, row, None)

        verb = Verb.RETIRE if retired else Verb.UNRETIRE
        return self._decisions.change(call, verb, check, apply, rehearse=validate_only)

    def set_disabled(
        self,
        call: Call,
        agent: str,
        name: str,
        reason: str,
        etag: str,
        *,
        disabled: bool,
        validate_only: bool = False,
    ) -> Authored:
        """Hide a name whatever layer defines it, or take the tombstone away."""

        def check(trace: Trace) -> None:
            bare = begin(trace, agent, name)
            if len(reason) > MAX_REASON_LENGTH or "\0" in reason:
                raise InvalidArgument("reason", f"Must be text of at most {MAX_REASON_LENGTH} characters.")
            if disabled:
                check_mode(trace, bare, promotes=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            bare = SkillName(name)
            row = skill_defs.get(connection, trace.tenant, bare)
            require_etag(etag, skill_defs.etags(connection, trace.tenant, [bare])[bare], bare)
            now = self._clock.now()
            if row is not None and trace.snapshot.catalog.is_disabled(bare) is not disabled:
                row = replace(row, revision=revision, updated_at=now)
                skill_defs.save(connection, trace.tenant, row)
            if disabled:
                tombstone = DisabledName(bare, reason, now, author_of(trace))
                skill_defs.disable(connection, trace.tenant, tombstone, revision)
            else:
                skill_defs.enable(connection, trace.tenant, bare)
            trace.details = {"disabled": disabled, "reason": reason}
            return authored(trace, connection, bare, row, None)

        verb = Verb.DISABLE if disabled else Verb.ENABLE
        return self._decisions.change(call, verb, check, apply, rehearse=validate_only)

    def set_label(
        self, call: Call, agent: str, name: str, label: str, version: int, etag: str, *, validate_only: bool = False
    ) -> Authored:
        """Let `label` point at `version`, or for 0 take it away."""

        def check(trace: Trace) -> None:
            bare = begin(trace, agent, name)
            parse_label(label)
            if version < 0:
                raise InvalidArgument("version", "Name the version to point at, from 1, or 0 to take the label away.")
            check_mode(trace, bare, promotes=False)

        def apply(trace: Trace, connection: Transaction, revision: int) -> Authored:
            bare = SkillName(name)
            row = existing(connection, trace, bare)
            require_etag(etag, row.etag, bare)
            before = trace.snapshot.catalog.labels_of(bare).get(label)
            trace.details = {"label": label, "before": before, "version": version or None}
            now = self._clock.now()
            if version:
                found = skill_defs.version(connection, trace.tenant, bare, version)
                if found is None:
                    raise no_version(bare, version)
                check_tools(trace, bare, version_content(found).header, found.lineage)
            if version and version != before:
                moved = Label(bare, label, version, now, author_of(trace))
                labels.put(connection, trace.tenant, moved)
            elif not version:
                labels.remove(connection, trace.tenant, bare, label)
            if (version or None) != before:
                row = replace(row, revision=revision, updated_at=now)
                skill_defs.save(connection, trace.tenant, row)
            return authored(trace, connection, bare, row, None)

        return self._decisions.change(call, Verb.SET_LABEL, check, apply, rehearse=validate_only)
