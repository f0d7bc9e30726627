"""`VerifyAudit` over gRPC: who may ask about which chains, and what comes while it works."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from substrate.domain.chain import Point, Start
from substrate.domain.checkpoints import Checkpoint
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import CallFailed, Client
from substrate.services import verification
from substrate.store import audit_chain
from tests.servers import Cluster
from tests.store.chain import events, faults
from tests.store.owner import change, value
from tests.store.tampering import Signing, signing, verified

VERIFY = "AuditService.VerifyAudit"


@pytest.fixture(scope="module")
def signed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    with signing(cluster, tmp_path_factory.mktemp("data")) as running:
        yield running


def refused_stream(client: Client, **fields: object) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        list(client.stream(VERIFY, timeout=20, **fields))
    return failed.value


def test_an_author_verifies_its_own_chain(signed: Signing, cluster: Cluster) -> None:
    tenant = signed.used(3, 5)
    (answer,) = tenant.author.stream(VERIFY, timeout=60)
    # The verification itself is the last event by then.
    assert (answer.tenant, answer.done, answer.intact, answer.problem) == (tenant.name, True, True, "")
    assert (answer.checked_count, answer.first_sequence, answer.last_sequence) == (6, 1, 6)
    assert (answer.checkpoint_count, answer.last_checkpoint_sequence) == (1, 3)
    recorded = events(cluster, tenant.name)[-1]
    assert (recorded["id"], recorded["verb"], recorded["outcome"]) == (answer.decision_id, "verify_audit", "ALLOWED")
    assert faults(cluster, tenant.name) == []
    assert verified(tenant.author, tenant.name)[tenant.name].intact


def test_an_operator_verifies_one_chain_or_all(signed: Signing, cluster: Cluster) -> None:
    tenant, other = signed.used(2), signed.used(4)
    operator = signed.server.operator()
    found = verified(operator, tenant.name)
    assert list(found) == [tenant.name]
    recorded = events(cluster, PLATFORM_TENANT)[-1]
    assert (recorded["id"], recorded["details"]) == (found[tenant.name].decision_id, {"tenant": tenant.name})
    everything = verified(operator)
    assert {tenant.name, other.name, PLATFORM_TENANT} <= set(everything)
    assert list(everything) == sorted(everything)
    assert everything[other.name].intact
    assert len({message.decision_id for message in everything.values()}) == 1


def test_a_tenant_without_events_has_an_intact_chain(signed: Signing) -> None:
    tenant = signed.server.tenant()
    found = verified(signed.server.operator(), tenant.name)[tenant.name]
    assert (found.intact, found.checked_count, found.last_sequence) == (True, 0, 0)


def test_who_may_not_ask_is_refused(signed: Signing, cluster: Cluster) -> None:
    tenant, other = signed.used(1), signed.used(1)
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper"})
    assert refused_stream(tenant.runtime).reason == "ROLE_REQUIRED"
    assert refused_stream(tenant.bound(Role.AUTHOR, "helper")).reason == "ROLE_REQUIRED"
    failed = refused_stream(tenant.author, tenant=other.name)
    assert (failed.code, failed.reason) == ("NOT_FOUND", "TENANT_NOT_FOUND")
    assert refused_stream(signed.server.operator(), tenant="nobody").reason == "TENANT_NOT_FOUND"
    assert refused_stream(signed.server.operator(), tenant="No Body").reason == "INVALID_NAME"
    recorded = events(cluster, tenant.name)[-1]
    assert (recorded["id"], recorded["verb"], recorded["reason"]) == (
        failed.decision_id,
        "verify_audit",
        "TENANT_NOT_FOUND",
    )


def test_messages_come_while_it_works(signed: Signing, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = signed.used(9)
    monkeypatch.setattr(verification, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(verification, "TELL_SECONDS", 0.0)
    answers = list(tenant.author.stream(VERIFY, timeout=60))
    assert [(answer.checked_count, answer.done, answer.intact) for answer in answers] == [
        (4, False, False),
        (8, False, False),
        (10, True, True),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_twins_are_found_wherever_the_reading_pauses(
    signed: Signing, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    tenant = signed.used(5)
    monkeypatch.setattr(verification, "ROWS_AT_ONCE", at_once)
    change(
        cluster,
        "INSERT INTO audit_events SELECT * FROM (SELECT (jsonb_populate_record(e, jsonb_build_object("
        "'event_id', gen_random_uuid()))).* FROM audit_events AS e WHERE tenant_id = %s AND sequence = 3) AS twin",
        tenant.name,
    )
    found = verified(signed.server.operator(), tenant.name)[tenant.name]
    assert (found.intact, found.first_bad_sequence) == (False, 3)


def test_a_chain_that_grows_meanwhile_is_intact(
    signed: Signing, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = signed.used(3)
    monkeypatch.setattr(verification, "ROWS_AT_ONCE", 1)
    read = audit_chain.rows

    def rows(*arguments: Any) -> Any:
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
        signed.checkpointer.poll(last=True)
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(audit_chain, "rows", rows)
        found = verified(signed.server.operator(), tenant.name)[tenant.name]
    assert (found.intact, found.last_sequence) == (True, 3)
    assert value(cluster, "SELECT count(*) > 5 FROM audit_events WHERE tenant_id = %s", tenant.name)


def test_a_month_that_is_dropped_meanwhile_is_no_fault(
    signed: Signing, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = signed.used(6)
    read = audit_chain.rows
    dropped: list[bool] = []

    def rows(*arguments: Any) -> Any:
        if not dropped:
            dropped.append(True)
            digest = value(cluster, "SELECT hash FROM audit_events WHERE tenant_id = %s AND sequence = 2", tenant.name)
            start = Start(Point(2, digest))
            line = Checkpoint(tenant.name, start.point, datetime.now(UTC), start)
            signed.checkpointer._file.append(lambda _: [line])
            change(cluster, "INSERT INTO audit_starts VALUES (%s, 2, %s, '{}', '{}', now())", tenant.name, digest)
            change(cluster, "DELETE FROM audit_events WHERE tenant_id = %s AND sequence <= 2", tenant.name)
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(audit_chain, "rows", rows)
        found = verified(signed.server.operator(), tenant.name)[tenant.name]
    assert (found.intact, found.first_sequence, found.checked_count, found.checkpoint_count) == (True, 3, 4, 1)


def test_a_key_that_is_revoked_meanwhile_ends_it(signed: Signing, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = signed.used(6)
    monkeypatch.setattr(verification, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(verification, "TELL_SECONDS", 0.0)
    key = signed.server.key(tenant.name, Role.AUTHOR)
    read, go_on = audit_chain.rows, threading.Event()

    def rows(*arguments: Any) -> Any:
        if arguments[2] == 3:
            assert go_on.wait(20)
        return read(*arguments)

    monkeypatch.setattr(audit_chain, "rows", rows)
    answers = signed.server.client(key).stream(VERIFY, timeout=60)
    assert not next(answers).done
    signed.server.operator().call(
        "TenantService.RevokeKey", tenant=tenant.name, key_id=key.partition(".")[2].partition("_")[0]
    )
    go_on.set()
    with pytest.raises(CallFailed) as failed:
        list(answers)
    assert failed.value.code == "UNAUTHENTICATED"


def test_a_database_that_goes_away_is_no_bad_audit(
    signed: Signing, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = signed.used(2)
    read = audit_chain.rows

    def rows(connection: Any, *arguments: Any) -> Any:
        process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        assert value(cluster, "SELECT pg_terminate_backend(%s, 10000)", process)
        return read(connection, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(audit_chain, "rows", rows)
        failed = refused_stream(tenant.author)
    assert (failed.code, failed.reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
    assert verified(tenant.author)[tenant.name].intact
