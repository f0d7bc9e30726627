"""What a tenant may have: set and shown by operators, held for each tenant by itself, over all servers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest

from substrate.domain.names import PLATFORM_TENANT
from substrate.domain.quotas import LARGEST, Quotas
from substrate.rpc.client import CallFailed, Client, to_plain
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events, faults
from tests.store.owner import change, rows, value

DEFAULTS = asdict(Quotas())
SET = "TenantService.SetQuotas"
GET = "TenantService.GetQuotas"
PUT = "AgentService.PutAgent"
# A minute that cannot end during a test: a row may be that much ahead of the server's clock.
HOLD = "UPDATE tenants SET writes_minute = date_trunc('minute', now()) + interval '1 minute' WHERE tenant_id = %s"


@pytest.fixture(scope="module")
def operator(server: RunningServer) -> Client:
    return server.operator()


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster) as server:
        yield server


def _limited(cluster: Cluster, operator: Client, tenant: TestTenant, writes: int) -> None:
    """Let the tenant write `writes` times in the present minute, which lasts for the test."""
    operator.call(SET, tenant=tenant.name, quotas={"writes_per_minute": writes})
    assert change(cluster, HOLD, tenant.name) == 1


def _agents(cluster: Cluster, tenant: TestTenant) -> list[str]:
    found = rows(cluster, "SELECT name FROM agents WHERE tenant_id = %s ORDER BY name", tenant.name)
    return [name for (name,) in found]


def test_a_new_tenant_has_the_defaults(operator: Client, tenant: TestTenant) -> None:
    answer = to_plain(operator.call(GET, tenant=tenant.name))
    assert answer["quotas"] == DEFAULTS
    assert answer["usage"] == {"skills": 0, "bytes": 0, "agents": 0, "writes_per_minute": 0}
    assert to_plain(operator.call(GET, tenant=PLATFORM_TENANT))["quotas"] == DEFAULTS


def test_quotas_are_set_as_a_whole(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    wanted = {"skills": 0, "bytes": 5, "calls_in_flight": 1}
    made = operator.call(SET, tenant=tenant.name, quotas=wanted)
    assert to_plain(made)["quotas"] == DEFAULTS | wanted
    assert to_plain(operator.call(GET, tenant=tenant.name))["quotas"] == DEFAULTS | wanted
    event = next(event for event in events(cluster, tenant.name) if event["id"] == made.decision_id)
    assert (event["verb"], event["outcome"]) == ("set_quotas", "ALLOWED")
    assert event["details"]["quotas"] == DEFAULTS | wanted
    assert to_plain(operator.call(SET, tenant=tenant.name, quotas=asdict(LARGEST)))["quotas"] == asdict(LARGEST)
    assert to_plain(operator.call(SET, tenant=tenant.name))["quotas"] == DEFAULTS
    assert faults(cluster, tenant.name) == []


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_quota_out_of_range_is_refused_by_name(
    cluster: Cluster, operator: Client, tenant: TestTenant, name: str
) -> None:
    largest = getattr(LARGEST, name)
    stored = "SELECT (quotas::text, catalog_revision)::text FROM tenants WHERE tenant_id = %s"
    before = value(cluster, stored, tenant.name)
    for wrong in (-1, largest + 1, 2**63 - 1, -(2**63)):
        failed = refused(operator, SET, tenant=tenant.name, quotas={name: wrong})
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
        ((field, what),) = failed.violations
        assert (field, str(largest) in what) == (f"quotas.{name}", True)
    assert value(cluster, stored, tenant.name) == before


def test_usage_is_what_the_tenant_has(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    _limited(cluster, operator, tenant, 100)
    author = tenant.author
    for name in ("one", "two"):
        author.call("SkillDefService.CreateSkillDef", name=f"own/{name}", source=skill_md(name))
    for name in ("a", "b", "c"):
        author.call(PUT, agent={"name": name})
    retired = author.call("SkillDefService.GetSkillDef", name="own/two").skill_def
    author.call("SkillDefService.RetireSkillDef", name="own/two", etag=retired.etag)
    # What another tenant has is not counted.
    tenant.server.tenant().author.call("SkillDefService.CreateSkillDef", name="own/one", source=skill_md("one"))
    usage = to_plain(operator.call(GET, tenant=tenant.name))["usage"]
    stored = value(cluster, "SELECT stored_bytes FROM tenants WHERE tenant_id = %s", tenant.name)
    assert usage == {"skills": 2, "bytes": stored, "agents": 3, "writes_per_minute": 6}


def test_the_writes_of_a_minute_end_at_the_quota(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    _limited(cluster, operator, tenant, 3)
    other = tenant.server.tenant()
    for number in range(3):
        tenant.author.call(PUT, agent={"name": f"a{number}"})
    for method, fields in (
        (PUT, {"agent": {"name": "a3"}}),
        ("SkillDefService.CreateSkillDef", {"name": "own/one", "source": skill_md("one")}),
    ):
        failed = refused(tenant.author, method, **fields)
        assert (failed.code, failed.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
        assert (failed.metadata["quota"], failed.metadata["limit"]) == ("writes_per_minute", "3")
        assert 1 <= int(failed.metadata["retry_after_seconds"]) <= 120
        assert "ask an operator" in failed.message
        event = events(cluster, tenant.name)[-1]
        assert (event["id"], event["outcome"], event["reason"]) == (failed.decision_id, "REFUSED", "QUOTA_EXCEEDED")
    assert _agents(cluster, tenant) == ["a0", "a1", "a2"]
    # Reads go on, operators' changes do too, and no other tenant notices.
    assert tenant.runtime.call("SkillService.ListSkills", agent="a0").total_size > 0
    assert tenant.author.call("AgentService.GetAgent", name="a0").agent.name == "a0"
    operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_AUTHOR")
    other.author.call(PUT, agent={"name": "theirs"})
    assert operator.call(GET, tenant=tenant.name).usage.writes_per_minute == 3
    assert change(cluster, HOLD.replace("+", "-"), tenant.name) == 1
    tenant.author.call(PUT, agent={"name": "next"})
    assert _agents(cluster, tenant) == ["a0", "a1", "a2", "next"]
    assert faults(cluster, tenant.name) == []


def test_changes_that_are_refused_do_not_count(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    _limited(cluster, operator, tenant, 2)
    create: dict[str, Any] = {"name": "own/one", "source": skill_md("one")}
    tenant.author.call("SkillDefService.CreateSkillDef", **create)
    for _ in range(3):
        assert refused(tenant.author, "SkillDefService.CreateSkillDef", **create).reason == "SKILL_DEF_EXISTS"
        assert refused(tenant.author, PUT, agent={"name": "No Slug"}).reason == "INVALID_AGENT"
    tenant.author.call(PUT, agent={"name": "a"})
    assert refused(tenant.author, PUT, agent={"name": "b"}).reason == "QUOTA_EXCEEDED"


def test_writers_on_all_servers_share_one_quota(
    cluster: Cluster, operator: Client, tenant: TestTenant, second: RunningServer
) -> None:
    _limited(cluster, operator, tenant, 5)
    key = operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_AUTHOR").secret
    authors = [server.client(key, timeout=60) for server in (tenant.server, second)]

    def put(number: int) -> str:
        try:
            authors[number % 2].call(PUT, agent={"name": f"a{number}"})
        except CallFailed as failed:
            return failed.reason
        return ""

    with ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(put, range(16)))
    assert sorted(ended) == [""] * 5 + ["QUOTA_EXCEEDED"] * 11
    assert _agents(cluster, tenant) == sorted(f"a{number}" for number, reason in enumerate(ended) if not reason)


def test_a_new_limit_holds_from_the_next_write_on(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    _limited(cluster, operator, tenant, 1)
    tenant.author.call(PUT, agent={"name": "a"})
    assert refused(tenant.author, PUT, agent={"name": "b"}).reason == "QUOTA_EXCEEDED"
    operator.call(SET, tenant=tenant.name, quotas={"writes_per_minute": 2})
    tenant.author.call(PUT, agent={"name": "b"})
    operator.call(SET, tenant=tenant.name, quotas={"writes_per_minute": 0})
    failed = refused(tenant.author, PUT, agent={"name": "c"})
    assert (failed.metadata["limit"], "retry_after_seconds" in failed.metadata) == ("0", False)


def _exceeded(client: Client, method: str, quota: str, limit: int, **fields: object) -> None:
    failed = refused(client, method, **fields)
    assert (failed.code, failed.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), failed
    assert (failed.metadata["quota"], failed.metadata["limit"]) == (quota, str(limit))
    # Waiting makes no room.
    assert "retry_after_seconds" not in failed.metadata


def _create(tenant: TestTenant, name: str, **fields: object) -> Any:
    return tenant.author.call("SkillDefService.CreateSkillDef", name=f"own/{name}", source=skill_md(name), **fields)


def test_a_tenant_has_so_many_skills(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    operator.call(SET, tenant=tenant.name, quotas={"skills": 2})
    other = tenant.server.tenant()
    _create(tenant, "one")
    made = _create(tenant, "two")
    # A retired one still counts, and its name may be used again.
    tenant.author.call("SkillDefService.RetireSkillDef", name="own/two", etag=made.skill_def.etag)
    three = {"name": "own/three", "source": skill_md("three")}
    fork = {"name": "doc/query"}
    _exceeded(tenant.author, "SkillDefService.CreateSkillDef", "skills", 2, **three)
    _exceeded(tenant.author, "SkillDefService.ForkSkillDef", "skills", 2, **fork)
    _create(tenant, "two")
    tenant.author.call("SkillDefService.ForkSkillDef", name="own/one")
    for name in ("one", "two", "three"):
        _create(other, name)
    found = rows(cluster, "SELECT name FROM skill_defs WHERE tenant_id = %s ORDER BY name", tenant.name)
    assert found == [("own/one",), ("own/two",)]
    operator.call(SET, tenant=tenant.name, quotas={"skills": 3})
    tenant.author.call("SkillDefService.CreateSkillDef", **three)


def test_a_skill_has_so_many_versions(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    operator.call(SET, tenant=tenant.name, quotas={"versions_per_skill": 3})
    _create(tenant, "one")
    for _ in range(2):
        tenant.author.call("SkillDefService.ForkSkillDef", name="own/one")
    _exceeded(tenant.author, "SkillDefService.ForkSkillDef", "versions_per_skill", 3, name="own/one")
    # Another name has its own versions.
    _create(tenant, "two")
    found = rows(cluster, "SELECT name, latest_version FROM skill_defs WHERE tenant_id = %s ORDER BY 1", tenant.name)
    assert found == [("own/one", 3), ("own/two", 1)]
    assert value(cluster, "SELECT count(*) FROM skill_def_versions WHERE tenant_id = %s", tenant.name) == 4


def test_all_versions_have_so_many_bytes(operator: Client, tenant: TestTenant) -> None:
    _create(tenant, "one")
    usage = operator.call(GET, tenant=tenant.name).usage
    body = "é" * 1000
    big = {"name": "own/two", "source": skill_md("two", body=body)}
    limit = usage.bytes + 2000
    operator.call(SET, tenant=tenant.name, quotas={"bytes": limit})
    # The body alone would fit, but its header counts too.
    _exceeded(tenant.author, "SkillDefService.CreateSkillDef", "bytes", limit, **big)
    assert operator.call(GET, tenant=tenant.name).usage == usage
    operator.call(SET, tenant=tenant.name, quotas={"bytes": limit + 500})
    tenant.author.call("SkillDefService.CreateSkillDef", **big)
    used = operator.call(GET, tenant=tenant.name).usage.bytes
    assert limit < used <= limit + 500
    # What is there stays, also beyond a new limit.
    operator.call(SET, tenant=tenant.name, quotas={"bytes": 0})
    _exceeded(tenant.author, "SkillDefService.ForkSkillDef", "bytes", 0, name="own/one")
    assert tenant.author.call("SkillDefService.GetSkillDef", name="own/two").version.version == 1


def test_parallel_creations_stop_at_the_quota(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    operator.call(SET, tenant=tenant.name, quotas={"skills": 5})
    author = tenant.server.client(
        operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_AUTHOR").secret, timeout=60
    )

    def create(number: int) -> str:
        try:
            author.call("SkillDefService.CreateSkillDef", name=f"own/n{number}", source=skill_md(f"n{number}"))
        except CallFailed as failed:
            return failed.reason
        return ""

    with ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(create, range(16)))
    assert sorted(ended) == [""] * 5 + ["QUOTA_EXCEEDED"] * 11
    assert value(cluster, "SELECT count(*) FROM skill_defs WHERE tenant_id = %s", tenant.name) == 5


def test_a_tenant_has_so_many_agents(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    operator.call(SET, tenant=tenant.name, quotas={"agents": 2})
    tenant.author.call(PUT, agent={"name": "a"})
    made = tenant.author.call(PUT, agent={"name": "b"})
    _exceeded(tenant.author, PUT, "agents", 2, agent={"name": "c"})
    # One that is there may still be changed, and one that is deleted makes room.
    changed = tenant.author.call(PUT, agent={"name": "b", "description": "Changed."}, etag=made.agent.etag)
    tenant.author.call("AgentService.DeleteAgent", name="b", etag=changed.agent.etag)
    tenant.author.call(PUT, agent={"name": "c"})
    assert _agents(cluster, tenant) == ["a", "c"]


def test_an_allowlist_has_so_many_entries(cluster: Cluster, operator: Client, tenant: TestTenant) -> None:
    operator.call(SET, tenant=tenant.name, quotas={"allowlist_entries": 3})
    entries = [f"own/n{number}" for number in range(4)]
    _exceeded(tenant.author, PUT, "allowlist_entries", 3, agent={"name": "a", "skills": entries})
    assert _agents(cluster, tenant) == []
    tenant.author.call(PUT, agent={"name": "a", "skills": entries[:3]})
    assert _agents(cluster, tenant) == ["a"]
