"""Agents: put whole, found by precedence, told apart from their allowlists, and never replaced by another."""

import json
import uuid
from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import changed, refused, skill_md
from tests.store.chain import events
from tests.store.owner import rows

LAYERS = catalog_pb2.Layer

WHOLE: dict[str, Any] = {
    "name": "helper",
    "description": "Helps with ✓.",
    "tools": {"names": ["Read", "Bash(git *)", "Skill"]},
    "skills": ["doc/*", "-doc/chunk-delete", "+own/**"],
    "definition_json": '{"model":{"tier":"strong","temperature":0.5},"prompt":"Line.\\n"}',
}


def _put(tenant: TestTenant, **agent: Any) -> Any:
    return changed(tenant.author, "AgentService.PutAgent", agent={"name": "helper", **agent})


def _get(tenant: TestTenant, name: str = "helper") -> Any:
    return tenant.author.call("AgentService.GetAgent", name=name).agent


def test_an_agent_comes_back_as_it_was_put(cluster: Cluster, tenant: TestTenant) -> None:
    put = _put(tenant, **WHOLE)
    agent = put.agent
    assert (agent.name, agent.description, list(agent.skills)) == ("helper", WHOLE["description"], WHOLE["skills"])
    assert list(agent.tools.names) == ["Read", "Bash(git *)", "Skill"]
    assert json.loads(agent.definition_json) == json.loads(WHOLE["definition_json"])
    assert agent.layer == LAYERS.LAYER_TENANT
    assert agent.origin == f"tenant:r{put.state.catalog_revision}"
    assert agent.etag
    assert len(agent.content_sha256) == len(agent.allowlist_sha256) == 64
    assert agent.create_time == agent.update_time
    assert not agent.HasField("skill_def_scopes")
    assert _get(tenant) == agent
    assert tenant.runtime.call("AgentService.GetAgent", name="helper").agent == agent
    event = next(event for event in events(cluster, tenant.name) if event["verb"] == "put_agent")
    assert (event["id"], event["agent"], event["outcome"]) == (put.decision_id, "helper", "ALLOWED")
    assert event["details"]["skills"] == WHOLE["skills"]
    assert event["details"]["allowlist_sha256"] == agent.allowlist_sha256


def test_an_agent_is_replaced_whole(tenant: TestTenant) -> None:
    first = _put(tenant, **WHOLE).agent
    second = _put(tenant).agent
    assert (second.description, list(second.skills), second.definition_json) == ("", [], "{}")
    assert not second.HasField("tools")
    assert second.create_time == first.create_time
    assert second.update_time.ToNanoseconds() > first.update_time.ToNanoseconds()
    assert _get(tenant) == second


def test_the_allowlist_is_no_part_of_what_the_agent_is(tenant: TestTenant) -> None:
    first = _put(tenant, **WHOLE)
    second = _put(tenant, **{**WHOLE, "skills": ["-*"]})
    assert second.agent.content_sha256 == first.agent.content_sha256
    assert second.agent.allowlist_sha256 != first.agent.allowlist_sha256
    assert second.agent.etag != first.agent.etag
    assert second.state.catalog_revision == first.state.catalog_revision + 1
    assert second.state.catalog_token != first.state.catalog_token
    again = _put(tenant, **{**WHOLE, "skills": WHOLE["skills"]})
    assert again.agent.allowlist_sha256 == first.agent.allowlist_sha256


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"description": "Other."}, False),
        ({"tools": {"names": ["Read"]}}, False),
        ({"tools": {"names": []}}, False),
        ({"tools": None}, False),
        ({"definition_json": '{"model":{"tier":"weak"}}'}, False),
        # The Skill tool is how skills are reached, and key order is no difference.
        ({"tools": {"names": ["Read", "Bash(git *)"]}}, True),
        ({"definition_json": '{"prompt":"Line.\\n", "model":{"temperature":0.5,"tier":"strong"}}'}, True),
    ],
)
def test_everything_else_is(tenant: TestTenant, changed: dict[str, object], *, same: bool) -> None:
    first = _put(tenant, **WHOLE).agent
    second = _put(tenant, **{**WHOLE, **changed}).agent
    assert (second.content_sha256 == first.content_sha256) is same


