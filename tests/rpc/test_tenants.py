"""Operators make tenants, and each call about one is in that tenant's log."""

import secrets
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from substrate.api.v1 import tenants_pb2
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused
from tests.store.chain import events, faults
from tests.store.owner import rows, value

ROLES = tenants_pb2.Role
LIST = {"agent": "doc-manager"}
NAMING_A_TENANT: list[tuple[str, dict[str, Any]]] = [
    ("SetTenantSuspended", {"suspended": True}),
    ("GetQuotas", {}),
    ("SetQuotas", {"quotas": {"skills": 1}}),
    ("IssueKey", {"role": "ROLE_RUNTIME"}),
    ("RevokeKey", {"key_id": "a"}),
    ("RotateKey", {"key_id": "a"}),
    ("ListKeys", {}),
]


@pytest.fixture(scope="module")
def operator(server: RunningServer) -> Client:
    return server.operator()


def _new_tenant(operator: Client, **fields: object) -> Any:
    return operator.call("TenantService.CreateTenant", tenant=f"made-{secrets.token_hex(6)}", **fields)


def _issue(operator: Client, tenant: str, role: str = "ROLE_RUNTIME", **fields: object) -> Any:
    return operator.call("TenantService.IssueKey", tenant=tenant, role=role, **fields)


def test_a_new_tenant_is_empty_and_sees_what_all_see(cluster: Cluster, operator: Client, server: RunningServer) -> None:
    made = _new_tenant(operator, display_name="Made ✓")
    tenant = made.tenant
    assert (tenant.display_name, tenant.catalog_revision) == ("Made ✓", 1)
    assert abs(tenant.create_time.ToDatetime(UTC) - datetime.now(UTC)) < timedelta(minutes=1)
    assert list(operator.call("TenantService.ListKeys", tenant=tenant.tenant).keys) == []
    author = server.client(_issue(operator, tenant.tenant, "ROLE_AUTHOR").secret)
    assert author.call("SkillDefService.ListSkillDefs").total_size == 0
    assert author.call("SkillDefService.ListCatalog").total_size == len(server.app.snapshots.static.catalog.resolutions)
    (created, *_) = events(cluster, tenant.tenant)
    assert (created["id"], created["verb"], created["outcome"]) == (made.decision_id, "create_tenant", "ALLOWED")
    assert created["actor"].startswith(f"operator:{PLATFORM_TENANT}.")
    assert faults(cluster, tenant.tenant) == []


def test_a_tenants_id_is_taken_once(cluster: Cluster, operator: Client) -> None:
    tenant = _new_tenant(operator, display_name="First").tenant.tenant
    for taken in (tenant, PLATFORM_TENANT):
        before = rows(cluster, "SELECT * FROM tenants WHERE tenant_id = %s", taken)
        failed = refused(operator, "TenantService.CreateTenant", tenant=taken, display_name="Second")
        assert (failed.code, failed.reason, failed.metadata["tenant"]) == ("ALREADY_EXISTS", "TENANT_EXISTS", taken)
        assert rows(cluster, "SELECT * FROM tenants WHERE tenant_id = %s", taken) == before


@pytest.mark.parametrize("tenant", ["", "A", "a_b", "a.b", "a/b", "-a", "a" * 41, "a\0", "ä"])
def test_a_tenants_id_is_a_short_slug(cluster: Cluster, operator: Client, tenant: str) -> None:
    before = value(cluster, "SELECT count(*) FROM tenants")
    for method, fields in (
        ("CreateTenant", {}),
        *NAMING_A_TENANT,
    ):
        failed = refused(operator, f"TenantService.{method}", tenant=tenant, **fields)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_NAME")
        assert failed.violations[0][0] == "tenant"
    assert value(cluster, "SELECT count(*) FROM tenants") == before


def test_tenants_are_listed_in_pages_sorted_by_id(cluster: Cluster, operator: Client) -> None:
    made = [_new_tenant(operator).tenant for _ in range(3)]
    names = [name for (name,) in rows(cluster, 'SELECT tenant_id FROM tenants ORDER BY tenant_id COLLATE "C"')]
    for size in (7, 1000):
        listed = [t for page in operator.pages("TenantService.ListTenants", page_size=size) for t in page.tenants]
        assert [tenant.tenant for tenant in listed] == names
        assert all(tenant in listed for tenant in made)
    assert refused(operator, "TenantService.ListTenants", page_size=-1).violations[0][0] == "page_size"


def test_only_operators_manage_tenants_and_keys(cluster: Cluster, tenant: TestTenant) -> None:
    before = rows(cluster, "SELECT tenant_id, count(*) FROM keys GROUP BY 1 ORDER BY 1")
    for client in (tenant.author, tenant.runtime):
        for method, fields in (
            ("CreateTenant", {"tenant": "brand-new"}),
            ("ListTenants", {}),
            *((method, {"tenant": tenant.name} | fields) for method, fields in NAMING_A_TENANT),
        ):
            failed = refused(client, f"TenantService.{method}", **fields)
            assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
            assert failed.metadata["roles"] == "operator"
            event = events(cluster, tenant.name)[-1]
            assert (event["id"], event["outcome"], event["reason"]) == (failed.decision_id, "REFUSED", "ROLE_REQUIRED")
    assert rows(cluster, "SELECT tenant_id, count(*) FROM keys GROUP BY 1 ORDER BY 1") == before
    assert rows(cluster, "SELECT * FROM tenants WHERE tenant_id = 'brand-new'") == []


