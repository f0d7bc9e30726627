"""Keys that take the place of others, who uses them, and when they were last used."""

import hashlib
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.rpc.client import Client
from substrate.services.keys import new_key
from substrate.store import tenants
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events, faults
from tests.store.owner import rows, value

LIST = {"agent": "doc-manager"}
HOUR = timedelta(hours=1)
ROTATE = "TenantService.RotateKey"


@pytest.fixture(scope="module")
def operator(server: RunningServer) -> Client:
    return server.operator()


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster) as server:
        yield server


def _issue(operator: Client, tenant: str, role: str = "ROLE_RUNTIME", **fields: object) -> Any:
    return operator.call("TenantService.IssueKey", tenant=tenant, role=role, **fields)


def _listed(operator: Client, tenant: str, key_id: str) -> Any:
    keys = operator.call("TenantService.ListKeys", tenant=tenant).keys
    return next(key for key in keys if key.key_id == key_id)


def test_the_old_and_the_new_key_are_both_accepted_for_a_day(
    operator: Client, tenant: TestTenant, second: RunningServer
) -> None:
    fields = {"agent": "doc-manager", "label": "CI", "principal": "ada"}
    old = _issue(operator, tenant.name, **fields)
    before = datetime.now(UTC)
    made = operator.call(ROTATE, tenant=tenant.name, key_id=old.key.key_id)
    after = datetime.now(UTC)
    new = made.key
    assert (new.tenant, new.role, new.agent, new.label, new.principal) == (
        tenant.name,
        old.key.role,
        "doc-manager",
        "CI",
        "ada",
    )
    assert new.key_id != old.key.key_id
    assert not new.HasField("expire_time")
    assert made.secret.startswith(f"sub_{tenant.name}.{new.key_id}_")
    assert made.replaced.key_id == old.key.key_id
    assert before + 24 * HOUR <= made.replaced.expire_time.ToDatetime(UTC) <= after + 24 * HOUR
    assert list(operator.call("TenantService.ListKeys", tenant=tenant.name).keys)[:2] == [new, made.replaced]
    for server in (tenant.server, second):
        for secret in (old.secret, made.secret):
            assert server.client(secret).call("SkillService.ListSkills").total_size == 9


def test_without_an_overlap_the_old_key_ends_at_once(
    operator: Client, tenant: TestTenant, second: RunningServer
) -> None:
    old = _issue(operator, tenant.name)
    clients = [server.client(old.secret) for server in (tenant.server, second)]
    for client in clients:
        client.call("SkillService.ListSkills", **LIST)
    made = operator.call(ROTATE, tenant=tenant.name, key_id=old.key.key_id, overlap=timedelta())
    for client in clients:
        assert refused(client, "SkillService.ListSkills", **LIST).reason == "UNAUTHENTICATED"
    for server in (tenant.server, second):
        assert server.client(made.secret).call("SkillService.ListSkills", **LIST).total_size == 9


def test_a_key_that_expires_sooner_is_not_kept_longer(operator: Client, tenant: TestTenant) -> None:
    soon = datetime.now(UTC) + HOUR
    later = datetime.now(UTC) + timedelta(days=30)
    old = _issue(operator, tenant.name, expire_time=soon)
    made = operator.call(ROTATE, tenant=tenant.name, key_id=old.key.key_id, expire_time=later)
    assert made.replaced.expire_time.ToDatetime(UTC) == soon
    assert made.key.expire_time.ToDatetime(UTC) == later
    again = operator.call(ROTATE, tenant=tenant.name, key_id=made.key.key_id, overlap=timedelta(days=90))
    assert again.replaced.expire_time.ToDatetime(UTC) == later
    # Nor does a second rotation give a key that is on its way out more time.
    other = operator.call(ROTATE, tenant=tenant.name, key_id=old.key.key_id, overlap=2 * HOUR)
    assert other.replaced.expire_time.ToDatetime(UTC) == soon


