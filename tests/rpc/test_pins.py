"""Pins: an agent gets a certain version of a skill, by its number or by a label, in place of the one in effect."""

from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed
from tests.servers import Cluster, TestTenant
from tests.skills import changed, refused, skill_md
from tests.store.chain import events
from tests.store.owner import rows

CREATE, FORK, SET_LABEL = (f"SkillDefService.{method}" for method in ("CreateSkillDef", "ForkSkillDef", "SetLabel"))
GET, PUT = "AgentService.GetAgent", "AgentService.PutAgent"
INVOKE, LIST = "SkillService.InvokeSkill", "SkillService.ListSkills"


def _put(tenant: TestTenant, pins: dict[str, str], **agent: Any) -> Any:
    return changed(tenant.author, PUT, agent={"name": "tester", "pins": pins, **agent})


def _versions(tenant: TestTenant, name: str, *bodies: str) -> None:
    """Make versions of a skill, the first of them in effect, the others drafts."""
    leaf = name.rpartition("/")[2]
    tenant.author.call(CREATE, name=name, source=skill_md(leaf, bodies[0]))
    for body in bodies[1:]:
        tenant.author.call(FORK, name=name, source=skill_md(leaf, body))


def _listed(tenant: TestTenant) -> dict[str, str]:
    """What the agent is listed, by name with its digest."""
    found = tenant.runtime.call(LIST, agent="tester").skills
    return {skill.name: skill.content_sha256 for skill in found}


def _invoked(tenant: TestTenant, names: set[str]) -> dict[str, str]:
    """What the agent can invoke of `names`, with its digest."""
    found = {}
    for name in names:
        failed = None
        try:
            answer = tenant.runtime.call(INVOKE, agent="tester", name=name)
        except CallFailed as error:
            failed = error
        else:
            found[name] = answer.content_sha256
        assert failed is None or failed.code == "NOT_FOUND"
    return found


def test_pins_come_back_as_they_were_put(cluster: Cluster, tenant: TestTenant) -> None:
    pins = {
        "own/b": "staging",
        "own/a": "v1",
        "a/b/c/d/e/f/g/h": "v999999999",
        "doc/query": "x" * 64,
        "n": "7",
        "v": "v-1",
    }
    put = _put(tenant, pins)
    assert dict(put.agent.pins) == pins
    assert tenant.author.call(GET, name="tester").agent == put.agent
    (listed,) = [agent for agent in tenant.author.call("AgentService.ListAgents").agents if agent.name == "tester"]
    assert listed == put.agent
    assert list(rows(cluster, "SELECT pins FROM agents WHERE tenant_id = %s", tenant.name)[0][0]) == sorted(pins)
    many = {f"own/n{number}": "v1" for number in range(200)}
    replaced = _put(tenant, many)
    assert dict(replaced.agent.pins) == many
    event = events(cluster, tenant.name)[-1]
    assert (event["verb"], event["details"]["pins"], event["details"]["pins_before"]) == ("put_agent", many, pins)
    assert dict(_put(tenant, {}).agent.pins) == {}


def test_pins_are_no_part_of_what_the_agent_is(tenant: TestTenant) -> None:
    first = _put(tenant, {"doc/query": "v1"}, skills=["doc/*"])
    second = _put(tenant, {"doc/query": "v2"}, skills=["doc/*"])
    assert second.agent.content_sha256 == first.agent.content_sha256
    assert second.agent.allowlist_sha256 == first.agent.allowlist_sha256
    assert second.agent.etag != first.agent.etag
    assert second.state.catalog_revision == first.state.catalog_revision + 1


@pytest.mark.parametrize(
    "pin",
    ["", "v0", "v01", "v1000000000", "V1", "v-1-", "bundle", "inline", "Staging", "a b", "x" * 65, "@v1"],
)
def test_a_pin_is_a_version_or_a_label(tenant: TestTenant, pin: str) -> None:
    failed = refused(tenant.author, PUT, agent={"name": "tester", "pins": {"doc/query": pin}})
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_AGENT")
    ((field, text),) = failed.violations
    assert field == "agent.pins[doc/query]"
    assert "v1 to v999999999 or a label" in text


def test_every_wrong_pin_is_told_at_once(cluster: Cluster, tenant: TestTenant) -> None:
    pins = {"doc/query": "bundle", "Doc/Query": "v1", "doc/query@v2": "v2", "": "V", "own/ok": "v3", "own/*": "v1"}
    agent = {"name": "tester", "pins": pins, "skills": ["A"], "description": "x" * 1025}
    failed = refused(tenant.author, PUT, agent=agent)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_AGENT")
    assert sorted(field for field, _ in failed.violations) == [
        "agent.description",
        "agent.pins[Doc/Query]",
        "agent.pins[]",
        "agent.pins[]",
        "agent.pins[doc/query@v2]",
        "agent.pins[doc/query]",
        "agent.pins[own/*]",
        "agent.skills[0]",
    ]
    too_many = {f"own/n{number}": "v1" for number in range(201)}
    failed = refused(tenant.author, PUT, agent={"name": "tester", "pins": too_many})
    assert (failed.reason, [field for field, _ in failed.violations]) == ("INVALID_AGENT", ["agent.pins"])
    assert rows(cluster, "SELECT 1 FROM agents WHERE tenant_id = %s", tenant.name) == []


