"""What a server records of itself is there once and whole, whatever happens while it is being written."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.names import TenantId
from substrate.services.own_events import OwnEvents
from substrate.services.tallies import Kind, Tallies
from substrate.store import tenants as stored
from substrate.store.chain_writer import ChainWriter, Entry, Verdict
from tests.servers import Cluster, RunningServer
from tests.services.link import Link, linked
from tests.services.writer import Watch, running_writer
from tests.store.chain import events, faults
from tests.store.owner import remove_tenant, unwritable_audit, wait_until

MANY = 70


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    with linked(cluster) as link:
        yield link


@pytest.fixture
def chain(link: Link) -> Iterator[ChainWriter]:
    chain = ChainWriter(link.cluster.login_url)
    yield chain
    chain.close()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def own(chain: ChainWriter, watch: Watch) -> OwnEvents:
    return OwnEvents(chain, Tallies(SystemClock(), "test"), watch)


@pytest.fixture
def tenant(server: RunningServer) -> str:
    return server.tenant().name


def event_of(tenant: str) -> AuditEvent:
    clock = SystemClock()
    call_id = clock.event_id()
    return AuditEvent(call_id, TenantId(tenant), clock.now(), call_id, Verb.LOAD_STATIC, EventOutcome.ALLOWED)


def told(cluster: Cluster, tenant: str, verb: str) -> list[dict[str, Any]]:
    return [event for event in events(cluster, tenant) if event["verb"] == verb]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("meanwhile", ["nothing", "another appends", "the database stays away"])
def test_what_was_committed_without_the_news_of_it_is_there_once(
    cluster: Cluster, link: Link, own: OwnEvents, tenant: str, meanwhile: str, count: int
) -> None:
    announced = [event_of(tenant) for _ in range(count)]
    for event in announced:
        own.announce(event)
    own.count(Kind.LOST, TenantId(tenant), "busy")
    other = event_of(tenant)

    def overtake() -> None:
        if meanwhile == "another appends":
            writer = ChainWriter(cluster.login_url)
            assert writer.write([Entry(other.tenant, check=False, revision=None, event=other)]) == [Verdict.CURRENT]
            writer.close()

    link.lose_the_next_commit(overtake, stay_down=meanwhile == "the database stays away")
    own.attend(last=True)
    assert link.losses == 1
    if meanwhile == "the database stays away":
        assert not own.healthy
        assert own.pause() is not None
        link.mend()
    own.attend(last=True)
    assert own.healthy
    assert own.pause() is None
    others = [other.id] if meanwhile == "another appends" else []
    assert [event["id"] for event in told(cluster, tenant, "load_static")] == [e.id for e in announced] + others
    assert [event["details"]["count"] for event in told(cluster, tenant, "gap")] == [1]
    assert faults(cluster, tenant) == []


def test_events_of_a_tenant_that_is_gone_are_named_and_hold_up_no_other(
    cluster: Cluster, own: OwnEvents, watch: Watch, server: RunningServer, tenant: str
) -> None:
    gone = server.tenant().name
    remove_tenant(cluster, gone)
    own.count(Kind.UNPROVEN, TenantId(gone), "k")
    own.count(Kind.UNPROVEN, TenantId(tenant), "k")
    with capture_logs() as lines:
        own.attend(last=True)
    assert [(line["event"], line["tenant"], line["verb"]) for line in lines] == [
        ("audit.tenant_gone", gone, "authenticate")
    ]
    assert [event["details"]["count"] for event in told(cluster, tenant, "authenticate")] == [1]
    assert watch.health == [True]
    assert own.pause() is None


def test_an_event_that_cannot_be_written_keeps_no_other_and_no_call_from_it(
    cluster: Cluster, own: OwnEvents, watch: Watch, tenant: str
) -> None:
    # No column takes the character, whatever put it there.
    bad, good = replace(event_of(tenant), call_id="\0"), event_of(tenant)
    own.announce(bad)
    own.announce(good)
    own.attend(last=True)
    assert [event["id"] for event in events(cluster, tenant)] == [good.id]
    assert watch.health == [True]
    # It is tried again for ever, since it may be the database that is at fault.
    assert own.pause() is not None


def test_while_nothing_can_be_written_events_are_not_tried_one_by_one(
    cluster: Cluster, own: OwnEvents, watch: Watch, tenant: str
) -> None:
    announced = [event_of(tenant) for _ in range(5)]
    for event in announced:
        own.announce(event)
    with unwritable_audit(cluster), capture_logs() as lines:
        own.attend(last=True)
    assert [line["events"] for line in lines if line["event"] == "audit.own_events_failed"] == [5]
    assert watch.health == [True, False]
    own.attend(last=True)
    assert watch.health == [True, False, True]
    assert [event["id"] for event in events(cluster, tenant)] == [event.id for event in announced]


def test_a_server_that_stops_writes_all_that_it_has_counted(cluster: Cluster, server: RunningServer) -> None:
    clock = SystemClock()
    names = [TenantId(f"many{number}-{clock.event_id()}") for number in range(MANY)]
    with server.database.operator() as connection:
        for name in names:
            stored.create(connection, name, name, clock.now())
    written = "SELECT count(*) = %s FROM audit_events WHERE tenant_id = ANY(%s)"
    with running_writer(cluster) as bench:
        for name in names:
            bench.writer.unproven(name, "k")
        wait_until(cluster, written, MANY, names)
        # These are not due before a minute has passed, or the server stops.
        for name in names:
            bench.writer.unproven(name, "k")
    assert [sum(event["details"]["count"] for event in events(cluster, name)) for name in names] == [2] * MANY
