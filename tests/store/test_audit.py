"""The audit's rows: appended in order, under the lock of their tenant's head, and found again by every condition."""

import dataclasses
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import AuditUnavailable
from substrate.domain.names import SkillName, TenantId
from substrate.domain.patterns import PatternSet, parse_pattern
from substrate.store import audit, audit_log
from substrate.store.audit_log import Filter
from substrate.store.chain_writer import ChainWriter, Entry, NothingWrittenError, Verdict, WriteFailedError
from substrate.store.session import Database
from tests.servers import Cluster, RunningServer
from tests.store.chain import faults
from tests.store.owner import change, remove_tenant, value

_NAMES = ("a", "ab", "a/b", "a/b/c", "a/bc", "doc/query", "doc/chunk-add", "doc/x/y", "docs/query", "x-1", "")
_PATTERNS = (
    "a",
    "a/b",
    "*",
    "**",
    "?",
    "a*",
    "a?",
    "a/*",
    "a/**",
    "**/b",
    "**/query",
    "*/*",
    "**/*",
    "**/?",
    "doc/*-*",
    "d*c/q?ery",
    "a/**/c",
    "**/*/**",
    "doc/x",
)


def _event(tenant: str, **fields: object) -> AuditEvent:
    clock = SystemClock()
    event = AuditEvent(
        clock.event_id(), TenantId(tenant), clock.now(), str(uuid.uuid4()), Verb.INVOKE, EventOutcome.ALLOWED
    )
    return dataclasses.replace(event, **fields)  # type: ignore[arg-type]  # The caller names the event's own fields.


