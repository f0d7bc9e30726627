"""The audit over gRPC: one event for each call, with all that the decision was made from and none of the content."""

import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from substrate.api.v1 import audit_pb2, catalog_pb2
from substrate.domain.archives import PackedSkill, pack
from substrate.domain.identity import Role
from substrate.domain.names import SkillName
from tests.rpc.wire import METHODS
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events, faults
from tests.store.owner import change, connect, value

RUN = {"agent": "doc-manager", "run_id": "run-7", "turn": 3}
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
SHA256 = re.compile(r"[0-9a-f]{64}")


def _recorded(tenant: TestTenant, decision_id: str) -> Any:
    (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=decision_id).events
    return event


@pytest.mark.parametrize(
    ("method", "fields", "verb"),
    [
        ("PrepareRun", {}, "prepare"),
        ("ListSkills", {"pattern": "doc/*"}, "list"),
        ("InvokeSkill", {"name": "doc/query"}, "invoke"),
        ("ReadSkillFile", {"name": "doc/chunk-review", "path": "references/review-checklist.md"}, "read_file"),
        ("CallSkillTool", {"input_json": '{"op":"list"}'}, "list"),
        ("CallSkillTool", {"input_json": '{"name":"doc/query"}'}, "invoke"),
        (
            "CallSkillTool",
            {"input_json": '{"name":"doc/chunk-review","file":"references/review-checklist.md"}'},
            "read_file",
        ),
    ],
)
def test_every_runtime_call_leaves_exactly_one_event(
    cluster: Cluster, tenant: TestTenant, method: str, fields: dict[str, object], verb: str
) -> None:
    # The second call is answered from what the first left behind, and is recorded no less.
    for _ in range(2):
        before = len(events(cluster, tenant.name))
        began = datetime.now(UTC)
        answer = tenant.runtime.call(f"SkillService.{method}", **RUN, **fields)
        ended = datetime.now(UTC)
        (event,) = events(cluster, tenant.name)[before:]
        assert event["id"] == answer.decision_id
        assert UUID7.fullmatch(event["id"])
        assert began <= datetime.fromisoformat(event["time"]) <= ended
        assert (event["verb"], event["outcome"], event.get("reason")) == (verb, "ALLOWED", None)
        assert (event["agent"], event["run_id"], event["turn"]) == ("doc-manager", "run-7", 3)
        assert event["tenant"] == tenant.name
        assert event["role"] == "runtime"
        assert event["actor"] == f"runtime:{tenant.name}.{event['key_id']}"
        assert event["revision"] == answer.state.catalog_revision
        assert event["static_digest"] == answer.state.static_digest
        assert SHA256.fullmatch(event["allowlist_sha256"])
        assert event["server"]
        assert 0 <= event["decide_us"] <= (ended - began) / timedelta(microseconds=1)
        assert event["call_id"]


def test_an_invocation_records_the_whole_decision(tenant: TestTenant) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    answer = tenant.runtime.call("SkillService.InvokeSkill", **RUN, name="doc/query@bundle")
    event = _recorded(tenant, answer.decision_id)
    assert (event.requested_name, event.name) == ("doc/query@bundle", "doc/query")
    assert (event.decision.allowed, event.decision.index, event.decision.entry) == (True, 0, "doc/*")
    assert event.decision.reason == catalog_pb2.AllowlistReason.ALLOWLIST_REASON_ALLOW_RULE
    layers, states = catalog_pb2.Layer, catalog_pb2.CandidateState
    assert [(c.layer, c.state, c.version, c.origin) for c in event.candidates] == [
        (layers.LAYER_TENANT, states.CANDIDATE_STATE_WON, 1, "tenant:v1"),
        (layers.LAYER_BUNDLE, states.CANDIDATE_STATE_SHADOWED, 0, answer.origin),
    ]
    assert all(SHA256.fullmatch(candidate.content_sha256) for candidate in event.candidates)
    assert (event.winner.layer, event.winner.content_sha256) == (layers.LAYER_BUNDLE, answer.content_sha256)
    agent = tenant.author.call("AgentService.GetAgent", name="doc-manager").agent
    assert event.allowlist_sha256 == agent.allowlist_sha256
    assert event.outcome == audit_pb2.Outcome.OUTCOME_ALLOWED
    assert json.loads(event.event_json)["id"] == event.id == answer.decision_id


