"""The cases of resolution over the wire, on bundles on disk, inline skills and what a tenant has authored."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from substrate.api.v1.catalog_pb2 import CandidateState, Layer
from tests.servers import Cluster, TestTenant, running_server
from tests.skills import add_version, changed, refused, skill_md
from tests.sources.bundle_files import write_bundle, write_skill
from tests.store import owner

FILE = Path(__file__).parents[1] / "cases" / "resolution.yaml"
CASES = yaml.safe_load(FILE.read_text(encoding="utf-8"))["resolutions"]

Case = dict[str, Any]


def write_config(path: Path, **parts: object) -> Path:
    path.write_text(yaml.safe_dump(parts), encoding="utf-8")
    return path


def static_parts(case: Case, folder: Path) -> Case:
    """Write the case's bundles to disk; return the config that names them in the case's order."""
    bundles = []
    for position, (name, files) in enumerate((n, f) for bundle in case.get("bundles", ()) for n, f in bundle.items()):
        # The folders' names sort the other way, so that only the config's order can give the case's.
        root = write_bundle(folder / f"{9 - position}-{name}", name=name)
        for file in files:
            if isinstance(file, str):
                write_skill(root, file, skill_md(file.rpartition("/")[2], f"This is {file}.\n"))
            else:
                write_skill(root, file["name"], "---\nallowed-tools: {\n---\n\nDo it.\n")
        bundles.append({"path": str(root)})
    agents = {"tester": {"description": "Tries everything."}}
    skills = {name: {"description": "Does it.", "body": f"This is {name}.\n"} for name in case.get("inline", ())}
    return {"bundles": bundles, "skills": skills, "agents": agents}


def author(cluster: Cluster, tenant: TestTenant, skill_defs: Case) -> None:
    """Give the tenant the SkillDefs of a case, by calls; only the database's owner can spoil one."""
    for name, data in skill_defs.items():
        source = skill_md(name.rpartition("/")[2], f"Version 1 of {name}.\n")
        tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source, promote=data["promoted"] == 1)
        for version in data["versions"][1:]:
            text = skill_md(name.rpartition("/")[2], f"Version {version} of {name}.\n")
            assert add_version(tenant.author, name, text) == version
        if data["promoted"] not in (None, 1):
            # What is promoted later has had its predecessors promoted before it.
            for version in range(1, data["promoted"] + 1):
                changed(tenant.author, "SkillDefService.PromoteSkillDef", name=name, version=version)
        if data.get("retired"):
            changed(tenant.author, "SkillDefService.RetireSkillDef", name=name)
        if data.get("corrupt"):
            spoilt = "UPDATE skill_def_versions SET body = 'Other.' WHERE tenant_id = %s AND name = %s"
            assert owner.change(cluster, spoilt, tenant.name, name) == len(data["versions"])
            bump(cluster, tenant)


def bump(cluster: Cluster, tenant: TestTenant) -> None:
    owner.change(
        cluster, "UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %s", tenant.name
    )


def source_of(candidate: Any) -> str:
    """Return where a candidate comes from as the case file spells it."""
    match candidate.layer:
        case Layer.LAYER_BUNDLE:
            return str(candidate.origin.partition("@")[0])
        case Layer.LAYER_INLINE:
            return "inline"
        case _:
            return str(candidate.origin)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_every_resolution_is_the_same_when_explained_listed_and_invoked(
    cluster: Cluster, tmp_path: Path, case: Case
) -> None:
    parts = static_parts(case, tmp_path)
    with running_server(cluster, write_config(tmp_path / "substrate.yaml", **parts)) as server:
        tenant = server.tenant()
        author(cluster, tenant, case.get("tenant", {}))
        author(cluster, server.tenant(), case.get("other_tenant", {}))
        for name in case.get("disabled", ()):
            changed(tenant.author, "SkillDefService.SetSkillDisabled", name=name, disabled=True)
        if "name_modes" not in case:
            check(tenant, case)
            return
    # What is locked could not have been authored: the lock comes with a later start.
    locked = write_config(tmp_path / "substrate.yaml", **parts, name_modes=case["name_modes"])
    with running_server(cluster, locked) as server:
        check(server.tenant(tenant.name), case)


def check(tenant: TestTenant, case: Case) -> None:
    """Hold what the tenant is answered against what the case expects."""
    asked = {"name": case["resolve"], "agent": "tester"}
    told = tenant.author.call("AuditService.ExplainResolution", **asked)
    winner = source_of(told.winner) if told.HasField("winner") else None
    assert winner == case["winner"]
    if "candidates" in case:
        assert [(source_of(c), CandidateState.Name(c.state)) for c in told.candidates] == [
            (line["from"], f"CANDIDATE_STATE_{line['state']}") for line in case["candidates"]
        ]
    listed = {entry.name: entry for entry in tenant.runtime.call("SkillService.ListSkills", agent="tester").skills}
    if winner is None:
        assert told.name not in listed
        failed = refused(tenant.runtime, "SkillService.InvokeSkill", **asked)
        assert failed.reason == told.reason == case.get("error", "SKILL_NOT_FOUND")
        return
    invoked = tenant.runtime.call("SkillService.InvokeSkill", **asked)
    assert (invoked.name, invoked.origin, invoked.layer) == (told.name, told.winner.origin, told.winner.layer)
    assert invoked.body == (
        f"Version {invoked.version} of {told.name}.\n" if invoked.version else f"This is {told.name}.\n"
    )
    assert (listed[told.name].content_sha256 == invoked.content_sha256) is ("@" not in case["resolve"])
