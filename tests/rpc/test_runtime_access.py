"""Who may make runtime calls, and as which agent."""

import json
from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.servers import Cluster, TestTenant
from tests.skills import refused, skill_md
from tests.store.chain import events

RUNTIME_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("SkillService.PrepareRun", {}),
    ("SkillService.ListSkills", {}),
    ("SkillService.InvokeSkill", {"name": "doc/query"}),
    ("SkillService.ReadSkillFile", {"name": "doc/chunk-review", "path": "references/review-checklist.md"}),
    ("SkillService.CallSkillTool", {"input_json": '{"name":"doc/query"}'}),
]
AUTHORING_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("SkillDefService.CreateSkillDef", {"name": "doc/new", "source": skill_md("new")}),
    ("SkillDefService.GetSkillDef", {"name": "doc/new"}),
    ("SkillDefService.ListSkillDefs", {}),
    ("SkillDefService.PromoteSkillDef", {"name": "doc/new", "version": 1}),
    ("SkillDefService.RetireSkillDef", {"name": "doc/new"}),
    ("SkillDefService.SetSkillDisabled", {"name": "doc/query", "disabled": True}),
    ("SkillDefService.ListCatalog", {}),
    ("AgentService.PutAgent", {"agent": {"name": "wide"}}),
    ("AgentService.ListAgents", {}),
    ("AgentService.TestAllowlist", {"skills": ["doc/*"]}),
    ("AuditService.QueryAuditEvents", {}),
    ("AuditService.ExplainResolution", {"name": "doc/query"}),
    ("TenantService.CreateTenant", {"tenant": "made-here"}),
    ("TenantService.ListTenants", {}),
    ("TenantService.IssueKey", {"tenant": "platform", "role": "ROLE_OPERATOR"}),
    ("TenantService.RevokeKey", {"tenant": "platform", "key_id": "x"}),
    ("TenantService.ListKeys", {"tenant": "platform"}),
]
each_call = pytest.mark.parametrize(("method", "fields"), RUNTIME_CALLS)


@each_call
def test_a_call_without_an_agent_is_refused(tenant: TestTenant, method: str, fields: dict[str, Any]) -> None:
    for client in (tenant.runtime, tenant.author):
        failed = refused(client, method, **fields)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
        assert [field for field, _ in failed.violations] == ["agent"]


@pytest.mark.parametrize("agent", ["nobody", "doc-manage", "doc-manager2"])
@each_call
def test_an_agent_that_is_not_defined_is_refused_and_never_everything_allowed(
    tenant: TestTenant, method: str, fields: dict[str, Any], agent: str
) -> None:
    for client in (tenant.runtime, tenant.author):
        failed = refused(client, method, agent=agent, **fields)
        assert (failed.code, failed.reason, failed.metadata["agent"]) == ("NOT_FOUND", "AGENT_NOT_FOUND", agent)


@pytest.mark.parametrize("agent", ["Doc-Manager", "doc/manager", " doc-manager", "d\u043ec-manager", "..", "*"])
@each_call
def test_an_agents_name_that_is_none_is_refused(
    tenant: TestTenant, method: str, fields: dict[str, Any], agent: str
) -> None:
    failed = refused(tenant.runtime, method, agent=agent, **fields)
    assert (failed.reason, [field for field, _ in failed.violations]) == ("INVALID_NAME", ["agent"])


@pytest.mark.parametrize("role", [Role.RUNTIME, Role.AUTHOR])
@each_call
def test_a_bound_key_needs_no_agent_and_can_name_no_other(
    tenant: TestTenant, method: str, fields: dict[str, Any], role: Role
) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "wide"})
    bound = tenant.bound(role, "doc-manager")
    assert bound.call(method, **fields) is not None
    assert bound.call(method, agent="doc-manager", **fields) is not None
    for other in ("wide", "nobody"):
        failed = refused(bound, method, agent=other, **fields)
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        assert failed.metadata["agent"] == "doc-manager"


@each_call
def test_a_key_bound_to_an_agent_that_is_not_defined_can_do_nothing(
    tenant: TestTenant, method: str, fields: dict[str, Any]
) -> None:
    assert refused(tenant.bound(Role.RUNTIME, "nobody"), method, **fields).reason == "AGENT_NOT_FOUND"


@each_call
def test_an_operator_makes_no_runtime_calls(tenant: TestTenant, method: str, fields: dict[str, Any]) -> None:
    failed = refused(tenant.server.operator(), method, agent="doc-manager", **fields)
    assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
    assert failed.metadata["roles"] == "runtime,author"


