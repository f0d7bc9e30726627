"""What is in effect: promoted, retired and switched-off SkillDefs, and what guards one author from another."""

from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from tests.servers import Cluster, TestTenant
from tests.skills import add_version, changed, etag_of, refused, skill_md
from tests.store.chain import events
from tests.store.owner import rows, value

STATES = catalog_pb2.CandidateState


def _call(tenant: TestTenant, method: str, name: str = "doc/query", **fields: object) -> Any:
    return tenant.author.call(f"SkillDefService.{method}", name=name, **fields)


def _change(tenant: TestTenant, method: str, name: str = "doc/query", **fields: object) -> Any:
    return changed(tenant.author, f"SkillDefService.{method}", name=name, **fields)


def _create(tenant: TestTenant, name: str = "doc/query", body: str = "Own.\n", **fields: object) -> Any:
    return _call(tenant, "CreateSkillDef", name, source=skill_md(name.rpartition("/")[2], body), **fields)


def _origin(tenant: TestTenant, name: str = "doc/query") -> str:
    """Return where the name comes from for a runtime, or why it comes from nowhere."""
    listed = tenant.runtime.call("SkillService.ListSkills", agent="doc-manager", pattern=name).skills
    if not listed:
        return refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name=name).reason
    return str(tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name=name).origin)


def _stored(cluster: Cluster, tenant: TestTenant) -> list[tuple[Any, ...]]:
    """Return all that the tenant has, but for the audit and the revision that every writing call bumps."""
    return [
        row
        for query in (
            "SELECT * FROM skill_defs WHERE tenant_id = %s ORDER BY name",
            "SELECT * FROM skill_def_versions WHERE tenant_id = %s ORDER BY name, version",
            "SELECT * FROM disabled_names WHERE tenant_id = %s ORDER BY name",
        )
        for row in rows(cluster, query, tenant.name)
    ]


def test_promotion_puts_any_version_in_effect(cluster: Cluster, tenant: TestTenant) -> None:
    _create(tenant, promote=False)
    add_version(tenant.author, "doc/query", skill_md("query", "Second.\n"))
    assert _origin(tenant).startswith("bundle:")
    reviewer = tenant.server.client(tenant.server.key(tenant.name, Role.AUTHOR))
    key_id = value(
        cluster, "SELECT key_id FROM keys WHERE tenant_id = %s ORDER BY created_at DESC LIMIT 1", tenant.name
    )
    for version in (2, 1, 2):
        done = changed(reviewer, "SkillDefService.PromoteSkillDef", name="doc/query", version=version)
        assert (done.skill_def.active_version, done.skill_def.latest_version) == (version, 2)
        assert (done.winner.origin, _origin(tenant)) == (f"tenant:v{version}",) * 2
        found = _call(tenant, "GetSkillDef", version=version).version
        assert found.promoted_by == key_id
        assert found.promote_time == done.skill_def.update_time


def test_to_promote_what_is_in_effect_changes_nothing(cluster: Cluster, tenant: TestTenant) -> None:
    made = _create(tenant)
    before = _stored(cluster, tenant)
    done = _call(tenant, "PromoteSkillDef", version=1, etag=made.skill_def.etag)
    assert done.skill_def == made.skill_def
    assert done.winner.origin == "tenant:v1"
    assert _stored(cluster, tenant) == before
    assert events(cluster, tenant.name)[-1]["verb"] == "promote"


def test_a_retired_skill_falls_to_the_layer_below_and_comes_back_as_it_was(tenant: TestTenant) -> None:
    _create(tenant)
    retired = _change(tenant, "RetireSkillDef")
    assert (retired.skill_def.retired, retired.skill_def.active_version) == (True, 1)
    assert retired.winner.origin.startswith("bundle:")
    assert _origin(tenant) == retired.winner.origin
    back = _change(tenant, "RetireSkillDef", retired=False)
    assert (back.skill_def.retired, back.winner.origin, _origin(tenant)) == (False, "tenant:v1", "tenant:v1")


def test_a_retired_skill_without_a_layer_below_is_not_found(tenant: TestTenant) -> None:
    _create(tenant, "doc/mine")
    assert not _change(tenant, "RetireSkillDef", "doc/mine").HasField("winner")
    assert _origin(tenant, "doc/mine") == "SKILL_NOT_FOUND"


def test_promotion_leaves_a_retired_skill_retired(tenant: TestTenant) -> None:
    _create(tenant)
    add_version(tenant.author, "doc/query", skill_md("query", "Second.\n"))
    _change(tenant, "RetireSkillDef")
    done = _change(tenant, "PromoteSkillDef", version=2)
    assert (done.skill_def.retired, done.skill_def.active_version) == (True, 2)
    assert done.winner.origin.startswith("bundle:")
    assert _change(tenant, "RetireSkillDef", retired=False).winner.origin == "tenant:v2"