def test_no_tools_and_no_restriction_differ(tenant: TestTenant) -> None:
    needs = skill_md("needs", header="allowed-tools: Read\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/needs", source=needs)
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/free", source=skill_md("free"))
    for tools, listed in ((None, ["own/free", "own/needs"]), ([], ["own/free"]), (["Read"], ["own/free", "own/needs"])):
        agent = {"skills": ["own/*"], "tools": None if tools is None else {"names": tools}}
        put = _put(tenant, **agent).agent
        assert put.HasField("tools") is (tools is not None)
        assert list(put.tools.names) == (tools or [])
        found = tenant.runtime.call("SkillService.ListSkills", agent="helper").skills
        assert [skill.name for skill in found] == listed
        invoke = {"agent": "helper", "name": "own/needs"}
        if "own/needs" in listed:
            tenant.runtime.call("SkillService.InvokeSkill", **invoke)
        else:
            failed = refused(tenant.runtime, "SkillService.InvokeSkill", **invoke)
            assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "TOOLS_EXCEED_AGENT")


@pytest.mark.parametrize("value", ["", "doc/*"])
def test_skill_def_scopes_are_refused_with_both_ways_to_migrate(tenant: TestTenant, value: str) -> None:
    failed = refused(tenant.author, "AgentService.PutAgent", agent={"name": "helper", "skill_def_scopes": value})
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_AGENT")
    ((field, text),) = failed.violations
    assert field == "agent.skill_def_scopes"
    assert "`skills`" in text
    assert "delete the field" in text
    for definition in ('{"skill_def_scopes":[]}', '{"skill_def_scopes":null}'):
        failed = refused(
            tenant.author, "AgentService.PutAgent", agent={"name": "helper", "definition_json": definition}
        )
        assert (failed.reason, [field for field, _ in failed.violations]) == (
            "INVALID_AGENT",
            ["agent.definition_json"],
        )
        assert "delete the field" in failed.violations[0][1]
    assert refused(tenant.author, "AgentService.GetAgent", name="helper").reason == "AGENT_NOT_FOUND"


@pytest.mark.parametrize("text", ["[]", "1", "null", '"{}"', "{", "{'a': 1}", "NaN", '{"a": NaN}', '{"a": "\\ud800"}'])
def test_a_definition_is_a_json_object(tenant: TestTenant, text: str) -> None:
    failed = refused(tenant.author, "AgentService.PutAgent", agent={"name": "helper", "definition_json": text})
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_AGENT")
    assert [field for field, _ in failed.violations] == ["agent.definition_json"]


def test_every_problem_of_an_agent_is_told_at_once(cluster: Cluster, tenant: TestTenant) -> None:
    agent = {
        "name": "Not A Slug",
        "description": "x" * 1025,
        "tools": {"names": ["Read", " ", "x" * 257]},
        "skills": ["doc/*", "", "a//b", "-"],
        "definition_json": '{"a": "' + "x" * 65536 + '"}',
        "skill_def_scopes": "",
    }
    failed = refused(tenant.author, "AgentService.PutAgent", agent=agent)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_AGENT")
    assert {field for field, _ in failed.violations} == {
        "agent.name",
        "agent.description",
        "agent.tools[1]",
        "agent.tools[2]",
        "agent.skills[1]",
        "agent.skills[2]",
        "agent.skills[3]",
        "agent.definition_json",
        "agent.skill_def_scopes",
    }
    assert rows(cluster, "SELECT * FROM agents WHERE tenant_id = %s", tenant.name) == []


