"""An audit writer of its own, on a real database, with threads to call it from."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.identity import Bearer
from substrate.domain.names import KeyId, TenantId
from substrate.services.audit_writer import AuditWriter
from substrate.services.call import Call
from substrate.services.tallies import Tallies
from substrate.store.chain_writer import ChainWriter, Entry, Verdict
from tests.servers import Cluster
from tests.store.chain import events

WAITING = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%chain_heads%%')"


class Watch:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events_lost: list[int] = []
        self.causes: list[str] = []
        self.health: list[bool] = []

    def audit_queue(self, depth: int) -> None:
        assert depth >= 0

    def audit_committed(self, seconds: float, events: int) -> None:
        assert seconds >= 0
        assert events >= 0

    def lost(self, events: int, cause: str) -> None:
        self.events_lost.append(events)
        self.causes.append(cause)

    def audit_refused(self, calls: int) -> None:
        assert calls > 0

    def audit_healthy(self, healthy: bool) -> None:  # noqa: FBT001 - as the writer says it.
        self.health.append(healthy)


@dataclass
class Bench:
    """A writer of its own, what it counted as lost, and threads to call it from."""

    cluster: Cluster
    chain: ChainWriter
    writer: AuditWriter
    pool: ThreadPoolExecutor
    lost: list[int]

    def settle(
        self, tenant: str, call: Call | None = None, *, required: bool = True, revision: int | None = None
    ) -> Verdict:
        """Put one call to the writer: of `revision` when it is given, else one that is not asked for it."""
        call = call or call_of(tenant)
        entry = Entry(TenantId(tenant), check=revision is not None, revision=revision, event=event_of(tenant, call))
        return self.writer.settle(entry, call, required=required)

    def after_another_batch(self, tenant: str) -> None:
        """Return when the writer has looked at its waiting calls again, those whose wait is over included."""
        assert self.settle(tenant) is Verdict.CURRENT

    def begin(self, tenant: str, call: Call | None = None, *, required: bool = True) -> "Future[Verdict]":
        """Put one call to the writer from a thread of its own."""
        return self.pool.submit(self.settle, tenant, call, required=required)


@contextmanager
def running_writer(cluster: Cluster) -> Iterator[Bench]:
    """Run a writer with threads to call it from, and stop it when all of them have their answers."""
    watch = Watch()
    chain = ChainWriter(cluster.login_url)
    writer = AuditWriter(chain, Tallies(SystemClock(), "test"), watch)
    writer.start()
    with ThreadPoolExecutor(40) as pool:
        yield Bench(cluster, chain, writer, pool, watch.events_lost)
    writer.stop()


def call_of(tenant: str, seconds: float | None = None) -> Call:
    now = time.monotonic()
    return Call(
        method="test",
        call_id=str(uuid.uuid4()),
        bearer=Bearer(TenantId(tenant), KeyId("k"), "s"),
        arrived=SystemClock().now(),
        started=now,
        deadline=None if seconds is None else now + seconds,
    )


def event_of(tenant: str, call: Call) -> AuditEvent:
    return AuditEvent(
        SystemClock().event_id(), TenantId(tenant), call.arrived, call.call_id, Verb.INVOKE, EventOutcome.ALLOWED
    )


def seconds_until(act: Callable[[], object], error: type[Exception]) -> float:
    """Return how many seconds `act` takes to raise `error`."""
    began = time.monotonic()
    with pytest.raises(error):
        act()
    return time.monotonic() - began


def outcomes(cluster: Cluster, tenant: str) -> list[tuple[str, str]]:
    return [(event["outcome"], event.get("reason", "")) for event in events(cluster, tenant)]


@contextmanager
def frozen(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)