@pytest.mark.parametrize("retired", [True, False])
def test_to_retire_or_bring_back_twice_changes_nothing(cluster: Cluster, tenant: TestTenant, *, retired: bool) -> None:
    _create(tenant)
    _change(tenant, "RetireSkillDef", retired=not retired)
    once = _change(tenant, "RetireSkillDef", retired=retired)
    before = _stored(cluster, tenant)
    again = _change(tenant, "RetireSkillDef", retired=retired)
    assert again.skill_def == once.skill_def
    assert again.winner == once.winner
    assert _stored(cluster, tenant) == before


def test_a_switched_off_name_is_hidden_in_every_layer(tenant: TestTenant) -> None:
    _create(tenant)
    done = _change(tenant, "SetSkillDisabled", disabled=True, reason="Unsafe.")
    assert (done.disabled, done.skill_def.disabled, done.HasField("winner")) == (True, True, False)
    assert _origin(tenant) == "SKILL_NOT_FOUND"
    for qualifier in ("bundle", "v1"):
        name = f"doc/query@{qualifier}"
        failed = refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name=name)
        assert failed.reason == "SKILL_NOT_FOUND"
    (entry,) = _call_catalog(tenant, "doc/query")
    assert [candidate.state for candidate in entry.candidates] == [
        STATES.CANDIDATE_STATE_DISABLED,
        STATES.CANDIDATE_STATE_SHADOWED,
        STATES.CANDIDATE_STATE_SHADOWED,
    ]
    assert "Unsafe." in entry.candidates[0].why
    on = _change(tenant, "SetSkillDisabled", disabled=False)
    assert (on.disabled, on.skill_def.disabled, on.winner.origin) == (False, False, "tenant:v1")
    assert _origin(tenant) == "tenant:v1"


@pytest.mark.parametrize("name", ["doc/chunk-add", "doc/not-there"])
def test_any_name_can_be_switched_off_whether_or_not_the_tenant_has_it(tenant: TestTenant, name: str) -> None:
    done = _change(tenant, "SetSkillDisabled", name, disabled=True)
    assert (done.disabled, done.HasField("skill_def"), done.HasField("winner")) == (True, False, False)
    assert _origin(tenant, name) == "SKILL_NOT_FOUND"
    done = _change(tenant, "SetSkillDisabled", name, disabled=False)
    assert (done.disabled, done.HasField("skill_def")) == (False, False)


@pytest.mark.parametrize("disabled", [True, False])
def test_to_switch_twice_changes_nothing(cluster: Cluster, tenant: TestTenant, *, disabled: bool) -> None:
    _create(tenant)
    _change(tenant, "SetSkillDisabled", disabled=not disabled)
    once = _change(tenant, "SetSkillDisabled", disabled=disabled, reason="The first.")
    before = _stored(cluster, tenant)
    again = _change(tenant, "SetSkillDisabled", disabled=disabled, reason="The second.")
    assert (again.disabled, again.skill_def) == (once.disabled, once.skill_def)
    assert _stored(cluster, tenant) == before


def test_every_answer_tells_whether_the_name_is_switched_off(tenant: TestTenant) -> None:
    _change(tenant, "SetSkillDisabled", disabled=True)
    answers = [
        _create(tenant, promote=False),
        _change(tenant, "PromoteSkillDef", version=1),
        _change(tenant, "RetireSkillDef"),
        _change(tenant, "RetireSkillDef", retired=False),
        _call(tenant, "GetSkillDef"),
    ]
    assert [answer.skill_def.disabled for answer in answers] == [True] * len(answers)
    assert tenant.author.call("SkillDefService.ListSkillDefs").skill_defs[0].disabled


def _call_catalog(tenant: TestTenant, pattern: str) -> Any:
    return tenant.author.call("SkillDefService.ListCatalog", pattern=pattern).entries


