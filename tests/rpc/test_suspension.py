"""A suspended tenant: none of its keys does anything, nobody else notices, and nothing of it is lost."""

from collections.abc import Iterator

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from tests.rpc.wire import METHODS
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events, faults
from tests.store.owner import rows

TENANTS_METHODS = sorted(method for method in METHODS if not method.startswith("TenantService."))
SUSPEND = "TenantService.SetTenantSuspended"
LIST = {"agent": "doc-manager"}


@pytest.fixture(scope="module")
def operator(server: RunningServer) -> Client:
    return server.operator()


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster) as server:
        yield server


def _data(cluster: Cluster, tenant: str) -> dict[str, list[tuple[object, ...]]]:
    """Return all that is stored of the tenant, but for its own row and its log."""
    tables = ("skill_defs", "skill_def_versions", "disabled_names", "agents", "keys")
    return {
        table: rows(cluster, f"SELECT * FROM {table} WHERE tenant_id = %s ORDER BY ctid", tenant)  # noqa: S608 - constants.
        for table in tables
    }


def test_every_call_of_its_keys_is_refused_by_name(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    clients = [tenant.author, tenant.runtime, tenant.bound(Role.AUTHOR, "doc-manager")]
    operator.call(SUSPEND, tenant=tenant.name, suspended=True, reason="unpaid since May ✓")
    before = _data(cluster, tenant.name)
    decided = []
    for method in TENANTS_METHODS:
        for client in clients:
            failed = refused(client, method)
            assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "TENANT_SUSPENDED"), method
            assert failed.metadata["tenant"] == tenant.name
            assert failed.metadata["suspend_reason"] == "unpaid since May ✓"
            decided.append(failed.decision_id)
    recorded = {event["id"]: event for event in events(cluster, tenant.name)}
    assert {(recorded[id_]["outcome"], recorded[id_]["reason"]) for id_ in decided} == {("REFUSED", "TENANT_SUSPENDED")}
    assert len(set(decided)) == len(TENANTS_METHODS) * len(clients)
    assert _data(cluster, tenant.name) == before
    assert faults(cluster, tenant.name) == []


def test_its_data_are_as_before_when_it_goes_on(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    author = tenant.author
    author.call("SkillDefService.CreateSkillDef", name="own/one", source=skill_md("one", body="Mine.\n"))
    author.call("AgentService.PutAgent", agent={"name": "own", "skills": ["own/*"]})
    catalog = author.call("SkillDefService.ListCatalog", pattern="doc/query").entries
    author.call("SkillDefService.SetSkillDisabled", name="doc/query", disabled=True, etag=catalog[0].etag)
    before = _data(cluster, tenant.name)
    invoke = {"agent": "own", "name": "own/one"}
    body = tenant.runtime.call("SkillService.InvokeSkill", **invoke).body
    suspended = operator.call(SUSPEND, tenant=tenant.name, suspended=True).tenant
    assert suspended.HasField("suspend_time")
    failed = refused(tenant.runtime, "SkillService.InvokeSkill", **invoke)
    assert (failed.reason, "suspend_reason" in failed.metadata) == ("TENANT_SUSPENDED", False)
    change = {"name": "own/two", "source": skill_md("two")}
    assert refused(author, "SkillDefService.CreateSkillDef", **change).reason == "TENANT_SUSPENDED"
    resumed = operator.call(SUSPEND, tenant=tenant.name, suspended=False, reason="paid").tenant
    assert (resumed.HasField("suspend_time"), resumed.suspend_reason) == (False, "")
    assert _data(cluster, tenant.name) == before
    assert tenant.runtime.call("SkillService.InvokeSkill", **invoke).body == body
    author.call("SkillDefService.CreateSkillDef", **change)


def test_it_is_refused_on_every_server_from_the_next_call_on(
    operator: Client, tenant: TestTenant, second: RunningServer
) -> None:
    key = operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_RUNTIME").secret
    clients = [server.client(key) for server in (tenant.server, second)]
    for suspended in (True, False) * 5:
        operator.call(SUSPEND, tenant=tenant.name, suspended=suspended)
        for client in clients:
            if suspended:
                assert refused(client, "SkillService.ListSkills", **LIST).reason == "TENANT_SUSPENDED"
            else:
                client.call("SkillService.ListSkills", **LIST)


def test_nobody_else_notices(operator: Client, tenant: TestTenant) -> None:
    other = tenant.server.tenant()
    operator.call(SUSPEND, tenant=tenant.name, suspended=True)
    assert other.runtime.call("SkillService.ListSkills", **LIST).total_size == 9
    other.author.call("AgentService.PutAgent", agent={"name": "own"})


def test_only_a_live_key_is_told_of_the_suspension(operator: Client, tenant: TestTenant) -> None:
    issued = operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_RUNTIME")
    operator.call(SUSPEND, tenant=tenant.name, suspended=True, reason="unpaid")
    wrong = tenant.server.client(issued.secret[:-1] + "?")
    revoked = tenant.server.client(issued.secret)
    assert refused(revoked, "SkillService.ListSkills", **LIST).reason == "TENANT_SUSPENDED"
    operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=issued.key.key_id)
    for client in (wrong, revoked):
        failed = refused(client, "SkillService.ListSkills", **LIST)
        assert (failed.reason, "unpaid" in failed.message) == ("UNAUTHENTICATED", False)


