"""Proof: what one server has acknowledged, the next call on every other server sees."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from substrate.domain.identity import Role
from tests.processes import serving
from tests.proofs.replicas import SECONDS, Replicated, leave_unchecked, three_servers
from tests.servers import Cluster, RunningServer

PAIRS = 2000
TENANTS = 4


@pytest.fixture(scope="module")
def servers(cluster: Cluster) -> Iterator[list[RunningServer]]:
    with three_servers(cluster) as servers:
        yield servers


def stale_reads(replicated: Replicated, pairs: int, seed: int) -> list[str]:
    """Write on one server and read on another at once, `pairs` times; return every read that was stale."""
    chance = random.Random(seed)  # noqa: S311 - the same pairs each time.
    servers = range(len(replicated.authors))
    found = []
    for _ in range(pairs):
        writes, reads = chance.sample(servers, 2)
        kind = replicated.change(replicated.authors[writes], chance)
        found += [f"after {kind}: {problem}" for problem in replicated.stale(replicated.runtimes[reads])]
    return found


def test_what_one_of_three_servers_acknowledged_is_seen_on_the_others(servers: list[RunningServer]) -> None:
    tenants = [Replicated.on(servers) for _ in range(TENANTS)]
    with ThreadPoolExecutor(TENANTS) as pool:
        done = [pool.submit(stale_reads, tenant, PAIRS // TENANTS, seed) for seed, tenant in enumerate(tenants)]
        assert [problem for each in done for problem in each.result()] == []


def test_what_one_of_two_processes_acknowledged_is_seen_on_the_other(
    cluster: Cluster, servers: list[RunningServer]
) -> None:
    made = servers[0].tenant().name
    with ExitStack() as stack:
        processes = [stack.enter_context(serving("--database-url", cluster.login_url)) for _ in range(2)]
        ...


def test_a_server_that_takes_its_memory_for_current_is_found(
    servers: list[RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated = Replicated.on(servers)
    leave_unchecked(monkeypatch)
    assert stale_reads(replicated, 30, 0)