def _revision(cluster: Cluster, tenant: str) -> int:
    found: int = value(cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", tenant)
    return found


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    database = Database(cluster.login_url)
    yield database
    database.close()


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[ChainWriter]:
    writer = ChainWriter(cluster.login_url)
    yield writer
    writer.close()


@pytest.fixture
def tenants(server: RunningServer) -> list[TenantId]:
    return [TenantId(server.tenant().name) for _ in range(3)]


def _query(database: Database, tenant: str, wanted: Filter, *, oldest_first: bool = True) -> list[int]:
    with database.tenant(TenantId(tenant)) as connection:
        found = audit_log.query(connection, TenantId(tenant), wanted, None, 1000, oldest_first=oldest_first)
    return [each.event.sequence for each in found]


def test_appended_events_follow_each_other(cluster: Cluster, database: Database, tenants: list[TenantId]) -> None:
    for _ in range(3):
        with database.tenant(tenants[0]) as connection:
            audit.append(connection, _event(tenants[0]))
            audit.append(connection, _event(tenants[0], name="doc/query"))
    assert _query(database, tenants[0], Filter()) == [1, 2, 3, 4, 5, 6]
    assert faults(cluster, tenants[0]) == []


def test_an_event_goes_with_the_transaction_it_was_appended_in(
    cluster: Cluster, database: Database, tenants: list[TenantId]
) -> None:
    def undone() -> None:
        with database.tenant(tenants[0]) as connection:
            audit.append(connection, _event(tenants[0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        undone()
    assert _query(database, tenants[0], Filter()) == []
    assert faults(cluster, tenants[0]) == []


def test_a_tenant_without_a_chain_is_refused(database: Database) -> None:
    with database.tenant(TenantId("nobody")) as connection, pytest.raises(AuditUnavailable):
        audit.append(connection, _event("nobody"))


def test_an_event_of_another_tenant_cannot_be_appended(database: Database, tenants: list[TenantId]) -> None:
    with database.tenant(tenants[0]) as connection, pytest.raises(AuditUnavailable):
        audit.append(connection, _event(tenants[1]))


def test_a_batch_settles_the_calls_of_several_tenants_at_once(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    entries = [
        Entry(tenant, check=True, revision=_revision(cluster, tenant), event=_event(tenant))
        for _ in range(4)
        for tenant in tenants
    ]
    assert writer.write(entries) == [Verdict.CURRENT] * 12
    assert writer.write([dataclasses.replace(entries[0], event=_event(tenants[0]))]) == [Verdict.CURRENT]
    assert [value(cluster, "SELECT sequence FROM chain_heads WHERE tenant_id = %s", t) for t in tenants] == [5, 4, 4]
    assert [faults(cluster, tenant) for tenant in tenants] == [[], [], []]


def test_a_call_on_an_old_or_unheard_of_revision_is_stale_and_leaves_nothing(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    current = _revision(cluster, tenants[0])
    entries = [
        Entry(tenants[0], check=True, revision=revision, event=_event(tenants[0]))
        for revision in (current - 1, current, current + 1, None)
    ]
    assert writer.write(entries) == [Verdict.STALE, Verdict.CURRENT, Verdict.STALE, Verdict.STALE]
    assert value(cluster, "SELECT count(*) FROM audit_events WHERE tenant_id = %s", tenants[0]) == 1
    unchecked = dataclasses.replace(entries[0], check=False)
    assert writer.write([unchecked]) == [Verdict.CURRENT]
    assert faults(cluster, tenants[0]) == []


def test_calls_without_an_event_have_their_revision_read(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    current = _revision(cluster, tenants[0])
    entries = [Entry(tenants[0], check=True, revision=r, event=None) for r in (current, current - 1)]
    nobody = Entry(TenantId("nobody"), check=True, revision=None, event=None)
    assert writer.write([*entries, nobody]) == [Verdict.CURRENT, Verdict.STALE, Verdict.CURRENT]
    assert value(cluster, "SELECT count(*) FROM audit_events WHERE tenant_id = %s", tenants[0]) == 0


def test_a_held_chain_is_busy_and_keeps_no_other_waiting(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    entries = [Entry(tenant, check=False, revision=None, event=_event(tenant)) for tenant in tenants]
    with psycopg.connect(cluster.owner_url) as holder:
        holder.execute("SELECT * FROM chain_heads WHERE tenant_id = %s FOR UPDATE", [tenants[1]])
        assert writer.write(entries) == [Verdict.CURRENT, Verdict.BUSY, Verdict.CURRENT]
        assert writer.write(entries[1:2]) == [Verdict.BUSY]
    assert writer.write(entries[1:2]) == [Verdict.CURRENT]
    assert [faults(cluster, tenant) for tenant in tenants] == [[], [], []]


def test_a_tenant_that_is_gone_is_refused_and_keeps_no_other_from_being_written(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    gone, headless, free = tenants
    remove_tenant(cluster, gone)
    change(cluster, "DELETE FROM chain_heads WHERE tenant_id = %s", headless)
    of_gone, of_headless, of_free = (Entry(t, check=False, revision=None, event=_event(t)) for t in tenants)
    assert writer.write([of_gone, of_free]) == [Verdict.GONE, Verdict.CURRENT]
    assert [writer.write([entry]) for entry in (of_gone, of_headless)] == [[Verdict.GONE]] * 2
    # Among several, a chain that is not found may also be one that is held.
    others = Entry(free, check=False, revision=None, event=_event(free))
    assert writer.write([of_headless, others]) == [Verdict.BUSY, Verdict.CURRENT]
    assert faults(cluster, free) == []


def test_a_lost_connection_is_known_to_have_written_nothing_and_is_made_anew(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    entry = Entry(tenants[0], check=False, revision=None, event=_event(tenants[0]))
    assert writer.write([entry]) == [Verdict.CURRENT]
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = %s"
    assert writer._connection is not None
    assert value(cluster, ended, writer._connection.info.backend_pid) is True
    again = dataclasses.replace(entry, event=_event(tenants[0]))
    with pytest.raises(NothingWrittenError):
        writer.write([again])
    assert writer.write([again]) == [Verdict.CURRENT]
    assert faults(cluster, tenants[0]) == []


def test_a_table_that_somebody_asks_for_is_not_waited_for_long_and_nothing_was_written(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    entries = [Entry(tenant, check=False, revision=None, event=_event(tenant)) for tenant in tenants]
    with psycopg.connect(cluster.owner_url) as other:
        other.execute("LOCK TABLE audit_events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(NothingWrittenError) as failed:
            writer.write_again(entries)
    assert failed.value.outcome_known
    # On the same connection it goes on as if nothing had been.
    assert writer.write(entries) == [Verdict.CURRENT] * len(entries)
    assert [faults(cluster, tenant) for tenant in tenants] == [[]] * len(tenants)


def test_a_batch_that_cannot_be_inserted_leaves_nothing_of_any_tenant(
    cluster: Cluster, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    entries = [Entry(tenant, check=False, revision=None, event=_event(tenant)) for tenant in tenants]
    change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    try:
        with pytest.raises(WriteFailedError) as failed:
            writer.write(entries)
        assert not isinstance(failed.value, NothingWrittenError)
    finally:
        change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")
    assert value(cluster, "SELECT count(*) FROM audit_events WHERE tenant_id = ANY(%s)", tenants) == 0
    assert writer.write(entries) == [Verdict.CURRENT] * 3


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_a_pattern_finds_the_names_that_the_allowlist_would_match(
    database: Database, writer: ChainWriter, server: RunningServer, pattern: str
) -> None:
    tenant = TenantId(server.tenant().name)
    writer.write([Entry(tenant, check=False, revision=None, event=_event(tenant, name=name)) for name in _NAMES])
    parsed = parse_pattern(pattern)
    matched = PatternSet([parsed])
    expected = [
        place
        for place, name in enumerate(_NAMES, 1)
        if (matched.matching(SkillName(name)) if name else parsed.matches_all)
    ]
    assert _query(database, tenant, Filter(pattern=parsed)) == expected


def test_every_condition_narrows_and_all_hold_together(
    database: Database, writer: ChainWriter, tenants: list[TenantId]
) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    events = [
        _event(tenants[0], time=noon, agent="one", name="doc/a"),
        _event(tenants[0], time=noon + timedelta(seconds=1), agent="two", name="doc/a", verb=Verb.LIST),
        _event(tenants[0], time=noon + timedelta(seconds=2), agent="one", outcome=EventOutcome.REFUSED, call_id="c-3"),
    ]
    writer.write([Entry(tenants[0], check=False, revision=None, event=event) for event in events])
    for wanted, expected in (
        (Filter(), [1, 2, 3]),
        (Filter(agent="one"), [1, 3]),
        (Filter(agent="one", pattern=parse_pattern("doc/*")), [1]),
        (Filter(verb="list"), [2]),
        (Filter(outcome="REFUSED"), [3]),
        (Filter(call_id="c-3"), [3]),
        (Filter(event_id=events[1].id), [2]),
        (Filter(since=noon + timedelta(seconds=1)), [2, 3]),
        (Filter(until=noon + timedelta(seconds=1)), [1]),
        (Filter(since=noon, until=noon), []),
        (Filter(agent="one", verb="list"), []),
        (Filter(agent="nobody"), []),
    ):
        assert _query(database, tenants[0], wanted) == expected
        assert _query(database, tenants[0], wanted, oldest_first=False) == expected[::-1]
    assert _query(database, tenants[1], Filter(event_id=events[1].id)) == []
