"""Eight writers fill several chains at once, in transactions that end in another order than they began in, while others
read: whoever follows the log misses no event and gets none twice, and whoever follows it by something else does."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Connection, text

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.names import TenantId
from substrate.rpc.client import Client
from substrate.services import audit as service
from substrate.store import audit, audit_log
from substrate.store.audit_log import Filter
from substrate.store.chain_writer import ChainWriter, Entry, Verdict, WriteFailedError
from substrate.store.session import Database
from tests.servers import Cluster, running_cluster, running_server
from tests.store.chain import faults
from tests.store.owner import rows, wait_until

EVENTS = 50_000
FAST, SLOW = 6, 2
TENANTS = 4
BATCH = 100
ROUNDS = 20
OVERTAKEN_BY = 10
PAGE = 500
MESSAGES = 5
PAUSE = 0.05
HALF = EVENTS // BATCH // 2
SETTLED = "SELECT bool_and(txid < pg_snapshot_xmin(pg_current_snapshot())) FROM audit_events"
TAIL = "AuditService.TailAuditEvents"
QUERY = "AuditService.QueryAuditEvents"
WRITTEN = {"verb": "invoke"}


@dataclass
class Writers:
    """Eight of them. The slow ones begin a transaction and write only when the fast ones have committed others."""

    cluster: Cluster
    database: Database
    tenants: Sequence[TenantId]
    done: threading.Event = field(default_factory=threading.Event)
    batches: int = 0
    alone: bool = False
    moved: threading.Condition = field(default_factory=threading.Condition)
    clock: SystemClock = field(default_factory=SystemClock)

    def event(self, number: int) -> AuditEvent:
        tenant = self.tenants[number % TENANTS]
        clock = self.clock
        return AuditEvent(
            clock.event_id(),
            tenant,
            clock.now(),
            str(uuid.uuid4()),
            Verb.INVOKE,
            EventOutcome.ALLOWED,
            name="doc/query",
        )

    def run(self) -> None:
        """Write all events; return when they are committed."""
        slow = SLOW * ROUNDS * TENANTS
        shares = [(EVENTS - slow) // FAST] * FAST
        shares[0] += (EVENTS - slow) % FAST
        try:
            with ThreadPoolExecutor(FAST + SLOW) as threads:
                fast = [threads.submit(self.fast, share) for share in shares]
                slow_ones = [threads.submit(self.slow) for _ in range(SLOW)]
                try:
                    for each in fast:
                        each.result()
                finally:
                    with self.moved:
                        self.alone = True
                        self.moved.notify_all()
                for each in slow_ones:
                    each.result()
            # Nothing else of the database is in progress that could yet precede an event.
            wait_until(self.cluster, SETTLED)
        finally:
            self.done.set()

    def fast(self, count: int) -> None:
        """Write batches for all tenants, each in one transaction, as a server does."""
        writer = ChainWriter(self.cluster.login_url)
        for begin in range(0, count, BATCH):
            events = [self.event(number) for number in range(begin, min(count, begin + BATCH))]
            entries = [Entry(event.tenant, check=False, revision=None, event=event) for event in events]
            while entries:
                try:
                    verdicts = writer.write(entries)
                except WriteFailedError as error:
                    # A busy machine can be too slow for the time that the database gives a batch; it is put again.
                    if not error.outcome_known:
                        raise
                    continue
                # Chains that another writer holds are passed over; their events are put again.
                entries = [e for e, verdict in zip(entries, verdicts, strict=True) if verdict is Verdict.BUSY]
            with self.moved:
                self.batches += 1
                self.moved.notify_all()
        writer.close()

    def slow(self) -> None:
        """Write single events, in transactions that others overtake."""
        for _ in range(ROUNDS):
            events = [self.event(number) for number in range(TENANTS)]
            for event in events:
                with self.database.tenant(event.tenant) as connection:
                    connection.execute(text("SELECT pg_current_xact_id()"))
                    self.be_overtaken()
                    audit.append(connection, event)

    def be_overtaken(self) -> None:
        """Wait until others have committed so many batches, or there are no others."""
        with self.moved:
            enough = self.batches + OVERTAKEN_BY
            self.moved.wait_for(lambda: self.alone or self.batches >= enough)


Step = Callable[[Connection, Any], tuple[list[str], Any]]
"""Reads what follows a position, up to a page; returns the ids of the events and the position after them."""


def follow(url: str, tenant: TenantId | None, step: Step, done: threading.Event) -> list[str]:
    """Return the ids of all events that one gets who takes `step` after `step` until all has been written."""
    database = Database(url, pool_size=1)
    found: list[str] = []
    position = None
    while True:
        last = done.is_set()
        with database.operator() if tenant is None else database.tenant(tenant) as connection:
            ids, position = step(connection, position)
        found += ids
        if last and not ids:
            database.close()
            return found
        if not ids:
            done.wait(PAUSE)


def as_the_log(tenant: TenantId | None) -> Step:
    """Return the step of the product."""

    def step(connection: Connection, position: Any) -> tuple[list[str], Any]:
        after = position or audit_log.Position(0)
        events, end = audit_log.grown(connection, tenant, Filter(verb="invoke"), after, PAGE)
        return [event_id_of(found.event.event) for found in events], end

    return step


def event_id_of(event: str) -> str:
    return event[len('{"id":"') :][:36]


def by(order: str, first: Sequence[object]) -> Step:
    """Return a step that pages by `order`, columns that say where an event stands but not when it was committed."""

    def step(connection: Connection, position: Any) -> tuple[list[str], Any]:
        names = [f"p{number}" for number in range(len(first))]
        places = ", ".join(f":{name}" for name in names)
        statement = text(
            f"SELECT event_id::text AS found, {order.replace('txid', 'txid::text AS at')} FROM audit_events"  # noqa: S608 - constants.
            f" WHERE verb = 'invoke' AND ({order}) > ({places}) ORDER BY {order} LIMIT {PAGE}"
        )
        found = connection.execute(statement, dict(zip(names, position or first, strict=True))).all()
        return [row[0] for row in found], tuple(found[-1][1:]) if found else position

    return step


MUTANTS = {
    "event id": by("event_id", ["00000000-0000-0000-0000-000000000000"]),
    "time": by("occurred_at, event_id", ["2000-01-01T00:00:00Z", "00000000-0000-0000-0000-000000000000"]),
    "sequence": by("sequence, tenant_id", [0, ""]),
    "transaction, those in progress or not": by("txid, tenant_id, sequence", ["0", "", 0]),
}


def streamed(client: Client, done: threading.Event, **fields: object) -> list[str]:
    """Follow the log as a client does that loses its connection again and again, until all has been written."""
    found: list[str] = []
    position = ""
    while True:
        last = done.is_set()
        stream = client.stream(TAIL, timeout=120, **WRITTEN, **fields, position=position)
        for number, message in enumerate(stream):
            position = message.position
            found += [event.id for event in message.events]
            if last and number and not message.events:
                return found
            # The first message brings a position alone.
            if number == MESSAGES:
                break
        stream.close()  # type: ignore[attr-defined]  # It is a generator.


def paged(client: Client, **fields: object) -> list[str]:
    """Return the ids of all events that the pages of one list hold."""
    pages = client.pages(QUERY, **WRITTEN, **fields, page_size=1000)
    return [event.id for page in pages for event in page.events]


@dataclass(frozen=True)
class Outcome:
    """The tenant of what was written by id, in the order in which the transactions began, and what readers found.

    `of_one` is what was written in the chain of the one tenant that is followed, in its order.
    """

    written: Mapping[str, str]
    of_one: Sequence[str]
    found: Mapping[str, list[str]]
    pages: Mapping[str, list[str]]


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with (
        pytest.MonkeyPatch.context() as patch,
        running_cluster() as cluster,
        running_server(cluster) as server,
        ThreadPoolExecutor(16) as threads,
    ):
        patch.setattr(service, "TELL_SECONDS", 0.5)
        tenants = [server.tenant() for _ in range(TENANTS)]
        writers = Writers(cluster, server.database, [TenantId(tenant.name) for tenant in tenants])
        one, operator, begun = tenants[0], server.operator(), SystemClock().now()
        running = {
            "log of all": threads.submit(follow, cluster.login_url, None, as_the_log(None), writers.done),
            "log of one": threads.submit(
                follow, cluster.login_url, TenantId(one.name), as_the_log(TenantId(one.name)), writers.done
            ),
            "stream of all": threads.submit(streamed, operator, writers.done, since=begun),
            "stream of one": threads.submit(streamed, one.author, writers.done, since=begun),
        }
        running |= {
            name: threads.submit(follow, cluster.login_url, None, step, writers.done) for name, step in MUTANTS.items()
        }
        written = threads.submit(writers.run)
        with writers.moved:
            writers.moved.wait_for(lambda: writers.batches >= HALF, timeout=300)
        pages = {
            "all, oldest first": paged(operator, oldest_first=True),
            "all, newest first": paged(operator),
            "one, oldest first": paged(one.author, oldest_first=True),
            "one, newest first": paged(one.author),
        }
        written.result()
        query = "SELECT event_id::text, tenant_id FROM audit_events WHERE verb = 'invoke'"
        stored = dict(rows(cluster, f"{query} ORDER BY txid, tenant_id, sequence"))
        of_one = [id_ for id_, tenant in rows(cluster, f"{query} ORDER BY sequence") if tenant == one.name]
        assert [faults(cluster, tenant.name) for tenant in tenants] == [[]] * TENANTS
        found = {name: reader.result() for name, reader in running.items()}
        yield Outcome(stored, of_one, found, pages)


@pytest.mark.parametrize("reader", ["log of all", "stream of all"])
def test_who_follows_all_tenants_misses_nothing_and_gets_nothing_twice(outcome: Outcome, reader: str) -> None:
    found = outcome.found[reader]
    assert len(outcome.written) == len(found) == EVENTS
    assert found == list(outcome.written)


@pytest.mark.parametrize("reader", ["log of one", "stream of one"])
def test_who_follows_one_tenant_gets_its_events_in_their_order(outcome: Outcome, reader: str) -> None:
    assert len(outcome.of_one) > EVENTS // (TENANTS + 1)
    assert outcome.found[reader] == outcome.of_one


@pytest.mark.parametrize("scope", ["all", "one"])
def test_the_pages_of_a_list_neither_miss_nor_repeat_while_it_grows(outcome: Outcome, scope: str) -> None:
    order = list(outcome.written) if scope == "all" else outcome.of_one
    oldest, newest = (outcome.pages[f"{scope}, {direction}"] for direction in ("oldest first", "newest first"))
    assert len(oldest) > PAGE
    assert oldest == order[: len(oldest)]
    # It began while events were written, and was not disturbed by any that came later.
    start = order.index(newest[0])
    assert PAGE < start < len(order)
    assert newest == order[start::-1]


@pytest.mark.parametrize("reader", MUTANTS)
def test_who_follows_by_anything_else_misses_some(outcome: Outcome, reader: str) -> None:
    found = outcome.found[reader]
    assert len(set(found)) == len(found)
    assert len(found) < EVENTS