def test_operators_can_still_look_into_it_and_manage_it(operator: Client, tenant: TestTenant) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/one", source=skill_md("one"))
    operator.call(SUSPEND, tenant=tenant.name, suspended=True, reason="unpaid")
    refused(tenant.runtime, "SkillService.ListSkills", **LIST)
    explained = operator.call("AuditService.ExplainResolution", tenant=tenant.name, agent="doc-manager", name="own/one")
    assert explained.candidates[0].origin == "tenant:v1"
    found = operator.call("AuditService.QueryAuditEvents", tenant=tenant.name, page_size=50).events
    assert "TENANT_SUSPENDED" in {event.reason for event in found}
    operator.call("TenantService.GetQuotas", tenant=tenant.name)
    operator.call("TenantService.SetQuotas", tenant=tenant.name, quotas={"skills": 5})
    key = operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_RUNTIME").key
    operator.call("TenantService.RotateKey", tenant=tenant.name, key_id=key.key_id)
    operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=key.key_id)


def test_to_suspend_again_keeps_the_time_and_takes_the_new_reason(
    cluster: Cluster, operator: Client, tenant: TestTenant
) -> None:
    first = operator.call(SUSPEND, tenant=tenant.name, suspended=True, reason="one").tenant
    again = operator.call(SUSPEND, tenant=tenant.name, suspended=True, reason="two")
    assert again.tenant.suspend_time == first.suspend_time
    assert (first.suspend_reason, again.tenant.suspend_reason) == ("one", "two")
    listed = [t for page in operator.pages("TenantService.ListTenants") for t in page.tenants]
    assert next(t for t in listed if t.tenant == tenant.name) == again.tenant
    for _ in range(2):
        resumed = operator.call(SUSPEND, tenant=tenant.name, suspended=False, reason="three")
        assert not resumed.tenant.HasField("suspend_time")
    recorded = [(event["verb"], event["details"]["reason"]) for event in events(cluster, tenant.name)]
    assert recorded == [
        ("suspend_tenant", "one"),
        ("suspend_tenant", "two"),
        ("resume_tenant", "three"),
        ("resume_tenant", "three"),
    ]


def test_the_platform_cannot_be_suspended(operator: Client) -> None:
    for suspended in (True, False):
        failed = refused(operator, SUSPEND, tenant=PLATFORM_TENANT, suspended=suspended)
        assert (failed.code, failed.violations[0][0]) == ("INVALID_ARGUMENT", "tenant")
    operator.call("TenantService.ListTenants")


@pytest.mark.parametrize("reason", ["x" * 257, "a\0b", "a\nb"])
def test_a_reason_is_short_and_printable(operator: Client, tenant: TestTenant, reason: str) -> None:
    failed = refused(operator, SUSPEND, tenant=tenant.name, suspended=True, reason=reason)
    assert (failed.code, failed.violations[0][0]) == ("INVALID_ARGUMENT", "reason")
    tenant.runtime.call("SkillService.ListSkills", **LIST)
