"""Agents that author: within their allowlist and their tools, and never wider than what they started from."""

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import Client
from tests.servers import Cluster, TestTenant
from tests.skills import refused, skill_md
from tests.store.owner import rows

NAME = "doc/query"
FORK, PROMOTE = "SkillDefService.ForkSkillDef", "SkillDefService.PromoteSkillDef"


def source(*tools: str, restricted: bool = True) -> str:
    listed = f"allowed-tools: {', '.join(tools)}\n" if tools else "allowed-tools: []\n"
    return skill_md("query", "Ours.\n", header=listed if restricted else "")


@pytest.fixture
def writer(tenant: TestTenant) -> Client:
    """A key bound to an agent with some tools, which may author below `doc`."""
    agent = {"name": "writer", "skills": ["doc/*"], "tools": {"names": ["ReadDocument", "ReadChunk", "Bash(git *)"]}}
    tenant.author.call("AgentService.PutAgent", agent=agent)
    return tenant.bound(Role.AUTHOR, "writer")


def etag(client: Client) -> str:
    return str(client.call("SkillDefService.GetSkillDef", name=NAME).skill_def.etag)


def test_a_name_outside_its_allowlist_is_refused_as_an_invoke_of_it_is(
    cluster: Cluster, tenant: TestTenant, writer: Client
) -> None:
    invoked = refused(writer, "SkillService.InvokeSkill", name="seo/audit")
    for method, fields in (
        ("CreateSkillDef", {"source": skill_md("audit")}),
        ("ForkSkillDef", {"from": "bundle"}),
        ("ForkSkillDef", {}),
        ("GetSkillDef", {}),
        ("ListSkillDefVersions", {}),
        ("PromoteSkillDef", {"version": 1, "etag": "r1"}),
        ("RetireSkillDef", {"etag": "r1"}),
        ("SetSkillDisabled", {"disabled": True, "etag": "r0"}),
        ("SetLabel", {"label": "x", "version": 1, "etag": "r1"}),
        ("DiffSkillDefs", {"from": "bundle", "to": "bundle"}),
        ("VerifySkillDef", {"content_sha256": "0" * 64}),
        ("ExportSkill", {}),
    ):
        error = refused(writer, f"SkillDefService.{method}", name="seo/audit", **fields)
        assert (method, error.code, error.reason) == (method, invoked.code, "SKILL_NOT_PERMITTED")
        told = {key: value for key, value in error.metadata.items() if key != "decision_id"}
        assert told == {key: value for key, value in invoked.metadata.items() if key != "decision_id"}
    assert rows(cluster, "SELECT 1 FROM skill_defs WHERE tenant_id = %s", tenant.name) == []
    assert rows(cluster, "SELECT 1 FROM skill_def_versions WHERE tenant_id = %s", tenant.name) == []


def test_it_may_narrow_the_tools_of_what_it_forks_and_never_widen_them(
    cluster: Cluster, tenant: TestTenant, writer: Client
) -> None:
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument", "Bash(git *)"), promote=True)
    assert writer.call(FORK, name=NAME, source=source("ReadDocument")).version.created_as == "writer"
    assert writer.call(FORK, name=NAME, source=source("Bash(git *)")).version.version == 3
    widened = {
        source("ReadDocument", "ReadChunk"): "ReadChunk",
        source("ReadDocument", "Bash"): "Bash",
        source("WriteChunk"): "WriteChunk",
        source(restricted=False): "*",
    }
    for text, tools in widened.items():
        error = refused(writer, FORK, name=NAME, source=text)
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "TOOLS_EXCEED_AGENT")
        assert error.metadata["tools"] == tools
    assert rows(cluster, "SELECT max(version) FROM skill_def_versions WHERE tenant_id = %s", tenant.name) == [(3,)]
    # What the fork was made from counts, not what is in effect.
    error = refused(writer, FORK, name=NAME, source=source("Bash(git *)"), **{"from": "v2"})
    assert error.metadata["tools"] == "Bash(git *)"


def test_no_other_way_to_a_version_widens_the_tools_either(tenant: TestTenant, writer: Client) -> None:
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument"), promote=True)
    elsewhere = tenant.server.tenant()
    elsewhere.author.call("SkillDefService.CreateSkillDef", name=NAME, source=source("ReadDocument", "ReadChunk"))
    archive = elsewhere.author.call("SkillDefService.ExportSkill", name=NAME).archive
    error = refused(writer, "SkillDefService.ImportSkills", archive=archive)
    assert (error.reason, error.metadata["tools"]) == ("TOOLS_EXCEED_AGENT", "ReadChunk")
    tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, etag=etag(writer))
    wider = {"name": NAME, "source": source("ReadDocument", "ReadChunk")}
    assert refused(writer, "SkillDefService.CreateSkillDef", **wider).reason == "TOOLS_EXCEED_AGENT"
    assert writer.call("SkillDefService.CreateSkillDef", **{**wider, "source": source("ReadDocument")})


def test_no_change_brings_a_wider_skill_into_effect(tenant: TestTenant, writer: Client) -> None:
    # What lies below allows itself more than what the agent would take away.
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument"), promote=True)
    error = refused(writer, "SkillDefService.RetireSkillDef", name=NAME, etag=etag(writer))
    assert error.reason == "TOOLS_EXCEED_AGENT"
    # An older version may be wider than the one in effect, without its fork being so.
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument", "ReadChunk"))
    wide = {"name": NAME, "source": source("ReadDocument", "ReadChunk"), "from": "v2"}
    assert refused(writer, FORK, promote=True, etag=etag(writer), **wide).reason == "TOOLS_EXCEED_AGENT"


