"""Explanations over the wire: of this moment, and of what is only supposed."""

from collections.abc import Iterator
from typing import Any

import pytest

from substrate.api.v1.audit_pb2 import Cause, ChangeKind
from tests.rpc.explained import EXPLAIN, INVOKE, NAME, authored, change, write_parts
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import add_version, changed, refused, skill_md
from tests.store import owner
from tests.store.chain import events


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with that bundle for tests that leave it as it is."""
    with running_server(cluster, write_parts(tmp_path_factory.mktemp("guarded"))) as server:
        yield server


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
    assert "      substrate skilldef retire doc/a --key KEY" in lines
    theirs = ada.call(EXPLAIN, name=NAME, agent="docs").text.splitlines()
    assert "      substrate skilldef retire doc/a" in theirs
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
    # How things stand has not changed since, so the same would lead to another answer.
    assert [flip.text for flip in again.flips] == [flip.text for flip in told.flips]


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
