"""A database that is put back to an earlier state under a running server, and then gets as far as it was before."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from substrate.domain.identity import Role
from substrate.rpc.client import Client
from tests.servers import Cluster, RunningServer, running_cluster, running_server
from tests.skills import changed, refused, skill_md
from tests.store.chain import faults
from tests.store.copies import dump, load
from tests.store.owner import connect

CREATE = "SkillDefService.CreateSkillDef"
INVOKE = "SkillService.InvokeSkill"
LIST = "SkillService.ListSkills"


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A PostgreSQL whose database may be replaced."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_server(own_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server(own_cluster, audit_mode=getattr(request, "param", "strict")) as server:
        yield server


@dataclass(frozen=True)
class Swapped:
    """A tenant whose database was restored and written to again, so that it is at the revision in the server's memory.

    In the server's memory the agent `all` may use everything, in the database only `own/kept`. `old` and `new` are the
    tokens of the one and of the other.
    """

    author: Client
    runtime: Client
    name: str
    old: str
    new: str


@pytest.fixture
def swapped(own_cluster: Cluster, own_server: RunningServer, tmp_path: Path) -> Swapped:
    tenant = own_server.tenant()
    key = own_server.key(tenant.name, Role.AUTHOR)
    tenant.author.call("AgentService.PutAgent", agent={"name": "all"})
    tenant.author.call(CREATE, name="own/kept", source=skill_md("kept"))
    dump(own_cluster.owner_url, tmp_path / "dump")
    tenant.author.call(CREATE, name="own/lost", source=skill_md("lost"))
    seen = tenant.runtime.call(LIST, agent="all", pattern="own/*")
    assert [entry.name for entry in seen.skills] == ["own/kept", "own/lost"]
    load(own_cluster.owner_url, tmp_path / "dump")
    with running_server(own_cluster) as second:
        agent = {"name": "all", "skills": ["own/kept"]}
        put = changed(second.client(key), "AgentService.PutAgent", agent=agent)
    assert put.state.catalog_revision == seen.state.catalog_revision
    return Swapped(tenant.author, tenant.runtime, tenant.name, seen.state.catalog_token, put.state.catalog_token)


def test_the_next_call_decides_on_what_is_in_the_database_now(own_cluster: Cluster, swapped: Swapped) -> None:
    seen = swapped.runtime.call(LIST, agent="all", pattern="own/*")
    assert [entry.name for entry in seen.skills] == ["own/kept"]
    assert seen.state.catalog_token == swapped.new
    assert faults(own_cluster, swapped.name) == []


def test_an_invocation_is_refused_on_what_is_in_the_database_now(swapped: Swapped) -> None:
    assert refused(swapped.runtime, INVOKE, agent="all", name="own/lost").reason == "SKILL_NOT_PERMITTED"


def test_a_change_is_decided_on_what_is_in_the_database_now(own_cluster: Cluster, swapped: Swapped) -> None:
    failed = refused(swapped.author, CREATE, agent="all", name="own/more", source=skill_md("more"))
    assert failed.reason == "SKILL_NOT_PERMITTED"
    assert faults(own_cluster, swapped.name) == []


def test_a_token_of_before_is_refused_and_one_of_now_is_not(swapped: Swapped) -> None:
    failed = refused(swapped.runtime, LIST, agent="all", catalog_token=swapped.old)
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "REVISION_UNKNOWN")
    assert not swapped.runtime.call(LIST, agent="all", catalog_token=swapped.new).catalog_changed


# In strict mode a refusal could not be recorded and would not be given, whatever it is.
@pytest.mark.parametrize("own_server", ["strict", "best_effort"], indirect=True)
def test_what_is_in_memory_does_not_do_for_a_token_of_now_however_old_it_may_be(
    own_cluster: Cluster, swapped: Swapped
) -> None:
    asked = {"agent": "all", "pattern": "own/*", "max_staleness": Duration(seconds=3600)}
    own_cluster.postgres.stop()
    try:
        from_memory = swapped.runtime.call(LIST, catalog_token=swapped.old, **asked)
        assert [entry.name for entry in from_memory.skills] == ["own/kept", "own/lost"]
        assert refused(swapped.runtime, LIST, catalog_token=swapped.new, **asked).code == "UNAVAILABLE"
    finally:
        own_cluster.postgres.start()
    answer = swapped.runtime.call(LIST, catalog_token=swapped.new, **asked)
    assert [entry.name for entry in answer.skills] == ["own/kept"]


def test_another_mark_is_another_database_too(own_cluster: Cluster, own_server: RunningServer) -> None:
    tenant = own_server.tenant()
    before = tenant.runtime.call(LIST, agent="doc-manager").state
    with connect(own_cluster) as owner:
        owner.execute("UPDATE deployment SET incarnation = gen_random_uuid()")
        owner.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    failed = refused(tenant.runtime, LIST, agent="doc-manager", catalog_token=before.catalog_token)
    assert failed.reason == "REVISION_UNKNOWN"
    after = tenant.runtime.call(LIST, agent="doc-manager").state
    assert after.catalog_revision == before.catalog_revision
    assert after.catalog_token != before.catalog_token
