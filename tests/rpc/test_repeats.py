"""A change that is sent again with its request id gets its first answer and is not made twice."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from substrate.domain.identity import Role
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store.chain import events
from tests.store.owner import change

FORK = "SkillDefService.ForkSkillDef"
SOURCE = skill_md("query", "Ours.\n", header="allowed-tools: ReadChunk\n")


def versions(tenant: TestTenant, name: str = "doc/query") -> list[int]:
    return [v.version for v in tenant.author.call("SkillDefService.ListSkillDefVersions", name=name).versions]


def etag(tenant: TestTenant, name: str = "doc/query") -> str:
    return str(tenant.author.call("SkillDefService.GetSkillDef", name=name).skill_def.etag)


def again(tenant: TestTenant, method: str, **fields: Any) -> tuple[Any, Any]:
    request = {**fields, "request_id": str(uuid.uuid4())}
    return tenant.author.call(method, **request), tenant.author.call(method, **request)


def test_every_change_of_an_author_can_be_sent_again(tenant: TestTenant) -> None:
    name = {"name": "doc/query"}
    first, second = again(tenant, "SkillDefService.CreateSkillDef", name="own/a", source=skill_md("a"))
    assert first == second
    first, second = again(tenant, FORK, source=SOURCE, **name)
    assert first == second
    assert versions(tenant) == [1]
    first, second = again(tenant, "SkillDefService.PromoteSkillDef", version=1, etag=etag(tenant), **name)
    assert first == second
    first, second = again(tenant, "SkillDefService.SetLabel", label="x", version=1, etag=etag(tenant), **name)
    assert first == second
    first, second = again(tenant, "SkillDefService.SetSkillDisabled", disabled=True, etag=etag(tenant), **name)
    assert first == second
    first, second = again(tenant, "SkillDefService.RetireSkillDef", etag=etag(tenant), **name)
    assert first == second
    agent = {"name": "mine", "skills": ["doc/*"]}
    first, second = again(tenant, "AgentService.PutAgent", agent=agent)
    assert first == second
    first, second = again(tenant, "AgentService.DeleteAgent", name="mine", etag=first.agent.etag)
    assert first == second
    archive = tenant.author.call("SkillDefService.ExportSkill", name="own/a").archive
    first, second = again(tenant, "SkillDefService.ImportSkills", archive=archive)
    assert first == second


def test_every_change_of_an_operator_but_those_with_secrets_can_be_sent_again(server: RunningServer) -> None:
    operator = server.operator()
    tenant = f"r-{uuid.uuid4().hex[:12]}"
    requests: list[tuple[str, dict[str, Any]]] = [
        ("CreateTenant", {"tenant": tenant}),
        ("SetTenantSuspended", {"tenant": tenant, "suspended": True}),
        ("SetQuotas", {"tenant": tenant, "quotas": {"skills": 5}}),
    ]
    for method, fields in requests:
        request = {**fields, "request_id": str(uuid.uuid4())}
        first = operator.call(f"TenantService.{method}", **request)
        assert operator.call(f"TenantService.{method}", **request) == first
    key = operator.call("TenantService.IssueKey", tenant=tenant, role="ROLE_RUNTIME").key
    request = {"tenant": tenant, "key_id": key.key_id, "request_id": str(uuid.uuid4())}
    first = operator.call("TenantService.RevokeKey", **request)
    assert operator.call("TenantService.RevokeKey", **request) == first


def test_an_id_is_for_one_request_of_one_key(server: RunningServer, tenant: TestTenant) -> None:
    request = {"name": "doc/query", "source": SOURCE, "request_id": str(uuid.uuid4())}
    tenant.author.call(FORK, **request)
    changed = {**request, "source": skill_md("query", "Other.\n")}
    error = refused(tenant.author, FORK, **changed)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "REQUEST_ID_REUSED")
    error = refused(tenant.author, "SkillDefService.CreateSkillDef", **{**request, "name": "own/query"})
    assert error.reason == "REQUEST_ID_REUSED"
    another = server.client(server.key(tenant.name, Role.AUTHOR))
    assert refused(another, FORK, **request).reason == "REQUEST_ID_REUSED"
    assert versions(tenant) == [1]
    elsewhere = server.tenant()
    assert elsewhere.author.call(FORK, **request).version.version == 1


def test_an_id_is_the_same_in_either_case(tenant: TestTenant) -> None:
    request = {"name": "doc/query", "source": SOURCE, "request_id": str(uuid.uuid4())}
    first = tenant.author.call(FORK, **request)
    assert tenant.author.call(FORK, **{**request, "request_id": request["request_id"].upper()}) == first


def test_a_malformed_id_is_refused(tenant: TestTenant) -> None:
    error = refused(tenant.author, FORK, name="doc/query", request_id="7")
    assert (error.reason, [field for field, _ in error.violations]) == ("INVALID_ARGUMENT", ["request_id"])


def test_a_refused_change_may_be_tried_again_with_its_id(tenant: TestTenant) -> None:
    tenant.author.call(FORK, name="doc/query", source=SOURCE)
    promote = {"name": "doc/query", "version": 2, "request_id": str(uuid.uuid4())}
    promote["etag"] = etag(tenant)
    assert refused(tenant.author, "SkillDefService.PromoteSkillDef", **promote).reason == "VERSION_NOT_FOUND"
    tenant.author.call(FORK, name="doc/query", source=SOURCE)
    promote["etag"] = etag(tenant)
    assert tenant.author.call("SkillDefService.PromoteSkillDef", **promote).skill_def.active_version == 2


def test_the_same_request_many_times_at_once_is_made_once(server: RunningServer, tenant: TestTenant) -> None:
    request = {"name": "doc/query", "source": SOURCE, "request_id": str(uuid.uuid4())}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: tenant.author.call(FORK, **request), range(12)))
    assert all(answer == answers[0] for answer in answers)
    assert versions(tenant) == [1]
    operator = server.operator()
    create = {"tenant": f"r-{uuid.uuid4().hex[:12]}", "request_id": str(uuid.uuid4())}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: operator.call("TenantService.CreateTenant", **create), range(8)))
    assert all(answer == answers[0] for answer in answers)


def test_an_id_is_remembered_for_a_day(cluster: Cluster, tenant: TestTenant) -> None:
    request = {"name": "doc/query", "source": SOURCE, "request_id": str(uuid.uuid4())}
    tenant.author.call(FORK, **request)
    change(
        cluster,
        "UPDATE requests SET created_at = created_at - interval '23 hours 59 minutes' WHERE tenant_id = %s",
        tenant.name,
    )
    assert tenant.author.call(FORK, **request).version.version == 1
    change(
        cluster, "UPDATE requests SET created_at = created_at - interval '1 minute' WHERE tenant_id = %s", tenant.name
    )
    assert tenant.author.call(FORK, **request).version.version == 2


def test_a_repeated_call_is_on_record_as_such(cluster: Cluster, tenant: TestTenant) -> None:
    first, _ = again(tenant, FORK, name="doc/query", source=SOURCE)
    told = [event for event in events(cluster, tenant.name) if event["verb"] == "fork"]
    assert [event["id"] == first.decision_id for event in told] == [True, False]
    assert told[1]["details"] == {"repeats": True}


def test_a_change_that_was_made_is_answered_though_no_more_may_be_made(
    server: RunningServer, tenant: TestTenant
) -> None:
    request = {"name": "doc/query", "source": SOURCE, "request_id": str(uuid.uuid4())}
    first = tenant.author.call(FORK, **request)
    server.operator().call("TenantService.SetQuotas", tenant=tenant.name, quotas={"writes_per_minute": 0})
    assert refused(tenant.author, FORK, name="doc/query").reason == "QUOTA_EXCEEDED"
    assert tenant.author.call(FORK, **request) == first
    # What an operator does in a review is no write of the tenant's.
    promote = {"tenant": tenant.name, "name": "doc/query", "version": 1, "etag": first.skill_def.etag}
    assert server.operator().call("SkillDefService.PromoteSkillDef", **promote).skill_def.active_version == 1


def test_a_key_that_lost_its_right_gets_no_old_answer(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "writer", "skills": ["doc/*"]})
    writer = tenant.bound(Role.AUTHOR, "writer")
    request = {"name": "doc/query", "source": SOURCE, "request_id": str(uuid.uuid4())}
    writer.call(FORK, **request)
    held = tenant.author.call("AgentService.GetAgent", name="writer").agent
    tenant.author.call("AgentService.PutAgent", agent={"name": "writer", "skills": ["seo/*"]}, etag=held.etag)
    assert refused(writer, FORK, **request).reason == "SKILL_NOT_PERMITTED"