def test_nothing_wider_is_prepared_beneath_a_tombstone(tenant: TestTenant, writer: Client) -> None:
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument"), promote=True)
    writer.call("SkillDefService.SetSkillDisabled", name=NAME, disabled=True, etag=etag(writer))
    error = refused(writer, "SkillDefService.RetireSkillDef", name=NAME, etag=etag(writer))
    assert error.reason == "TOOLS_EXCEED_AGENT"
    back = writer.call("SkillDefService.SetSkillDisabled", name=NAME, disabled=False, etag=etag(writer))
    assert back.winner.origin == "tenant:v1"


def test_a_tombstone_hides_no_bundled_skills_tools_from_the_check(tenant: TestTenant, writer: Client) -> None:
    disable = {"name": NAME, "disabled": True, "etag": "r0"}
    tenant.author.call("SkillDefService.SetSkillDisabled", **disable)
    create = {"name": NAME, "source": source("Bash(git *)")}
    assert refused(writer, "SkillDefService.CreateSkillDef", **create).reason == "TOOLS_EXCEED_AGENT"


def test_it_learns_of_no_other_agent_and_no_other_name_from_its_events(tenant: TestTenant, writer: Client) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/own", source=skill_md("own"), agent="writer")
    tenant.author.call("AuditService.ExplainResolution", name="secret/plan", agent="writer")
    tenant.author.call("AgentService.TestAllowlist", agent="writer", skills=["secret/*"], names=["secret/plan"])
    writer.call("SkillService.ListSkills")
    told = writer.call("AuditService.QueryAuditEvents").events
    assert [event.verb for event in told if event.verb != "query_audit"] == ["list"]
    every = tenant.author.call("AuditService.QueryAuditEvents", verb="create").events
    assert "doc-manager" not in every[0].event_json
    assert '"gaining":["writer"]' in every[0].event_json


def test_without_an_agent_an_author_may_widen(tenant: TestTenant) -> None:
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument"))
    assert tenant.author.call(FORK, name=NAME, source=source(restricted=False), **{"from": "v1"}).version.version == 2


def test_create_promote_label_and_unretire_are_held_to_the_tools_too(tenant: TestTenant, writer: Client) -> None:
    create = {"name": "doc/other", "source": skill_md("other", header="allowed-tools: Deploy\n")}
    assert refused(writer, "SkillDefService.CreateSkillDef", **create).reason == "TOOLS_EXCEED_AGENT"
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument"), promote=True)
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument", "ReadChunk"), **{"from": "v1"})
    tenant.author.call(FORK, name=NAME, source=source("Deploy"), **{"from": "v2"})
    for version in (2, 3):
        error = refused(writer, PROMOTE, name=NAME, version=version, etag=etag(writer))
        assert error.reason == "TOOLS_EXCEED_AGENT"
        label = {"name": NAME, "label": "x", "version": version, "etag": etag(writer)}
        assert refused(writer, "SkillDefService.SetLabel", **label).reason == "TOOLS_EXCEED_AGENT"
    tenant.author.call(PROMOTE, name=NAME, version=3, etag=etag(writer))
    tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, etag=etag(writer))
    back = {"name": NAME, "retired": False, "etag": etag(writer)}
    assert refused(writer, "SkillDefService.RetireSkillDef", **back).reason == "TOOLS_EXCEED_AGENT"


def test_invoking_asks_the_same_of_the_tools(tenant: TestTenant, writer: Client) -> None:
    tenant.author.call(FORK, name=NAME, source=source("ReadDocument", "Deploy"), promote=True)
    error = refused(writer, "SkillService.InvokeSkill", name=NAME)
    assert (error.reason, error.metadata["tools"]) == ("TOOLS_EXCEED_AGENT", "Deploy")


@pytest.mark.usefixtures("writer")
def test_an_author_that_acts_as_an_agent_is_held_to_it(tenant: TestTenant) -> None:
    asked = {"name": NAME, "source": source("Deploy"), "agent": "writer"}
    assert refused(tenant.author, FORK, **asked).reason == "TOOLS_EXCEED_AGENT"
    asked = {"name": "seo/audit", "agent": "writer"}
    assert refused(tenant.author, FORK, **asked).reason == "SKILL_NOT_PERMITTED"


def test_it_learns_of_no_other_agent_from_an_effect(tenant: TestTenant, writer: Client) -> None:
    made = writer.call(FORK, name=NAME, source=source("ReadDocument"), promote=True)
    assert list(made.effect.gaining) == ["writer"]
    assert (
        "doc-manager"
        in tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, etag=etag(writer)).effect.changing
    )


def test_it_changes_no_allowlist_and_defines_no_agent(writer: Client) -> None:
    for name in ("writer", "new"):
        error = refused(writer, "AgentService.PutAgent", agent={"name": name, "skills": []})
        assert error.reason == "ROLE_REQUIRED"
        assert refused(writer, "AgentService.DeleteAgent", name=name, etag="r1").reason == "ROLE_REQUIRED"
