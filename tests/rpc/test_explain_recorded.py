"""Recorded calls explained: decided again from what was kept, and held against what is now."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from substrate.api.v1.audit_pb2 import Cause, Outcome
from substrate.bootstrap import reload_static
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from substrate.services import audit_writer
from tests.rpc.explained import EXPLAIN, INVOKE, NAME, UNKNOWN, authored, change, write_parts
from tests.rpc.test_server import until
from tests.servers import Cluster, RunningServer, running_server
from tests.skills import add_version, changed, refused, skill_md
from tests.store import owner
from tests.store.chain import events


@pytest.fixture
def disk(cluster: Cluster, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a bundle that the test may change."""
    with running_server(cluster, write_parts(tmp_path)) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with that bundle for tests that leave it as it is."""
    with running_server(cluster, write_parts(tmp_path_factory.mktemp("guarded"))) as server:
        yield server


def test_a_recorded_call_is_decided_again_and_what_has_changed_since_is_told(
    disk: RunningServer, tmp_path: Path
) -> None:
    tenant, operator = disk.tenant(), disk.operator()
    agent = {"name": "tester", "skills": ["doc/*"], "tools": {"names": ["Read", "Write"]}}
    tenant.author.call("AgentService.PutAgent", agent=agent)
    first = tenant.runtime.call(INVOKE, agent="tester", name=NAME)
    told = operator.call(EXPLAIN, recorded=first.decision_id)
    assert (told.replays, told.would_succeed, list(told.changed_since)) == (True, True, [])
    assert (told.recorded.id, told.recorded.tenant, told.name) == (first.decision_id, tenant.name, NAME)
    # The bundle gets another text, the agent another allowlist, and the tenant a skill of its own.
    assert reload_static(disk.app, write_parts(tmp_path, "Another.\n"))
    told = operator.call(EXPLAIN, recorded=first.decision_id)
    assert told.replays
    assert told.winner.content_sha256 == first.content_sha256
    assert any("bundle:core@1.10/skills/doc/a/SKILL.md has another content now" in each for each in told.changed_since)
    authored(tenant)
    changed(tenant.author, "AgentService.PutAgent", agent=agent | {"skills": ["doc/*", "-doc/a"]})
    told = operator.call(EXPLAIN, tenant=tenant.name, recorded=first.decision_id.upper())
    since = list(told.changed_since)
    assert (told.replays, told.would_succeed) == (True, True)
    assert "The allowlist of agent 'tester' has changed: it has got '-doc/a'." in since
    assert "tenant:v1 is new, and in effect." in since
    assert any(each.startswith("The same call would be refused now (SKILL_NOT_PERMITTED)") for each in since)
    assert all(each in told.text for each in since)
    etag = tenant.author.call("AgentService.GetAgent", name="tester").agent.etag
    tenant.author.call("AgentService.DeleteAgent", name="tester", etag=etag)
    locking = write_parts(tmp_path, "Another.\n", name_modes=[{"pattern": "doc/*", "mode": "locked"}])
    assert reload_static(disk.app, locking)
    since = list(operator.call(EXPLAIN, recorded=first.decision_id).changed_since)
    assert "There is no agent 'tester' any more." in since
    assert "The name is in mode 'locked' now; it was in 'open'." in since


def test_who_approved_it_later_is_not_taken_for_who_had_approved_it(cluster: Cluster, guarded: RunningServer) -> None:
    tenant, operator = guarded.tenant(), guarded.operator()
    issue = {"tenant": tenant.name, "role": "ROLE_AUTHOR"}
    ada, bob = (
        guarded.client(operator.call("TenantService.IssueKey", principal=who, **issue).secret) for who in ("ada", "bob")
    )
    authored(tenant)
    add_version(ada, NAME, skill_md("a", "Two.\n"))
    first = changed(ada, "SkillDefService.PromoteSkillDef", name=NAME, version=2).decision_id
    made = tenant.runtime.call(INVOKE, agent="docs", name=NAME)
    changed(ada, "SkillDefService.PromoteSkillDef", name=NAME, version=1)
    last = changed(bob, "SkillDefService.PromoteSkillDef", name=NAME, version=2).decision_id
    # His call had arrived long before it was made: only the catalog revision tells which came first.
    early = 'UPDATE audit_events SET event = regexp_replace(event, \'"time":"[^"]*"\', %s) WHERE event_id = %s'
    assert owner.change(cluster, early, '"time":"2020-01-01T00:00:00+00:00"', last) == 1
    row = "UPDATE skill_def_versions SET promoted_at = '2020-01-01' WHERE tenant_id = %s AND version = 2"
    assert owner.change(cluster, row, tenant.name) == 1
    told = operator.call(EXPLAIN, recorded=made.decision_id)
    (hers,) = operator.call("AuditService.QueryAuditEvents", tenant=tenant.name, decision_id=first).events
    assert (told.winner.origin, told.winner.promoted_by, told.winner.promoted_at) == (
        "tenant:v2",
        hers.actor,
        hers.time,
    )
    assert operator.call(EXPLAIN, tenant=tenant.name, name=NAME, agent="docs").winner.promoted_by == "bob"
    assert operator.call(EXPLAIN, recorded=last).winner.promoted_by == "bob"


def test_pins_labels_drafts_callers_and_paths_are_part_of_what_is_decided_again(guarded: RunningServer) -> None:
    tenant = guarded.tenant()
    authored(tenant)
    add_version(tenant.author, NAME, skill_md("a", "Two.\n", header="user-invocable: true\npaths: ['src/**']\n"))
    changed(tenant.author, "SkillDefService.SetLabel", name=NAME, label="staging", version=2)
    tenant.author.call("AgentService.PutAgent", agent={"name": "tester", "pins": {NAME: "staging"}})
    touching = {"agent": "tester", "touched_paths": ["README.md", "src/a"], "caller_kind": "CALLER_KIND_USER"}
    calls = [
        tenant.runtime.call(INVOKE, name=NAME, **touching).decision_id,
        refused(tenant.runtime, INVOKE, name=NAME, agent="tester").metadata["decision_id"],
        tenant.author.call(INVOKE, name=f"{NAME}@v2", agent="docs", touched_paths=["src/b"]).decision_id,
        tenant.runtime.call(INVOKE, name=f"{NAME}@bundle", agent="docs").decision_id,
    ]
    changed(tenant.author, "SkillDefService.SetLabel", name=NAME, label="staging", version=1)
    for decision_id in calls:
        told = tenant.author.call(EXPLAIN, recorded=decision_id)
        assert (told.replays, list(told.replay_problems)) == (True, [])
    pinned = tenant.author.call(EXPLAIN, recorded=calls[0])
    assert (pinned.winner.version, pinned.recorded.pin, pinned.recorded.touched_path) == (2, "staging", "src/a")
    assert any("The same call would get tenant:v1 now" in each for each in pinned.changed_since)


TAMPERED = {
    "the agent's text is altered": (
        "UPDATE audit_inputs SET content = replace(content, 'doc/*', 'doc/b') WHERE tenant_id = %s",
        "The agent 'tester', as it decided: The text kept as ",
    ),
    "the agent's text is gone": (
        "DELETE FROM audit_inputs WHERE tenant_id = %s",
        "The agent 'tester', as it decided, is not kept any more",
    ),
    "the version's row is altered": (
        """UPDATE skill_def_versions SET header = '{"name":"a","description":"Other."}' WHERE tenant_id = %s""",
        "Version 1 of 'doc/a' is not what was recorded",
    ),
    "the event's text is altered": (
        """UPDATE audit_events SET event = replace(event, '"index":0', '"index":1') WHERE tenant_id = %s""",
        "The event itself is not what was written",
    ),
    "the event is older than what is kept": (
        """UPDATE audit_events SET event = regexp_replace(event, '"agent_sha256":"[0-9a-f]*",', '')
        WHERE tenant_id = %s""",
        "The agent 'tester', as it decided, was not kept with the event.",
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_an_input_that_is_gone_or_altered_is_named_and_never_guessed(
    cluster: Cluster, guarded: RunningServer, case: str
) -> None:
    tenant, operator = guarded.tenant(), guarded.operator()
    authored(tenant)
    tenant.author.call("AgentService.PutAgent", agent={"name": "tester", "skills": ["doc/*"]})
    made = tenant.runtime.call(INVOKE, agent="tester", name=NAME)
    statement, problem = TAMPERED[case]
    assert owner.change(cluster, statement, tenant.name) > 0
    told = operator.call(EXPLAIN, recorded=made.decision_id)
    assert not told.replays
    assert any(each.startswith(problem) for each in told.replay_problems)
    assert all(each in told.text for each in told.replay_problems)
    assert (told.winner.origin, told.would_succeed) == ("tenant:v1", True)


def test_a_static_state_that_is_not_kept_is_named(cluster: Cluster, tmp_path: Path) -> None:
    with running_server(cluster, write_parts(tmp_path, "Alone.\n")) as server:
        tenant, operator = server.tenant(), server.operator()
        made = tenant.runtime.call(INVOKE, agent="docs", name=NAME)
        digest = operator.call(EXPLAIN, recorded=made.decision_id).recorded.static_digest
        gone = "DELETE FROM audit_inputs WHERE (tenant_id, sha256) = (%s, %s)"
        assert owner.change(cluster, gone, PLATFORM_TENANT, digest) == 1
        told = operator.call(EXPLAIN, recorded=made.decision_id)
    assert list(told.replay_problems) == [f"The bundles and configuration that were served are not kept ({digest})."]


def test_an_authors_call_tells_of_the_allowlist_and_of_what_is_recorded(guarded: RunningServer) -> None:
    tenant = guarded.tenant()
    bound = tenant.bound(Role.AUTHOR, "docs")
    made = bound.call("SkillDefService.CreateSkillDef", name="doc/own", source=skill_md("own"))
    told = tenant.author.call(EXPLAIN, recorded=made.decision_id)
    assert (told.replays, told.decision.entry, told.winner.origin) == (True, "doc/*", "tenant:v1")
    assert "It is an author's call" in told.text
    failed = refused(bound, "SkillDefService.GetSkillDef", name="own/x")
    told = tenant.author.call(EXPLAIN, recorded=failed.metadata["decision_id"])
    assert (told.replays, told.reason, told.cause) == (True, "SKILL_NOT_PERMITTED", Cause.CAUSE_UNLISTED)
    assert "not looked up" in told.text


def test_a_call_that_failed_later_was_decided_all_the_same(guarded: RunningServer) -> None:
    tenant = guarded.tenant()
    read = {"agent": "docs", "name": NAME, "path": "no/such.md"}
    failed = refused(tenant.runtime, "SkillService.ReadSkillFile", **read)
    told = tenant.author.call(EXPLAIN, recorded=failed.metadata["decision_id"])
    assert (told.replays, told.reason) == (True, "SKILL_FILE_NOT_FOUND")
    assert "is no part of the decision" in told.text


def test_a_denial_that_nobody_waited_for_is_found_and_made_again(
    cluster: Cluster, guarded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is, the caller must be the first to give up.
    monkeypatch.setattr(audit_writer, "REFUSE_AFTER", 30.0)
    tenant, other = guarded.tenant(), guarded.tenant()
    client = guarded.client(guarded.key(tenant.name, Role.RUNTIME), timeout=1.5)
    with owner.held_chain(cluster, tenant.name):
        assert refused(client, INVOKE, agent="docs", name="doc/denied").code == "DEADLINE_EXCEEDED"
        until(lambda: guarded.app.server.held == 0)
        # The batch of this one has looked at the other call again, and at how it has ended.
        other.runtime.call(INVOKE, agent="docs", name=NAME)
    owner.wait_until(cluster, "SELECT count(*) = 1 FROM audit_events WHERE tenant_id = %s", tenant.name)
    (event,) = tenant.author.call("AuditService.QueryAuditEvents", denied_only=True).events
    assert (event.outcome, event.reason) == (Outcome.OUTCOME_CANCELLED, "SKILL_NOT_PERMITTED")
    told = tenant.author.call(EXPLAIN, recorded=event.id)
    assert (told.replays, list(told.replay_problems), told.would_succeed) == (True, [], False)
    assert (told.reason, told.cause, told.decision.entry) == ("SKILL_NOT_PERMITTED", Cause.CAUSE_DENIED, "-doc/denied")
    assert "ended as SKILL_NOT_PERMITTED" in told.text.splitlines()[0]


def recorded_refused(client: Client, decision_id: str, **fields: Any) -> tuple[str, str]:
    failed = refused(client, EXPLAIN, recorded=decision_id, **fields)
    return failed.reason, failed.violations[0][0] if failed.violations else failed.message


def test_events_of_no_single_skill_and_other_fields_are_refused(guarded: RunningServer) -> None:
    tenant = guarded.tenant()
    listed = tenant.runtime.call("SkillService.ListSkills", agent="docs").decision_id
    put = tenant.author.call("AgentService.PutAgent", agent={"name": "tester"}).decision_id
    nobody = refused(tenant.runtime, INVOKE, agent="nobody", name=NAME).metadata["decision_id"]
    for decision_id in (listed, put, nobody):
        assert recorded_refused(tenant.author, decision_id) == ("INVALID_ARGUMENT", "recorded")
    assert recorded_refused(tenant.author, "yesterday") == ("INVALID_ARGUMENT", "recorded")
    assert recorded_refused(tenant.author, UNKNOWN)[0] == "AUDIT_EVENT_NOT_FOUND"
    made = tenant.runtime.call(INVOKE, agent="docs", name=NAME).decision_id
    for field, value in {
        "name": NAME,
        "agent": "docs",
        "changes": [change("RETIRE")],
        "caller_kind": "CALLER_KIND_MODEL",
        "touched_paths": ["x"],
    }.items():
        assert recorded_refused(tenant.author, made, **{field: value}) == ("INVALID_ARGUMENT", field)


def test_only_those_explain_an_event_who_may_see_it(guarded: RunningServer) -> None:
    tenant, other = guarded.tenant(), guarded.tenant()
    made = tenant.runtime.call(INVOKE, agent="docs", name=NAME).decision_id
    other_agent = tenant.runtime.call(INVOKE, agent="docs", name="doc/src", touched_paths=["src/a"]).decision_id
    assert recorded_refused(other.author, made)[0] == "AUDIT_EVENT_NOT_FOUND"
    assert recorded_refused(tenant.runtime, made)[0] == "ROLE_REQUIRED"
    assert recorded_refused(tenant.bound(Role.AUTHOR, "poor"), made)[0] == "AUDIT_EVENT_NOT_FOUND"
    assert tenant.bound(Role.AUTHOR, "docs").call(EXPLAIN, recorded=other_agent).replays
    # An event of its agent whose name its allowlist does not admit tells it no more than the call did.
    denied = refused(tenant.runtime, INVOKE, agent="docs", name="own/x").metadata["decision_id"]
    assert recorded_refused(tenant.bound(Role.AUTHOR, "docs"), denied)[0] == "SKILL_NOT_PERMITTED"


def test_a_suspended_tenants_calls_are_explained_as_what_they_meet(guarded: RunningServer) -> None:
    tenant, operator = guarded.tenant(), guarded.operator()
    made = tenant.runtime.call(INVOKE, agent="docs", name=NAME).decision_id
    operator.call("TenantService.SetTenantSuspended", tenant=tenant.name, suspended=True, reason="Unpaid.")
    told = operator.call(EXPLAIN, tenant=tenant.name, name=NAME, agent="docs")
    assert (told.would_succeed, told.reason, list(told.flips)) == (False, "TENANT_SUSPENDED", [])
    assert "Unpaid." in told.text.splitlines()[0]
    told = operator.call(EXPLAIN, recorded=made)
    assert told.replays
    assert "The tenant is suspended now." in told.changed_since


def test_the_event_of_an_explanation_says_what_it_was_about(cluster: Cluster, guarded: RunningServer) -> None:
    tenant = guarded.tenant()
    made = tenant.runtime.call(INVOKE, agent="docs", name=NAME).decision_id
    told = tenant.author.call(EXPLAIN, recorded=made)
    event = events(cluster, tenant.name)[-1]
    assert (event["id"], event["verb"], event["name"]) == (told.decision_id, "explain", NAME)
    assert event["details"]["recorded"] == made
    assert json.loads(told.recorded.event_json)["id"] == made