def test_an_operators_key_is_for_operating_alone(operator: Client) -> None:
    for method, fields in (
        ("SkillService.ListSkills", LIST),
        ("SkillService.InvokeSkill", {**LIST, "name": "doc/query"}),
        ("SkillDefService.ListSkillDefs", {}),
        ("SkillDefService.CreateSkillDef", {"name": "a", "source": "x"}),
        ("AgentService.PutAgent", {"agent": {"name": "a"}}),
        ("AgentService.ListAgents", {}),
    ):
        assert refused(operator, method, **fields).reason == "ROLE_REQUIRED"


def test_what_names_nobody_is_not_found_and_recorded_by_the_platform(cluster: Cluster, operator: Client) -> None:
    for method, fields in NAMING_A_TENANT:
        failed = refused(operator, f"TenantService.{method}", tenant="nobody-here", **fields)
        assert (failed.code, failed.reason, failed.metadata["tenant"]) == (
            "NOT_FOUND",
            "TENANT_NOT_FOUND",
            "nobody-here",
        )
        event = events(cluster, PLATFORM_TENANT)[-1]
        assert (event["id"], event["reason"]) == (failed.decision_id, "TENANT_NOT_FOUND")


def test_every_call_about_a_tenant_is_in_that_tenants_log(cluster: Cluster, operator: Client) -> None:
    tenant = _new_tenant(operator).tenant.tenant
    key = _issue(operator, tenant, label="one").key
    operator.call("TenantService.ListKeys", tenant=tenant)
    operator.call("TenantService.GetQuotas", tenant=tenant)
    operator.call("TenantService.SetQuotas", tenant=tenant)
    operator.call("TenantService.SetTenantSuspended", tenant=tenant, suspended=True)
    operator.call("TenantService.SetTenantSuspended", tenant=tenant)
    operator.call("TenantService.RotateKey", tenant=tenant, key_id=key.key_id)
    operator.call("TenantService.RevokeKey", tenant=tenant, key_id=key.key_id)
    failed = refused(operator, "TenantService.RevokeKey", tenant=tenant, key_id="unknown")
    assert (failed.code, failed.reason) == ("NOT_FOUND", "KEY_NOT_FOUND")
    assert (failed.metadata["tenant"], failed.metadata["key_id"]) == (tenant, "unknown")
    recorded = events(cluster, tenant)
    assert [(event["verb"], event.get("reason", "")) for event in recorded] == [
        ("create_tenant", ""),
        ("issue_key", ""),
        ("list_keys", ""),
        ("get_quotas", ""),
        ("set_quotas", ""),
        ("suspend_tenant", ""),
        ("resume_tenant", ""),
        ("rotate_key", ""),
        ("revoke_key", ""),
        ("revoke_key", "KEY_NOT_FOUND"),
    ]
    assert recorded[1]["details"]["key_id"] == recorded[-2]["details"]["key_id"] == key.key_id
    assert recorded[-1]["id"] == failed.decision_id
    assert faults(cluster, tenant) == []
    platform = [event["id"] for event in events(cluster, PLATFORM_TENANT)]
    assert not {event["id"] for event in recorded} & set(platform)


def test_a_change_that_is_sent_again_is_made_once(cluster: Cluster, operator: Client) -> None:
    tenant = f"made-{secrets.token_hex(6)}"
    changes: list[tuple[str, dict[str, Any]]] = [
        ("CreateTenant", {"display_name": "Once"}),
        ("SetTenantSuspended", {"suspended": True, "reason": "why"}),
        ("SetQuotas", {"quotas": {"skills": 5}}),
        ("RevokeKey", {"key_id": ""}),
    ]
    for method, fields in changes:
        if "key_id" in fields:
            fields["key_id"] = _issue(operator, tenant).key.key_id
        request_id = str(uuid.uuid4())
        asked = {"tenant": tenant, **fields, "request_id": request_id}
        first = operator.call(f"TenantService.{method}", **asked)
        recorded = len(events(cluster, tenant))
        again = operator.call(f"TenantService.{method}", **asked)
        assert again.SerializeToString() == first.SerializeToString(), method
        # A repeated change stands in the log of its tenant as such; one that made the tenant in that of the operators.
        told = [event["details"] for event in events(cluster, tenant)[recorded:]]
        assert told == ([] if method == "CreateTenant" else [{"repeats": True}])
        other = refused(operator, f"TenantService.{method}", **{**asked, "tenant": PLATFORM_TENANT})
        assert (other.code, other.violations[0][0]) == (
            "INVALID_ARGUMENT",
            "tenant" if "Suspended" in method else "request_id",
        )
        malformed = refused(operator, f"TenantService.{method}", **{**asked, "request_id": "again"})
        assert (malformed.code, malformed.violations[0][0]) == ("INVALID_ARGUMENT", "request_id")
    assert faults(cluster, tenant) == []
