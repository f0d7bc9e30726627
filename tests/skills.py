"""Texts of skills for tests, and what a refused call says."""

from typing import Any

import pytest
from psycopg.types.json import Json

from substrate.domain.skillmd import content_sha256, header_to_plain, parse_strict
from substrate.rpc.client import CallFailed, Client
from tests.servers import Cluster
from tests.store.owner import connect

NO_ETAG = "r0"
"""The etag of a name that the tenant has said nothing of."""


def skill_md(name: str, body: str = "Do it.\n", description: str = "Does it.", header: str = "") -> str:
    """Return a SKILL.md; `header` is more frontmatter, whole lines."""
    return f"---\nname: {name}\ndescription: {description}\n{header}---\n{body}"


def refused(client: Client, method: str, **fields: object) -> CallFailed:
    """Return how a call fails, which it must."""
    with pytest.raises(CallFailed) as failed:
        client.call(method, **fields)
    return failed.value


def etag_of(client: Client, name: str, agent: str | None = None) -> str:
    """Return the etag of a name as it is now, for an author of its tenant."""
    entries = client.call("SkillDefService.ListCatalog", pattern=name, agent=agent).entries
    return str(entries[0].etag) if entries else NO_ETAG


def agent_etag(client: Client, name: str) -> str:
    """Return the etag of the tenant's agent as it is now; empty when the tenant has none of the name."""
    try:
        return str(client.call("AgentService.GetAgent", name=name).agent.etag)
    except CallFailed as failed:
        if failed.reason != "AGENT_NOT_FOUND":
            raise
        return ""


def changed(client: Client, method: str, **fields: Any) -> Any:
    """Return the answer to a change that is made with the etag as it is now."""
    if method == "AgentService.PutAgent":
        etag = agent_etag(client, fields["agent"]["name"])
    else:
        etag = etag_of(client, fields["name"], fields.get("agent"))
    return client.call(method, etag=etag, **fields)


def add_version(cluster: Cluster, tenant: str, name: str, source: str, by: str = "another") -> int:
    """Store one more version of a SkillDef, never promoted, and return its number."""
    skill = parse_strict(source)
    header = Json(header_to_plain(skill.header))
    with connect(cluster) as owner, owner.transaction():
        owner.execute("UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %s", [tenant])
        moved = owner.execute(
            "UPDATE skill_defs SET latest_version = latest_version + 1 WHERE (tenant_id, name) = (%s, %s)"
            " RETURNING latest_version",
            [tenant, name],
        ).fetchone()
        assert moved is not None
        number: int = moved[0]
        owner.execute(
            "INSERT INTO skill_def_versions (tenant_id, name, version, header, body, positional_base, content_sha256,"
            " created_at, created_by) VALUES (%s, %s, %s, %s, %s, 0, %s, now(), %s)",
            [tenant, name, number, header, skill.body, content_sha256(skill.header, skill.body), by],
        )
    return number
