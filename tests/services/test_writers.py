"""A tenant's changes take three quarters of the threads at most, so that others are served while they wait."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from substrate.domain.errors import QuotaExceeded
from substrate.domain.names import TenantId
from substrate.rpc.client import CallFailed
from substrate.services.writers import Writers
from tests.servers import Cluster, RunningServer, running_server
from tests.store.chain import events
from tests.store.owner import connect, wait_until

THREADS = 8
PLACES = 6
LIST, FORK = "SkillService.ListSkills", "SkillDefService.ForkSkillDef"
WAITING = "SELECT count(*) >= %s FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE tenants%%'"


@pytest.fixture
def eight(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster, threads=THREADS) as server:
        yield server


def test_another_tenant_is_served_while_a_tenants_writers_wait(cluster: Cluster, eight: RunningServer) -> None:
    loud, quiet = eight.tenant(), eight.tenant()
    for tenant in (loud, quiet):
        tenant.runtime.call(LIST, agent="doc-manager")
    refused = threading.Semaphore(0)

    def fork(_: int) -> str:
        try:
            loud.author.call(FORK, name="doc/query")
        except CallFailed as error:
            refused.release()
            return f"{error.reason} {error.metadata.get('quota')}"
        return "OK"

    with ThreadPoolExecutor(PLACES + 4) as pool:
        with connect(cluster) as owner, owner.transaction():
            # As a writer holds it: events may be appended meanwhile.
            owner.execute("SELECT 1 FROM tenants WHERE tenant_id = %s FOR NO KEY UPDATE", [loud.name])
            forks = [pool.submit(fork, number) for number in range(PLACES)]
            wait_until(cluster, WAITING, PLACES)
            forks += [pool.submit(fork, number) for number in range(4)]
            for _ in range(4):
                assert refused.acquire(timeout=10)
            assert quiet.runtime.call(LIST, agent="doc-manager").total_size > 0
        assert Counter(each.result() for each in forks) == {"OK": PLACES, "QUOTA_EXCEEDED calls_in_flight": 4}
    told = [event["reason"] for event in events(cluster, loud.name) if event["outcome"] == "REFUSED"]
    assert told == ["QUOTA_EXCEEDED"] * 4


def test_places_are_given_back_however_a_change_ends_and_are_each_tenants_own() -> None:
    writers = Writers(THREADS)
    one, other = TenantId("one"), TenantId("other")
    for _ in range(3 * PLACES):
        with pytest.raises(ZeroDivisionError), writers.turn(one):
            raise ZeroDivisionError
    turns = [writers.turn(one) for _ in range(PLACES)]
    for turn in turns:
        turn.__enter__()
    with pytest.raises(QuotaExceeded), writers.turn(one):
        raise AssertionError
    with writers.turn(other):
        pass
    turns[0].__exit__(None, None, None)
    with writers.turn(one):
        pass


def test_the_smallest_server_makes_changes_too() -> None:
    with Writers(1).turn(TenantId("one")):
        pass
