"""The allowlist's cases over the wire: what the domain decides is what a caller gets, and what the audit keeps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from substrate.api.v1.catalog_pb2 import AllowlistReason
from tests.servers import Cluster, TestTenant, running_server
from tests.skills import changed, refused

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "skillmatch.yaml").read_text(encoding="utf-8"))

Case = dict[str, Any]


@pytest.fixture(scope="module")
def matching(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestTenant]:
    """A tenant that sees every name of the decision cases as an inline skill."""
    names = sorted({line["name"] for case in CASES["decisions"] for line in case["expect"]})
    skills = {name: {"description": f"Does {name}.", "body": f"This is {name}."} for name in names}
    config = tmp_path_factory.mktemp("matching") / "substrate.yaml"
    config.write_text(yaml.safe_dump({"skills": skills}))
    with running_server(cluster, config) as server:
        yield server.tenant()


def decided(decision: Any) -> Case:
    """Return a decision off the wire as the case file spells one."""
    return {
        "allowed": decision.allowed,
        "reason": AllowlistReason.Name(decision.reason).removeprefix("ALLOWLIST_REASON_"),
        "index": decision.index if decision.HasField("index") else None,
    }


@pytest.mark.parametrize("case", CASES["decisions"], ids=lambda case: case["case"])
def test_every_decision_is_the_same_when_tested_invoked_listed_and_recorded(matching: TestTenant, case: Case) -> None:
    entries, lines = case["skills"], case["expect"]
    expected = [{key: line[key] for key in ("allowed", "reason", "index")} for line in lines]
    names = [line["name"] for line in lines]
    changed(matching.author, "AgentService.PutAgent", agent={"name": "tester", "skills": entries})
    for asked in ({"skills": entries}, {"agent": "tester"}):
        tested = matching.author.call("AgentService.TestAllowlist", names=names, **asked)
        assert [line.name for line in tested.decisions] == names
        assert [decided(line.decision) for line in tested.decisions] == expected
        assert [line.decision.entry for line in tested.decisions] == [
            "" if line["index"] is None else entries[line["index"]] for line in lines
        ]
    listed = {entry.name for entry in matching.runtime.call("SkillService.ListSkills", agent="tester").skills}
    for line, decision in zip(lines, expected, strict=True):
        asked = {"agent": "tester", "name": line["name"]}
        if line["allowed"]:
            answer = matching.runtime.call("SkillService.InvokeSkill", **asked)
            assert answer.body == f"This is {line['name']}."
            decision_id = answer.decision_id
        else:
            failed = refused(matching.runtime, "SkillService.InvokeSkill", **asked)
            assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "SKILL_NOT_PERMITTED")
            assert (failed.metadata["name"], failed.metadata["agent"]) == (line["name"], "tester")
            assert failed.metadata["decision"] == line["reason"]
            decision_id = failed.decision_id
        (event,) = matching.author.call("AuditService.QueryAuditEvents", decision_id=decision_id).events
        assert decided(event.decision) == decision
        assert (line["name"] in listed) is line["allowed"]


@pytest.mark.parametrize("case", CASES["deny_all"], ids=lambda case: str(case["skills"]))
def test_an_allowlist_that_denies_everything_leaves_the_agent_without_the_tool(
    matching: TestTenant, case: Case
) -> None:
    tested = matching.author.call("AgentService.TestAllowlist", skills=case["skills"])
    assert tested.denies_all is case["deny_all"]
    assert tested.has_allow is any(not entry.startswith("-") for entry in case["skills"])
    changed(matching.author, "AgentService.PutAgent", agent={"name": "tester", "skills": case["skills"]})
    prepared = matching.runtime.call("SkillService.PrepareRun", agent="tester")
    assert prepared.HasField("tool") is not case["deny_all"]
    assert not case["deny_all"] or matching.runtime.call("SkillService.ListSkills", agent="tester").total_size == 0


@pytest.mark.parametrize("case", CASES["refused_entries"], ids=lambda case: ascii(case["entry"][:20]))
def test_an_entry_that_cannot_be_read_is_refused_by_name_and_nothing_is_stored(
    matching: TestTenant, case: Case
) -> None:
    before = matching.author.call("AgentService.ListAgents")
    entries = ["doc/*", case["entry"], "-doc/x"]
    tried = refused(matching.author, "AgentService.TestAllowlist", skills=entries)
    put = refused(matching.author, "AgentService.PutAgent", agent={"name": "refused", "skills": entries})
    for failed in (tried, put):
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ALLOWLIST")
    assert [field for field, _ in tried.violations] == ["skills[1]"]
    assert [field for field, _ in put.violations] == ["agent.skills[1]"]
    for _, description in (*tried.violations, *put.violations):
        assert ascii(case["entry"][:60]).strip("'") in description
        assert case["why"].split()[0].lower() in description.lower()
    after = matching.author.call("AgentService.ListAgents")
    assert (list(after.agents), after.state) == (list(before.agents), before.state)
