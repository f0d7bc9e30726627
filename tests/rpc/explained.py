"""A server with a bundle for explanations: skills that are for users, for some paths, locked and broken."""

from pathlib import Path
from typing import Any

import yaml

from tests.servers import TestTenant
from tests.skills import skill_md
from tests.sources.bundle_files import write_bundle, write_skill

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


def authored(tenant: TestTenant, name: str = NAME, body: str = "Ours.\n", **fields: Any) -> None:
    source = skill_md(name.rpartition("/")[2], body)
    tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source, **fields)


def change(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": f"CHANGE_KIND_{kind}", **fields}
