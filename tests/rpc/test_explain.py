"""Explanations over the wire: of this moment, of what is only supposed, and of recorded calls."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from substrate.api.v1.audit_pb2 import Cause, ChangeKind
from substrate.bootstrap import reload_static
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import add_version, changed, refused, skill_md
from tests.sources.bundle_files import write_bundle, write_skill
from tests.store import owner
from tests.store.chain import events

EXPLAIN = "AuditService.ExplainResolution"
INVOKE = "SkillService.InvokeSkill"
NAME = "doc/a"
AGENTS = {
    "docs": {"description": "Reads.", "skills": ["doc/*", "-doc/denied"]},
    "poor": {"tools": ["Read"], "skills": ["doc/*"]},
}
UNKNOWN = "00000000-0000-7000-8000-000000000000"


def write_parts(folder: Path, text: str = "Bundled.\n", **more: Any) -> Path:
    """Write a bundle and a configuration; return the configuration's path."""
    root = write_bundle(folder / "core", name="core")
    write_skill(root, NAME, skill_md("a", text, header="allowed-tools: Read, Write\n"))
    write_skill(root, "doc/user", skill_md("user", header="disable-model-invocation: true\n"))
    write_skill(root, "doc/src", skill_md("src", header="paths: ['src/**']\n"))
    write_skill(root, "doc/broken", "---\nallowed-tools: {\n---\n\nDo it.\n")
    config = folder / "substrate.yaml"
    modes = [{"pattern": "doc/locked", "mode": "locked"}]
    parts = {"bundles": [{"path": str(root)}], "agents": AGENTS, "name_modes": modes}
    config.write_text(yaml.safe_dump(parts | more))
    return config


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


def authored(tenant: TestTenant, name: str = NAME, body: str = "Ours.\n", **fields: Any) -> None:
    source = skill_md(name.rpartition("/")[2], body)
    tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source, **fields)


def change(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": f"CHANGE_KIND_{kind}", **fields}


def test_it_says_who_wrote_and_who_approved_it_and_how_to_undo_that(guarded: RunningServer) -> None:
    tenant, operator = guarded.tenant(), guarded.operator()
    issue = {"tenant": tenant.name, "role": "ROLE_AUTHOR"}
    ada, bob = (
        guarded.client(operator.call("TenantService.IssueKey", principal=who, **issue).secret) for who in ("ada", "bob")
    )
    made = ada.call("SkillDefService.CreateSkillDef", name=NAME, source=skill_md("a", "Ours.\n"), promote=False)
    promoted = changed(bob, "SkillDefService.PromoteSkillDef", name=NAME, version=1)
    told = operator.call(EXPLAIN, tenant=tenant.name, name=NAME, agent="docs")
    assert (told.winner.created_by, told.winner.promoted_by) == ("ada", "bob")
    assert told.winner.created_at == made.version.create_time
    version = ada.call("SkillDefService.GetSkillDef", name=NAME).version
    assert told.winner.promoted_at == version.promote_time
    assert [c.created_by for c in told.candidates] == ["ada", ""]
    lines = told.text.splitlines()
    first = "'doc/a' gives agent 'docs' tenant:v1 (the tenant's SkillDef), which shadows bundle:core@"
    assert lines[0].startswith(first)
    assert lines[2].startswith("Written by ada at ")
    assert made.decision_id in lines[2]
    assert lines[3].startswith("Approved (promoted) by bob at ")
    assert promoted.decision_id in lines[3]
    assert "      substrate skilldef retire doc/a" in lines
    differences = {each.field: (each.winner, each.loser) for each in told.differences}
    assert differences["allowed-tools"] == ("none", '["Read","Write"]')
    assert differences["body"] == ("1 line, +1 -1 lines", "1 line")
    assert "Ours." not in told.text


def test_a_tombstone_and_a_retirement_have_their_doers_too(guarded: RunningServer) -> None:
    tenant = guarded.tenant()
    authored(tenant)
    gone = changed(tenant.author, "SkillDefService.RetireSkillDef", name=NAME)
    off = changed(tenant.author, "SkillDefService.SetSkillDisabled", name=NAME, disabled=True, reason="It\nleaks.")
    told = tenant.author.call(EXPLAIN, name=NAME)
    assert told.cause == Cause.CAUSE_DISABLED
    assert told.candidates[0].created_by != ""
    assert told.candidates[0].HasField("created_at")
    for event_id in (gone.decision_id, off.decision_id):
        assert event_id in told.text
    assert "(It leaks.)" in told.text


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "CAUSE_UNLISTED": ({"name": "own/any", "agent": "docs"}, "SKILL_NOT_PERMITTED"),
    "CAUSE_DENIED": ({"name": "doc/denied", "agent": "docs"}, "SKILL_NOT_PERMITTED"),
    "CAUSE_ABSENT": ({"name": "doc/nothing", "agent": "docs"}, "SKILL_NOT_FOUND"),
    "CAUSE_DRAFT": ({"name": "doc/draft", "agent": "docs"}, "SKILL_NOT_FOUND"),
    "CAUSE_RETIRED": ({"name": "doc/retired", "agent": "docs"}, "SKILL_NOT_FOUND"),
    "CAUSE_DISABLED": ({"name": "doc/disabled", "agent": "docs"}, "SKILL_NOT_FOUND"),
    "CAUSE_QUARANTINED": ({"name": "doc/broken", "agent": "docs"}, "SKILL_QUARANTINED"),
    "CAUSE_LOCKED": ({"name": "doc/locked", "agent": "docs"}, "SKILL_NOT_FOUND"),
    "CAUSE_INELIGIBLE": ({"name": "doc/src", "agent": "docs", "touched_paths": ["README.md"]}, "SKILL_INELIGIBLE"),
    "CAUSE_TOOLS_EXCEED": ({"name": NAME, "agent": "poor"}, "TOOLS_EXCEED_AGENT"),
    "CAUSE_CALLER_EXCLUDED": ({"name": "doc/user", "agent": "docs"}, "INVOCATION_NOT_ALLOWED"),
}