def test_a_list_records_what_it_was_narrowed_to_how_much_it_held_and_a_digest(tenant: TestTenant) -> None:
    for name in ("doc/mine", "own/mine"):
        tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md("mine"))
    users = skill_md("users", header="disable-model-invocation: true\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/users", source=users)
    listed = tenant.runtime.call("SkillService.ListSkills", **RUN)
    event = _recorded(tenant, listed.decision_id)
    assert (event.filter, event.admitted_count) == ("", len(listed.skills))
    # Of what the allowlist admits one is for users; what it denies is not even counted.
    assert event.left_out_count == 1
    assert SHA256.fullmatch(event.entries_sha256)
    assert (event.name, list(event.candidates), event.HasField("decision")) == ("", [], False)
    again = _recorded(tenant, tenant.runtime.call("SkillService.ListSkills", **RUN).decision_id)
    assert again.entries_sha256 == event.entries_sha256
    narrowed = tenant.runtime.call("SkillService.ListSkills", **RUN, pattern="doc/chunk-*")
    event = _recorded(tenant, narrowed.decision_id)
    assert (event.filter, event.admitted_count) == ("doc/chunk-*", len(narrowed.skills))
    assert event.entries_sha256 != again.entries_sha256
    page = _recorded(tenant, tenant.runtime.call("SkillService.ListSkills", **RUN, page_size=1).decision_id)
    assert (page.admitted_count, page.left_out_count) == (1, again.left_out_count)


@pytest.mark.parametrize(
    ("fields", "reason", "looked_up"),
    [
        ({"agent": "doc-manager", "name": "writing/linkedin-post"}, "SKILL_NOT_PERMITTED", False),
        ({"agent": "doc-manager", "name": "doc/nothing"}, "SKILL_NOT_FOUND", False),
        ({"agent": "nobody", "name": "doc/query"}, "AGENT_NOT_FOUND", False),
        ({"agent": "doc-manager", "name": "doc/query", "expected_digest": "0" * 64}, "SKILL_CHANGED", True),
        ({"agent": "doc-manager", "name": "doc/needs"}, "TOOLS_EXCEED_AGENT", True),
        ({"agent": "doc-manager", "name": "doc/users"}, "INVOCATION_NOT_ALLOWED", True),
        ({"agent": "doc-manager", "name": "doc/paths"}, "SKILL_INELIGIBLE", True),
    ],
)
def test_every_denial_is_recorded_with_its_reason(
    tenant: TestTenant, fields: dict[str, object], reason: str, *, looked_up: bool
) -> None:
    for name, header in (
        ("needs", "allowed-tools: Elsewhere\n"),
        ("users", "disable-model-invocation: true\n"),
        ("paths", 'paths: ["*.md"]\n'),
    ):
        tenant.author.call("SkillDefService.CreateSkillDef", name=f"doc/{name}", source=skill_md(name, header=header))
    failed = refused(tenant.runtime, "SkillService.InvokeSkill", **fields)
    assert failed.reason == reason
    event = _recorded(tenant, failed.decision_id)
    assert (event.outcome, event.reason, event.verb) == (audit_pb2.Outcome.OUTCOME_REFUSED, reason, "invoke")
    assert event.agent == fields["agent"]
    assert event.requested_name == (fields["name"] if reason != "AGENT_NOT_FOUND" else "")
    assert bool(event.candidates) is looked_up


