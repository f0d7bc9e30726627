"""Keys: what they are for, how long they are good, and that their secrets are shown once and kept nowhere."""

import hashlib
import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from substrate.api.v1 import tenants_pb2
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused
from tests.store.owner import connect, rows, value

ROLES = tenants_pb2.Role
LIST = {"agent": "doc-manager"}


@pytest.fixture(scope="module")
def operator(server: RunningServer) -> Client:
    return server.operator()


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster) as server:
        yield server


def _new_tenant(operator: Client) -> str:
    """Make a tenant and return its id."""
    return str(operator.call("TenantService.CreateTenant", tenant=f"keys-{secrets.token_hex(6)}").tenant.tenant)


def _issue(operator: Client, tenant: str, role: str = "ROLE_RUNTIME", **fields: object) -> Any:
    return operator.call("TenantService.IssueKey", tenant=tenant, role=role, **fields)


@pytest.mark.parametrize(
    ("tenant", "role"),
    [
        ("own", "ROLE_OPERATOR"),
        (PLATFORM_TENANT, "ROLE_AUTHOR"),
        (PLATFORM_TENANT, "ROLE_RUNTIME"),
        ("own", "ROLE_UNSPECIFIED"),
        ("own", 99),
    ],
)
def test_operators_keys_and_no_others_belong_to_the_platform(operator: Client, tenant: str, role: str | int) -> None:
    owner = _new_tenant(operator) if tenant == "own" else tenant
    failed = refused(operator, "TenantService.IssueKey", tenant=owner, role=role)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert failed.violations[0][0] == "role"


def test_a_key_does_what_its_role_says_and_no_more(operator: Client, server: RunningServer) -> None:
    tenant = _new_tenant(operator)
    runtime, author = (server.client(_issue(operator, tenant, role).secret) for role in ("ROLE_RUNTIME", "ROLE_AUTHOR"))
    for client in (runtime, author):
        assert client.call("SkillService.ListSkills", **LIST).total_size > 0
    author.call("AgentService.PutAgent", agent={"name": "helper"})
    assert refused(runtime, "AgentService.PutAgent", agent={"name": "other"}).reason == "ROLE_REQUIRED"
    another = server.client(_issue(operator, PLATFORM_TENANT, "ROLE_OPERATOR").secret)
    assert another.call("TenantService.ListKeys", tenant=tenant).keys
    bound = server.client(_issue(operator, tenant, agent="helper").secret)
    bound.call("SkillService.ListSkills")
    assert refused(bound, "SkillService.ListSkills", **LIST).reason == "ROLE_REQUIRED"


def test_an_issued_key_is_described_without_its_secret(operator: Client) -> None:
    tenant = _new_tenant(operator)
    expiry = datetime.now(UTC) + timedelta(days=1)
    made = _issue(operator, tenant, agent="doc-manager", label="CI ✓", expire_time=expiry)
    key = made.key
    assert (key.tenant, key.role, key.agent, key.label) == (tenant, ROLES.ROLE_RUNTIME, "doc-manager", "CI ✓")
    assert key.expire_time.ToDatetime(UTC) == expiry
    assert key.principal == key.key_id
    assert not key.HasField("revoke_time")
    assert made.secret.startswith(f"sub_{tenant}.{key.key_id}_")
    # 256 bits take 43 characters of base64.
    assert len(made.secret.removeprefix(f"sub_{tenant}.{key.key_id}_")) == 43
    assert list(operator.call("TenantService.ListKeys", tenant=tenant).keys) == [key]


