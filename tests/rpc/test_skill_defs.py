"""Authors create SkillDefs, read them back as they were written, and list them."""

from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from tests.servers import Cluster, TestTenant
from tests.skills import add_version, changed, etag_of, refused, skill_md
from tests.store.chain import events
from tests.store.owner import change, rows, value

SOURCE = """---
name: mine
description: "What it does: everything."
license: Apache-2.0
compatibility: any
allowed-tools: Read, Bash(git log *)
when_to_use: When asked.
argument-hint: "[path] [format]"
arguments: [path, format]
metadata:
  version: "1.10"
  nested: {list: [a, b], empty: ""}
user-invocable: false
paths: ["src/**", "*.md"]
odd-key: kept ✓
---
# Title

Text with `$path`,\ttabs and ✓.

---
Not frontmatter.
"""

LAYERS = catalog_pb2.Layer
STATES = catalog_pb2.CandidateState


def _create(tenant: TestTenant, name: str = "own/mine", **fields: object) -> Any:
    source = skill_md(name.rpartition("/")[2])
    return tenant.author.call("SkillDefService.CreateSkillDef", **{"name": name, "source": source, **fields})


def _key_id(cluster: Cluster, tenant: TestTenant, role: str = "author") -> str:
    found: str = value(cluster, "SELECT key_id FROM keys WHERE tenant_id = %s AND role = %s", tenant.name, role)
    return found


def test_a_new_skill_is_in_effect_from_the_next_call_on(cluster: Cluster, tenant: TestTenant) -> None:
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine", "Mine.\n"))
    assert (made.skill_def.name, made.skill_def.active_version, made.skill_def.latest_version) == ("own/mine", 1, 1)
    assert (made.skill_def.retired, made.skill_def.disabled) == (False, False)
    assert made.skill_def.etag
    assert made.skill_def.create_time == made.skill_def.update_time == made.version.create_time
    assert (made.version.name, made.version.version, made.version.description) == ("own/mine", 1, "Does it.")
    assert made.version.source == ""
    assert made.version.promote_time == made.version.create_time
    author = _key_id(cluster, tenant)
    assert made.skill_def.created_by == made.version.created_by == made.version.promoted_by == author
    assert (made.winner.layer, made.winner.origin, made.winner.version) == (LAYERS.LAYER_TENANT, "tenant:v1", 1)
    assert made.winner.content_sha256 == made.version.content_sha256
    assert (list(made.shadows), list(made.warnings)) == ([], [])
    tenant.author.call("AgentService.PutAgent", agent={"name": "any"})
    invoked = tenant.runtime.call("SkillService.InvokeSkill", agent="any", name="own/mine")
    assert (invoked.body, invoked.content_sha256) == ("Mine.\n", made.version.content_sha256)


def test_a_draft_is_stored_and_changes_nothing(tenant: TestTenant) -> None:
    bundled = tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    made = tenant.author.call(
        "SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"), promote=False
    )
    assert (made.skill_def.active_version, made.skill_def.latest_version) == (0, 1)
    assert not made.version.HasField("promote_time")
    assert made.version.promoted_by == ""
    assert made.winner.origin == bundled.origin
    assert list(made.shadows) == []
    after = tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    assert after.body == bundled.body
    draft = tenant.author.call("SkillDefService.GetSkillDef", name="doc/query")
    assert draft.version.version == 1


def test_a_draft_of_a_new_name_resolves_to_nothing(tenant: TestTenant) -> None:
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"), promote=False)
    assert not made.HasField("winner")
    tenant.author.call("AgentService.PutAgent", agent={"name": "any"})
    assert refused(tenant.runtime, "SkillService.InvokeSkill", agent="any", name="own/x").reason == "SKILL_NOT_FOUND"


def test_a_new_skill_over_a_bundled_one_says_what_it_shadows(tenant: TestTenant) -> None:
    bundled = tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    (shadowed,) = made.shadows
    assert (shadowed.layer, shadowed.state) == (LAYERS.LAYER_BUNDLE, STATES.CANDIDATE_STATE_SHADOWED)
    assert (shadowed.origin, shadowed.content_sha256) == (bundled.origin, bundled.content_sha256)