@pytest.fixture(scope="module")
def troubled(cluster: Cluster, guarded: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> TestTenant:
    """A tenant with a skill for each way not to be served."""
    unlocked = write_parts(tmp_path_factory.mktemp("unlocked"), name_modes=[])
    with running_server(cluster, unlocked) as server:
        tenant = server.tenant()
        authored(tenant, "doc/draft", promote=False)
        for name in ("doc/retired", "doc/locked"):
            authored(tenant, name)
        changed(tenant.author, "SkillDefService.RetireSkillDef", name="doc/retired")
        changed(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/disabled", disabled=True)
    return guarded.tenant(tenant.name)


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_told_and_is_what_the_call_meets_and_replays(troubled: TestTenant, cause: str) -> None:
    asked, reason = CAUSES[cause]
    told = troubled.author.call(EXPLAIN, **asked)
    assert (Cause.Name(told.cause), told.reason, told.would_succeed) == (cause, reason, False)
    failed = refused(troubled.runtime, INVOKE, **asked)
    assert failed.reason == reason
    again = troubled.author.call(EXPLAIN, recorded=failed.metadata["decision_id"])
    assert (again.replays, list(again.replay_problems), list(again.changed_since)) == (True, [], [])
    assert (again.cause, again.reason) == (told.cause, told.reason)
    assert list(again.flips) == []


def test_every_cause_of_the_contract_has_its_case() -> None:
    assert {*CAUSES, "CAUSE_UNSPECIFIED"} == set(Cause.keys())


def test_the_caller_kind_and_the_touched_paths_count(guarded: RunningServer) -> None:
    author = guarded.tenant().author
    assert author.call(EXPLAIN, name="doc/user", agent="docs", caller_kind="CALLER_KIND_USER").would_succeed
    assert author.call(EXPLAIN, name="doc/src", agent="docs", touched_paths=["x", "src/a"]).would_succeed
    failed = refused(author, EXPLAIN, name="doc/src", touched_paths=["a\0"])
    assert failed.violations[0][0] == "touched_paths[0]"


SUPPOSED = [
    ([], "tenant:v1", ""),
    ([change("RETIRE")], "bundle", ""),
    ([change("RETIRE"), change("UNRETIRE")], "tenant:v1", ""),
    ([change("PROMOTE", version=2)], "tenant:v2", ""),
    ([change("DISABLE")], None, "SKILL_NOT_FOUND"),
    ([change("DISABLE"), change("ENABLE")], "tenant:v1", ""),
    ([change("LOCK")], "bundle", ""),
    ([change("LOCK"), change("UNLOCK")], "tenant:v1", ""),
    ([change("QUALIFY", qualifier="bundle")], "bundle", ""),
    ([change("QUALIFY", qualifier="v2")], None, "VERSION_NOT_FOUND"),
    ([change("PROMOTE", version=2), change("QUALIFY", qualifier="v1")], "tenant:v1", ""),
    ([change("SET_ALLOWLIST", entries=["own/*"])], "tenant:v1", "SKILL_NOT_PERMITTED"),
    ([change("ADD_ENTRY", entry="-doc/a", index=0)], "tenant:v1", "SKILL_NOT_PERMITTED"),
]


@pytest.fixture(scope="module")
def drafted(guarded: RunningServer) -> TestTenant:
    """A tenant with a version in effect and a draft of the name."""
    tenant = guarded.tenant()
    authored(tenant)
    add_version(tenant.author, NAME, skill_md("a", "Two.\n"))
    return tenant


@pytest.mark.parametrize(("changes", "origin", "reason"), SUPPOSED)
def test_what_is_supposed_is_answered_and_not_done(
    cluster: Cluster, drafted: TestTenant, changes: list[dict[str, Any]], origin: str | None, reason: str
) -> None:
    before = owner.value(cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", drafted.name)
    told = drafted.author.call(EXPLAIN, name=NAME, agent="docs", changes=changes)
    assert (told.winner.origin.partition("@")[0].removesuffix(":core") if told.HasField("winner") else None) == origin
    assert (told.reason, told.would_succeed) == (reason, not reason)
    assert told.text.startswith("Supposing: ") is bool(changes)
    assert owner.value(cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", drafted.name) == before
    (event,) = [event for event in events(cluster, drafted.name) if event["id"] == told.decision_id]
    assert event["winner"]["origin"] == "tenant:v1"
    assert ("supposed" in event.get("details", {})) is bool(changes)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ([change("PROMOTE", version=9)], "INVALID_ARGUMENT", "changes[0].version"),
        ([change("RETIRE"), change("PROMOTE")], "INVALID_ARGUMENT", "changes[1].version"),
        ([change("SET_ALLOWLIST", entries=["doc/*", "Doc"])], "INVALID_ALLOWLIST", "changes[0].entries[1]"),
        ([change("ADD_ENTRY", entry="doc//")], "INVALID_ALLOWLIST", "changes[0].entry"),
        ([change("ADD_ENTRY", entry="doc/a", index=3)], "INVALID_ARGUMENT", "changes[0].index"),
        ([change("ADD_ENTRY", entry="doc/a", index=-1)], "INVALID_ARGUMENT", "changes[0].index"),
        ([change("QUALIFY", qualifier="latest")], "INVALID_NAME", "changes[0].qualifier"),
        ([change("QUALIFY")], "INVALID_ARGUMENT", "changes[0].qualifier"),
        ([change("UNSPECIFIED")], "INVALID_ARGUMENT", "changes[0].kind"),
        ([change("RETIRE")] * 17, "INVALID_ARGUMENT", "changes"),
    ],
)
def test_what_cannot_be_supposed_is_refused_by_its_field(
    drafted: TestTenant, changes: list[dict[str, Any]], reason: str, field: str
) -> None:
    failed = refused(drafted.author, EXPLAIN, name=NAME, agent="docs", changes=changes)
    assert (failed.reason, failed.violations[0][0]) == (reason, field)


def test_there_must_be_something_to_change(drafted: TestTenant) -> None:
    for asked in (
        {"name": NAME, "changes": [change("ADD_ENTRY", entry="doc/a")]},
        {"name": "doc/src", "agent": "docs", "changes": [change("RETIRE")]},
    ):
        failed = refused(drafted.author, EXPLAIN, **asked)
        assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "changes[0].kind")


def test_each_flip_that_is_offered_can_be_sent_back_and_gives_what_it_says(drafted: TestTenant) -> None:
    told = drafted.author.call(EXPLAIN, name=NAME, agent="docs")
    kinds = [ChangeKind.Name(flip.change.kind).removeprefix("CHANGE_KIND_") for flip in told.flips]
    assert kinds == ["ADD_ENTRY", "RETIRE", "PROMOTE", "DISABLE", "QUALIFY", "LOCK"]
    for flip in told.flips:
        after = drafted.author.call(EXPLAIN, name=NAME, agent="docs", changes=[flip.change])
        assert (after.would_succeed, after.reason) == (flip.would_succeed, flip.reason)
        assert (after.winner.origin, after.winner.content_sha256) == (flip.winner.origin, flip.winner.content_sha256)
        assert flip.text.split(" Do it with: ")[0] in told.text


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
