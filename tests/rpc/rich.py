"""A server, and a tenant on it, with a skill of every kind there is, for tests of what a runtime meets."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import changed, skill_md
from tests.sources.bundle_files import write_bundle, write_skill

BINARY = bytes(range(256))

BUNDLED: Mapping[str, str] = {
    "doc/plain": skill_md("plain", "Plainly.\n", "A plain one & <simple>."),
    "doc/files": skill_md("files", "See ${SKILL_DIR}/references/guide.md.\n"),
    "doc/many": skill_md("many"),
    "doc/broken": "---\nallowed-tools: {\n---\n\nDo it.\n",
    "doc/shadowed": skill_md("shadowed", "From the bundle.\n"),
    "doc/off": skill_md("off"),
    "doc/old": skill_md("old", "From the bundle.\n"),
    "doc/arguments": skill_md(
        "arguments",
        "All: $ARGUMENTS\nFirst: $0\nSecond: $ARGUMENTS[1]\nFormat: $format\nCosts \\$1.\n",
        header="arguments: [path, format]\nargument-hint: '[path] [format]'\nwhen_to_use: For arguments.\n",
    ),
    "call/user": skill_md("user", header="disable-model-invocation: true\n"),
    "call/model": skill_md("model", header="user-invocable: false\n"),
    "call/nobody": skill_md("nobody", header="disable-model-invocation: true\nuser-invocable: false\n"),
    "code/lint": skill_md("lint", header="paths: [src/**, '*.md']\n"),
    "code/write": skill_md("write", header="allowed-tools: Read, Write, Bash(git *)\n"),
    "code/none": skill_md("none", header="allowed-tools: []\n"),
    "top": skill_md("top"),
}
INLINE: Mapping[str, Any] = {
    "doc/shadowed": {"description": "Inline.", "body": "From the config."},
    "doc/inline": {"description": "Inline.", "body": "One: $1, two: $2.", "arguments": ["x"], "positional_base": 1},
}
AGENTS: Mapping[str, Any] = {
    "everything": {},
    "nothing": {"skills": ["-*"]},
    "docs": {"skills": ["doc/*"]},
    "docs-but": {"skills": ["doc/*", "-doc/p*"]},
    "not-docs": {"skills": ["-doc/**"]},
    "reader": {"tools": ["Read"]},
    "shell": {"tools": ["Read", "Write", "Bash"]},
    "handless": {"tools": []},
}
EVERY_NAME = sorted({*BUNDLED, *INLINE, "doc/own", "doc/draft", "doc/missing"})


def write_config(folder: Path, **more: object) -> Path:
    """Write the bundle and the config that names it below `folder`; return the config's path."""
    root = write_bundle(folder / "core", name="core")
    for name, text in BUNDLED.items():
        write_skill(root, name, text)
    write_resource(root, "doc/files", "references/guide.md", b"# Guide\n\n<skill>$ARGUMENTS</skill>\n")
    write_resource(root, "doc/files", "data/all.bin", BINARY)
    write_resource(root, "doc/files", "empty", b"")
    for number in range(60):
        write_resource(root, "doc/many", f"f{number:02}.txt", b"%d" % number)
    path = folder / "substrate.yaml"
    parts = {"bundles": [{"path": str(root)}], "skills": dict(INLINE), "agents": dict(AGENTS), **more}
    path.write_text(yaml.safe_dump(parts))
    return path


def write_resource(bundle: Path, skill: str, path: str, content: bytes) -> None:
    """Write a file that travels with a skill of the bundle."""
    target = bundle / "skills" / skill / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


@contextmanager
def rich_server(cluster: Cluster, folder: Path) -> Iterator[RunningServer]:
    """Serve the bundle and the config, written below `folder`."""
    with running_server(cluster, write_config(folder)) as server:
        yield server


def rich_tenant(server: RunningServer) -> TestTenant:
    """Make a tenant that has defined, drafted, retired and disabled skills."""
    tenant = server.tenant()
    for name in ("doc/own", "doc/shadowed", "doc/old"):
        source = skill_md(name.rpartition("/")[2], "From the tenant.\n")
        tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source)
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/draft", source=skill_md("draft"), promote=False)
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="doc/old")
    changed(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/off", disabled=True)
    return tenant
