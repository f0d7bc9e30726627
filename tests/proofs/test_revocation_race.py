"""Proof: once a retirement, a tombstone, a tighter allowlist or a revoked key is acknowledged, nothing gets past it."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from tests.proofs.replicas import NAME, Replicated, clients, invoked, leave_unchecked
from tests.servers import RunningServer

TRIALS = 1000
TENANTS = 3
PAUSE = 0.01
"""Seconds between two calls in the background, which leave the processors to the trials."""

REVOCATIONS = {
    "retire": "SKILL_NOT_FOUND",
    "disable": "SKILL_NOT_FOUND",
    "allowlist": "SKILL_NOT_PERMITTED",
    "key": "UNAUTHENTICATED",
}
"""What can be withdrawn, and how an invocation is refused from then on."""


def escapes(server: RunningServer, addresses: Sequence[str], trials: int, seed: int) -> list[str]:
    """Withdraw, and at once invoke on every server, until there were `trials` invocations; return what got past.

    Each server was invoked on with success before, and somebody goes on invoking all the time, so that it has, or is
    just loading, what is withdrawn.
    """
    chance = random.Random(seed)  # noqa: S311 - the same trials each time.
    tenant = Replicated.on(server, addresses)
    operators = clients(addresses, server.key(PLATFORM_TENANT, Role.OPERATOR))
    found = []
    with _background(tenant):
        for _ in range(0, trials, len(addresses)):
            kind = chance.choice(list(REVOCATIONS))
            author, operator = chance.choice(tenant.authors), chance.choice(operators)
            with _granted(tenant, kind, author, operator) as (runtimes, withdraw):
                found += [f"{kind}: {got} before" for got in _all(runtimes) if got != tenant.expected]
                withdraw()
                found += [f"{kind}: {got} after" for got in _all(runtimes) if got != REVOCATIONS[kind]]
    return found


def _all(runtimes: Sequence[Client]) -> list[str]:
    return [invoked(runtime, NAME) for runtime in runtimes]


@contextmanager
def _background(tenant: Replicated) -> Iterator[None]:
    """Invoke on one server after the other until the block ends."""
    over = threading.Event()

    def work() -> None:
        for runtime in itertools.cycle(tenant.runtimes):
            invoked(runtime, NAME)
            if over.wait(PAUSE):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _granted(
    tenant: Replicated, kind: str, author: Client, operator: Client
) -> Iterator[tuple[Sequence[Client], Callable[[], object]]]:
    """Yield clients that may invoke on every server, and what withdraws that; give it back afterwards."""
    match kind:
        case "retire":
            yield tenant.runtimes, lambda: tenant.retire(author, retired=True)
            tenant.retire(author, retired=False)
        case "disable":
            yield tenant.runtimes, lambda: tenant.disable(author, disabled=True)
            tenant.disable(author, disabled=False)
        case "allowlist":
            yield tenant.runtimes, lambda: tenant.put(author, allowed=False)
            tenant.put(author, allowed=True)
        case "key":
            named = {"tenant": tenant.tenant}
            made = operator.call("TenantService.IssueKey", **named, role="ROLE_RUNTIME")
            with ExitStack() as stack:
                runtimes = [stack.enter_context(client) for client in clients(tenant.addresses, made.secret)]
                yield runtimes, lambda: operator.call("TenantService.RevokeKey", **named, key_id=made.key.key_id)


def test_what_one_process_has_withdrawn_cannot_be_invoked_on_any(server: RunningServer, processes: list[str]) -> None:
    each = -(-TRIALS // TENANTS)
    with ThreadPoolExecutor(TENANTS) as pool:
        done = [pool.submit(escapes, server, processes, each, seed) for seed in range(TENANTS)]
        assert [got for found in done for got in found.result()] == []


def test_a_server_that_takes_its_memory_for_current_is_found(
    server: RunningServer, mutants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_unchecked(monkeypatch)
    assert any("after" in got for got in escapes(server, mutants, 30, 0))