@each_call
def test_an_author_makes_runtime_calls_as_a_runtime_does(
    tenant: TestTenant, method: str, fields: dict[str, Any]
) -> None:
    def answered(client: Client) -> Any:
        answer = client.call(method, agent="doc-manager", **fields)
        answer.decision_id = ""
        return answer

    assert answered(tenant.author) == answered(tenant.runtime)


@pytest.mark.parametrize(("method", "fields"), AUTHORING_CALLS)
def test_a_runtime_authors_and_operates_nothing(tenant: TestTenant, method: str, fields: dict[str, Any]) -> None:
    before = tenant.author.call("SkillDefService.ListCatalog", page_size=1000)
    for client in (tenant.runtime, tenant.bound(Role.RUNTIME, "doc-manager")):
        failed = refused(client, method, **fields)
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=failed.decision_id).events
        assert (event.reason, event.name) == ("ROLE_REQUIRED", "")
    after = tenant.author.call("SkillDefService.ListCatalog", page_size=1000)
    assert after.entries == before.entries


def test_a_runtime_sees_an_agents_definition(tenant: TestTenant) -> None:
    assert tenant.runtime.call("AgentService.GetAgent", name="doc-manager").agent.skills == ["doc/*"]


def test_an_agent_of_another_tenant_is_not_defined_here(tenant: TestTenant) -> None:
    tenant.server.tenant().author.call("AgentService.PutAgent", agent={"name": "theirs"})
    assert refused(tenant.runtime, "SkillService.ListSkills", agent="theirs").reason == "AGENT_NOT_FOUND"


def test_a_tenants_own_agent_stands_before_a_bundled_one_from_the_next_call_on(tenant: TestTenant) -> None:
    asked = {"agent": "doc-manager", "name": "writing/style-check"}
    assert refused(tenant.runtime, "SkillService.InvokeSkill", **asked).reason == "SKILL_NOT_PERMITTED"
    tenant.author.call("AgentService.PutAgent", agent={"name": "doc-manager", "skills": ["writing/*"]})
    assert tenant.runtime.call("SkillService.InvokeSkill", **asked).body
    failed = refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    assert failed.reason == "SKILL_NOT_PERMITTED"


def test_a_refusal_says_nothing_about_what_exists(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "narrow", "skills": ["writing/*"]})
    shown = set()
    for name in ("doc/query", "doc/nowhere", "doc/query@bundle", "doc/query@v7", "doc/nowhere@inline"):
        for method, more in (("InvokeSkill", {}), ("ReadSkillFile", {"path": "x"})):
            failed = refused(tenant.runtime, f"SkillService.{method}", agent="narrow", name=name, **more)
            bare = name.partition("@")[0]
            shown.add((failed.code, failed.reason, failed.message.replace(bare, "*"), *sorted(failed.metadata)))
    assert len(shown) == 1


@pytest.mark.parametrize(
    ("method", "malformed"),
    [
        ("InvokeSkill", {"skill_dir": "a\nb"}),
        ("InvokeSkill", {"skill_dir": "a" * 513}),
        ("ReadSkillFile", {"path": ""}),
        ("ReadSkillFile", {"path": "../SKILL.md"}),
        ("CallSkillTool", {"skill_dir": "a\nb"}),
        ("CallSkillTool", {"file": "../SKILL.md"}),
    ],
)
def test_malformed_input_tells_nothing_of_the_skill_it_was_given_with(
    cluster: Cluster, tenant: TestTenant, method: str, malformed: dict[str, str]
) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/draft", source=skill_md("draft"), promote=False)
    before = events(cluster, tenant.name)
    shown = set()
    for name in ("doc/query", "doc/nowhere", "doc/draft", "doc/query@v7", "writing/style-check", "writing/nowhere"):
        fields: dict[str, Any] = {"name": name, **malformed}
        if method == "CallSkillTool":
            asked = {key: value for key, value in fields.items() if key != "skill_dir"}
            fields = {"input_json": json.dumps(asked), "skill_dir": malformed.get("skill_dir", "")}
        try:
            answer = tenant.runtime.call(f"SkillService.{method}", agent="doc-manager", **fields)
        except CallFailed as failed:
            shown.add((failed.reason, failed.message, *failed.metadata.items(), *failed.violations))
        else:
            assert answer.is_error
            shown.add((answer.reason, answer.text, answer.decision_id))
    ((reason, *_),) = shown
    assert reason == "INVALID_ARGUMENT"
    assert events(cluster, tenant.name) == before
