"""PrepareRun: the tool and the note that a run begins with, byte for byte the same while nothing changes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from substrate.domain.rendering import MIN_NOTE_BUDGET, tokens
from tests.rpc.rich import rich_server, rich_tenant, write_config
from tests.servers import Cluster, TestTenant, running_server
from tests.skills import changed, refused

PREPARE = "SkillService.PrepareRun"


@pytest.fixture(scope="module")
def rich(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestTenant]:
    with rich_server(cluster, tmp_path_factory.mktemp("rich")) as server:
        yield rich_tenant(server)


@pytest.fixture(scope="module")
def wide(rich: TestTenant) -> TestTenant:
    """A tenant with an agent for whom an allow entry lets everything through."""
    rich.author.call("AgentService.PutAgent", agent={"name": "wide", "skills": ["**"]})
    return rich


def named(note: str) -> list[str]:
    return re.findall(r'^<skill name="([^"]*)">', note, re.MULTILINE)


def listed(tenant: TestTenant, **asked: object) -> list[str]:
    return [entry.name for entry in tenant.runtime.call("SkillService.ListSkills", **asked).skills]


@pytest.mark.parametrize(
    ("skills", "tool", "note"),
    [
        ([], True, False),
        (["-*"], False, False),
        (["-**", "doc/*"], False, False),
        (["-doc/*"], True, False),
        (["doc/*"], True, True),
        (["+doc/*"], True, True),
        (["-doc/plain", "doc/*"], True, True),
        (["doc/*", "-*"], True, True),
        (["none/*"], True, True),
    ],
)
def test_who_is_offered_the_tool_and_who_a_note(rich: TestTenant, skills: list[str], *, tool: bool, note: bool) -> None:
    changed(rich.author, "AgentService.PutAgent", agent={"name": "tester", "skills": skills})
    prepared = rich.runtime.call(PREPARE, agent="tester")
    assert (prepared.HasField("tool"), bool(prepared.note)) == (tool, note)
    assert (prepared.omitted_count, list(prepared.omitted_names)) == (0, [])
    if note:
        assert named(prepared.note) == listed(rich, agent="tester")


def test_the_tool_describes_itself_in_a_json_schema(rich: TestTenant) -> None:
    tool = rich.runtime.call(PREPARE, agent="everything").tool
    schema = json.loads(tool.input_schema_json)
    assert tool.name == "Skill"
    assert tool.description
    assert schema["type"] == "object"
    assert schema["properties"].keys() == {"op", "name", "arguments", "file", "pattern"}
    assert all(field["type"] == "string" and field["description"] for field in schema["properties"].values())
    assert schema["properties"]["op"]["enum"] == ["list", "invoke"]


def test_the_note_says_how_to_list_and_invoke_and_escapes_what_skills_say(rich: TestTenant) -> None:
    note = rich.runtime.call(PREPARE, agent="docs").note
    assert '{"op":"list"' in note
    assert '{"op":"invoke"' in note
    assert '<skill name="doc/plain">A plain one &amp; &lt;simple&gt;.</skill>' in note.splitlines()
    assert "From the" not in note


def test_the_note_names_only_what_the_caller_can_invoke(wide: TestTenant) -> None:
    for asked in (
        {},
        {"caller_kind": "CALLER_KIND_MODEL"},
        {"caller_kind": "CALLER_KIND_USER"},
        {"touched_paths": ["src/a.py"]},
    ):
        prepared = wide.runtime.call(PREPARE, agent="wide", budget_tokens=10_000, **asked)
        assert named(prepared.note) == listed(wide, agent="wide", **asked)
    assert "call/user" not in named(wide.runtime.call(PREPARE, agent="wide").note)


@pytest.mark.parametrize("budget", [MIN_NOTE_BUDGET, 150, 200, 230, 250, 300, 2000, 100_000])
def test_the_note_stays_within_its_budget_and_says_what_it_leaves_out(wide: TestTenant, budget: int) -> None:
    available = listed(wide, agent="wide")
    whole = wide.runtime.call(PREPARE, agent="wide", budget_tokens=100_000).note
    prepared = wide.runtime.call(PREPARE, agent="wide", budget_tokens=budget)
    kept, omitted = named(prepared.note), list(prepared.omitted_names)
    assert tokens(prepared.note) <= budget
    assert sorted(kept + omitted) == available
    assert (kept, omitted) == (sorted(kept), sorted(omitted))
    assert prepared.omitted_count == len(omitted)
    assert (f"{len(omitted)}" in prepared.note.splitlines()[-1]) is bool(omitted)
    assert bool(omitted) is (tokens(whole) > budget)
    assert all(line.endswith("</skill>") for line in prepared.note.splitlines() if line.startswith("<skill name="))


def test_a_budget_too_small_for_the_instructions_lists_nothing(wide: TestTenant) -> None:
    prepared = wide.runtime.call(PREPARE, agent="wide", budget_tokens=1)
    assert named(prepared.note) == []
    assert list(prepared.omitted_names) == listed(wide, agent="wide")
    assert tokens(prepared.note) <= MIN_NOTE_BUDGET


def test_no_budget_is_a_budget_of_two_thousand(wide: TestTenant) -> None:
    assert wide.runtime.call(PREPARE, agent="wide").note == (
        wide.runtime.call(PREPARE, agent="wide", budget_tokens=2000).note
    )


@pytest.mark.parametrize("budget", [-1, -(2**31), 100_001, 2**31 - 1])
def test_a_budget_out_of_range_is_refused(rich: TestTenant, budget: int) -> None:
    failed = refused(rich.runtime, PREPARE, agent="docs", budget_tokens=budget)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "budget_tokens")


def test_the_same_state_gives_the_same_bytes_now_later_and_on_another_server(
    cluster: Cluster, wide: TestTenant, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def prepared(tenant: TestTenant) -> list[tuple[bytes, str, list[str], Any]]:
        answers = [
            tenant.runtime.call(PREPARE, agent=agent, budget_tokens=budget, run_id=run_id, turn=turn)
            for agent in ("wide", "docs", "everything", "nothing")
            for budget in (0, 200)
            for run_id, turn in (("", 0), ("run-1", 7))
        ]
        return [(a.tool.SerializeToString(), a.note, list(a.omitted_names), a.omitted_count) for a in answers]

    first = prepared(wide)
    assert prepared(wide) == first
    with running_server(cluster, write_config(tmp_path_factory.mktemp("again"))) as second:
        elsewhere = second.tenant(wide.name)
        assert prepared(elsewhere) == first
    # New keys have moved the revision, but nothing that a model is shown.
    assert prepared(wide) == first


def test_a_prepared_run_is_recorded_as_one_event_with_its_counts(wide: TestTenant) -> None:
    prepared = wide.runtime.call(PREPARE, agent="wide", budget_tokens=200, run_id="run-7", turn=3)
    (event,) = wide.author.call("AuditService.QueryAuditEvents", decision_id=prepared.decision_id).events
    assert (event.verb, event.agent, event.run_id, event.turn) == ("prepare", "wide", "run-7", 3)
    assert event.admitted_count == len(named(prepared.note))
    assert event.left_out_count == prepared.omitted_count
    assert re.fullmatch("[0-9a-f]{64}", event.entries_sha256)
