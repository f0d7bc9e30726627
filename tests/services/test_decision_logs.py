"""What the log says of decisions: the same as the audit, under the same names, and one line for each call."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from substrate.domain.audit import AuditEvent
from substrate.domain.identity import Role
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store.chain import events

Line = MutableMapping[str, Any]


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    """Every line that is logged, of whatever level."""
    structlog.reset_defaults()
    with capture_logs() as captured:
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


def test_a_refusal_by_the_gate_resolves_nothing(tenant: TestTenant, lines: list[Line]) -> None:
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="writing/linkedin-post")
    assert _resolved(lines) == []


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