def test_a_bad_allowlist_is_refused_with_every_bad_entry(tenant: TestTenant) -> None:
    entries = ["doc/*", " doc", "DOC/*", "doc//x", "-"]
    for method, fields, prefix in (
        ("PutAgent", {"agent": {"name": "helper", "skills": entries}}, "agent."),
        ("TestAllowlist", {"skills": entries}, ""),
    ):
        failed = refused(tenant.author, f"AgentService.{method}", **fields)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ALLOWLIST")
        assert [field for field, _ in failed.violations] == [f"{prefix}skills[{index}]" for index in (1, 2, 3, 4)]


def test_entries_that_can_never_take_effect_are_warned_of(tenant: TestTenant) -> None:
    skills = ["doc/*", "doc/query", "-doc/secret", "-**"]
    put = _put(tenant, skills=skills)
    assert [(w.index, w.entry) for w in put.warnings] == [(1, "doc/query")]
    assert put.warnings[0].message
    tested = tenant.author.call("AgentService.TestAllowlist", skills=skills, names=["doc/query", "doc/secret", "x"])
    assert list(tested.warnings) == list(put.warnings)
    assert [(d.name, d.decision.allowed, d.decision.entry) for d in tested.decisions] == [
        ("doc/query", True, "doc/*"),
        ("doc/secret", False, "-doc/secret"),
        ("x", False, "-**"),
    ]
    assert (tested.denies_all, tested.has_allow) == (False, True)
    assert list(_put(tenant, skills=["doc/*"]).warnings) == []


def test_an_allowlist_in_use_is_tested_by_its_agents_name(tenant: TestTenant) -> None:
    tested = tenant.author.call("AgentService.TestAllowlist", agent="doc-manager", names=["doc/x", "x"])
    assert [d.decision.allowed for d in tested.decisions] == [True, False]
    assert refused(tenant.author, "AgentService.TestAllowlist", agent="nobody").reason == "AGENT_NOT_FOUND"
    empty = tenant.author.call("AgentService.TestAllowlist", names=["doc/x"])
    assert empty.decisions[0].decision.reason == catalog_pb2.AllowlistReason.ALLOWLIST_REASON_EMPTY_ALLOWLIST
    assert (empty.denies_all, empty.has_allow) == (False, False)
    failed = refused(tenant.author, "AgentService.TestAllowlist", names=["doc/x", "Doc/x"])
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_NAME", "names[1]")
    too_many = refused(tenant.author, "AgentService.TestAllowlist", names=["x"] * 1001)
    assert (too_many.reason, too_many.violations[0][0]) == ("INVALID_ARGUMENT", "names")


def test_an_etag_guards_against_changing_what_somebody_else_has_changed(cluster: Cluster, tenant: TestTenant) -> None:
    etags = [_put(tenant, **WHOLE).agent.etag]
    changes: list[dict[str, Any]] = [
        {"skills": ["own/*"]},
        {"tools": {"names": ["Read", "Bash(git *)"]}},
        {"description": "Other."},
        {"definition_json": "{}"},
        {"pins": {"doc/query": "v1"}},
        # Back to what it was, and once more the same: whoever read it before learns that it was changed.
        {},
        {},
    ]
    for change in changes:
        etags.append(_put(tenant, **{**WHOLE, **change}).agent.etag)
        before = rows(cluster, "SELECT name, xmin::text FROM agents WHERE tenant_id = %s", tenant.name)
        for stale in etags[:-1]:
            failed = refused(tenant.author, "AgentService.PutAgent", agent={"name": "helper"}, etag=stale)
            assert (failed.code, failed.reason, failed.metadata["name"]) == ("ABORTED", "ETAG_MISMATCH", "helper")
        assert rows(cluster, "SELECT name, xmin::text FROM agents WHERE tenant_id = %s", tenant.name) == before
    failed = refused(tenant.author, "AgentService.PutAgent", agent={"name": "new"}, etag=etags[-1])
    assert failed.reason == "ETAG_MISMATCH"
    assert events(cluster, tenant.name)[-1]["reason"] == "ETAG_MISMATCH"


