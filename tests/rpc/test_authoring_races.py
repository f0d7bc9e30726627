"""Authors at the same time: each change is whole, none is lost, and of those that exclude each other one wins."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import add_version, skill_md
from tests.store.chain import events, faults
from tests.store.owner import value

AUTHORS = 20


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster) as server:
        yield server


@pytest.fixture
def authors(tenant: TestTenant, second: RunningServer) -> list[Client]:
    """Clients of the tenant's authors, half of them on another server."""
    server = tenant.server
    return [s.client(s.key(tenant.name, Role.AUTHOR)) for _ in range(AUTHORS // 2) for s in (server, second)]


def _at_once(authors: list[Client], act: Callable[[int, Client], object]) -> Counter[str]:
    """Let all authors act at the same moment; return how many got which reason, "" for success."""
    ready = Barrier(len(authors))

    def one(number: int, client: Client) -> str:
        ready.wait(timeout=10)
        try:
            act(number, client)
        except CallFailed as failed:
            return failed.reason
        return ""

    with ThreadPoolExecutor(len(authors)) as pool:
        return Counter(pool.map(one, range(len(authors)), authors))


def _revision(cluster: Cluster, tenant: TestTenant) -> int:
    found: int = value(cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", tenant.name)
    return found


def test_of_twenty_who_create_one_name_exactly_one_wins(
    cluster: Cluster, tenant: TestTenant, authors: list[Client]
) -> None:
    before = _revision(cluster, tenant)

    def create(number: int, client: Client) -> None:
        source = skill_md("mine", f"By author {number}.\n")
        client.call("SkillDefService.CreateSkillDef", name="own/mine", source=source)

    assert _at_once(authors, create) == {"": 1, "SKILL_DEF_EXISTS": AUTHORS - 1}
    assert _revision(cluster, tenant) == before + 1
    assert value(cluster, "SELECT count(*) FROM skill_def_versions WHERE tenant_id = %s", tenant.name) == 1
    recorded = events(cluster, tenant.name)
    winner = [event["key_id"] for event in recorded if event["outcome"] == "ALLOWED"]
    assert winner == [tenant.author.call("SkillDefService.GetSkillDef", name="own/mine").skill_def.created_by]
    assert Counter(event.get("reason", "") for event in recorded) == {"": 1, "SKILL_DEF_EXISTS": AUTHORS - 1}
    assert faults(cluster, tenant.name) == []


def test_twenty_who_create_different_names_all_succeed_at_revisions_of_their_own(
    cluster: Cluster, tenant: TestTenant, authors: list[Client]
) -> None:
    before = _revision(cluster, tenant)
    revisions: list[int] = []

    def create(number: int, client: Client) -> None:
        source = skill_md(f"n{number}")
        made = client.call("SkillDefService.CreateSkillDef", name=f"own/n{number}", source=source)
        revisions.append(made.state.catalog_revision)

    assert _at_once(authors, create) == {"": AUTHORS}
    assert _revision(cluster, tenant) == before + AUTHORS
    assert sorted(revisions) == list(range(before + 1, before + AUTHORS + 1))
    listed = tenant.author.call("SkillDefService.ListSkillDefs")
    assert (listed.total_size, listed.state.catalog_revision) == (AUTHORS, before + AUTHORS)
    recorded = [event["details"]["revision"] for event in events(cluster, tenant.name) if event["verb"] == "create"]
    # The chain has the changes in the order in which they were made.
    assert recorded == list(range(before + 1, before + AUTHORS + 1))
    assert faults(cluster, tenant.name) == []


def test_of_those_who_change_what_they_have_read_one_wins(tenant: TestTenant, authors: list[Client]) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))
    add_version(tenant.author, "own/mine", skill_md("mine", "Second.\n"))
    etag = tenant.author.call("SkillDefService.GetSkillDef", name="own/mine").skill_def.etag

    def change(number: int, client: Client) -> None:
        if number % 2:
            client.call("SkillDefService.PromoteSkillDef", name="own/mine", version=2, etag=etag)
        else:
            client.call("SkillDefService.RetireSkillDef", name="own/mine", etag=etag)

    assert _at_once(authors, change) == {"": 1, "ETAG_MISMATCH": AUTHORS - 1}
    after = tenant.author.call("SkillDefService.GetSkillDef", name="own/mine").skill_def
    assert (after.active_version == 2) is not after.retired


def test_of_those_who_put_the_agent_they_have_read_one_wins(tenant: TestTenant, authors: list[Client]) -> None:
    etag = tenant.author.call("AgentService.PutAgent", agent={"name": "helper"}).agent.etag

    def put(number: int, client: Client) -> None:
        client.call("AgentService.PutAgent", agent={"name": "helper", "skills": [f"own/n{number}"]}, etag=etag)

    assert _at_once(authors, put) == {"": 1, "ETAG_MISMATCH": AUTHORS - 1}