def test_a_skill_created_under_a_disabled_name_stands_before_nothing_yet(tenant: TestTenant) -> None:
    changed(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/query", disabled=True)
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    assert made.skill_def.disabled
    assert not made.HasField("winner")
    assert list(made.shadows) == []


@pytest.mark.parametrize("state", ["in effect", "draft", "disabled"])
def test_a_name_that_the_tenant_has_is_refused(cluster: Cluster, tenant: TestTenant, state: str) -> None:
    _create(tenant, promote=state != "draft")
    if state == "disabled":
        changed(tenant.author, "SkillDefService.SetSkillDisabled", name="own/mine", disabled=True)
    before = rows(cluster, "SELECT * FROM skill_def_versions WHERE tenant_id = %s", tenant.name)
    failed = refused(
        tenant.author, "SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine", "Another.\n")
    )
    assert (failed.code, failed.reason) == ("ALREADY_EXISTS", "SKILL_DEF_EXISTS")
    assert failed.metadata["name"] == "own/mine"
    assert rows(cluster, "SELECT * FROM skill_def_versions WHERE tenant_id = %s", tenant.name) == before
    event = events(cluster, tenant.name)[-1]
    assert (event["id"], event["verb"], event["outcome"]) == (failed.decision_id, "create", "REFUSED")
    assert (event["reason"], event["name"]) == ("SKILL_DEF_EXISTS", "own/mine")


def test_the_name_of_a_retired_skill_may_be_used_again(cluster: Cluster, tenant: TestTenant) -> None:
    first = _create(tenant).version
    add_version(tenant.author, "own/mine", skill_md("mine", "Second.\n"))
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="own/mine")
    before = rows(cluster, "SELECT * FROM skill_def_versions WHERE tenant_id = %s ORDER BY version", tenant.name)
    draft = _create(tenant, promote=False)
    assert (draft.version.version, draft.skill_def.latest_version, draft.version.HasField("lineage")) == (3, 3, False)
    assert (draft.skill_def.retired, draft.skill_def.active_version) == (False, 0)
    assert not draft.HasField("winner")
    kept = rows(
        cluster,
        "SELECT * FROM skill_def_versions WHERE tenant_id = %s AND version < 3 ORDER BY version",
        tenant.name,
    )
    assert kept == before
    got = tenant.author.call("SkillDefService.GetSkillDef", name="own/mine", version=1)
    assert got.version.content_sha256 == first.content_sha256
    again = refused(tenant.author, "SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))
    assert again.reason == "SKILL_DEF_EXISTS"
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="own/mine")
    made = _create(tenant)
    assert (made.version.version, made.skill_def.active_version, made.winner.origin) == (4, 4, "tenant:v4")


def test_the_source_comes_back_as_the_same_skill(tenant: TestTenant) -> None:
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=SOURCE, positional_base=1)
    assert list(made.version.allowed_tools) == ["Read", "Bash(git log *)"]
    assert made.version.positional_base == 1
    got = tenant.author.call("SkillDefService.GetSkillDef", name="own/mine", include_source=True)
    assert got.version.source.endswith(SOURCE.partition("---\n# Title")[2])
    assert tenant.author.call("SkillDefService.GetSkillDef", name="own/mine").version.source == ""
    again = tenant.author.call("SkillDefService.CreateSkillDef", name="again/mine", source=got.version.source)
    assert again.version.content_sha256 == made.version.content_sha256
    second = tenant.author.call("SkillDefService.GetSkillDef", name="again/mine", include_source=True)
    assert second.version.source == got.version.source


def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_the_skill(tenant: TestTenant) -> None:
    plain = tenant.author.call("SkillDefService.CreateSkillDef", name="one/mine", source=SOURCE)
    dressed = "\ufeff" + SOURCE.replace("\n", "\r\n")
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="two/mine", source=dressed)
    assert made.version.content_sha256 == plain.version.content_sha256


def test_get_takes_a_version_and_else_the_one_in_effect_or_the_newest(tenant: TestTenant) -> None:
    _create(tenant, promote=False)
    second = add_version(tenant.author, "own/mine", skill_md("mine", "Second.\n"))

    def got(version: int = 0) -> tuple[int, str]:
        found = tenant.author.call(
            "SkillDefService.GetSkillDef", name="own/mine", version=version, include_source=True
        ).version
        return found.version, found.source

    assert second == 2
    assert got() == got(2) == (2, skill_md("mine", "\nSecond.\n"))
    assert got(1) == (1, skill_md("mine", "\nDo it.\n"))
    changed(tenant.author, "SkillDefService.PromoteSkillDef", name="own/mine", version=1)
    assert got()[0] == 1
    failed = refused(tenant.author, "SkillDefService.GetSkillDef", name="own/mine", version=3)
    assert (failed.code, failed.reason) == ("NOT_FOUND", "VERSION_NOT_FOUND")
    assert (failed.metadata["name"], failed.metadata["version"]) == ("own/mine", "3")
    assert (
        refused(tenant.author, "SkillDefService.GetSkillDef", name="own/mine", version=-1).violations[0][0] == "version"
    )
    failed = refused(tenant.author, "SkillDefService.GetSkillDef", name="doc/query")
    assert (failed.code, failed.reason, failed.metadata["name"]) == ("NOT_FOUND", "SKILL_DEF_NOT_FOUND", "doc/query")


