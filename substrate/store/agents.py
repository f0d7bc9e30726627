"""A tenant's own agents, as rows."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from substrate.domain.agents import Agent
from substrate.domain.names import AgentName, TenantId
from substrate.store.tables import agents


def put(connection: Connection, tenant: TenantId, agent: Agent, revision: int, now: datetime, by: str) -> datetime:
    """Create the agent or replace it whole; return when it was created."""
    values = {
        "description": agent.description,
        "tools": None if agent.tools is None else list(agent.tools),
        "skills": agent.allowlist.texts(),
        "definition": json.loads(agent.definition_json),
        "content_sha256": agent.content_sha256,
        "pins": dict(agent.pins),
        "revision": revision,
        "updated_at": now,
        "updated_by": by,
    }
    statement = insert(agents).values(tenant_id=tenant, name=agent.name, created_at=now, **values)
    statement = statement.on_conflict_do_update(index_elements=[agents.c.tenant_id, agents.c.name], set_=values)
    created: datetime = connection.execute(statement.returning(agents.c.created_at)).scalar_one()
    return created


def count(connection: Connection, tenant: TenantId) -> int:
    """Return how many agents of its own the tenant has."""
    found = connection.execute(select(func.count()).select_from(agents).where(agents.c.tenant_id == tenant))
    return int(found.scalar_one())


def remove(connection: Connection, tenant: TenantId, name: AgentName) -> None:
    """Remove the tenant's agent of this name, if there is one."""
    connection.execute(delete(agents).where((agents.c.tenant_id == tenant) & (agents.c.name == name)))


def etag(connection: Connection, tenant: TenantId, name: AgentName) -> str | None:
    """Return the etag of the tenant's agent of this name, readable or not, or None when it has none."""
    found = connection.execute(
        select(agents.c.revision).where((agents.c.tenant_id == tenant) & (agents.c.name == name))
    ).scalar()
    return None if found is None else f"r{found}"


def all_of(connection: Connection, tenant: TenantId) -> Sequence[tuple[AgentName, Mapping[str, Any], Any]]:
    """Return (name, plain definition, row) of every agent of the tenant, by name.

    The plain definition is what `substrate.domain.agents.parse_agent` reads.
    """
    rows = connection.execute(select(agents).where(agents.c.tenant_id == tenant).order_by(agents.c.name))
    return [(AgentName(row.name), _plain(row), row) for row in rows]


def _plain(row: Any) -> Mapping[str, Any]:
    plain = {"description": row.description, "skills": row.skills, "definition": row.definition, "pins": row.pins}
    return plain if row.tools is None else {**plain, "tools": row.tools}
