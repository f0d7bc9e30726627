"""The database goes and comes back under a running server: refusals are quick, and no answered call is lost."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.servers import Cluster, RunningServer, running_cluster, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events, faults

INVOKE = {"agent": "doc-manager", "name": "doc/query"}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A PostgreSQL that may be stopped and killed."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_server(own_cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(own_cluster) as server:
        yield server


def _within_a_second(client: Client, method: str, **fields: object) -> tuple[str, str]:
    began = time.monotonic()
    failed = refused(client, method, **fields)
    assert time.monotonic() - began < 1.5
    return failed.code, failed.reason


def _answered_again(client: Client, method: str, **fields: object) -> None:
    """Call until there is an answer, which must be soon; every failure before it says that trying again may help."""
    give_up = time.monotonic() + 5
    while True:
        try:
            client.call(method, **fields)
        except CallFailed as failed:
            if failed.code != "UNAVAILABLE" or time.monotonic() > give_up:
                raise
        else:
            return


def test_calls_are_refused_while_the_database_is_down_and_answered_when_it_is_back(
    own_cluster: Cluster, own_server: RunningServer
) -> None:
    tenant, other, operator = own_server.tenant(), own_server.tenant(), own_server.operator()
    tenant.runtime.call("SkillService.InvokeSkill", **INVOKE)
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/mine", source=skill_md("mine"))
    tenant.runtime.call("SkillService.ListSkills", agent="doc-manager")
    before = events(own_cluster, tenant.name)
    own_cluster.postgres.stop()
    try:
        unrecorded = ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
        unreachable = ("UNAVAILABLE", "STORE_UNAVAILABLE")
        for _ in range(2):
            assert _within_a_second(tenant.runtime, "SkillService.InvokeSkill", **INVOKE) == unrecorded
            denied = {"agent": "doc-manager", "name": "writing/linkedin-post"}
            assert _within_a_second(tenant.runtime, "SkillService.InvokeSkill", **denied) == unrecorded
            assert _within_a_second(tenant.runtime, "SkillService.ListSkills", agent="doc-manager") == unreachable
            source = skill_md("other")
            make = {"name": "doc/other", "source": source}
            assert _within_a_second(tenant.author, "SkillDefService.CreateSkillDef", **make) == unreachable
            # Of this tenant nothing has been loaded yet.
            assert _within_a_second(other.runtime, "SkillService.InvokeSkill", **INVOKE) == unreachable
    finally:
        own_cluster.postgres.start()
    _answered_again(tenant.runtime, "SkillService.InvokeSkill", **INVOKE)
    _answered_again(tenant.author, "SkillDefService.CreateSkillDef", name="doc/other", source=skill_md("other"))
    _answered_again(other.runtime, "SkillService.InvokeSkill", **INVOKE)
    _answered_again(operator, "TenantService.ListTenants")
    after = events(own_cluster, tenant.name)
    assert after[: len(before)] == before
    assert [event["verb"] for event in after[len(before) :]] == ["invoke", "create"]
    assert faults(own_cluster, tenant.name) == []


def test_no_answer_survives_the_database_without_its_event(own_cluster: Cluster, own_server: RunningServer) -> None:
    tenant = own_server.tenant()
    ended = threading.Event()
    answered: list[str] = []
    answering = threading.Semaphore(0)

    def run(client: Client) -> None:
        while not ended.is_set():
            try:
                answered.append(client.call("SkillService.InvokeSkill", **INVOKE).decision_id)
                answering.release()
            except CallFailed as failed:
                if failed.code != "UNAVAILABLE":
                    raise

    def more_than(count: int) -> None:
        give_up = time.monotonic() + 10
        while len(answered) <= count:
            assert time.monotonic() < give_up
            answering.acquire(timeout=0.1)

    clients = [own_server.client(own_server.key(tenant.name, Role.RUNTIME)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(run, client) for client in clients]
        try:
            more_than(50)
            postgres = own_cluster.postgres
            assert postgres.process is not None
            postgres.process.kill()
            postgres.stop()
            postgres.start()
            more_than(len(answered) + 50)
        finally:
            ended.set()
        for call in running:
            call.result(timeout=5)
    recorded = {event["id"] for event in events(own_cluster, tenant.name)}
    assert len(set(answered)) == len(answered)
    assert set(answered) - recorded == set()
    assert faults(own_cluster, tenant.name) == []
