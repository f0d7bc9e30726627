"""Proof: a tenant at twenty times its quota of calls leaves another tenant's calls without an error."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import TenantId
from substrate.domain.quotas import Quotas
from substrate.rpc.client import CallFailed, Client
from substrate.services.snapshots import Snapshots
from substrate.store import tenants
from tests.servers import Cluster, RunningServer, TestTenant, running_server

QUOTA = 4
TIMES = 20
CALLS = 80
LIST = "SkillService.ListSkills"


def outcome(client: Client) -> str:
    try:
        client.call(LIST, agent="doc-manager")
    except CallFailed as error:
        return error.reason
    return "OK"


def limited(server: RunningServer) -> TestTenant:
    tenant = server.tenant()
    with server.database.operator() as connection:
        tenants.set_quotas(connection, TenantId(tenant.name), Quotas(calls_in_flight=QUOTA))
        tenants.bump(connection, TenantId(tenant.name))
    return tenant


def neighbours(server: RunningServer) -> tuple[Counter[str], Counter[str]]:
    """Return how the calls of a quiet tenant end, and those of one that makes twenty times as many as it may."""
    loud, quiet = limited(server), limited(server)
    # One connection carries what it is given; a tenant that floods has many.
    floods = [server.client(server.key(loud.name, Role.RUNTIME), timeout=30) for _ in range(8)]
    for client in (*floods, quiet.runtime):
        client.call(LIST, agent="doc-manager")
    over = threading.Event()

    def flood(number: int) -> Counter[str]:
        ends: Counter[str] = Counter()
        while not over.is_set():
            ends[outcome(floods[number % len(floods)])] += 1
        return ends

    with ThreadPoolExecutor(QUOTA * TIMES) as pool:
        flooding = [pool.submit(flood, number) for number in range(QUOTA * TIMES)]
        try:
            heard = Counter(outcome(quiet.runtime) for _ in range(CALLS))
        finally:
            over.set()
        return heard, sum((each.result() for each in flooding), Counter())


def test_a_flood_is_its_own_tenants_affair(cluster: Cluster) -> None:
    with running_server(cluster, threads=8, max_calls=24) as server:
        quiet, loud = neighbours(server)
    assert quiet == {"OK": CALLS}
    assert loud["QUOTA_EXCEEDED"] > 0
    assert loud["OK"] > 0


def test_the_proof_finds_a_server_that_knows_no_quota(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Snapshots.standing

    def unlimited(*arguments: object) -> int | None:
        return None if real(*arguments) is None else 1_000_000  # type: ignore[arg-type]  # As the method takes them.

    monkeypatch.setattr(Snapshots, "standing", unlimited)
    with running_server(cluster, threads=8, max_calls=24) as server:
        quiet, _ = neighbours(server)
    assert quiet["OVERLOADED"] > 0
