"""What the log says of decisions: the same as the audit, under the same names, and one line for each call."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import grpc
import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from substrate.domain.audit import AuditEvent
from substrate.domain.identity import Role
from tests.rpc.headers import HeadersOnly
from tests.rpc.test_server import until
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events
from tests.store.owner import change

Line = MutableMapping[str, Any]


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    """Every line that is logged, of whatever level."""
    structlog.reset_defaults()
    with capture_logs(processors=[merge_contextvars]) as captured:
        yield captured


def _resolved(lines: list[Line]) -> list[dict[str, Any]]:
    """Return the fields of the lines about single names; all of them are at debug level."""
    found = [line for line in lines if line["event"] == "skill.resolved"]
    assert {line["log_level"] for line in found} <= {"debug"}
    return [{key: line[key] for key in line if key not in ("event", "log_level")} for line in found]


def _calls(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["event"] == "call"]


def _last_event(cluster: Cluster, tenant: TestTenant) -> dict[str, Any]:
    return events(cluster, tenant.name)[-1]


def _as_stored(fields: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(fields))


def test_an_invocation_is_logged_with_the_fields_of_its_event(
    cluster: Cluster, tenant: TestTenant, lines: list[Line]
) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    lines.clear()
    tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query@bundle", run_id="r", turn=2)
    (line,) = _resolved(lines)
    assert _as_stored(line) == _last_event(cluster, tenant)
    assert [candidate["layer"] for candidate in line["candidates"]] == ["TENANT", "BUNDLE"]
    assert (line["requested"], line["name"], line["winner"]["layer"]) == ("doc/query@bundle", "doc/query", "BUNDLE")


def test_a_refusal_after_a_look_up_is_logged_with_its_reason(
    cluster: Cluster, tenant: TestTenant, lines: list[Line]
) -> None:
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="doc/nothing")
    (line,) = _resolved(lines)
    assert _as_stored(line) == _last_event(cluster, tenant)
    assert (line["reason"], line["outcome"]) == ("SKILL_NOT_FOUND", "REFUSED")


@pytest.mark.parametrize("name", ["writing/linkedin-post", "writing/no-such-skill"])
def test_a_denial_by_the_gate_is_logged_with_its_decision_and_no_candidates(
    cluster: Cluster, tenant: TestTenant, lines: list[Line], name: str
) -> None:
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name=name)
    (line,) = _resolved(lines)
    assert _as_stored(line) == _last_event(cluster, tenant)
    assert (line["name"], line["outcome"], line["reason"]) == (name, "REFUSED", "SKILL_NOT_PERMITTED")
    assert line["decision"] == {"allowed": False, "reason": "UNLISTED", "index": None, "entry": None}
    assert {"candidates", "winner"} & set(line) == set()


@pytest.mark.parametrize("method", ["SkillService.ListSkills", "SkillService.PrepareRun"])
def test_every_listed_name_is_logged_under_the_events_field_names(
    cluster: Cluster, tenant: TestTenant, lines: list[Line], method: str
) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    names = [entry.name for entry in tenant.runtime.call("SkillService.ListSkills", agent="doc-manager").skills]
    found: list[dict[str, Any]] = []
    for _ in range(2):
        # The second answer is made of what the first one left in the snapshot, and is logged no less.
        lines.clear()
        answer = tenant.runtime.call(method, agent="doc-manager")
        found = _resolved(lines)
        assert [line["name"] for line in found] == names
        event = _last_event(cluster, tenant)
        for line in found:
            assert set(line) <= {field.name for field in dataclasses.fields(AuditEvent)}
            assert line["id"] == answer.decision_id == event["id"]
            assert {key: line[key] for key in ("tenant", "call_id", "verb", "agent", "revision")} == {
                key: event[key] for key in ("tenant", "call_id", "verb", "agent", "revision")
            }
            assert line["decision"] == {"allowed": True, "reason": "ALLOW_RULE", "index": 0, "entry": "doc/*"}
            assert line["winner"] in line["candidates"]
    own = next(line for line in found if line["name"] == "doc/query")
    assert [(c["layer"], c["state"]) for c in own["candidates"]] == [("TENANT", "WON"), ("BUNDLE", "SHADOWED")]


def test_there_is_one_line_at_info_for_each_call(tenant: TestTenant, server: RunningServer, lines: list[Line]) -> None:
    invoke = {"agent": "doc-manager", "name": "doc/query"}
    stranger = server.client(server.key(tenant.name, Role.RUNTIME)[:-1] + "!")
    answer = tenant.runtime.call("SkillService.InvokeSkill", **invoke)
    listed = tenant.runtime.call("SkillService.ListSkills", agent="doc-manager")
    denied = refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="own/x")
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="NO")
    refused(stranger, "SkillService.InvokeSkill", **invoke)
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"))
    calls = _calls(lines)
    assert {line["log_level"] for line in calls} == {"info"}
    path = "/substrate.api.v1."
    assert [(line["method"], line["code"], line["reason"], line.get("decision_id")) for line in calls] == [
        (f"{path}SkillService/InvokeSkill", "OK", "", answer.decision_id),
        (f"{path}SkillService/ListSkills", "OK", "", listed.decision_id),
        (f"{path}SkillService/InvokeSkill", "PERMISSION_DENIED", "SKILL_NOT_PERMITTED", denied.decision_id),
        (f"{path}SkillService/InvokeSkill", "INVALID_ARGUMENT", "INVALID_NAME", ""),
        (f"{path}SkillService/InvokeSkill", "UNAUTHENTICATED", "UNAUTHENTICATED", ""),
        (f"{path}SkillDefService/CreateSkillDef", "OK", "", made.decision_id),
    ]
    assert len({line["call_id"] for line in calls}) == len(calls)
    assert all(line["ms"] > 0 for line in calls)
    assert {line["tenant"] for line in calls if line["code"] != "UNAUTHENTICATED"} == {tenant.name}


def test_the_call_line_and_the_event_name_the_same_call(
    cluster: Cluster, tenant: TestTenant, lines: list[Line]
) -> None:
    tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    (line,) = _calls(lines)
    event = _last_event(cluster, tenant)
    for ours, theirs in (("call_id", "call_id"), ("decision_id", "id"), ("actor", "actor"), ("agent", "agent")):
        assert line[ours] == event[theirs]
    assert line["revision"] == event["revision"]


def test_every_line_of_a_call_carries_its_id_whichever_layer_says_it(
    server: RunningServer, tenant: TestTenant, lines: list[Line]
) -> None:
    tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    other = server.tenant()
    refused(other.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="doc/nothing")
    said = [(line["event"], line["call_id"]) for line in lines]
    assert [event for event, _ in said] == 2 * ["snapshot.loaded", "skill.resolved", "call"]
    assert len({call_id for _, call_id in said[:3]}) == len({call_id for _, call_id in said[3:]}) == 1
    assert said[0] != said[3]
    assert [line["tenant"] for line in lines] == 3 * [tenant.name] + 3 * [other.name]


def test_a_caller_may_name_the_call(tenant: TestTenant, lines: list[Line]) -> None:
    named: Any = tenant.runtime
    named._metadata += (("x-call-id", "run-7.3"),)
    named.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    assert [line["call_id"] for line in lines] == 3 * ["run-7.3"]


def test_a_fault_of_ours_is_logged_with_the_calls_id(cluster: Cluster, tenant: TestTenant, lines: list[Line]) -> None:
    change(cluster, "REVOKE SELECT ON disabled_names FROM substrate_app")
    try:
        failed = refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    finally:
        change(cluster, "GRANT SELECT ON disabled_names TO substrate_app")
    fault, call = lines
    assert (fault["event"], fault["error_id"]) == ("call.failed", failed.metadata["error_id"])
    assert (call["event"], call["code"], call["reason"]) == ("call", "INTERNAL", "INTERNAL")
    assert fault["call_id"] == call["call_id"]


def test_a_stream_has_one_line_at_its_end(tenant: TestTenant, lines: list[Line]) -> None:
    stream: Any = tenant.author.stream("AuditService.TailAuditEvents", timeout=60)
    next(stream)
    begun = [line["call_id"] for line in lines]
    stream.close()
    until(lambda: bool(_calls(lines)))
    (line,) = _calls(lines)
    assert (line["method"], line["code"], line["reason"]) == (
        "/substrate.api.v1.AuditService/TailAuditEvents",
        "CANCELLED",
        "CANCELLED",
    )
    assert line["tenant"] == tenant.name
    assert {*begun, line["call_id"]} == {line["call_id"]}


def test_calls_that_are_not_admitted_or_not_served_have_their_line(cluster: Cluster, lines: list[Line]) -> None:
    with running_server(cluster, max_calls=4, threads=4) as server, HeadersOnly.to(server.address) as headers:
        key = server.key(server.tenant().name, Role.RUNTIME)
        headers.begin(key)
        until(lambda: server.app.server.held == 1)
        assert headers.refused(key).reason == "OVERLOADED"
        made_up: Any = headers.channel.unary_unary("/substrate.api.v1.SkillService/made-up")
        with pytest.raises(grpc.RpcError):
            made_up(b"", timeout=10)
        asked: Any = headers.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError):
            next(asked(iter([b""]), timeout=10))
        until(lambda: len(_calls(lines)) == 3)
        found = _calls(lines)
    assert [(line["method"], line["code"], line["reason"]) for line in found] == [
        ("/substrate.api.v1.SkillService/ListSkills", "RESOURCE_EXHAUSTED", "OVERLOADED"),
        ("_OTHER", "UNIMPLEMENTED", ""),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "UNAUTHENTICATED", "UNAUTHENTICATED"),
    ]
    assert all(line["call_id"] for line in found)
    assert {(line["tenant"], line["agent"]) for line in found} == {("", "")}


def test_a_call_whose_event_cannot_be_written_says_whose_it_is(
    cluster: Cluster, tenant: TestTenant, lines: list[Line]
) -> None:
    change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    try:
        refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    finally:
        change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")
    (line,) = _calls(lines)
    assert (line["code"], line["reason"], line["decision_id"]) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE", "")
    assert (line["tenant"], line["agent"]) == (tenant.name, "doc-manager")
    assert line["actor"].startswith(f"runtime:{tenant.name}.")