def test_what_is_listed_is_what_can_be_invoked_whatever_is_pinned(tenant: TestTenant) -> None:
    """For pins to versions and labels, there or not, of skills in every state."""
    author = tenant.author
    pins = {"plain": None, "one": "v1", "two": "v2", "nine": "v9", "labelled": "staging", "unlabelled": "nowhere"}
    names = {f"{state}/{pin}" for state in ("active", "draft", "retired", "disabled") for pin in pins}
    for name in sorted(names):
        leaf = name.rpartition("/")[2]
        promote = not name.startswith("draft/")
        author.call(CREATE, name=name, source=skill_md(leaf, "One.\n"), promote=promote)
        author.call(FORK, name=name, source=skill_md(leaf, "Two.\n"), **{"from": "v1"})
        changed(author, SET_LABEL, name=name, label="staging", version=2)
        if name.startswith("retired/"):
            changed(author, "SkillDefService.RetireSkillDef", name=name)
        if name.startswith("disabled/"):
            changed(author, "SkillDefService.SetSkillDisabled", name=name, disabled=True)
    # Below these lies a bundle's skill, which no pin falls back to.
    author.call(FORK, name="doc/query", source=skill_md("query", "Two.\n"))
    wanted = {name: pins[name.rpartition("/")[2]] for name in names}
    wanted |= {"doc/query": "v1", "doc/chunk-review": "v1", "doc/chunk-add": "nowhere"}
    _put(tenant, {name: pin for name, pin in wanted.items() if pin}, skills=[])
    listed = _listed(tenant)
    expected = {"active/plain", "doc/query"}
    expected |= {f"{state}/{pin}" for state in ("active", "draft") for pin in ("one", "two", "labelled")}
    assert set(listed) & set(wanted) == expected
    assert _invoked(tenant, set(wanted) | set(listed)) == listed
    bodies = {name: tenant.runtime.call(INVOKE, agent="tester", name=name).body for name in expected}
    assert {name for name, body in bodies.items() if body == "One.\n"} == {"active/plain", "active/one", "draft/one"}
    assert set(bodies.values()) == {"One.\n", "Two.\n"}


def test_a_pin_admits_nothing_that_the_allowlist_denies(tenant: TestTenant) -> None:
    _versions(tenant, "own/a", "One.\n", "Two.\n")
    _put(tenant, {"own/a": "v2"}, skills=["doc/*"])
    for name in ("own/a", "own/a@v2", "own/a@v1"):
        assert refused(tenant.runtime, INVOKE, agent="tester", name=name).reason == "SKILL_NOT_PERMITTED"
    assert "own/a" not in _listed(tenant)


def test_a_pin_gives_no_tools_that_the_agent_lacks(tenant: TestTenant) -> None:
    _versions(tenant, "own/a", "One.\n")
    source = skill_md("a", "Two.\n", header="allowed-tools: Bash\n")
    tenant.author.call(FORK, name="own/a", source=source)
    _put(tenant, {"own/a": "v2"}, tools={"names": ["Read"]})
    assert refused(tenant.runtime, INVOKE, agent="tester", name="own/a").reason == "TOOLS_EXCEED_AGENT"
    assert "own/a" not in _listed(tenant)


def test_a_pin_is_the_agents_own(tenant: TestTenant) -> None:
    _versions(tenant, "own/a", "One.\n", "Two.\n")
    _put(tenant, {"own/a": "v2"})
    tenant.author.call(PUT, agent={"name": "other"})
    bound = tenant.bound(Role.RUNTIME, "tester")
    assert bound.call(INVOKE, name="own/a").body == "Two.\n"
    assert tenant.runtime.call(INVOKE, agent="other", name="own/a").body == "One.\n"
    assert refused(tenant.runtime, INVOKE, agent="other", name="own/a@v2").reason == "VERSION_NOT_FOUND"
    # What the pin points at is all that it opens.
    assert bound.call(INVOKE, name="own/a@v2").body == "Two.\n"
    tenant.author.call(FORK, name="own/a", source=skill_md("a", "Three.\n"))
    assert refused(bound, INVOKE, name="own/a@v3").reason == "VERSION_NOT_FOUND"


def test_a_pin_is_looser_than_the_names_it_holds(tenant: TestTenant) -> None:
    """It may be put before the skill, the version or the label is there."""
    _put(tenant, {"own/a": "v2", "own/b": "staging"})
    assert set(_listed(tenant)).isdisjoint({"own/a", "own/b"})
    _versions(tenant, "own/a", "One.\n", "Two.\n")
    _versions(tenant, "own/b", "One.\n", "Two.\n")
    assert set(_listed(tenant)) & {"own/a", "own/b"} == {"own/a"}
    changed(tenant.author, SET_LABEL, name="own/b", label="staging", version=2)
    assert tenant.runtime.call(INVOKE, agent="tester", name="own/b").body == "Two.\n"
    assert {"own/a", "own/b"} <= set(_listed(tenant))
