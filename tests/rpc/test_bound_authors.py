"""An agent that authors: its allowlist gates every verb, reads included, and it makes no agents of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import Client
from tests.servers import Cluster, TestTenant
from tests.skills import changed, etag_of, refused, skill_md
from tests.store.chain import events
from tests.store.owner import rows

VERBS: Mapping[str, Mapping[str, object]] = {
    "CreateSkillDef": {"source": skill_md("secret")},
    "ForkSkillDef": {"promote": True},
    "GetSkillDef": {},
    "ListSkillDefVersions": {},
    "PromoteSkillDef": {"version": 1},
    "RetireSkillDef": {},
    "SetSkillDisabled": {"disabled": True},
    "SetLabel": {"label": "staging", "version": 1},
    "DiffSkillDefs": {"from": "v1", "to": "bundle"},
    "VerifySkillDef": {"content_sha256": "0" * 64},
    "ExportSkill": {},
}


@dataclass(frozen=True)
class Bound:
    """A tenant whose agent `helper` may use `own/*` but for `own/secret`, and a key that authors as that agent."""

    tenant: TestTenant
    client: Client


@pytest.fixture
def bound(tenant: TestTenant) -> Bound:
    agent = {"name": "helper", "tools": {"names": ["Read", "Bash"]}, "skills": ["own/*", "-own/secret"]}
    tenant.author.call("AgentService.PutAgent", agent=agent)
    tenant.author.call("AgentService.PutAgent", agent={"name": "other"})
    return Bound(tenant, tenant.bound(Role.AUTHOR, "helper"))


def _create(client: Client, name: str, header: str = "") -> None:
    source = skill_md(name.rpartition("/")[2], header=header)
    client.call("SkillDefService.CreateSkillDef", name=name, source=source)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("exists", [True, False])
def test_every_verb_is_refused_outside_the_allowlist_whether_or_not_the_name_exists(
    cluster: Cluster, bound: Bound, verb: str, *, exists: bool
) -> None:
    if exists:
        _create(bound.tenant.author, "own/secret")
    before = rows(cluster, "SELECT * FROM skill_defs WHERE tenant_id = %s", bound.tenant.name)
    for name, rule in (("own/secret", "DENY_RULE"), ("doc/query", "UNLISTED")):
        failed = refused(bound.client, f"SkillDefService.{verb}", name=name, **VERBS[verb])
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "SKILL_NOT_PERMITTED")
        assert failed.message == f"The agent 'helper' may not use the skill '{name}'."
        decision_id = failed.metadata.pop("decision_id")
        assert failed.metadata == {"name": name, "agent": "helper", "decision": rule}
        event = events(cluster, bound.tenant.name)[-1]
        assert (event["id"], event["agent"], event["name"], event["outcome"]) == (
            decision_id,
            "helper",
            name,
            "REFUSED",
        )
        assert event["decision"]["reason"] == rule
        assert "candidates" not in event
    assert rows(cluster, "SELECT * FROM skill_defs WHERE tenant_id = %s", bound.tenant.name) == before


@pytest.mark.parametrize("verb", VERBS)
def test_an_author_who_names_an_agent_is_held_to_its_allowlist(bound: Bound, verb: str) -> None:
    _create(bound.tenant.author, "own/secret")
    failed = refused(bound.tenant.author, f"SkillDefService.{verb}", name="own/secret", agent="helper", **VERBS[verb])
    assert failed.reason == "SKILL_NOT_PERMITTED"
    failed = refused(bound.tenant.author, f"SkillDefService.{verb}", name="own/x", agent="nobody", **VERBS[verb])
    assert (failed.code, failed.reason) == ("NOT_FOUND", "AGENT_NOT_FOUND")


def test_within_its_allowlist_an_agent_authors_like_anyone(cluster: Cluster, bound: Bound) -> None:
    _create(bound.client, "own/mine")
    promoted = changed(bound.client, "SkillDefService.PromoteSkillDef", name="own/mine", version=1)
    assert promoted.winner.origin == "tenant:v1"
    assert changed(bound.client, "SkillDefService.RetireSkillDef", name="own/mine").skill_def.retired
    assert not changed(bound.client, "SkillDefService.RetireSkillDef", name="own/mine", retired=False).skill_def.retired
    assert changed(bound.client, "SkillDefService.SetSkillDisabled", name="own/mine", disabled=True).disabled
    assert bound.client.call("SkillDefService.GetSkillDef", name="own/mine").skill_def.disabled
    own = [event for event in events(cluster, bound.tenant.name) if event["key_id"] in event["actor"]]
    assert {event["agent"] for event in own if event.get("name") == "own/mine"} == {"helper"}
    assert {event["decision"]["entry"] for event in own if event.get("name") == "own/mine"} == {"own/*"}


def test_lists_hold_permitted_names_only(bound: Bound) -> None:
    for name in ("own/a", "own/secret", "other/x", "own/deep/er"):
        _create(bound.tenant.author, name)
    listed = bound.client.call("SkillDefService.ListSkillDefs", include_retired=True)
    assert ([found.name for found in listed.skill_defs], listed.total_size) == (["own/a"], 1)
    catalog = bound.client.call("SkillDefService.ListCatalog")
    assert ([entry.name for entry in catalog.entries], catalog.total_size) == (["own/a"], 1)
    assert catalog.entries[0].decision.entry == "own/*"
    narrowed = bound.client.call("SkillDefService.ListCatalog", pattern="own/secret")
    assert (list(narrowed.entries), narrowed.total_size) == ([], 0)


def test_a_skill_with_more_tools_than_the_agent_has_is_refused(cluster: Cluster, bound: Bound) -> None:
    source = skill_md("mine", header="allowed-tools: Read, Bash(git *), WebFetch, Edit\n")
    failed = refused(bound.client, "SkillDefService.CreateSkillDef", name="own/mine", source=source)
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "TOOLS_EXCEED_AGENT")
    assert (failed.metadata["name"], failed.metadata["agent"]) == ("own/mine", "helper")
    assert [tool.strip() for tool in failed.metadata["tools"].split(",")] == ["WebFetch", "Edit"]
    assert rows(cluster, "SELECT * FROM skill_defs WHERE tenant_id = %s", bound.tenant.name) == []
    assert events(cluster, bound.tenant.name)[-1]["reason"] == "TOOLS_EXCEED_AGENT"
    _create(bound.client, "own/mine", header="allowed-tools: Read, Bash(git *)\n")


def test_an_agent_promotes_no_version_with_more_tools_than_it_has(bound: Bound) -> None:
    source = skill_md("mine", header="allowed-tools: WebFetch\n")
    bound.tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=source, promote=False)
    etag = etag_of(bound.client, "own/mine")
    failed = refused(bound.client, "SkillDefService.PromoteSkillDef", name="own/mine", version=1, etag=etag)
    assert failed.reason == "TOOLS_EXCEED_AGENT"
    assert bound.tenant.author.call("SkillDefService.GetSkillDef", name="own/mine").skill_def.active_version == 0


@pytest.mark.parametrize("verb", [*VERBS, "ListSkillDefs", "ListCatalog"])
def test_a_bound_key_acts_for_no_other_agent(cluster: Cluster, bound: Bound, verb: str) -> None:
    fields = {} if verb.startswith("List") else {"name": "own/mine", **VERBS[verb]}
    for other in ("other", "doc-manager", "nobody"):
        failed = refused(bound.client, f"SkillDefService.{verb}", agent=other, **fields)
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        assert failed.metadata["agent"] == "helper"
        assert events(cluster, bound.tenant.name)[-1]["id"] == failed.decision_id


def test_a_bound_key_neither_defines_agents_nor_sees_others(cluster: Cluster, bound: Bound) -> None:
    before = rows(cluster, "SELECT * FROM agents WHERE tenant_id = %s ORDER BY name", bound.tenant.name)
    for name in ("helper", "other", "new"):
        failed = refused(bound.client, "AgentService.PutAgent", agent={"name": name, "skills": ["**"]})
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        assert failed.metadata["agent"] == "helper"
    after = rows(cluster, "SELECT * FROM agents WHERE tenant_id = %s ORDER BY name", bound.tenant.name)
    assert after == before
    listed = bound.client.call("AgentService.ListAgents")
    assert ([agent.name for agent in listed.agents], listed.total_size) == (["helper"], 1)
    for name in ("other", "doc-manager", "nobody"):
        failed = refused(bound.client, "AgentService.GetAgent", name=name)
        assert (failed.code, failed.reason, failed.metadata["agent"]) == (
            "PERMISSION_DENIED",
            "ROLE_REQUIRED",
            "helper",
        )
        failed = refused(bound.client, "AgentService.TestAllowlist", agent=name, names=["own/x"])
        assert (failed.code, failed.reason, failed.metadata["agent"]) == (
            "PERMISSION_DENIED",
            "ROLE_REQUIRED",
            "helper",
        )


def test_a_bound_key_whose_agent_is_gone_may_do_nothing(cluster: Cluster, bound: Bound) -> None:
    orphan = bound.tenant.bound(Role.AUTHOR, "never-defined")
    for verb, fields in VERBS.items():
        failed = refused(orphan, f"SkillDefService.{verb}", name="own/x", **fields)
        assert (failed.code, failed.reason) == ("NOT_FOUND", "AGENT_NOT_FOUND")
    for method in ("SkillDefService.ListSkillDefs", "SkillDefService.ListCatalog"):
        assert refused(orphan, method).reason == "AGENT_NOT_FOUND"
    assert rows(cluster, "SELECT * FROM skill_defs WHERE tenant_id = %s", bound.tenant.name) == []


def test_an_agent_that_is_denied_everything_authors_nothing(bound: Bound) -> None:
    changed(bound.tenant.author, "AgentService.PutAgent", agent={"name": "helper", "skills": ["-*"]})
    for verb, fields in VERBS.items():
        assert refused(bound.client, f"SkillDefService.{verb}", name="own/x", **fields).reason == "SKILL_NOT_PERMITTED"
    assert list(bound.client.call("SkillDefService.ListCatalog").entries) == []