def test_keys_are_listed_the_newest_first_with_revoked_ones(operator: Client) -> None:
    tenant = _new_tenant(operator)
    made = [_issue(operator, tenant, label=str(number)).key for number in range(5)]
    revoked = operator.call("TenantService.RevokeKey", tenant=tenant, key_id=made[2].key_id).key
    expected = [made[4], made[3], revoked, made[1], made[0]]
    for size in (1, 2, 1000):
        pages = operator.pages("TenantService.ListKeys", tenant=tenant, page_size=size)
        assert [key for page in pages for key in page.keys] == expected


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"agent": "Not A Slug"}, "INVALID_NAME", "agent"),
        ({"label": "x" * 257}, "INVALID_ARGUMENT", "label"),
        ({"label": "a\0b"}, "INVALID_ARGUMENT", "label"),
        ({"expire_time": datetime(2001, 1, 1, tzinfo=UTC)}, "INVALID_ARGUMENT", "expire_time"),
    ],
)
def test_a_key_with_odd_fields_is_refused(
    cluster: Cluster, operator: Client, fields: dict[str, object], reason: str, field: str
) -> None:
    tenant = _new_tenant(operator)
    failed = refused(operator, "TenantService.IssueKey", tenant=tenant, role="ROLE_RUNTIME", **fields)
    assert (failed.code, failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", reason, field)
    assert rows(cluster, "SELECT * FROM keys WHERE tenant_id = %s", tenant) == []


def test_an_operators_key_acts_for_no_agent(operator: Client) -> None:
    fields = {"tenant": PLATFORM_TENANT, "role": "ROLE_OPERATOR", "agent": "doc-manager"}
    failed = refused(operator, "TenantService.IssueKey", **fields)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "agent")


def test_a_key_is_bound_to_an_agent_that_is_defined(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    failed = refused(operator, "TenantService.IssueKey", tenant=tenant.name, role="ROLE_RUNTIME", agent="helper")
    assert (failed.code, failed.reason, failed.metadata["agent"]) == ("NOT_FOUND", "AGENT_NOT_FOUND", "helper")
    assert rows(cluster, "SELECT * FROM keys WHERE tenant_id = %s AND agent IS NOT NULL", tenant.name) == []
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper"})
    for agent in ("helper", "doc-manager"):
        assert _issue(operator, tenant.name, agent=agent).key.agent == agent


def test_revocation_takes_effect_on_the_next_call_on_every_server(
    operator: Client, server: RunningServer, second: RunningServer
) -> None:
    tenant = _new_tenant(operator)
    made = _issue(operator, tenant)
    clients = [server.client(made.secret), second.client(made.secret)]
    for client in clients:
        client.call("SkillService.ListSkills", **LIST)
    revoked = operator.call("TenantService.RevokeKey", tenant=tenant, key_id=made.key.key_id).key
    assert revoked.HasField("revoke_time")
    for client in clients:
        assert refused(client, "SkillService.ListSkills", **LIST).code == "UNAUTHENTICATED"
    again = operator.call("TenantService.RevokeKey", tenant=tenant, key_id=made.key.key_id).key
    assert again == revoked


def test_a_secret_is_kept_nowhere_but_as_a_hash(cluster: Cluster, operator: Client, server: RunningServer) -> None:
    tenant = _new_tenant(operator)
    structlog.reset_defaults()
    with capture_logs() as lines:
        made = _issue(operator, tenant, "ROLE_AUTHOR")
        secret = made.secret.removeprefix(f"sub_{tenant}.{made.key.key_id}_")
        client = server.client(made.secret)
        client.call("SkillDefService.ListSkillDefs")
        client.call("SkillService.InvokeSkill", **LIST, name="doc/query")
        refused(client, "SkillService.InvokeSkill", **LIST, name="own/x")
        refused(server.client(made.secret + "x"), "SkillService.ListSkills", **LIST)
        operator.call("TenantService.ListKeys", tenant=tenant)
        operator.call("TenantService.RevokeKey", tenant=tenant, key_id=made.key.key_id)
        refused(client, "SkillService.ListSkills", **LIST)
    assert len(lines) >= 8
    told = json.dumps(lines, default=str)
    assert made.key.key_id in told
    assert secret not in told
    stored = value(
        cluster, "SELECT secret_sha256 FROM keys WHERE (tenant_id, key_id) = (%s, %s)", tenant, made.key.key_id
    )
    assert stored == hashlib.sha256(secret.encode()).digest()
    with connect(cluster) as owner:
        tables = owner.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        )
        for (table,) in tables.fetchall():
            found = owner.execute(f"SELECT count(*) FROM {table} AS t WHERE t::text LIKE %s", [f"%{secret}%"])  # noqa: S608 - a name from the catalog.
            assert found.fetchone() == (0,), table
