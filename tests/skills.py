"""Texts of skills for tests, and what a refused call says."""

from typing import Any

import pytest

from substrate.rpc.client import CallFailed, Client

DEFAULT_BODY = "Do it.\n"

NO_ETAG = "r0"
"""The etag of a name that the tenant has said nothing of."""


def skill_md(name: str, body: str = DEFAULT_BODY, description: str = "Does it.", header: str = "") -> str:
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


def add_version(client: Client, name: str, source: str) -> int:
    """Store one more version of a SkillDef, a fork of its first that is not promoted, and return its number."""
    made = client.call("SkillDefService.ForkSkillDef", name=name, source=source, **{"from": "v1"})
    return int(made.version.version)
