"""Proof: through real servers too an explanation is what a call meets, and a change that it offers works.

Each world is a tenant that an author has done things in by chance. Its calls are explained as they would be, and then,
from their events, as they were; and of the changes that an author can make one is made, and the call repeated.
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from substrate.api.v1.audit_pb2 import ChangeKind
from substrate.domain.eligibility import reached
from substrate.rpc.client import CallFailed, Client
from substrate.services import skills
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import NO_ETAG, changed, skill_md
from tests.sources.bundle_files import write_bundle, write_skill

WORLDS = 4
AGENTS = 3
NAMES = ("doc/a", "doc/b", "doc/inline", "pay/a", "own/a")
HEADERS = ("", "", "allowed-tools: Read, Write\n", "paths: ['src/**']\n", "disable-model-invocation: true\n")
ENTRIES = ("doc/*", "own/*", "*/a", "**", "-doc/b", "-own/*")
PINS = ("v1", "v2", "v9", "staging", "nowhere")
QUALIFIERS = ("", "", "", "@bundle", "@v1", "@v2")
MADE = {"RETIRE": ("RetireSkillDef", {"retired": True}), "UNRETIRE": ("RetireSkillDef", {"retired": False})} | {
    "DISABLE": ("SetSkillDisabled", {"disabled": True}),
    "ENABLE": ("SetSkillDisabled", {"disabled": False}),
    "PROMOTE": ("PromoteSkillDef", {}),
}


@pytest.fixture(scope="module")
def server_of_names(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("explained")
    root = write_bundle(folder / "core", name="core")
    bundled = {"doc/a": "allowed-tools: Read, Write\n", "doc/inline": "", "pay/a": "paths: ['src/**']\n"}
    for name, header in bundled.items():
        write_skill(root, name, skill_md(name.rpartition("/")[2], f"Bundled {name}.\n", header=header))
    write_skill(root, "doc/b", "---\nallowed-tools: {\n---\n\nDo it.\n")
    config = folder / "substrate.yaml"
    inline = {"doc/inline": {"description": "Inline.", "body": "Inline."}}
    modes = [{"pattern": "pay/**", "mode": "locked"}]
    config.write_text(yaml.safe_dump({"bundles": [{"path": str(root)}], "skills": inline, "name_modes": modes}))
    with running_server(cluster, config) as server:
        yield server


def author_by_chance(tenant: TestTenant, name: str, chance: random.Random) -> None:
    def made(method: str, **fields: Any) -> str:
        answer = tenant.author.call(f"SkillDefService.{method}", name=name, **fields)
        return str(answer.skill_def.etag)

    def source(number: int) -> str:
        return skill_md(name.rpartition("/")[2], f"Version {number} of {name}.\n", header=chance.choice(HEADERS))

    etag = made("CreateSkillDef", source=source(1), promote=chance.random() < 0.8)
    etag = made("ForkSkillDef", source=source(2), etag=etag, promote=chance.random() < 0.3, **{"from": "v1"})
    etag = made("SetLabel", label="staging", version=chance.choice([1, 2]), etag=etag)
    match chance.choice(["", "", "retire", "disable"]):
        case "retire":
            made("RetireSkillDef", retired=True, etag=etag)
        case "disable":
            made("SetSkillDisabled", disabled=True, etag=etag)


def invoked(runtime: Client, asked: dict[str, Any]) -> tuple[str, str, str]:
    """Return reason, origin and decision id of a call."""
    try:
        answer = runtime.call("SkillService.InvokeSkill", **asked)
    except CallFailed as failed:
        return failed.reason, "", failed.metadata["decision_id"]
    return "", answer.origin, answer.decision_id


def explained(author: Client, **asked: Any) -> tuple[Any, tuple[str, str]]:
    told = author.call("AuditService.ExplainResolution", **asked)
    return told, (told.reason, "" if told.reason else told.winner.origin)


def faults(server: RunningServer, seed: int, ends: Counter[str]) -> list[str]:
    """Make a world, and return everything in which its explanations are not true."""
    chance = random.Random(seed)  # noqa: S311 - the same worlds each time.
    tenant = server.tenant()
    for name in chance.sample(["doc/a", "doc/b", "doc/inline", "own/a"], 3):
        author_by_chance(tenant, name, chance)
    tenant.author.call("SkillDefService.SetSkillDisabled", name="own/off", disabled=True, etag=NO_ETAG)
    found = []
    for number in range(AGENTS):
        agent: dict[str, Any] = {"name": f"agent-{number}", "skills": chance.sample(ENTRIES, chance.randint(0, 3))}
        agent["pins"] = {name: chance.choice(PINS) for name in chance.sample(NAMES, 1)}
        if number == 0:
            agent |= {"tools": {"names": ["Read"]}, "skills": ["**"]}
        tenant.author.call("AgentService.PutAgent", agent=agent)
        for name in NAMES:
            asked = {"agent": agent["name"], "name": f"{name}{chance.choice(QUALIFIERS)}"}
            asked["touched_paths"] = chance.choice([[], ["src/a"]])
            asked["caller_kind"] = chance.choice(["CALLER_KIND_MODEL", "CALLER_KIND_USER"])
            found += [f"world {seed}, {asked}: {fault}" for fault in _compare(tenant, name, asked, ends)]
    return found


def _compare(tenant: TestTenant, name: str, asked: dict[str, Any], ends: Counter[str]) -> Iterator[str]:
    told, foretold = explained(tenant.author, **asked)
    reason, origin, decision_id = invoked(tenant.runtime, asked)
    ends[reason or "OK"] += 1
    if foretold != (reason, origin):
        yield f"explained as {foretold}, and ended as {reason or origin}"
    again, retold = explained(tenant.author, recorded=decision_id)
    if not again.replays or retold != (reason, origin) or again.changed_since:
        yield f"recorded as {reason or origin}, retold as {retold}: {again.replay_problems} {again.changed_since}"
    for flip in told.flips:
        kind = ChangeKind.Name(flip.change.kind).removeprefix("CHANGE_KIND_")
        if kind in MADE:
            method, fields = MADE[kind]
            more = {"version": flip.change.version} if kind == "PROMOTE" else {}
            changed(tenant.author, f"SkillDefService.{method}", name=name, **fields, **more)
            end, now, _ = invoked(tenant.runtime, asked)
            expected = (flip.reason, flip.winner.origin if flip.would_succeed else "")
            if (end, now) != expected or (end, now) == (reason, origin):
                yield f"{kind} is said to lead to {expected}, and led to {end or now}"
            ends[kind] += 1
            return


def test_an_explanation_is_what_a_call_meets_and_its_event_tells_it_again(server_of_names: RunningServer) -> None:
    ends: Counter[str] = Counter()
    found = [fault for seed in range(WORLDS) for fault in faults(server_of_names, seed, ends)]
    assert found == []
    assert {"OK", "SKILL_NOT_PERMITTED", "SKILL_NOT_FOUND", "VERSION_NOT_FOUND", "SKILL_QUARANTINED"} <= set(ends)
    assert {"TOOLS_EXCEED_AGENT", "INVOCATION_NOT_ALLOWED", "SKILL_INELIGIBLE", "DISABLE", "PROMOTE"} <= set(ends)


def test_a_server_whose_calls_disregard_tools_is_found(
    server_of_names: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        skills, "reached", lambda resolution, _agent, kind, touched: reached(resolution, None, kind, touched)
    )
    assert any(faults(server_of_names, seed, Counter()) for seed in range(WORLDS))
