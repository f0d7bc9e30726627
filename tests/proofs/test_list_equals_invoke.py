"""Proof: an agent is offered what it may invoke, whatever pins, labels, locks, tombstones and versions there are.

Each world is a tenant with SkillDefs and agents drawn by chance, authored while every name was open. What its agents
meet is then asked of a server whose operator has put locks and reviews on some of the names.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml

from substrate.domain.agents import Agent
from substrate.domain.catalog import Catalog
from substrate.domain.eligibility import Visible, visible
from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from substrate.services import skills
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import NO_ETAG, skill_md
from tests.sources.bundle_files import write_bundle, write_skill
from tests.store.owner import connect

WORLDS = 6
NAMES = ("doc/a", "doc/b", "doc/inline", "pay/a", "pay/own", "house/a", "house/own", "own/a", "own/b", "own/c")
BUNDLED = ("doc/a", "doc/b", "doc/inline", "pay/a", "house/a")
MODES = ({"pattern": "pay/**", "mode": "locked"}, {"pattern": "house/*", "mode": "review"})
HEADERS = (
    *("", "", "allowed-tools: Read\n", "allowed-tools: Read, Write\n", "paths: ['src/**']\n", "paths: [docs/*]\n"),
    *("disable-model-invocation: true\n", "user-invocable: false\n"),
)
ENTRIES = ("doc/*", "own/*", "house/*", "pay/**", "*/a", "**", "-doc/b", "-own/b", "-*/own", "-pay/*")
PINS = ("v1", "v1", "v2", "v2", "v3", "v9", "staging", "staging", "nowhere")
QUALIFIERS = ("bundle", "v1")
AGENTS = 6
SPOIL = "UPDATE skill_def_versions SET body = 'Other.' WHERE (tenant_id, name, version) = (%s, %s, %s)"
BUMP = "UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %s"


@dataclass
class Look:
    """What was found: everything that contradicts the list, and how often invocations ended how."""

    faults: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Servers:
    """One database, served with every name open and with locks and reviews."""

    cluster: Cluster
    opened: RunningServer
    guarded: RunningServer


@pytest.fixture(scope="module")
def servers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("worlds")
    root = write_bundle(folder / "core", name="core")
    for name in BUNDLED:
        write_skill(root, name, skill_md(name.rpartition("/")[2], f"Bundled {name}.\n"))
    write_skill(root, "doc/b", "---\nallowed-tools: {\n---\n\nDo it.\n")
    inline = {"doc/inline": {"description": "Inline.", "body": "Inline."}}
    parts: dict[str, Any] = {"bundles": [{"path": str(root)}], "skills": inline}
    paths = []
    for modes in ([], list(MODES)):
        paths.append(folder / f"{len(modes)}.yaml")
        paths[-1].write_text(yaml.safe_dump(parts | {"name_modes": modes}))
    with running_server(cluster, paths[0]) as opened, running_server(cluster, paths[1]) as guarded:
        yield Servers(cluster, opened, guarded)


def look(servers: Servers, seed: int, found: Look) -> None:
    """Make a world, and compare for each of its agents and callers what is listed with what can be invoked."""
    chance = random.Random(seed)  # noqa: S311 - the same worlds each time.
    tenant = servers.opened.tenant()
    for name in chance.sample(NAMES, 8):
        _author(servers.cluster, tenant, name, chance)
    for number in range(AGENTS):
        agent: dict[str, Any] = {
            "name": f"agent-{number}",
            "skills": chance.sample(ENTRIES, chance.randint(0, 3)),
            "pins": {name: chance.choice(PINS) for name in chance.sample(NAMES, 3)},
        }
        if chance.random() < 0.5:
            agent["tools"] = {"names": chance.choice([[], ["Read"]])}
        tenant.author.call("AgentService.PutAgent", agent=agent)
    runtime = servers.guarded.client(servers.guarded.key(tenant.name, Role.RUNTIME))
    for number in range(AGENTS):
        for kind in ("CALLER_KIND_MODEL", "CALLER_KIND_USER"):
            run = {"agent": f"agent-{number}", "caller_kind": kind, "touched_paths": chance.choice([[], ["src/a"]])}
            found.faults += [f"world {seed}, {run}: {fault}" for fault in _compare(runtime, run, found.ends)]


def _author(cluster: Cluster, tenant: TestTenant, name: str, chance: random.Random) -> None:
    """Let the tenant do something by chance with a name."""
    if chance.random() < 0.1:
        tenant.author.call("SkillDefService.SetSkillDisabled", name=name, disabled=True, etag=NO_ETAG)
        return

    def made(method: str, **fields: Any) -> str:
        answer = tenant.author.call(f"SkillDefService.{method}", name=name, **fields)
        return str(answer.skill_def.etag)

    def source(version: int) -> str:
        return skill_md(name.rpartition("/")[2], f"Version {version} of {name}.\n", header=chance.choice(HEADERS))

    etag = made("CreateSkillDef", source=source(1), promote=chance.random() < 0.8)
    latest = chance.choice([1, 2, 2, 3])
    for version in range(2, latest + 1):
        fields = {"from": "v1", "source": source(version), "promote": chance.random() < 0.4}
        etag = made("ForkSkillDef", etag=etag, **fields)
    if chance.random() < 0.6:
        etag = made("SetLabel", etag=etag, label="staging", version=chance.randint(1, latest))
    match chance.choice(["", "", "", "", "retire", "disable", "spoil"]):
        case "retire":
            made("RetireSkillDef", etag=etag)
        case "disable":
            made("SetSkillDisabled", etag=etag, disabled=True)
        case "spoil":
            with connect(cluster) as owner:
                owner.execute(SPOIL, [tenant.name, name, chance.randint(1, latest)])
                owner.execute(BUMP, [tenant.name])


def _compare(runtime: Client, run: dict[str, Any], ends: Counter[str]) -> Iterator[str]:
    answer = runtime.call("SkillService.ListSkills", **run)
    listed = {entry.name: entry.content_sha256 for entry in answer.skills}
    invoked = {}
    for name in NAMES:
        end, made = _invoke(runtime, run, name)
        ends[end] += 1
        if made is not None:
            invoked[name] = made.content_sha256
        yield from _qualified(runtime, run, name, end, made)
    if invoked != listed:
        yield f"listed {listed}, invoked {invoked}"


def _qualified(runtime: Client, run: dict[str, Any], name: str, end: str, bare: Any | None) -> Iterator[str]:
    """Yield how a qualifier misses what the name stands for, or reaches what the agent may not use."""
    if bare is not None:
        winner = f"v{bare.version}" if bare.version else bare.origin.partition(":")[0]
        again, made = _invoke(runtime, run, f"{name}@{winner}")
        if made is None or made.content_sha256 != bare.content_sha256:
            yield f"{name}@{winner} ended as {again} although it is what the name stands for"
    elif end == "SKILL_NOT_PERMITTED":
        for qualifier in QUALIFIERS:
            again, _ = _invoke(runtime, run, f"{name}@{qualifier}")
            if again != end:
                yield f"{name}@{qualifier} ended as {again} although the name is not permitted"


def _invoke(runtime: Client, run: dict[str, Any], name: str) -> tuple[str, Any | None]:
    try:
        return "OK", runtime.call("SkillService.InvokeSkill", **run, name=name)
    except CallFailed as failed:
        return failed.reason, None


def test_what_is_listed_is_what_can_be_invoked(servers: Servers) -> None:
    found = Look()
    for seed in range(WORLDS):
        look(servers, seed, found)
    assert found.faults == []
    # Every way to end has come about.
    assert set(found.ends) == {
        *("OK", "SKILL_NOT_PERMITTED", "SKILL_NOT_FOUND", "VERSION_NOT_FOUND", "SKILL_QUARANTINED"),
        *("TOOLS_EXCEED_AGENT", "INVOCATION_NOT_ALLOWED", "SKILL_INELIGIBLE"),
    }
    assert min(found.ends.values()) >= WORLDS


def _without_pins(catalog: Catalog, agent: Agent) -> tuple[Visible, ...]:
    return visible(catalog, replace(agent, pins={}))


def _without_tools(catalog: Catalog, agent: Agent) -> tuple[Visible, ...]:
    return visible(catalog, replace(agent, tools=None))


@pytest.mark.parametrize("mutant", [_without_pins, _without_tools])
def test_a_list_that_leaves_something_out_of_account_is_found(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, mutant: Any
) -> None:
    monkeypatch.setattr(skills, "visible", mutant)
    found = Look()
    for seed in itertools.takewhile(lambda _: not found.faults, range(WORLDS)):
        look(servers, seed, found)
    assert any("listed" in fault for fault in found.faults)