def test_the_etag_and_the_time_of_change_move_with_every_change(tenant: TestTenant) -> None:
    made = _create(tenant)
    add_version(tenant.author, "doc/query", skill_md("query", "Second.\n"))
    seen = [made.skill_def, _call(tenant, "GetSkillDef").skill_def]
    for method, fields in (
        ("PromoteSkillDef", {"version": 2}),
        ("RetireSkillDef", {}),
        ("RetireSkillDef", {"retired": False}),
        ("SetSkillDisabled", {"disabled": True}),
        ("SetSkillDisabled", {"disabled": False}),
        ("SetLabel", {"label": "staging", "version": 1}),
        ("SetLabel", {"label": "staging", "version": 0}),
    ):
        done = _call(tenant, method, etag=seen[-1].etag, **fields)
        seen.append(done.skill_def)
        assert _call(tenant, "GetSkillDef").skill_def == done.skill_def
    assert len({skill_def.etag for skill_def in seen}) == len(seen)
    times = [skill_def.update_time.ToNanoseconds() for skill_def in seen]
    assert times == sorted(set(times))
    assert {skill_def.create_time.ToNanoseconds() for skill_def in seen} == {times[0]}


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("PromoteSkillDef", {"version": 1}),
        ("RetireSkillDef", {}),
        ("RetireSkillDef", {"retired": False}),
        ("SetSkillDisabled", {"disabled": True}),
        ("SetSkillDisabled", {"disabled": False}),
        ("SetLabel", {"label": "staging", "version": 1}),
        ("ForkSkillDef", {"from": "v1", "promote": True}),
    ],
)
def test_a_change_of_what_has_changed_since_is_refused(
    cluster: Cluster, tenant: TestTenant, method: str, fields: dict[str, object]
) -> None:
    stale = _create(tenant).skill_def.etag
    _change(tenant, "RetireSkillDef")
    before = _stored(cluster, tenant)
    failed = refused(tenant.author, f"SkillDefService.{method}", name="doc/query", etag=stale, **fields)
    assert (failed.code, failed.reason, failed.metadata["name"]) == ("ABORTED", "ETAG_MISMATCH", "doc/query")
    assert _stored(cluster, tenant) == before
    event = events(cluster, tenant.name)[-1]
    assert (event["id"], event["outcome"], event["reason"]) == (failed.decision_id, "REFUSED", "ETAG_MISMATCH")


def test_an_etag_for_what_the_tenant_does_not_have_is_a_mismatch(tenant: TestTenant) -> None:
    failed = refused(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/query", disabled=True, etag="r1")
    assert failed.reason == "ETAG_MISMATCH"
    assert _origin(tenant).startswith("bundle:")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("PromoteSkillDef", {"version": 1}),
        ("RetireSkillDef", {}),
        ("SetLabel", {"label": "staging", "version": 1}),
    ],
)
def test_what_the_tenant_does_not_have_cannot_be_changed(
    tenant: TestTenant, method: str, fields: dict[str, object]
) -> None:
    failed = refused(tenant.author, f"SkillDefService.{method}", name="doc/query", **fields)
    assert (failed.code, failed.reason, failed.metadata["name"]) == ("NOT_FOUND", "SKILL_DEF_NOT_FOUND", "doc/query")


@pytest.mark.parametrize(
    ("version", "reason"), [(3, "VERSION_NOT_FOUND"), (0, "INVALID_ARGUMENT"), (-1, "INVALID_ARGUMENT")]
)
def test_only_a_version_that_is_there_can_be_promoted(tenant: TestTenant, version: int, reason: str) -> None:
    _create(tenant)
    etag = etag_of(tenant.author, "doc/query")
    failed = refused(tenant.author, "SkillDefService.PromoteSkillDef", name="doc/query", version=version, etag=etag)
    assert failed.reason == reason


def test_a_runtime_key_authors_nothing(cluster: Cluster, tenant: TestTenant) -> None:
    _create(tenant)
    before = _stored(cluster, tenant)
    reviewing = ("GetSkillDef", "ListSkillDefVersions", "PromoteSkillDef", "DiffSkillDefs")
    for method, fields in (
        ("CreateSkillDef", {"name": "own/x", "source": skill_md("x")}),
        ("ForkSkillDef", {"name": "doc/query"}),
        ("GetSkillDef", {"name": "doc/query"}),
        ("ListSkillDefs", {}),
        ("ListSkillDefVersions", {"name": "doc/query"}),
        ("PromoteSkillDef", {"name": "doc/query", "version": 1}),
        ("RetireSkillDef", {"name": "doc/query"}),
        ("SetSkillDisabled", {"name": "doc/query", "disabled": True}),
        ("SetLabel", {"name": "doc/query", "label": "staging", "version": 1}),
        ("DiffSkillDefs", {"name": "doc/query", "from": "v1", "to": "bundle"}),
        ("VerifySkillDef", {"name": "doc/query", "content_sha256": "0" * 64}),
        ("ExportSkill", {"name": "doc/query"}),
        ("ImportSkills", {"archive": b""}),
        ("ListCatalog", {}),
    ):
        failed = refused(tenant.runtime, f"SkillDefService.{method}", **fields)
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        assert failed.metadata["roles"] == ("author,operator" if method in reviewing else "author")
        event = events(cluster, tenant.name)[-1]
        assert (event["id"], event["reason"], event["role"]) == (failed.decision_id, "ROLE_REQUIRED", "runtime")
    assert _stored(cluster, tenant) == before
