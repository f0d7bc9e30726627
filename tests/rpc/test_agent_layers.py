"""Which agent a name stands for: the tenant's own, else an inline one, else a bundle's, and never one in its place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused
from tests.store.owner import change

LAYERS = catalog_pb2.Layer

CONFIG = """
bundles: ["shipped:document-agent", "shipped:writing"]
agents:
  doc-manager:
    description: The operator's.
    skills: [doc/query]
"""

CORRUPT = {
    "allowlist": "UPDATE agents SET skills = '{doc/*, NOT A PATTERN}' WHERE tenant_id = %s",
    "tools": "UPDATE agents SET tools = '{\"\"}' WHERE tenant_id = %s",
    "definition": "UPDATE agents SET definition = '[]' WHERE tenant_id = %s",
    "pins": """UPDATE agents SET pins = '{"doc/query": "bundle"}' WHERE tenant_id = %s""",
}


@pytest.fixture(scope="module")
def inline(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    config = Path(tmp_path_factory.mktemp("agents")) / "substrate.yaml"
    config.write_text(CONFIG)
    with running_server(cluster, config=config) as server:
        yield server


def test_a_tenants_agent_comes_before_an_inline_one_and_that_before_a_bundles(inline: RunningServer) -> None:
    tenant = inline.tenant()

    def found() -> tuple[int, list[str]]:
        agent = tenant.author.call("AgentService.GetAgent", name="doc-manager").agent
        listed = tenant.author.call("AgentService.ListAgents").agents
        assert [a for a in listed if a.name == "doc-manager"] == [agent]
        return agent.layer, list(agent.skills)

    assert found() == (LAYERS.LAYER_INLINE, ["doc/query"])
    names = [s.name for s in tenant.runtime.call("SkillService.ListSkills", agent="doc-manager").skills]
    assert names == ["doc/query"]
    tenant.author.call("AgentService.PutAgent", agent={"name": "doc-manager", "skills": ["doc/chunk-*"]})
    assert found() == (LAYERS.LAYER_TENANT, ["doc/chunk-*"])
    names = [s.name for s in tenant.runtime.call("SkillService.ListSkills", agent="doc-manager").skills]
    assert names
    assert all(name.startswith("doc/chunk-") for name in names)
    assert tenant.author.call("AgentService.GetAgent", name="writer").agent.layer == LAYERS.LAYER_BUNDLE


def _corrupted(cluster: Cluster, tenant: TestTenant, what: str) -> Any:
    """Put a tenant's `doc-manager` and corrupt its row; return it as it was."""
    put = tenant.author.call("AgentService.PutAgent", agent={"name": "doc-manager", "skills": ["doc/query"]})
    assert change(cluster, CORRUPT[what], tenant.name) == 1
    change(cluster, "UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %s", tenant.name)
    return put.agent


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_agent_is_refused_rather_than_replaced_by_one_of_another_layer(
    cluster: Cluster, tenant: TestTenant, what: str
) -> None:
    bound = tenant.bound(Role.AUTHOR, "doc-manager")
    before = _corrupted(cluster, tenant, what)
    for client, method, fields in (
        (tenant.runtime, "SkillService.InvokeSkill", {"agent": "doc-manager", "name": "doc/query"}),
        (tenant.runtime, "SkillService.ListSkills", {"agent": "doc-manager"}),
        (tenant.runtime, "SkillService.PrepareRun", {"agent": "doc-manager"}),
        (tenant.author, "AgentService.GetAgent", {"name": "doc-manager"}),
        (tenant.author, "SkillDefService.ListCatalog", {"agent": "doc-manager"}),
        (bound, "SkillDefService.GetSkillDef", {"name": "doc/query"}),
    ):
        failed = refused(client, method, **fields)
        assert (failed.code, failed.reason) == ("NOT_FOUND", "AGENT_NOT_FOUND")
        assert failed.metadata["agent"] == "doc-manager"
    listed = tenant.author.call("AgentService.ListAgents").agents
    assert "doc-manager" not in [agent.name for agent in listed]
    # Nobody can read its etag, so none is needed to mend it.
    put = tenant.author.call("AgentService.PutAgent", agent={"name": "doc-manager", "skills": ["doc/query"]}).agent
    assert put.create_time == before.create_time
    assert tenant.author.call("AgentService.GetAgent", name="doc-manager").agent == put
    assert tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query").name == "doc/query"


def test_a_corrupt_agent_can_be_deleted(cluster: Cluster, tenant: TestTenant) -> None:
    _corrupted(cluster, tenant, "allowlist")
    deleted = tenant.author.call("AgentService.DeleteAgent", name="doc-manager")
    assert deleted.agent.layer == LAYERS.LAYER_BUNDLE
    assert tenant.author.call("AgentService.GetAgent", name="doc-manager").agent == deleted.agent