def test_no_content_and_no_argument_is_in_any_event_or_log_line(cluster: Cluster, tenant: TestTenant) -> None:
    body, argument, folder, definition = ("marker-" + uuid.uuid4().hex for _ in range(4))
    source = skill_md("mine", f"{body} $ARGUMENTS ${{SKILL_DIR}}\n")
    structlog.reset_defaults()
    with capture_logs() as lines:
        tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=source)
        agent = {"name": "any", "definition_json": json.dumps({"prompt": definition})}
        tenant.author.call("AgentService.PutAgent", agent=agent)
        tenant.author.call("SkillDefService.GetSkillDef", name="own/mine", include_source=True)
        call = {"agent": "any", "name": "own/mine", "arguments": argument, "skill_dir": folder}
        invoked = tenant.runtime.call("SkillService.InvokeSkill", **call)
        assert all(marker in invoked.body for marker in (body, argument, folder))
        tool = {"name": "own/mine", "arguments": argument}
        tenant.runtime.call("SkillService.CallSkillTool", agent="any", input_json=json.dumps(tool), skill_dir=folder)
        refused(tenant.runtime, "SkillService.InvokeSkill", **{**call, "name": "own/nothing"})
        refused(tenant.runtime, "SkillService.InvokeSkill", **{**call, "agent": "doc-manager"})
        refused(tenant.author, "SkillDefService.CreateSkillDef", name="own/mine", source=source)
        refused(tenant.author, "SkillDefService.CreateSkillDef", name="own/other", source=source + "\x01")
        tenant.runtime.call("SkillService.PrepareRun", agent="any")
        tenant.author.call("AuditService.ExplainResolution", name="own/mine", agent="any")
    told = json.dumps(lines, default=str) + json.dumps(events(cluster, tenant.name))
    assert len(lines) > 12
    assert "own/mine" in told
    for marker in (body, argument, folder, definition):
        assert marker not in told


def test_the_chain_has_every_call_of_every_tenant_and_server_once(cluster: Cluster, server: RunningServer) -> None:
    tenants = [server.tenant() for _ in range(4)]
    before = {tenant.name: len(events(cluster, tenant.name)) for tenant in tenants}
    with running_server(cluster) as second, ThreadPoolExecutor(25) as pool:
        clients = [(tenant, s.client(s.key(tenant.name, Role.AUTHOR))) for tenant in tenants for s in (server, second)]

        def one(number: int) -> tuple[str, str]:
            tenant, client = clients[number % len(clients)]
            if number % 5 == 0:
                source = skill_md(f"n{number}")
                made = client.call("SkillDefService.CreateSkillDef", name=f"own/n{number}", source=source)
                return tenant.name, str(made.decision_id)
            if number % 5 == 1:
                denied = refused(client, "SkillService.InvokeSkill", agent="doc-manager", name="own/x")
                return tenant.name, denied.decision_id
            name = {"name": "doc/query"} if number % 5 == 2 else {}
            method = "InvokeSkill" if name else "ListSkills"
            return tenant.name, str(client.call(f"SkillService.{method}", agent="doc-manager", **name).decision_id)

        answered = list(pool.map(one, range(200)))
    for tenant in tenants:
        assert faults(cluster, tenant.name) == []
        recorded = [event["id"] for event in events(cluster, tenant.name)[before[tenant.name] :]]
        assert sorted(recorded) == sorted(decision for name, decision in answered if name == tenant.name)


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        ("UPDATE audit_events SET event = replace(event, 'ALLOWED', 'REFUSED') WHERE {this}", "its hash"),
        ("UPDATE audit_events SET agent = 'other' WHERE {this}", "its columns"),
        ("UPDATE audit_events SET occurred_at = occurred_at + interval '1 second' WHERE {this}", "its columns"),
        ("DELETE FROM audit_events WHERE {this}", "sequence"),
        ("UPDATE audit_events SET previous_hash = hash WHERE {this}", "does not follow"),
    ],
)
def test_an_edited_event_is_found_by_computing_the_chain_again(
    cluster: Cluster, tenant: TestTenant, edit: str, found: str
) -> None:
    for _ in range(4):
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    assert faults(cluster, tenant.name) == []
    this = "tenant_id = %s AND sequence = 2"
    assert change(cluster, edit.format(this=this), tenant.name) == 1
    assert any(found in fault for fault in faults(cluster, tenant.name))


