"""What a proposed allowlist admits of the live catalog, and what it would change there for an agent."""

import io
import itertools
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from substrate.domain.identity import Role
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import changed, refused, skill_md
from tests.store.chain import events

TEST = "AgentService.TestAllowlist"
GROUPS = ("a", "b", "c")
NAMES = [f"{group}/{leaf}" for group in GROUPS for leaf in ("one", "two")]
LISTS = (["a/*"], ["-a/*"], ["-*"], ["b/two", "a/*", "-a/one"], ["**", "-c/*"], ["z/*"])


@pytest.fixture(scope="module")
def bare(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server without any bundle, so that the catalog is what a test makes."""
    config = Path(tmp_path_factory.mktemp("bare")) / "substrate.yaml"
    config.write_text("bundles: []\n")
    with running_server(cluster, config=config) as server:
        yield server


@pytest.fixture
def stocked(bare: RunningServer) -> TestTenant:
    """A tenant with two skills in each of three groups, and one of each kind that is not live."""
    tenant = bare.tenant()
    for name in (*NAMES, "a/retired", "a/disabled"):
        tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md(name.rpartition("/")[2]))
    draft = {"name": "a/draft", "source": skill_md("draft"), "promote": False}
    tenant.author.call("SkillDefService.CreateSkillDef", **draft)
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="a/retired")
    changed(tenant.author, "SkillDefService.SetSkillDisabled", name="a/disabled", disabled=True)
    return tenant


def test_it_says_what_putting_it_would_do(stocked: TestTenant) -> None:
    """Held against what the agent's list holds before and after the change."""

    def listed() -> set[str]:
        return {skill.name for skill in stocked.runtime.call("SkillService.ListSkills", agent="tester").skills}

    put = "AgentService.PutAgent"
    stocked.author.call(put, agent={"name": "tester", "skills": LISTS[0]})
    for before, after in itertools.permutations(LISTS, 2):
        changed(stocked.author, put, agent={"name": "tester", "skills": before})
        had = listed()
        tested = stocked.author.call(TEST, agent="tester", skills=after)
        alone = stocked.author.call(TEST, skills=after)
        changed(stocked.author, put, agent={"name": "tester", "skills": after})
        has = listed()
        assert list(tested.gained) == sorted(has - had)
        assert list(tested.lost) == sorted(had - has)
        assert (tested.gained_count, tested.lost_count) == (len(has - had), len(had - has))
        assert tested.admitted_count == alone.admitted_count == len(has)
        assert (list(alone.gained), list(alone.lost), alone.gained_count, alone.lost_count) == ([], [], 0, 0)


def test_the_present_allowlist_is_tested_by_leaving_the_proposal_out(cluster: Cluster, stocked: TestTenant) -> None:
    put = {"name": "tester", "skills": ["a/*", "b/one"]}
    stocked.author.call("AgentService.PutAgent", agent=put)
    tested = stocked.author.call(TEST, agent="tester", names=["a/one", "b/two"])
    assert (tested.admitted_count, tested.gained_count, tested.lost_count) == (3, 0, 0)
    assert [d.decision.allowed for d in tested.decisions] == [True, False]
    nothing = stocked.author.call(TEST)
    assert (nothing.admitted_count, nothing.denies_all) == (len(NAMES), False)
    stocked.author.call(TEST, agent="tester", skills=["b/*", "c/*"])
    event = events(cluster, stocked.name)[-1]
    assert (event["verb"], event["admitted"]) == ("test_allowlist", 4)
    assert (event["details"]["gained"], event["details"]["lost"]) == (3, 2)


def _archive(numbers: range) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in numbers:
            archive.writestr(f"many/n{number:04}/SKILL.md", skill_md(f"n{number:04}"))
    return buffer.getvalue()


def test_long_differences_are_cut_and_counted(stocked: TestTenant) -> None:
    many = 1005
    author = stocked.server.client(stocked.server.key(stocked.name, Role.AUTHOR), timeout=120)
    for first in range(0, many, 335):
        archive = _archive(range(first, first + 335))
        author.call("SkillDefService.ImportSkills", archive=archive, promote=True)
    stocked.author.call("AgentService.PutAgent", agent={"name": "none", "skills": ["-*"]})
    tested = stocked.author.call(TEST, agent="none", skills=["many/*"])
    assert (tested.admitted_count, tested.gained_count, tested.lost_count) == (many, many, 0)
    assert list(tested.gained) == [f"many/n{number:04}" for number in range(1000)]
    stocked.author.call("AgentService.PutAgent", agent={"name": "all"})
    tested = stocked.author.call(TEST, agent="all", skills=["-many/*"])
    assert (tested.gained_count, tested.lost_count, len(tested.lost)) == (0, many, 1000)


def test_an_agents_key_learns_of_no_name_outside_its_allowlist(stocked: TestTenant) -> None:
    stocked.author.call("AgentService.PutAgent", agent={"name": "caged", "skills": ["a/*", "b/one"]})
    bound = stocked.bound(Role.AUTHOR, "caged")
    for agent in ("caged", ""):
        tested = bound.call(TEST, agent=agent, skills=["b/*", "c/*"], names=["c/one", "c/nothing"])
        assert (tested.admitted_count, list(tested.gained), tested.gained_count) == (1, [], 0)
        assert [d.decision.allowed for d in tested.decisions] == [True, True]
        assert list(tested.lost) == (["a/one", "a/two"] if agent else [])
    assert bound.call(TEST).admitted_count == 3
    failed = refused(bound, TEST, agent="other", skills=["**"])
    assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")


def test_what_is_wrong_is_told(stocked: TestTenant) -> None:
    assert refused(stocked.author, TEST, agent="nobody", skills=["a/*"]).reason == "AGENT_NOT_FOUND"
    failed = refused(stocked.author, TEST, agent="nobody", skills=["A/*"])
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ALLOWLIST", "skills[0]")