def test_only_a_new_agent_is_put_without_an_etag(tenant: TestTenant) -> None:
    # A bundle's agent is none of the tenant's.
    for name in ("helper", "doc-manager"):
        tenant.author.call("AgentService.PutAgent", agent={"name": name, "description": "First."})
        failed = refused(tenant.author, "AgentService.PutAgent", agent={"name": name, "description": "Second."})
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
        ((field, text),) = failed.violations
        assert field == "etag"
        assert "GetAgent" in text
        assert _get(tenant, name).description == "First."


def test_a_put_that_is_sent_again_does_not_undo_what_came_after_it(tenant: TestTenant, server: RunningServer) -> None:
    operator = server.operator()
    request = {"agent": {"name": "helper", "skills": ["a", "b"]}, "request_id": str(uuid.uuid4())}
    first = tenant.author.call("AgentService.PutAgent", **request)
    second = _put(tenant, skills=["c"]).agent
    operator.call("TenantService.SetQuotas", tenant=tenant.name, quotas={"agents": 1, "allowlist_entries": 1})
    assert tenant.author.call("AgentService.PutAgent", **request) == first
    assert _get(tenant) == second


def test_agents_of_other_layers_have_no_etag_and_no_times(tenant: TestTenant) -> None:
    agent = _get(tenant, "doc-manager")
    assert agent.layer == LAYERS.LAYER_BUNDLE
    assert agent.origin.startswith("bundle:document-agent@")
    assert (agent.etag, agent.HasField("create_time"), agent.HasField("update_time")) == ("", False, False)


def test_agents_are_listed_from_all_layers_in_pages(tenant: TestTenant) -> None:
    for name in ("zz", "aa", "writer"):
        _put(tenant, name=name)
    page = tenant.author.call("AgentService.ListAgents")
    names = [agent.name for agent in page.agents]
    assert names == ["aa", "doc-manager", "marketer", "writer", "zz"]
    assert (page.total_size, page.next_page_token) == (5, "")
    assert {a.name for a in page.agents if a.layer == LAYERS.LAYER_TENANT} == {"aa", "writer", "zz"}
    for size in (1, 2, 5):
        pages = list(tenant.author.pages("AgentService.ListAgents", page_size=size))
        assert [agent.name for page in pages for agent in page.agents] == names
    malformed = {"page_token": "x"}
    assert refused(tenant.author, "AgentService.ListAgents", **malformed).reason == "INVALID_PAGE_TOKEN"
    assert refused(tenant.author, "AgentService.ListAgents", page_size=-1).reason == "INVALID_ARGUMENT"


def test_runtime_keys_read_agents_and_change_nothing(tenant: TestTenant) -> None:
    assert tenant.runtime.call("AgentService.GetAgent", name="doc-manager").agent == _get(tenant, "doc-manager")
    for method, fields in (
        ("PutAgent", {"agent": {"name": "x"}}),
        ("DeleteAgent", {"name": "x", "etag": "r1"}),
        ("ListAgents", {}),
        ("TestAllowlist", {}),
    ):
        failed = refused(tenant.runtime, f"AgentService.{method}", **fields)
        assert (failed.code, failed.reason, failed.metadata["roles"]) == (
            "PERMISSION_DENIED",
            "ROLE_REQUIRED",
            "author",
        )
    failed = refused(tenant.server.operator(), "AgentService.GetAgent", name="doc-manager")
    assert (failed.reason, failed.metadata["roles"]) == ("ROLE_REQUIRED", "author,runtime")


@pytest.mark.parametrize("role", [Role.AUTHOR, Role.RUNTIME])
def test_a_bound_key_need_not_name_its_agent(tenant: TestTenant, role: Role) -> None:
    agent = _put(tenant, **WHOLE).agent
    bound = tenant.bound(role, "helper")
    assert bound.call("AgentService.GetAgent").agent == agent
    assert bound.call("AgentService.GetAgent", name="helper").agent == agent
    failed = refused(bound, "AgentService.GetAgent", name="doc-manager")
    assert (failed.reason, failed.metadata["agent"]) == ("ROLE_REQUIRED", "helper")
    assert refused(tenant.author, "AgentService.GetAgent").reason == "INVALID_NAME"
