"""SkillDefs, their versions and the names a tenant has disabled, as rows."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert

from substrate.domain.candidates import SkillFile
from substrate.domain.names import SkillName, TenantId
from substrate.store.tables import disabled_names, skill_def_versions, skill_defs, skill_files

_ACTIVE = (
    (skill_def_versions.c.tenant_id == skill_defs.c.tenant_id)
    & (skill_def_versions.c.name == skill_defs.c.name)
    & (skill_def_versions.c.version == skill_defs.c.active_version)
)


_LISTED_BYTES = 96
"""What a version stores of a file beside its path: digest, size and punctuation."""


@dataclass(frozen=True, slots=True)
class SkillDef:
    """A SkillDef's row: `active_version` is None until a version is promoted."""

    name: SkillName
    active_version: int | None
    latest_version: int
    retired_at: datetime | None
    revision: int
    created_at: datetime
    created_by: str
    updated_at: datetime

    @property
    def etag(self) -> str:
        """What changes whenever the SkillDef does: the catalog revision of its last change; empty in a rehearsal."""
        return f"r{self.revision}" if self.revision else ""


@dataclass(frozen=True, slots=True)
class Version:
    """One immutable version: `header` is the plain form of its frontmatter.

    `lineage` says what it was forked from: origin, version (None for other layers than the tenant's), content_sha256
    and allowed_tools. `created_as` is the agent that its author acted as, or empty.
    """

    name: SkillName
    version: int
    header: Any
    body: str
    positional_base: int
    content_sha256: str
    created_at: datetime
    created_by: str
    promoted_at: datetime | None = None
    promoted_by: str | None = None
    files: tuple[SkillFile, ...] = ()
    lineage: Mapping[str, Any] | None = None
    created_as: str = ""

    @property
    def size(self) -> int:
        """How many bytes it adds to what its tenant stores, the contents of its files left out."""
        listed = sum(len(json.dumps(file.path)) + _LISTED_BYTES for file in self.files)
        return len(self.body.encode()) + len(json.dumps(self.header)) + len(json.dumps(self.lineage)) + listed


@dataclass(frozen=True, slots=True)
class DisabledName:
    """A tombstone."""

    name: SkillName
    reason: str
    disabled_at: datetime
    disabled_by: str


def all_of(
    connection: Connection, tenant: TenantId, name: SkillName | None = None
) -> list[tuple[SkillDef, Version | None]]:
    """Return every SkillDef of the tenant with its active version, by name; only that of `name` when it is given."""
    statement = (
        select(skill_defs, *(column.label(f"v_{column.name}") for column in skill_def_versions.c))
        .select_from(skill_defs.outerjoin(skill_def_versions, _ACTIVE))
        .where(skill_defs.c.tenant_id == tenant)
        .order_by(skill_defs.c.name)
    )
    rows = connection.execute(statement if name is None else statement.where(skill_defs.c.name == name))
    return [(_skill_def(row), _version(row, "v_") if row.v_version is not None else None) for row in rows]


def get(connection: Connection, tenant: TenantId, name: SkillName) -> SkillDef | None:
    """Return the tenant's SkillDef of this name."""
    row = connection.execute(
        select(skill_defs).where((skill_defs.c.tenant_id == tenant) & (skill_defs.c.name == name))
    ).first()
    return _skill_def(row) if row else None


def count(connection: Connection, tenant: TenantId) -> int:
    """Return how many SkillDefs the tenant has, retired ones included."""
    found = connection.execute(select(func.count()).select_from(skill_defs).where(skill_defs.c.tenant_id == tenant))
    return int(found.scalar_one())


def some_of(connection: Connection, tenant: TenantId, names: Sequence[SkillName]) -> list[SkillDef]:
    """Return the tenant's SkillDefs of these names, by name."""
    rows = connection.execute(
        select(skill_defs)
        .where((skill_defs.c.tenant_id == tenant) & skill_defs.c.name.in_(names))
        .order_by(skill_defs.c.name)
    )
    return [_skill_def(row) for row in rows]