def test_keys_that_are_not_live_cannot_be_rotated(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    revoked = _issue(operator, tenant.name).key.key_id
    operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=revoked)
    now = datetime.now(UTC)
    expired, _ = new_key(TenantId(tenant.name), Role.RUNTIME, now - 2 * HOUR, expires_at=now - HOUR)
    with tenant.server.database.operator() as connection:
        tenants.bump(connection, expired.tenant)
        tenants.add_key(connection, expired, "test")
    other = _issue(operator, tenant.server.tenant().name).key.key_id
    before = rows(cluster, "SELECT * FROM keys WHERE tenant_id = %s ORDER BY key_id", tenant.name)
    for key_id in (revoked, expired.key_id, other, "absent"):
        failed = refused(operator, ROTATE, tenant=tenant.name, key_id=key_id)
        assert (failed.code, failed.reason) == ("NOT_FOUND", "KEY_NOT_FOUND")
        assert (failed.metadata["tenant"], failed.metadata["key_id"]) == (tenant.name, key_id)
    assert rows(cluster, "SELECT * FROM keys WHERE tenant_id = %s ORDER BY key_id", tenant.name) == before


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"overlap": timedelta(seconds=-1)}, "overlap"),
        ({"overlap": timedelta(days=90, seconds=1)}, "overlap"),
        ({"overlap": {"seconds": 2**62}}, "overlap"),
        ({"overlap": {"seconds": -(2**63), "nanos": 2**31 - 1}}, "overlap"),
        ({"expire_time": datetime(2001, 1, 1, tzinfo=UTC)}, "expire_time"),
        ({"key_id": "Not A Slug"}, "key_id"),
        ({"key_id": ""}, "key_id"),
    ],
)
def test_a_rotation_with_odd_fields_is_refused(
    cluster: Cluster, operator: Client, tenant: TestTenant, fields: dict[str, object], field: str
) -> None:
    key_id = _issue(operator, tenant.name).key.key_id
    before = rows(cluster, "SELECT * FROM keys WHERE tenant_id = %s ORDER BY key_id", tenant.name)
    failed = refused(operator, ROTATE, **{"tenant": tenant.name, "key_id": key_id, **fields})
    assert (failed.code, failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", field)
    assert rows(cluster, "SELECT * FROM keys WHERE tenant_id = %s ORDER BY key_id", tenant.name) == before


def test_an_operator_can_rotate_its_own_key(operator: Client, server: RunningServer) -> None:
    own = _issue(operator, PLATFORM_TENANT, "ROLE_OPERATOR")
    made = server.client(own.secret).call(ROTATE, tenant=PLATFORM_TENANT, key_id=own.key.key_id, overlap=timedelta())
    assert refused(server.client(own.secret), "TenantService.ListTenants").reason == "UNAUTHENTICATED"
    assert server.client(made.secret).call("TenantService.ListTenants").tenants


def test_a_rotation_is_recorded_and_its_secret_is_not(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    old = _issue(operator, tenant.name, principal="ada").key
    made = operator.call(ROTATE, tenant=tenant.name, key_id=old.key_id, overlap=HOUR)
    event = events(cluster, tenant.name)[-1]
    assert (event["id"], event["verb"], event["outcome"]) == (made.decision_id, "rotate_key", "ALLOWED")
    details = event["details"]
    assert (details["key_id"], details["replaces"], details["overlap_seconds"]) == (
        made.key.key_id,
        [old.key_id],
        3600,
    )
    assert details["principal"] == "ada"
    assert faults(cluster, tenant.name) == []
    secret = made.secret.removeprefix(f"sub_{tenant.name}.{made.key.key_id}_")
    assert len(secret) == 43
    stored = value(cluster, "SELECT secret_sha256 FROM keys WHERE key_id = %s", made.key.key_id)
    assert stored == hashlib.sha256(secret.encode()).digest()
    for table in ("keys", "audit_events", "requests", "tenants"):
        assert value(cluster, f"SELECT count(*) FROM {table} AS t WHERE t::text LIKE %s", f"%{secret}%") == 0, table  # noqa: S608 - constants.


def test_who_uses_a_key_is_what_versions_record(operator: Client, tenant: TestTenant) -> None:
    name = f"own/{secrets.token_hex(4)}"
    ada = _issue(operator, tenant.name, "ROLE_AUTHOR", principal="ada")
    rotated = operator.call(ROTATE, tenant=tenant.name, key_id=ada.key.key_id)
    plain = _issue(operator, tenant.name, "ROLE_AUTHOR")
    assert (ada.key.principal, plain.key.principal) == ("ada", plain.key.key_id)
    for number, (secret, author) in enumerate(
        ((ada.secret, "ada"), (rotated.secret, "ada"), (plain.secret, plain.key.key_id))
    ):
        made = tenant.server.client(secret).call(
            "SkillDefService.CreateSkillDef", name=f"{name}-{number}", source=skill_md(f"{name[4:]}-{number}")
        )
        assert made.version.created_by == author


@pytest.mark.parametrize("principal", ["Ada", "a b", "ada@example.org", "-", "a" * 65, "a\0"])
def test_a_principal_is_a_slug(operator: Client, tenant: TestTenant, principal: str) -> None:
    failed = refused(operator, "TenantService.IssueKey", tenant=tenant.name, role="ROLE_AUTHOR", principal=principal)
    assert (failed.code, failed.violations[0][0]) == ("INVALID_ARGUMENT", "principal")


def test_a_key_tells_when_it_was_last_used(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    made, other = _issue(operator, tenant.name, "ROLE_AUTHOR"), _issue(operator, tenant.name)
    key_id = made.key.key_id
    assert not _listed(operator, tenant.name, key_id).HasField("last_use_time")
    client = tenant.server.client(made.secret)
    newest = "SELECT max(occurred_at) FROM audit_events WHERE tenant_id = %s AND actor = %s"
    actor = f"author:{tenant.name}.{key_id}"
    seen = []
    for method, fields, reason in (
        ("AgentService.PutAgent", {"agent": {"name": "first"}}, ""),
        ("SkillService.InvokeSkill", {"agent": "nobody", "name": "doc/query"}, "AGENT_NOT_FOUND"),
        ("AgentService.PutAgent", {"agent": {"name": "own"}}, ""),
    ):
        if reason:
            assert refused(client, method, **fields).reason == reason
        else:
            client.call(method, **fields)
        used = _listed(operator, tenant.name, key_id).last_use_time.ToDatetime(UTC)
        assert used == value(cluster, newest, tenant.name, actor)
        seen.append(used)
    assert sorted(set(seen)) == seen
    assert not _listed(operator, tenant.name, other.key.key_id).HasField("last_use_time")
    pages = operator.pages("TenantService.ListKeys", tenant=tenant.name, page_size=1)
    assert [key.HasField("last_use_time") for page in pages for key in page.keys][:2] == [False, True]