def test_every_method_is_recorded_under_a_verb_of_its_own_tenant(cluster: Cluster, tenant: TestTenant) -> None:
    assert len(METHODS) == 41
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))
    name = {"name": "own/mine"}
    digest, archive = made.version.content_sha256, pack([PackedSkill(SkillName("own/more"), skill_md("more").encode())])
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("SkillDefService.GetSkillDef", name, "get"),
        ("SkillDefService.ForkSkillDef", name, "fork"),
        ("SkillDefService.PromoteSkillDef", {**name, "version": 2}, "promote"),
        ("SkillDefService.RetireSkillDef", name, "retire"),
        ("SkillDefService.RetireSkillDef", {**name, "retired": False}, "unretire"),
        ("SkillDefService.SetSkillDisabled", {**name, "disabled": True, "reason": "Why."}, "disable"),
        ("SkillDefService.SetSkillDisabled", {**name, "disabled": False}, "enable"),
        ("SkillDefService.SetLabel", {**name, "label": "staging", "version": 1}, "set_label"),
        ("SkillDefService.ImportSkills", {"archive": archive}, "import"),
        ("SkillDefService.ListSkillDefs", {"pattern": "own/*"}, "list_skill_defs"),
        ("SkillDefService.ListSkillDefVersions", name, "list_versions"),
        ("SkillDefService.DiffSkillDefs", {**name, "from": "v1", "to": "v2"}, "diff"),
        ("SkillDefService.VerifySkillDef", {**name, "content_sha256": digest}, "verify"),
        ("SkillDefService.ExportSkill", name, "export"),
        ("SkillDefService.ListCatalog", {}, "list_catalog"),
        ("AgentService.PutAgent", {"agent": {"name": "helper"}}, "put_agent"),
        ("AgentService.GetAgent", {"name": "helper"}, "get_agent"),
        ("AgentService.DeleteAgent", {"name": "helper"}, "delete_agent"),
        ("AgentService.ListAgents", {}, "list_agents"),
        ("AgentService.TestAllowlist", {}, "test_allowlist"),
        ("AuditService.QueryAuditEvents", {}, "query_audit"),
        ("AuditService.GetAuditEvent", {"id": made.decision_id}, "get_event"),
        ("AuditService.ExplainResolution", name, "explain"),
        ("AuditService.WhoCan", name, "who_can"),
        ("AuditService.GetSkillHistory", name, "get_history"),
        ("AuditService.GetUsageReport", {}, "get_usage"),
    ]
    before = len(events(cluster, tenant.name))
    decisions, etag = [], made.skill_def.etag
    for method, fields, verb in calls:
        guarded = "etag" in METHODS[method].input_type.fields_by_name and verb != "put_agent"
        answer = tenant.author.call(method, **fields, etag=etag) if guarded else tenant.author.call(method, **fields)
        decisions.append(answer.decision_id)
        held = next((getattr(answer, part) for part in ("skill_def", "agent") if hasattr(answer, part)), None)
        etag = held.etag if held is not None and held.etag else etag
    recorded = events(cluster, tenant.name)
    assert recorded[0]["id"] == made.decision_id
    assert [(event["id"], event["verb"]) for event in recorded[before:]] == [
        (decision, verb) for decision, (_, _, verb) in zip(decisions, calls, strict=True)
    ]
    assert next(event for event in recorded if event["verb"] == "disable")["details"]["reason"] == "Why."
    with connect(cluster) as owner:
        stored = owner.execute("SELECT count(*) FROM audit_events WHERE tenant_id = %s", [tenant.name]).fetchone()
    assert stored == (len(recorded),)
    assert value(cluster, "SELECT sequence FROM chain_heads WHERE tenant_id = %s", tenant.name) == len(recorded)
