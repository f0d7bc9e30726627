"""Names that operators have locked, or put under review: refused when written, and again when resolved."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from substrate.rpc.client import Client
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import add_version, changed, etag_of, refused, skill_md
from tests.store.chain import events
from tests.store.owner import rows

MODES = catalog_pb2.NameMode
STATES = catalog_pb2.CandidateState

CONFIG = """
bundles: ["shipped:document-agent"]
agents:
  any: {}
name_modes:
  - {pattern: doc/chunk-add, mode: open}
  - {pattern: doc/chunk-*, mode: locked}
  - {pattern: locked/**, mode: locked}
  - {pattern: reviewed/*, mode: review}
"""


@pytest.fixture(scope="module")
def strict(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that locks some names and wants a review of others."""
    config = Path(tmp_path_factory.mktemp("modes")) / "substrate.yaml"
    config.write_text(CONFIG)
    with running_server(cluster, config=config) as server:
        yield server


@dataclass(frozen=True)
class Both:
    """One tenant on the session's server, where every name is open, and on the strict one."""

    name: str
    open: TestTenant
    author: Client
    reviewer: Client
    runtime: Client

    def entry(self, name: str) -> Any:
        """Return the one catalog entry of `name`."""
        (found,) = self.author.call("SkillDefService.ListCatalog", pattern=name).entries
        return found

    def origin(self, name: str) -> str:
        return str(self.runtime.call("SkillService.InvokeSkill", agent="any", name=name).origin)


@pytest.fixture
def both(tenant: TestTenant, strict: RunningServer) -> Both:
    author, reviewer = (strict.client(strict.key(tenant.name, Role.AUTHOR)) for _ in range(2))
    return Both(tenant.name, tenant, author, reviewer, strict.client(strict.key(tenant.name, Role.RUNTIME)))


def _create(client: Client, name: str, **fields: object) -> Any:
    source = skill_md(name.rpartition("/")[2])
    return client.call("SkillDefService.CreateSkillDef", name=name, source=source, **fields)


@pytest.mark.parametrize("name", ["doc/chunk-review", "locked/new", "locked/deep/er"])
def test_a_locked_name_can_be_neither_defined_nor_switched_off(cluster: Cluster, both: Both, name: str) -> None:
    last = name.rpartition("/")[2]
    for method, fields in (
        ("CreateSkillDef", {"source": skill_md(last)}),
        ("CreateSkillDef", {"source": skill_md(last), "promote": False}),
        ("PromoteSkillDef", {"version": 1}),
        ("RetireSkillDef", {"retired": False}),
        ("SetSkillDisabled", {"disabled": True}),
    ):
        failed = refused(both.author, f"SkillDefService.{method}", name=name, **fields)
        assert (failed.code, failed.reason, failed.metadata["name"]) == ("FAILED_PRECONDITION", "NAME_LOCKED", name)
        event = events(cluster, both.name)[-1]
        assert (event["id"], event["outcome"], event["reason"]) == (failed.decision_id, "REFUSED", "NAME_LOCKED")
    for table in ("skill_defs", "skill_def_versions", "disabled_names"):
        assert rows(cluster, f"SELECT * FROM {table} WHERE tenant_id = %s", both.name) == []  # noqa: S608 - constants.


def test_what_a_tenant_has_under_a_locked_name_does_not_count(both: Both) -> None:
    name = "doc/chunk-review"
    _create(both.open.author, name)
    assert both.open.author.call("SkillDefService.ListCatalog", pattern=name).entries[0].winner.origin == "tenant:v1"
    entry = both.entry(name)
    assert entry.mode == MODES.NAME_MODE_LOCKED
    assert [c.state for c in entry.candidates] == [
        STATES.CANDIDATE_STATE_SUPPRESSED_BY_LOCK,
        STATES.CANDIDATE_STATE_WON,
    ]
    assert both.origin(name).startswith("bundle:")
    for qualifier in ("v1", "inline"):
        reference = f"{name}@{qualifier}"
        failed = refused(both.runtime, "SkillService.InvokeSkill", agent="any", name=reference)
        assert failed.reason in ("SKILL_NOT_FOUND", "VERSION_NOT_FOUND")
    assert both.origin(f"{name}@bundle").startswith("bundle:")


def test_what_a_tenant_has_switched_off_is_there_while_its_name_is_locked(both: Both) -> None:
    name = "doc/chunk-move"
    changed(both.open.author, "SkillDefService.SetSkillDisabled", name=name, disabled=True)
    assert both.origin(name).startswith("bundle:")
    entry = both.entry(name)
    assert [c.state for c in entry.candidates] == [
        STATES.CANDIDATE_STATE_SUPPRESSED_BY_LOCK,
        STATES.CANDIDATE_STATE_WON,
    ]


def test_a_locked_name_that_only_the_tenant_has_is_nothing(both: Both) -> None:
    _create(both.open.author, "locked/new")
    failed = refused(both.runtime, "SkillService.InvokeSkill", agent="any", name="locked/new")
    assert (failed.code, failed.reason) == ("NOT_FOUND", "SKILL_NOT_FOUND")
    listed = both.runtime.call("SkillService.ListSkills", agent="any").skills
    assert "locked/new" not in [skill.name for skill in listed]


def test_what_stands_under_a_locked_name_can_be_read_and_cleared_away(both: Both) -> None:
    name = "locked/new"
    made = _create(both.open.author, name)
    changed(both.open.author, "SkillDefService.SetSkillDisabled", name=name, disabled=True)
    got = both.author.call("SkillDefService.GetSkillDef", name=name, include_source=True)
    assert got.version.content_sha256 == made.version.content_sha256
    assert not changed(both.author, "SkillDefService.SetSkillDisabled", name=name, disabled=False).disabled
    assert changed(both.author, "SkillDefService.RetireSkillDef", name=name).skill_def.retired
    failed = refused(both.author, "SkillDefService.RetireSkillDef", name=name, retired=False)
    assert failed.reason == "NAME_LOCKED"


def test_the_first_pattern_that_matches_a_name_sets_its_mode(both: Both) -> None:
    assert _create(both.author, "doc/chunk-add").winner.origin == "tenant:v1"
    assert both.entry("doc/chunk-add").mode == MODES.NAME_MODE_OPEN
    assert both.entry("doc/query").mode == MODES.NAME_MODE_OPEN


def test_a_name_under_review_takes_effect_by_another_authors_hand(cluster: Cluster, both: Both) -> None:
    name = "reviewed/mine"
    failed = refused(both.author, "SkillDefService.CreateSkillDef", name=name, source=skill_md("mine"))
    assert (failed.code, failed.reason, failed.metadata["name"]) == ("FAILED_PRECONDITION", "REVIEW_REQUIRED", name)
    assert rows(cluster, "SELECT * FROM skill_defs WHERE tenant_id = %s", both.name) == []
    draft = _create(both.author, name, promote=False)
    assert (draft.skill_def.active_version, draft.HasField("winner")) == (0, False)
    assert both.entry(name).mode == MODES.NAME_MODE_REVIEW
    promote = {"name": name, "version": 1}
    failed = refused(both.author, "SkillDefService.PromoteSkillDef", **promote, etag=draft.skill_def.etag)
    assert (failed.code, failed.reason, failed.metadata["name"]) == ("FAILED_PRECONDITION", "REVIEW_REQUIRED", name)
    event = events(cluster, both.name)[-1]
    assert (event["verb"], event["outcome"], event["reason"]) == ("promote", "REFUSED", "REVIEW_REQUIRED")
    failed = refused(both.runtime, "SkillService.InvokeSkill", agent="any", name=f"{name}@v1")
    assert failed.code == "NOT_FOUND"
    done = changed(both.reviewer, "SkillDefService.PromoteSkillDef", **promote)
    assert (done.skill_def.active_version, done.winner.origin) == (1, "tenant:v1")
    assert both.origin(name) == "tenant:v1"
    # It is in effect: to ask for that is no change, whoever asks.
    assert changed(both.author, "SkillDefService.PromoteSkillDef", **promote).skill_def == done.skill_def


def test_each_version_under_review_needs_somebody_other_than_its_own_author(both: Both) -> None:
    name = "reviewed/mine"
    _create(both.author, name, promote=False)
    changed(both.reviewer, "SkillDefService.PromoteSkillDef", name=name, version=1)
    add_version(both.reviewer, name, skill_md("mine", "Second.\n"))
    etag = etag_of(both.reviewer, name)
    failed = refused(both.reviewer, "SkillDefService.PromoteSkillDef", name=name, version=2, etag=etag)
    assert failed.reason == "REVIEW_REQUIRED"
    assert changed(both.author, "SkillDefService.PromoteSkillDef", name=name, version=2).winner.origin == "tenant:v2"


def test_a_name_under_review_can_be_retired_and_switched_off_by_anyone(both: Both) -> None:
    name = "reviewed/mine"
    _create(both.author, name, promote=False)
    changed(both.reviewer, "SkillDefService.PromoteSkillDef", name=name, version=1)
    assert not changed(both.author, "SkillDefService.SetSkillDisabled", name=name, disabled=True).HasField("winner")
    assert changed(both.author, "SkillDefService.SetSkillDisabled", name=name, disabled=False).HasField("winner")
    assert not changed(both.author, "SkillDefService.RetireSkillDef", name=name).HasField("winner")
    assert changed(both.author, "SkillDefService.RetireSkillDef", name=name, retired=False).HasField("winner")
