"""The life of a SkillDef: forked, compared, tried, promoted with its effect known, rolled back, retired, reused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.servers import RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store.chain import events

NAME = "doc/chunk-review"
INVOKE = "SkillService.InvokeSkill"
STATES = catalog_pb2.CandidateState


def etag(client: Client, name: str = NAME) -> str:
    (entry,) = client.call("SkillDefService.ListCatalog", pattern=name).entries
    return str(entry.etag)


def body(client: Client, name: str = NAME, agent: str = "doc-manager") -> str:
    return str(client.call(INVOKE, agent=agent, name=name).body)


def fork(client: Client, text: str, **fields: Any) -> Any:
    source = skill_md("chunk-review", f"{text}\n", header="allowed-tools: ReadChunk\n")
    return client.call("SkillDefService.ForkSkillDef", name=NAME, source=source, **fields)


def promote(client: Client, version: int, **fields: Any) -> Any:
    asked = {"name": NAME, "version": version, "etag": etag(client), **fields}
    return client.call("SkillDefService.PromoteSkillDef", **asked)


def test_a_fork_of_a_bundled_skill_takes_everything_along_and_changes_nothing(tenant: TestTenant) -> None:
    bundled = tenant.runtime.call(INVOKE, agent="doc-manager", name=NAME)
    forked = tenant.author.call("SkillDefService.ForkSkillDef", name=NAME, **{"from": "bundle"})
    assert (forked.version.version, forked.skill_def.active_version) == (1, 0)
    assert forked.version.lineage.origin == bundled.origin
    assert forked.version.lineage.version == 0
    assert forked.version.lineage.content_sha256 == bundled.content_sha256 == forked.version.content_sha256
    assert [file.path for file in forked.version.files] == ["references/review-checklist.md"]
    assert forked.effect.before == forked.effect.after
    assert list(forked.effect.gaining) + list(forked.effect.losing) + list(forked.effect.changing) == []
    assert tenant.runtime.call(INVOKE, agent="doc-manager", name=NAME).origin == bundled.origin
    promote(tenant.author, 1)
    ours = tenant.runtime.call(INVOKE, agent="doc-manager", name=NAME)
    assert (ours.origin, ours.content_sha256, ours.body) == ("tenant:v1", bundled.content_sha256, bundled.body)
    path = {"agent": "doc-manager", "path": "references/review-checklist.md"}
    assert (
        tenant.runtime.call("SkillService.ReadSkillFile", name=NAME, **path).content
        == tenant.runtime.call("SkillService.ReadSkillFile", name=f"{NAME}@bundle", **path).content
    )


def test_what_a_fork_is_made_from(tenant: TestTenant) -> None:
    assert fork(tenant.author, "One.").version.lineage.origin.startswith("bundle:document-agent@")
    assert fork(tenant.author, "Two.", **{"from": "@v1"}).version.lineage.origin == "tenant:v1"
    assert fork(tenant.author, "Three.", promote=True, etag=etag(tenant.author)).version.version == 3
    assert fork(tenant.author, "Four.").version.lineage.version == 3
    tenant.author.call("SkillDefService.SetLabel", name=NAME, label="staging", version=2, etag=etag(tenant.author))
    assert fork(tenant.author, "Five.", **{"from": "staging"}).version.lineage.version == 2
    failed = {
        "v9": "VERSION_NOT_FOUND",
        "production": "VERSION_NOT_FOUND",
        "inline": "SKILL_NOT_FOUND",
        "V1": "INVALID_NAME",
        "v0": "INVALID_NAME",
    }
    for origin, reason in failed.items():
        error = refused(tenant.author, "SkillDefService.ForkSkillDef", name=NAME, **{"from": origin})
        assert (origin, error.reason) == (origin, reason)
    assert refused(tenant.author, "SkillDefService.ForkSkillDef", name="doc/none").reason == "SKILL_NOT_FOUND"
    listed = tenant.author.call("SkillDefService.ListSkillDefVersions", name=NAME)
    assert [(v.version, v.lineage.version) for v in listed.versions] == [(5, 2), (4, 3), (3, 0), (2, 1), (1, 0)]


def test_versions_are_listed_in_pages_and_the_token_is_of_this_list(tenant: TestTenant) -> None:
    for number in range(1, 8):
        fork(tenant.author, f"Text {number}.")
    first = tenant.author.call("SkillDefService.ListSkillDefVersions", name=NAME, page_size=3)
    fork(tenant.author, "Text 8.")
    pages = [first]
    while pages[-1].next_page_token:
        token = pages[-1].next_page_token
        pages.append(
            tenant.author.call("SkillDefService.ListSkillDefVersions", name=NAME, page_size=3, page_token=token)
        )
    assert [v.version for page in pages for v in page.versions] == [7, 6, 5, 4, 3, 2, 1]
    tenant.author.call("SkillDefService.ForkSkillDef", name="doc/query")
    error = refused(
        tenant.author, "SkillDefService.ListSkillDefVersions", name="doc/query", page_token=first.next_page_token
    )
    assert error.reason == "INVALID_PAGE_TOKEN"


def test_a_change_says_what_it_does_and_can_be_rehearsed(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "toolless", "tools": {}, "skills": ["doc/*"]})
    tenant.author.call("AgentService.PutAgent", agent={"name": "barred", "skills": ["-doc/*"]})
    fork(tenant.author, "Ours.")
    before = etag(tenant.author)
    rehearsed = promote(tenant.author, 1, validate_only=True)
    assert rehearsed.effect.before.origin.startswith("bundle:")
    assert rehearsed.effect.after.origin == "tenant:v1"
    assert "doc-manager" in rehearsed.effect.changing
    assert "barred" not in [*rehearsed.effect.changing, *rehearsed.effect.gaining, *rehearsed.effect.losing]
    assert (etag(tenant.author), body(tenant.runtime)[:7]) == (before, "# Revie")
    done = promote(tenant.author, 1)
    assert done.effect == rehearsed.effect
    assert body(tenant.runtime) == "Ours.\n"
    retired = {"name": NAME, "etag": etag(tenant.author)}
    rehearsed = tenant.author.call("SkillDefService.RetireSkillDef", validate_only=True, **retired)
    assert rehearsed.effect.after.origin.startswith("bundle:")
    assert body(tenant.runtime) == "Ours.\n"
    hidden = tenant.author.call("SkillDefService.SetSkillDisabled", disabled=True, **retired)
    assert not hidden.effect.HasField("after")
    assert "doc-manager" in hidden.effect.losing
    shown = tenant.author.call("SkillDefService.SetSkillDisabled", name=NAME, disabled=False, etag=hidden.etag)
    assert "doc-manager" in shown.effect.gaining


def test_a_rehearsal_is_refused_as_the_change_would_be_and_is_on_record(tenant: TestTenant) -> None:
    fork(tenant.author, "Ours.")
    revision = tenant.author.call("SkillDefService.GetSkillDef", name=NAME).state.catalog_revision
    error = refused(
        tenant.author,
        "SkillDefService.PromoteSkillDef",
        name=NAME,
        version=7,
        etag=etag(tenant.author),
        validate_only=True,
    )
    assert error.reason == "VERSION_NOT_FOUND"
    (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=error.metadata["decision_id"]).events
    assert '"validate_only":true' in event.event_json
    rehearsed = promote(tenant.author, 1, validate_only=True)
    assert rehearsed.state.catalog_revision == revision
    # The revision that the next change will have must not be told before it is made.
    assert rehearsed.skill_def.etag == ""
    hidden = {"name": NAME, "disabled": True, "etag": etag(tenant.author), "validate_only": True}
    assert tenant.author.call("SkillDefService.SetSkillDisabled", **hidden).etag == ""
    assert tenant.author.call("SkillDefService.GetSkillDef", name=NAME).skill_def.active_version == 0
    (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=rehearsed.decision_id).events
    assert '"validate_only":true' in event.event_json


def test_an_older_version_is_promoted_to_roll_back(tenant: TestTenant) -> None:
    fork(tenant.author, "One.", promote=True)
    fork(tenant.author, "Two.", promote=True, etag=etag(tenant.author))
    assert body(tenant.runtime) == "Two.\n"
    back = promote(tenant.author, 1)
    assert (back.effect.before.version, back.effect.after.version) == (2, 1)
    assert body(tenant.runtime) == "One.\n"


def test_a_draft_is_tried_by_authors_and_by_agents_that_are_pinned_to_it(tenant: TestTenant) -> None:
    fork(tenant.author, "One.", promote=True)
    fork(tenant.author, "Two.")
    assert body(tenant.author, f"{NAME}@v2") == "Two.\n"
    assert refused(tenant.runtime, INVOKE, agent="doc-manager", name=f"{NAME}@v2").reason == "VERSION_NOT_FOUND"
    agent = {"name": "tester", "skills": ["doc/*"], "pins": {NAME: "v2"}}
    tenant.author.call("AgentService.PutAgent", agent=agent)
    assert body(tenant.runtime, NAME, "tester") == "Two.\n"
    assert body(tenant.runtime, f"{NAME}@v2", "tester") == "Two.\n"
    assert body(tenant.runtime, NAME) == "One.\n"
    explained = tenant.author.call("AuditService.ExplainResolution", name=NAME, agent="tester")
    assert "pinned as 'v2'" in explained.text
    assert "It is the version that the agent's pin to 'v2' picks." in explained.text


def test_a_first_draft_can_be_tried_too(tenant: TestTenant) -> None:
    source = skill_md("new", "Draft.\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/new", source=source, promote=False)
    tenant.author.call("AgentService.PutAgent", agent={"name": "all"})
    assert body(tenant.author, "own/new@v1", "all") == "Draft.\n"
    assert refused(tenant.author, INVOKE, agent="all", name="own/new").reason == "SKILL_NOT_FOUND"
    assert refused(tenant.runtime, INVOKE, agent="all", name="own/new@v1").reason == "VERSION_NOT_FOUND"


def test_a_label_moves_what_pinned_agents_get(tenant: TestTenant) -> None:
    fork(tenant.author, "One.", promote=True)
    fork(tenant.author, "Two.")
    label = {"name": NAME, "label": "staging"}
    set_to = tenant.author.call("SkillDefService.SetLabel", version=1, etag=etag(tenant.author), **label)
    assert [(found.label, found.version) for found in set_to.skill_def.labels] == [("staging", 1)]
    pinned = {"name": "stager", "skills": ["doc/*"], "pins": {NAME: "staging"}}
    tenant.author.call("AgentService.PutAgent", agent=pinned)
    assert body(tenant.runtime, NAME, "stager") == "One.\n"
    moved = tenant.author.call("SkillDefService.SetLabel", version=2, etag=set_to.skill_def.etag, **label)
    assert list(moved.effect.changing) == ["stager"]
    assert body(tenant.runtime, NAME, "stager") == "Two.\n"
    gone = tenant.author.call("SkillDefService.SetLabel", version=0, etag=moved.skill_def.etag, **label)
    assert list(gone.effect.losing) == ["stager"]
    error = refused(tenant.runtime, INVOKE, agent="stager", name=NAME)
    assert (error.code, error.reason) == ("NOT_FOUND", "VERSION_NOT_FOUND")
    assert NAME not in [s.name for s in tenant.runtime.call("SkillService.ListSkills", agent="stager").skills]
    for name in ("v3", "bundle", "inline", "Staging", ""):
        error = refused(
            tenant.author, "SkillDefService.SetLabel", name=NAME, label=name, version=1, etag=gone.skill_def.etag
        )
        assert error.reason == "INVALID_NAME"


def test_a_pin_obeys_retirement_and_tombstones(tenant: TestTenant) -> None:
    fork(tenant.author, "One.", promote=True)
    fork(tenant.author, "Two.")
    tenant.author.call("AgentService.PutAgent", agent={"name": "tester", "pins": {NAME: "v2"}})
    retired = tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, etag=etag(tenant.author))
    assert "tester" in retired.effect.losing
    assert refused(tenant.runtime, INVOKE, agent="tester", name=NAME).reason == "VERSION_NOT_FOUND"
    assert body(tenant.runtime).startswith("# Review")
    back = tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, retired=False, etag=etag(tenant.author))
    assert "tester" in back.effect.gaining
    assert body(tenant.runtime, NAME, "tester") == "Two.\n"
    tenant.author.call("SkillDefService.SetSkillDisabled", name=NAME, disabled=True, etag=etag(tenant.author))
    assert refused(tenant.runtime, INVOKE, agent="tester", name=NAME).reason == "SKILL_NOT_FOUND"


def test_the_name_of_a_retired_skill_is_taken_up_again_without_its_past(tenant: TestTenant) -> None:
    fork(tenant.author, "Old.", promote=True)
    tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, etag=etag(tenant.author))
    again = {"name": NAME, "source": skill_md("chunk-review", "New.\n"), "promote": False}
    made = tenant.author.call("SkillDefService.CreateSkillDef", **again)
    assert (made.version.version, made.skill_def.active_version, made.skill_def.retired) == (2, 0, False)
    assert body(tenant.runtime).startswith("# Review")
    assert refused(tenant.author, "SkillDefService.CreateSkillDef", **again).reason == "SKILL_DEF_EXISTS"
    promote(tenant.author, 2)
    assert body(tenant.runtime) == "New.\n"
    old = tenant.author.call("SkillDefService.GetSkillDef", name=NAME, version=1, include_source=True)
    assert "Old." in old.version.source


def test_two_contents_are_compared_field_by_field_and_line_by_line(tenant: TestTenant) -> None:
    header = "allowed-tools: Read\nowner: docs\n"
    one = skill_md("chunk-review", "Same.\nOne.\n", header=header)
    two = skill_md("chunk-review", "Same.\nTwo.", description="Changed.", header="owner: docs\n")
    tenant.author.call("SkillDefService.ForkSkillDef", name=NAME, source=one)
    tenant.author.call("SkillDefService.ForkSkillDef", name=NAME, source=two, files={})
    found = tenant.author.call("SkillDefService.DiffSkillDefs", name=NAME, **{"from": "@v1", "to": "v2"})
    assert [(f.field, f.from_json, f.to_json) for f in found.fields] == [
        ("allowed-tools", '["Read"]', ""),
        ("description", '"Does it."', '"Changed."'),
    ]
    assert found.body_diff.splitlines() == [
        "--- tenant:v1",
        "+++ tenant:v2",
        "@@ -1,2 +1,2 @@",
        " Same.",
        "-One.",
        "+Two.",
        "\\ No newline at end of file",
    ]
    assert list(found.files) == ["references/review-checklist.md"]
    same = tenant.author.call("SkillDefService.DiffSkillDefs", name=NAME, **{"from": "v1", "to": "v1"})
    assert (list(same.fields), same.body_diff, list(same.files)) == ([], "", [])
    bundled = tenant.author.call("SkillDefService.DiffSkillDefs", name=NAME, **{"from": "bundle", "to": "v1"})
    assert getattr(bundled, "from").layer == catalog_pb2.Layer.LAYER_BUNDLE
    assert "-# Review chunks" in bundled.body_diff


def test_a_digest_is_verified(tenant: TestTenant) -> None:
    digest = fork(tenant.author, "One.", promote=True).version.content_sha256
    fork(tenant.author, "One.", **{"from": "v1"})
    ask = {"name": NAME, "content_sha256": digest}
    found = tenant.author.call("SkillDefService.VerifySkillDef", **ask)
    assert (found.matches, list(found.versions), found.winner.version) == (True, [2, 1], 1)
    tenant.author.call("SkillDefService.RetireSkillDef", name=NAME, etag=etag(tenant.author))
    found = tenant.author.call("SkillDefService.VerifySkillDef", **ask)
    assert (found.matches, list(found.versions)) == (False, [2, 1])
    assert refused(tenant.author, "SkillDefService.VerifySkillDef", name=NAME, content_sha256="AB").reason


@pytest.mark.parametrize("method", ["PromoteSkillDef", "RetireSkillDef", "SetSkillDisabled", "SetLabel"])
def test_an_etag_is_needed_and_must_be_the_present_one(tenant: TestTenant, method: str) -> None:
    stale = fork(tenant.author, "One.").skill_def.etag
    fork(tenant.author, "Two.")
    every: dict[str, dict[str, Any]] = {
        "PromoteSkillDef": {"version": 1},
        "RetireSkillDef": {},
        "SetSkillDisabled": {"disabled": True},
        "SetLabel": {"version": 1, "label": "x"},
    }
    fields = every[method]
    error = refused(tenant.author, f"SkillDefService.{method}", name=NAME, **fields)
    assert (error.code, [field for field, _ in error.violations]) == ("INVALID_ARGUMENT", ["etag"])
    error = refused(tenant.author, f"SkillDefService.{method}", name=NAME, etag=stale, **fields)
    assert (error.code, error.reason) == ("ABORTED", "ETAG_MISMATCH")
    assert tenant.author.call(f"SkillDefService.{method}", name=NAME, etag=etag(tenant.author), **fields)


def test_a_name_that_the_tenant_has_said_nothing_of_has_an_etag_too(tenant: TestTenant) -> None:
    disable = {"name": NAME, "disabled": True}
    first = etag(tenant.author)
    done = tenant.author.call("SkillDefService.SetSkillDisabled", etag=first, **disable)
    assert etag(tenant.author) == done.etag != first
    assert refused(tenant.author, "SkillDefService.SetSkillDisabled", etag=first, **disable).reason == "ETAG_MISMATCH"


def test_of_sixteen_promotions_with_one_etag_one_wins(server: RunningServer, tenant: TestTenant) -> None:
    for number in range(17):
        fork(tenant.author, f"Text {number}.")
    promote(tenant.author, 17)
    tag = etag(tenant.author)
    clients = [server.client(server.key(tenant.name, Role.AUTHOR)) for _ in range(16)]
    tag = etag(tenant.author)

    def attempt(number: int) -> str:
        try:
            clients[number].call("SkillDefService.PromoteSkillDef", name=NAME, version=number + 1, etag=tag)
        except CallFailed as error:
            return error.reason
        return "WON"

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(attempt, range(16)))
    assert sorted(results) == ["ETAG_MISMATCH"] * 15 + ["WON"]
    active = tenant.author.call("SkillDefService.GetSkillDef", name=NAME).skill_def.active_version
    assert active == results.index("WON") + 1


def test_every_change_of_a_skill_is_one_event(tenant: TestTenant, cluster: Any) -> None:
    fork(tenant.author, "One.")
    promote(tenant.author, 1)
    tenant.author.call("SkillDefService.SetLabel", name=NAME, label="prod", version=1, etag=etag(tenant.author))
    told = [event for event in events(cluster, tenant.name) if event["verb"] in ("fork", "promote", "set_label")]
    assert [event["verb"] for event in told] == ["fork", "promote", "set_label"]
    assert told[0]["details"]["forked_from"].startswith("bundle:")
    assert "doc-manager" in told[1]["details"]["changing"]
    assert (told[2]["details"]["label"], told[2]["details"]["version"]) == ("prod", 1)