def version(connection: Connection, tenant: TenantId, name: SkillName, number: int) -> Version | None:
    """Return one version of a SkillDef."""
    row = connection.execute(select(skill_def_versions).where(_is_version(tenant, name, number))).first()
    return _version(row, "") if row else None


def create(connection: Connection, tenant: TenantId, skill_def: SkillDef) -> None:
    """Add a SkillDef, whose versions follow."""
    connection.execute(
        insert(skill_defs).values(
            tenant_id=tenant,
            name=skill_def.name,
            active_version=skill_def.active_version,
            latest_version=skill_def.latest_version,
            revision=skill_def.revision,
            created_at=skill_def.created_at,
            created_by=skill_def.created_by,
            updated_at=skill_def.updated_at,
        )
    )


def not_stored(connection: Connection, tenant: TenantId, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return those of the `contents`, by digest, that the tenant has not stored yet."""
    columns = skill_files.c
    this = (columns.tenant_id == tenant) & columns.sha256.in_(list(contents))
    known = set(connection.execute(select(columns.sha256).where(this)).scalars()) if contents else set()
    return {sha256: content for sha256, content in contents.items() if sha256 not in known}


def add_version(connection: Connection, tenant: TenantId, version: Version, contents: Mapping[str, bytes]) -> None:
    """Add a version of a SkillDef that is there, with those `contents` of its files that are not stored, by digest."""
    if contents:
        rows = [{"tenant_id": tenant, "sha256": sha256, "content": content} for sha256, content in contents.items()]
        connection.execute(insert(skill_files).values(rows))
    connection.execute(
        insert(skill_def_versions).values(
            tenant_id=tenant,
            name=version.name,
            version=version.version,
            header=version.header,
            body=version.body,
            positional_base=version.positional_base,
            content_sha256=version.content_sha256,
            created_at=version.created_at,
            created_by=version.created_by,
            promoted_at=version.promoted_at,
            promoted_by=version.promoted_by,
            files=[[file.path, file.size, file.sha256] for file in version.files],
            lineage=version.lineage,
            created_as=version.created_as,
        )
    )


def file(connection: Connection, tenant: TenantId, sha256: str) -> bytes | None:
    """Return the content of one of the tenant's files."""
    columns = skill_files.c
    found = connection.execute(
        select(columns.content).where((columns.tenant_id == tenant) & (columns.sha256 == sha256))
    ).scalar()
    return None if found is None else bytes(found)


def some_versions(connection: Connection, tenant: TenantId, wanted: Sequence[tuple[SkillName, int]]) -> list[Version]:
    """Return those of the tenant's versions that `wanted` names."""
    if not wanted:
        return []
    columns = skill_def_versions.c
    rows = connection.execute(
        select(skill_def_versions).where(
            (columns.tenant_id == tenant) & tuple_(columns.name, columns.version).in_(wanted)
        )
    )
    return [_version(row, "") for row in rows]


def page_versions(
    connection: Connection, tenant: TenantId, name: SkillName, before: int | None, limit: int
) -> list[Version]:
    """Return up to `limit` versions of a SkillDef, the newest first; only those older than `before` if it is given."""
    columns = skill_def_versions.c
    statement = select(skill_def_versions).where((columns.tenant_id == tenant) & (columns.name == name))
    if before is not None:
        statement = statement.where(columns.version < before)
    return [_version(row, "") for row in connection.execute(statement.order_by(columns.version.desc()).limit(limit))]


def versions_of_digest(
    connection: Connection,
    tenant: TenantId,
    name: SkillName,
    content_sha256: str,
    limit: int,
    *,
    positional_base: int | None = None,
) -> list[int]:
    """Return the numbers of up to `limit` versions with this digest, the newest first; only those of the base given."""
    columns = skill_def_versions.c
    this = (columns.tenant_id == tenant) & (columns.name == name) & (columns.content_sha256 == content_sha256)
    if positional_base is not None:
        this &= columns.positional_base == positional_base
    found = connection.execute(select(columns.version).where(this).order_by(columns.version.desc()).limit(limit))
    return list(found.scalars())


def save(connection: Connection, tenant: TenantId, skill_def: SkillDef) -> None:
    """Write what may change of a SkillDef: its active and latest version, its retirement and when that was."""
    connection.execute(
        update(skill_defs)
        .where((skill_defs.c.tenant_id == tenant) & (skill_defs.c.name == skill_def.name))
        .values(
            active_version=skill_def.active_version,
            latest_version=skill_def.latest_version,
            retired_at=skill_def.retired_at,
            revision=skill_def.revision,
            updated_at=skill_def.updated_at,
        )
    )


def mark_promoted(
    connection: Connection, tenant: TenantId, name: SkillName, number: int, now: datetime, by: str
) -> None:
    """Record the latest promotion of a version."""
    connection.execute(
        update(skill_def_versions).where(_is_version(tenant, name, number)).values(promoted_at=now, promoted_by=by)
    )


def etags(connection: Connection, tenant: TenantId, names: Sequence[SkillName]) -> dict[SkillName, str]:
    """Return the etag of each of `names`: the catalog revision of the last change of what the tenant says of it."""
    found = dict.fromkeys(names, 0)
    for table in (disabled_names, skill_defs):
        this = (table.c.tenant_id == tenant) & table.c.name.in_(names)
        for name, revision in connection.execute(select(table.c.name, table.c.revision).where(this)):
            found[name] = max(found[name], revision)
    return {name: f"r{revision}" for name, revision in found.items()}


def disabled(connection: Connection, tenant: TenantId) -> Sequence[DisabledName]:
    """Return the tenant's tombstones, by name."""
    rows = connection.execute(
        select(disabled_names).where(disabled_names.c.tenant_id == tenant).order_by(disabled_names.c.name)
    )
    return [DisabledName(row.name, row.reason, row.disabled_at, row.disabled_by) for row in rows]


def disable(connection: Connection, tenant: TenantId, tombstone: DisabledName, revision: int) -> None:
    """Put a tombstone; one that stands already is left as it is."""
    values = {
        "reason": tombstone.reason,
        "revision": revision,
        "disabled_at": tombstone.disabled_at,
        "disabled_by": tombstone.disabled_by,
    }
    connection.execute(
        upsert(disabled_names)
        .values(tenant_id=tenant, name=tombstone.name, **values)
        .on_conflict_do_nothing(index_elements=[disabled_names.c.tenant_id, disabled_names.c.name])
    )


def enable(connection: Connection, tenant: TenantId, name: SkillName) -> None:
    """Take the tombstone of `name` away, if there is one."""
    connection.execute(
        delete(disabled_names).where((disabled_names.c.tenant_id == tenant) & (disabled_names.c.name == name))
    )


def _is_version(tenant: TenantId, name: SkillName, number: int) -> Any:
    columns = skill_def_versions.c
    return (columns.tenant_id == tenant) & (columns.name == name) & (columns.version == number)


def _skill_def(row: Row[Any]) -> SkillDef:
    return SkillDef(
        name=SkillName(row.name),
        active_version=row.active_version,
        latest_version=row.latest_version,
        retired_at=row.retired_at,
        revision=row.revision,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
    )


def _version(row: Row[Any], prefix: str) -> Version:
    field = row._mapping  # noqa: SLF001 - SQLAlchemy's documented access by name.
    return Version(
        name=SkillName(field[f"{prefix}name"]),
        version=field[f"{prefix}version"],
        header=field[f"{prefix}header"],
        body=field[f"{prefix}body"],
        positional_base=field[f"{prefix}positional_base"],
        content_sha256=field[f"{prefix}content_sha256"],
        created_at=field[f"{prefix}created_at"],
        created_by=field[f"{prefix}created_by"],
        promoted_at=field[f"{prefix}promoted_at"],
        promoted_by=field[f"{prefix}promoted_by"],
        files=tuple(SkillFile(path, size, sha256) for path, size, sha256 in field[f"{prefix}files"]),
        lineage=field[f"{prefix}lineage"],
        created_as=field[f"{prefix}created_as"],
    )
