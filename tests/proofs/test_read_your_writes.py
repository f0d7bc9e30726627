"""Proof: what one server process has acknowledged, the next call on every process sees."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proofs.replicas import Replicated, leave_unchecked
from tests.servers import RunningServer

PAIRS = 2000
TENANTS = 4


def stale_reads(replicated: Replicated, pairs: int, seed: int) -> list[str]:
    """Write on one server, then read on each; return every read of these `pairs` that was stale."""
    chance = random.Random(seed)  # noqa: S311 - the same pairs each time.
    servers = range(len(replicated.authors))
    found = []
    for _ in range(0, pairs, len(servers)):
        kind = replicated.change(chance.choice(replicated.authors), chance)
        reads = chance.sample(replicated.runtimes, len(servers))
        stale = [problem for runtime in reads for problem in replicated.stale(runtime)]
        stale += replicated.stale_list(chance.choice(reads))
        found += [f"after {kind}: {problem}" for problem in stale]
    return found


def test_what_one_of_three_processes_acknowledged_is_seen_on_all(server: RunningServer, processes: list[str]) -> None:
    tenants = [Replicated.on(server, processes) for _ in range(TENANTS)]
    with ThreadPoolExecutor(TENANTS) as pool:
        done = [pool.submit(stale_reads, tenant, PAIRS // TENANTS, seed) for seed, tenant in enumerate(tenants)]
        assert [problem for each in done for problem in each.result()] == []


def test_a_server_that_takes_its_memory_for_current_is_found(
    server: RunningServer, mutants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated = Replicated.on(server, mutants)
    leave_unchecked(monkeypatch)
    assert stale_reads(replicated, 30, 0)
