"""Labels of SkillDefs' versions, as rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert

from substrate.domain.names import SkillName, TenantId
from substrate.store.tables import skill_labels


@dataclass(frozen=True, slots=True)
class Label:
    """A label and the version that it points at."""

    name: SkillName
    label: str
    version: int
    updated_at: datetime
    updated_by: str


def of_tenant(connection: Connection, tenant: TenantId, names: Sequence[SkillName] | None = None) -> list[Label]:
    """Return the tenant's labels by name and label; only those of `names` when they are given."""
    columns = skill_labels.c
    statement = select(skill_labels).where(columns.tenant_id == tenant).order_by(columns.name, columns.label)
    rows = connection.execute(statement if names is None else statement.where(columns.name.in_(names)))
    return [Label(row.name, row.label, row.version, row.updated_at, row.updated_by) for row in rows]


def put(connection: Connection, tenant: TenantId, label: Label) -> None:
    """Let a label point at a version, which must be there."""
    moved = {"version": label.version, "updated_at": label.updated_at, "updated_by": label.updated_by}
    statement = insert(skill_labels).values(tenant_id=tenant, name=label.name, label=label.label, **moved)
    columns = skill_labels.c
    connection.execute(
        statement.on_conflict_do_update(index_elements=[columns.tenant_id, columns.name, columns.label], set_=moved)
    )


def remove(connection: Connection, tenant: TenantId, name: SkillName, label: str) -> None:
    """Take a label away, if it is there."""
    columns = skill_labels.c
    this = (columns.tenant_id == tenant) & (columns.name == name) & (columns.label == label)
    connection.execute(delete(skill_labels).where(this))
