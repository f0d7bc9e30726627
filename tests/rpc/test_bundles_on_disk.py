"""Bundled skills and what happens to their files while the server runs: what was checked is served, or nothing is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from substrate.bootstrap import reload_static
from tests.rpc.rich import rich_server, write_config
from tests.servers import Cluster, RunningServer
from tests.skills import refused, skill_md

INVOKE = "SkillService.InvokeSkill"


@pytest.fixture
def disk(cluster: Cluster, tmp_path: Path) -> Iterator[RunningServer]:
    """A server whose bundle a test may change; its config is `substrate.yaml` in the test's folder."""
    with rich_server(cluster, tmp_path) as server:
        yield server


def skill_file(folder: Path, name: str) -> Path:
    return folder / "core" / "skills" / name / "SKILL.md"


def test_a_bundled_file_that_changes_on_disk_is_refused_until_the_reload(disk: RunningServer, tmp_path: Path) -> None:
    tenant = disk.tenant()
    asked = {"agent": "docs", "name": "doc/plain"}
    before = tenant.runtime.call(INVOKE, **asked)
    listed = tenant.runtime.call("SkillService.ListSkills", agent="docs").skills
    path = skill_file(tmp_path, "doc/plain")
    kept = path.read_text()
    for spoilt in (kept + "More.\n", kept.replace("Plainly", "plainly"), "", "---\nname: x\n"):
        path.write_text(spoilt)
        failed = refused(tenant.runtime, INVOKE, **asked)
        assert (failed.code, failed.reason, failed.metadata["name"]) == ("ABORTED", "SKILL_CHANGED", "doc/plain")
        assert tenant.runtime.call("SkillService.ListSkills", agent="docs").skills == listed
        assert tenant.runtime.call(INVOKE, agent="docs", name="doc/many").body
    path.write_text(kept)
    assert tenant.runtime.call(INVOKE, **asked).body == before.body
    path.write_text(kept + "More.\n")
    assert reload_static(disk.app, tmp_path / "substrate.yaml")
    after = tenant.runtime.call(INVOKE, **asked)
    assert after.body == before.body + "More.\n"
    assert after.content_sha256 != before.content_sha256
    assert after.state.static_digest != before.state.static_digest
    assert after.state.catalog_revision == before.state.catalog_revision


def test_bundled_files_that_are_gone_or_replaced_still_list(disk: RunningServer, tmp_path: Path) -> None:
    tenant = disk.tenant()
    listed = tenant.runtime.call("SkillService.ListSkills", agent="docs").skills
    for name in ("doc/plain", "doc/many", "doc/files", "doc/old"):
        path = skill_file(tmp_path, name)
        path.unlink()
        if name == "doc/many":
            path.symlink_to(skill_file(tmp_path, "doc/off"))
        elif name == "doc/files":
            path.mkdir()
    assert tenant.runtime.call("SkillService.ListSkills", agent="docs").skills == listed
    for name in ("doc/plain", "doc/many", "doc/files", "doc/old"):
        assert refused(tenant.runtime, INVOKE, agent="docs", name=name).reason == "SKILL_CHANGED"
    assert tenant.runtime.call(INVOKE, agent="docs", name="doc/arguments").body


def test_a_reload_that_cannot_be_accepted_changes_nothing(disk: RunningServer, tmp_path: Path) -> None:
    tenant = disk.tenant()
    before = tenant.runtime.call(INVOKE, agent="docs", name="doc/plain")
    config = write_config(tmp_path, name_modes=[{"pattern": "Doc/*", "mode": "locked"}])
    skill_file(tmp_path, "doc/plain").write_text(skill_md("plain", "Other.\n"))
    assert not reload_static(disk.app, config)
    listed = tenant.runtime.call("SkillService.ListSkills", agent="docs")
    assert listed.state.static_digest == before.state.static_digest
    assert refused(tenant.runtime, INVOKE, agent="docs", name="doc/plain").reason == "SKILL_CHANGED"


def test_a_quarantined_file_harms_no_neighbour_and_is_explained(disk: RunningServer) -> None:
    rich = disk.tenant()
    told = rich.author.call("AuditService.ExplainResolution", name="doc/broken", agent="docs")
    (candidate,) = told.candidates
    assert candidate.state == 6
    assert "skills/doc/broken/SKILL.md:3: " in candidate.problem
    assert candidate.problem in told.text
    assert (told.HasField("winner"), told.would_succeed, told.reason) == (False, False, "SKILL_QUARANTINED")
    listed = [entry.name for entry in rich.runtime.call("SkillService.ListSkills", agent="docs").skills]
    assert "doc/broken" not in listed
    assert "doc/plain" in listed


def test_a_tenants_skill_stands_in_for_a_quarantined_file(disk: RunningServer) -> None:
    tenant = disk.tenant()
    body = "Mended by the tenant.\n"
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/broken", source=skill_md("broken", body))
    assert tenant.runtime.call(INVOKE, agent="docs", name="doc/broken").body == body
    assert refused(tenant.runtime, INVOKE, agent="docs", name="doc/broken@bundle").reason == "SKILL_QUARANTINED"
