"""Months of the audit dropped by the owner: what is left is whole, and says so by a signed start."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import StoreUnavailable
from substrate.domain.names import TenantId
from substrate.services.retention import ChainsNotIntactError, DroppedMonth, Retention
from substrate.services.verification import KeptCheckpoints
from substrate.store.audit import append
from substrate.store.checkpoint_file import CheckpointFile
from substrate.store.migrate import LOGIN_ROLE, make_partitions, migrate
from substrate.store.retention import OwnedAudit
from substrate.store.session import Database
from substrate.store.signing_keys import signing_key
from tests.servers import Cluster
from tests.store.chain import events
from tests.store.owner import change, connect, empty_database, rows, value, wait_until
from tests.store.tampering import Signing, rehash, signing, verified

MAY, JUNE, JULY = (datetime(2026, month, 15, tzinfo=UTC) for month in (5, 6, 7))


@pytest.fixture
def own(cluster: Cluster, tmp_path: Path) -> Iterator[Signing]:
    """A database of its own, with partitions from May 2026 on, whose server verifies with checkpoints in `tmp_path`."""
    with empty_database(cluster.owner_url) as owner_url:
        migrate(owner_url)
        name = owner_url.rpartition("/")[2].partition("?")[0]
        mine = Cluster(cluster.postgres, owner_url, cluster.postgres.url(LOGIN_ROLE, name))
        audit = OwnedAudit(owner_url)
        with audit._engine.begin() as connection:
            make_partitions(connection, date(2026, 5, 1))
        with signing(mine, tmp_path / "data") as running:
            yield running


@dataclass
class Writer:
    """Writes events of any month into the chains of one database."""

    database: Database

    def write(self, tenant: str, *times: datetime) -> None:
        clock = SystemClock()
        for time in times:
            with self.database.tenant(TenantId(tenant)) as connection:
                event_id = clock.event_id()
                append(
                    connection,
                    AuditEvent(event_id, TenantId(tenant), time, event_id, Verb.LIST, EventOutcome.ALLOWED),
                )


def retained(own: Signing, before: date, owner_url: str = "") -> list[DroppedMonth]:
    kept = KeptCheckpoints(own.file, own.key)
    file = CheckpointFile(own.file, signing_key(own.key))
    audit = OwnedAudit(owner_url or own.cluster.owner_url)
    return list(Retention(audit, kept, file, SystemClock()).drop_before(before))


def sequences(own: Signing, tenant: str) -> list[int]:
    return [
        n for (n,) in rows(own.cluster, "SELECT sequence FROM audit_events WHERE tenant_id = %s ORDER BY 1", tenant)
    ]


def used(own: Signing) -> str:
    """Return a new tenant: number 4, of June, was recorded before number 5, of May; and number 8 before number 9."""
    tenant = own.server.tenant().name
    Writer(own.server.database).write(tenant, MAY, MAY, MAY, JUNE, MAY, JUNE, JUNE, JULY, JUNE, JULY, JULY)
    own.checkpointer.poll(last=True)
    return tenant


def test_a_month_is_dropped_and_the_rest_is_intact(own: Signing) -> None:
    tenant, other = used(own), own.server.tenant().name
    Writer(own.server.database).write(other, JULY)
    own.checkpointer.poll(last=True)
    assert retained(own, date(2026, 6, 1)) == [DroppedMonth("2026-05", "audit_events_2026_05", 4, 1)]
    assert sequences(own, tenant) == [4, 6, 7, 8, 9, 10, 11]
    assert value(own.cluster, "SELECT to_regclass('audit_events_2026_05') IS NULL")
    (start,) = rows(own.cluster, "SELECT tenant_id, sequence, stragglers, dropped FROM audit_starts")
    (straggler,) = rows(
        own.cluster, "SELECT encode(hash, 'hex') FROM audit_events WHERE tenant_id = %s AND sequence = 4", tenant
    )
    assert start == (tenant, 5, {"4": straggler[0]}, ["2026-05"])
    found = verified(own.server.operator())
    assert [name for name, each in found.items() if not each.intact] == []
    assert (found[tenant].first_sequence, found[tenant].last_sequence, found[tenant].checked_count) == (6, 11, 7)
    assert (found[tenant].checkpoint_count, found[tenant].last_checkpoint_sequence) == (2, 11)

    (recorded,) = [event for event in events(own.cluster, "platform") if event["verb"] == "retention"]
    assert (recorded["actor"], recorded["outcome"]) == ("owner", "ALLOWED")
    assert recorded["details"] == {
        "month": "2026-05",
        "partition": "audit_events_2026_05",
        "events": 4,
        "tenants": 1,
    }
    forced = (
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'audit_%%' AND relrowsecurity AND NOT relforcerowsecurity"
    )
    assert value(own.cluster, forced) == 0


def test_several_months_are_dropped_one_after_the_other(own: Signing) -> None:
    tenant = used(own)
    assert [month.month for month in retained(own, date(2026, 7, 1))] == ["2026-05", "2026-06"]
    assert sequences(own, tenant) == [8, 10, 11]
    (start,) = rows(own.cluster, "SELECT sequence, stragglers, dropped FROM audit_starts")
    assert (start[0], list(start[1]), start[2]) == (9, ["8"], ["2026-05", "2026-06"])
    assert verified(own.server.operator(), tenant)[tenant].intact
    assert retained(own, date(2026, 7, 1)) == []


def test_a_chain_whose_events_have_all_gone_begins_where_it_ended(own: Signing) -> None:
    tenant = own.server.tenant().name
    Writer(own.server.database).write(tenant, MAY, MAY)
    own.checkpointer.poll(last=True)
    retained(own, date(2026, 6, 1))
    found = verified(own.server.operator(), tenant)[tenant]
    assert (found.intact, found.first_sequence, found.last_sequence, found.checked_count) == (True, 3, 2, 0)
    Writer(own.server.database).write(tenant, JULY)
    found = verified(own.server.operator(), tenant)[tenant]
    assert (found.intact, found.first_sequence, found.last_sequence, found.checked_count) == (True, 3, 3, 1)


def test_what_goes_last_of_a_month_may_lie_before_what_has_gone(own: Signing) -> None:
    tenant = own.server.tenant().name
    Writer(own.server.database).write(tenant, MAY, JUNE, MAY, JULY)
    retained(own, date(2026, 7, 1))
    (start,) = rows(own.cluster, "SELECT sequence, stragglers FROM audit_starts")
    assert start == (3, {})
    assert verified(own.server.operator(), tenant)[tenant].intact


def test_the_default_partition_stays_and_its_events_are_stragglers(own: Signing) -> None:
    tenant = own.server.tenant().name
    Writer(own.server.database).write(tenant, datetime(2020, 1, 1, tzinfo=UTC), MAY, JULY)
    assert [month.month for month in retained(own, date(2026, 6, 1))] == ["2026-05"]
    assert sequences(own, tenant) == [1, 3]
    assert verified(own.server.operator(), tenant)[tenant].intact


def test_nothing_is_dropped_of_an_audit_that_is_not_intact(own: Signing) -> None:
    tenant = used(own)
    change(own.cluster, "UPDATE audit_events SET reason = 'x' WHERE tenant_id = %s AND sequence = 10", tenant)
    with pytest.raises(ChainsNotIntactError, match=f"tenant '{tenant}': The column reason of event 10 is not what"):
        retained(own, date(2026, 6, 1))
    assert len(sequences(own, tenant)) == 11


@pytest.mark.parametrize(
    ("edit", "first_bad"),
    [
        ("UPDATE audit_starts SET sequence = 6 WHERE tenant_id = %s", 6),
        ("UPDATE audit_starts SET stragglers = '{}' WHERE tenant_id = %s", 6),
        ("UPDATE audit_starts SET hash = sha256('x') WHERE tenant_id = %s", 6),
        ("DELETE FROM audit_starts WHERE tenant_id = %s", 1),
        ("DELETE FROM audit_events WHERE tenant_id = %s AND sequence = 4", 4),
        ("UPDATE audit_events SET reason = 'x' WHERE tenant_id = %s AND sequence = 4", 4),
        ("UPDATE audit_events SET sequence = 3 WHERE tenant_id = %s AND sequence = 4", 3),
        ("DELETE FROM audit_events WHERE tenant_id = %s AND sequence = 6", 6),
    ],
)
def test_what_is_done_to_a_start_is_found(own: Signing, edit: str, first_bad: int) -> None:
    tenant = used(own)
    retained(own, date(2026, 6, 1))
    assert change(own.cluster, edit, tenant) == 1
    found = verified(own.server.operator(), tenant)[tenant]
    assert (found.intact, found.first_bad_sequence) == (False, first_bad), found.problem


def test_a_chain_rewritten_from_its_start_on_is_found(own: Signing) -> None:
    tenant = used(own)
    retained(own, date(2026, 6, 1))
    with connect(own.cluster) as owner:
        owner.execute(
            "UPDATE audit_events SET event = replace(event, 'ALLOWED', 'REFUSED'), outcome = 'REFUSED'"
            " WHERE tenant_id = %s AND sequence = 6",
            [tenant],
        )
        start = value(own.cluster, "SELECT hash FROM audit_starts WHERE tenant_id = %s", tenant)
        owner.execute("UPDATE audit_events SET hash = %s WHERE tenant_id = %s AND sequence = 6", [start, tenant])
        rehash(owner, tenant, 7)
    found = verified(own.server.operator(), tenant)[tenant]
    assert (found.intact, found.first_bad_sequence) == (False, 6)


def test_starts_that_were_signed_and_then_not_made_say_nothing(own: Signing, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = used(own)

    class Crash(Exception):
        pass

    signs = CheckpointFile.append

    def crash(file: CheckpointFile, due: object) -> int:
        signs(file, due)  # type: ignore[arg-type]
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "append", crash)
        with pytest.raises(Crash):
            retained(own, date(2026, 6, 1))
    assert len(sequences(own, tenant)) == 11
    assert verified(own.server.operator(), tenant)[tenant].intact
    assert [month.month for month in retained(own, date(2026, 6, 1))] == ["2026-05"]
    assert verified(own.server.operator(), tenant)[tenant].intact


def test_an_owner_that_is_no_superuser_can_do_it_and_keeps_no_more_than_it_had(own: Signing) -> None:
    tenant = used(own)
    name = own.cluster.owner_url.rpartition("/")[2].partition("?")[0]
    role = sql.Identifier(name)
    with connect(own.cluster) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE").format(role))
        owner.execute(sql.SQL("GRANT substrate_operator TO {} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE").format(role))
        owned = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        for (table,) in owner.execute(owned).fetchall():
            owner.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(sql.Identifier(table), role))
        try:
            members = (
                "SELECT roleid::regrole::text, set_option FROM pg_auth_members"
                " WHERE member::regrole::text = %s ORDER BY 1"
            )
            before = rows(own.cluster, members, name)
            url = own.cluster.postgres.url(name, name)
            assert [month.month for month in retained(own, date(2026, 6, 1), url)] == ["2026-05"]
            assert rows(own.cluster, members, name) == before
            assert verified(own.server.operator(), tenant)[tenant].intact
        finally:
            owner.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(role))
            owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
            owner.execute(sql.SQL("DROP ROLE {}").format(role))


def test_while_somebody_reads_for_a_moment_all_others_go_on_writing(own: Signing) -> None:
    tenant, other = used(own), own.server.tenant()
    asks = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())"
    )
    invoke = {"agent": "doc-manager", "name": "doc/query"}
    with psycopg.connect(own.cluster.owner_url) as slow, ThreadPoolExecutor(1) as pool:
        slow.execute("SELECT 1 FROM audit_events LIMIT 1")
        dropping = pool.submit(retained, own, date(2026, 6, 1))
        wait_until(own.cluster, asks)
        answers = [other.runtime.call("SkillService.InvokeSkill", **invoke).decision_id for _ in range(20)]
        assert not dropping.done()
        slow.rollback()
        assert [month.month for month in dropping.result(timeout=30)] == ["2026-05"]
    assert [event["id"] for event in events(own.cluster, other.name)] == answers
    assert verified(own.server.operator(), tenant)[tenant].intact


def test_a_reader_that_takes_long_is_not_overrun(own: Signing) -> None:
    tenant = used(own)
    with psycopg.connect(own.cluster.owner_url) as slow:
        slow.execute("SELECT 1 FROM audit_events LIMIT 1")
        with pytest.raises(StoreUnavailable, match="nothing was dropped"):
            retained(own, date(2026, 6, 1))
        slow.rollback()
    assert len(sequences(own, tenant)) == 11
    assert [month.month for month in retained(own, date(2026, 6, 1))] == ["2026-05"]