@pytest.mark.parametrize("column", ["body", "header"])
def test_a_version_that_does_not_match_its_digest_is_quarantined(
    cluster: Cluster, tenant: TestTenant, column: str
) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    spoil = {
        "body": "UPDATE skill_def_versions SET body = 'Something else.' WHERE tenant_id = %s",
        "header": 'UPDATE skill_def_versions SET header = \'{"name": "query", "description": "Else."}\''
        " WHERE tenant_id = %s",
    }
    assert change(cluster, spoil[column], tenant.name) == 1
    change(cluster, "UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %s", tenant.name)
    failed = refused(tenant.author, "SkillDefService.GetSkillDef", name="doc/query")
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "SKILL_QUARANTINED")
    assert failed.metadata["name"] == "doc/query"
    etag = etag_of(tenant.author, "doc/query")
    failed = refused(tenant.author, "SkillDefService.PromoteSkillDef", name="doc/query", version=1, etag=etag)
    assert failed.reason == "SKILL_QUARANTINED"
    failed = refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    assert (failed.reason, failed.metadata["name"]) == ("SKILL_QUARANTINED", "doc/query")
    entry = tenant.author.call("SkillDefService.ListCatalog", pattern="doc/query").entries[0]
    assert not entry.HasField("winner")
    assert entry.candidates[0].state == STATES.CANDIDATE_STATE_QUARANTINED
    assert entry.candidates[0].problem


def test_every_problem_of_a_source_is_told_at_once_with_its_line(cluster: Cluster, tenant: TestTenant) -> None:
    source = "---\nname: Other\ndescription: ''\nuser-invocable: perhaps\nlicense: [a]\nmetadata: text\n---\n\n \n"
    failed = refused(tenant.author, "SkillDefService.CreateSkillDef", name="own/mine", source=source)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_SKILL")
    told = dict(failed.violations)
    for key, line in (("name", 2), ("description", 3), ("user-invocable", 4), ("license", 5), ("metadata", 6)):
        assert f"line {line}:" in told[f"source.{key}"]
    assert "source.body" in told
    assert rows(cluster, "SELECT * FROM skill_defs WHERE tenant_id = %s", tenant.name) == []


def test_what_is_accepted_but_hardly_meant_is_warned_of(tenant: TestTenant) -> None:
    source = skill_md("mine", header="user_invocable: false\nallowed_tools: Read\nmy-own-key: kept\n")
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=source)
    assert len(made.warnings) == 2
    for warning, key, meant in zip(
        made.warnings, ("user_invocable", "allowed_tools"), ("user-invocable", "allowed-tools"), strict=True
    ):
        assert key in warning
        assert meant in warning
    assert list(made.version.allowed_tools) == []
    got = tenant.author.call("SkillDefService.GetSkillDef", name="own/mine", include_source=True)
    assert "my-own-key: kept" in got.version.source


@pytest.mark.parametrize("name", ["mine", "own", "own/mine", "Mine", "mine2", ""])
def test_the_name_in_the_source_is_the_last_segment(tenant: TestTenant, name: str) -> None:
    make = {"name": "own/mine", "source": skill_md(f'"{name}"')}
    if name == "mine":
        tenant.author.call("SkillDefService.CreateSkillDef", **make)
    else:
        failed = refused(tenant.author, "SkillDefService.CreateSkillDef", **make)
        assert failed.reason == "INVALID_SKILL"
        assert [field for field, _ in failed.violations] == ["source.name"]


@pytest.mark.parametrize(("base", "accepted"), [(0, True), (1, True), (2, False), (-1, False)])
def test_positional_arguments_begin_at_zero_or_one(tenant: TestTenant, base: int, accepted: bool) -> None:  # noqa: FBT001 - a parameter of the test.
    make = {"name": "own/mine", "source": skill_md("mine", "First is $0 or $1.\n", header="arguments: [a]\n")}
    if accepted:
        made = tenant.author.call("SkillDefService.CreateSkillDef", **make, positional_base=base)
        assert made.version.positional_base == base
    else:
        failed = refused(tenant.author, "SkillDefService.CreateSkillDef", **make, positional_base=base)
        assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "positional_base")


def test_a_qualifier_is_no_part_of_a_name_to_author(tenant: TestTenant) -> None:
    for method in (
        "CreateSkillDef",
        "ForkSkillDef",
        "GetSkillDef",
        "ListSkillDefVersions",
        "PromoteSkillDef",
        "RetireSkillDef",
        "SetSkillDisabled",
        "SetLabel",
        "DiffSkillDefs",
        "VerifySkillDef",
        "ExportSkill",
    ):
        fields: dict[str, object] = {"version": 1} if method == "PromoteSkillDef" else {}
        failed = refused(tenant.author, f"SkillDefService.{method}", name="doc/query@bundle", **fields)
        assert (failed.reason, failed.violations[0][0]) == ("INVALID_NAME", "name")
