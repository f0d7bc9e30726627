"""Catalogs that do not fit into one answer: pages, notes and the tool's lists stay in bounds and lose nothing."""

from collections.abc import Iterator

import pytest

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import Candidate, Layer, LayerKind
from substrate.domain.catalog import StaticCatalog
from substrate.domain.inputs import static_input
from substrate.domain.names import parse_skill_name
from substrate.domain.skillheader import SkillHeader
from substrate.sources.static import StaticState
from tests.servers import Cluster, TestTenant, running_server

MANY = [f"many/s{number:05}" for number in range(10_050)]
WIDE = [f"wide/s{number:02}" for number in range(70)]
LIST = "SkillService.ListSkills"
DEFAULT_MESSAGE_LIMIT = 4 * 1024 * 1024


def inline(name: str, when_to_use: str) -> Candidate:
    header = SkillHeader(name.rpartition("/")[2], "Does it.", when_to_use=when_to_use)
    return Candidate(parse_skill_name(name), LayerKind.INLINE, "inline", header=header, body="Do it.")


def agent(name: str) -> Agent:
    return parse_agent(name, {"skills": [f"{name}/*"]}, LayerKind.INLINE, "inline")


@pytest.fixture(scope="module")
def large(cluster: Cluster) -> Iterator[TestTenant]:
    skills = [inline(name, "") for name in MANY] + [inline(name, "\u20ac" * 20_000) for name in WIDE]
    catalog = StaticCatalog((Layer(LayerKind.INLINE, "inline", {skill.name: skill for skill in skills}),))
    agents = {found.name: found for found in (agent("many"), agent("wide"))}
    with running_server(
        cluster, static=StaticState(catalog, agents, (), (), static_input(catalog, agents.values()))
    ) as server:
        yield server.tenant()


@pytest.mark.parametrize(("page_size", "expected"), [(0, 1000), (5000, 5000), (10_000, 10_000), (2**31 - 1, 10_000)])
def test_a_page_holds_what_was_asked_for_up_to_ten_thousand(large: TestTenant, page_size: int, expected: int) -> None:
    page = large.runtime.call(LIST, agent="many", page_size=page_size)
    assert [entry.name for entry in page.skills] == MANY[:expected]
    assert page.total_size == len(MANY)
    rest = large.runtime.call(LIST, agent="many", page_size=10_000, page_token=page.next_page_token)
    assert [entry.name for entry in rest.skills] == MANY[expected:]


def test_a_page_ends_before_it_is_larger_than_what_clients_accept_by_default(large: TestTenant) -> None:
    pages = list(large.runtime.pages(LIST, agent="wide", page_size=10_000))
    assert len(pages) > 1
    assert max(page.ByteSize() for page in pages) < DEFAULT_MESSAGE_LIMIT
    assert [entry.name for page in pages for entry in page.skills] == WIDE
    assert {page.total_size for page in pages} == {len(WIDE)}


def test_a_note_names_the_first_thousand_that_it_leaves_out_and_counts_the_rest(large: TestTenant) -> None:
    prepared = large.runtime.call("SkillService.PrepareRun", agent="many", budget_tokens=500)
    kept = prepared.note.count('<skill name="many/')
    assert 0 < kept < 100
    assert prepared.omitted_count == len(MANY) - kept
    assert list(prepared.omitted_names) == MANY[kept : kept + 1000]
    assert str(prepared.omitted_count) in prepared.note


def test_the_tools_list_says_how_much_of_it_is_shown(large: TestTenant) -> None:
    answer = large.runtime.call("SkillService.CallSkillTool", agent="many", input_json='{"op":"list"}')
    shown = answer.text.count('<skill name="many/')
    assert 0 < shown < len(MANY)
    assert f"{shown} of {len(MANY)} shown" in answer.text
    narrowed = '{"op":"list","pattern":"many/s0000?"}'
    answer = large.runtime.call("SkillService.CallSkillTool", agent="many", input_json=narrowed)
    assert answer.text.count('<skill name="many/') == 10
    assert "shown" not in answer.text
