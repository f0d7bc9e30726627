"""A tenant's agent is deleted: by whom, with what in its place, and what becomes of the keys bound to it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed
from tests.servers import Cluster, TestTenant
from tests.skills import refused
from tests.store.chain import events
from tests.store.owner import rows

DELETE, PUT, GET = "AgentService.DeleteAgent", "AgentService.PutAgent", "AgentService.GetAgent"
WRITERS = 16
CHANGES: list[dict[str, Any]] = [
    {"skills": ["**"]},
    {"skills": []},
    {"skills": ["-*"]},
    {"pins": {"doc/query": "v1"}},
]


def _stored(cluster: Cluster, tenant: TestTenant) -> list[tuple[Any, ...]]:
    return rows(cluster, "SELECT name, xmin::text FROM agents WHERE tenant_id = %s ORDER BY name", tenant.name)


def test_a_deleted_agent_is_gone_at_once(cluster: Cluster, tenant: TestTenant) -> None:
    pins = {"doc/query": "v1"}
    put = tenant.author.call(PUT, agent={"name": "helper", "skills": ["doc/*"], "pins": pins}).agent
    assert tenant.runtime.call("SkillService.ListSkills", agent="helper").skills
    deleted = tenant.author.call(DELETE, name="helper", etag=put.etag)
    assert not deleted.HasField("agent")
    for method in ("SkillService.ListSkills", "SkillService.PrepareRun"):
        assert refused(tenant.runtime, method, agent="helper").reason == "AGENT_NOT_FOUND"
    assert refused(tenant.author, GET, name="helper").reason == "AGENT_NOT_FOUND"
    assert "helper" not in [agent.name for agent in tenant.author.call("AgentService.ListAgents").agents]
    assert _stored(cluster, tenant) == []
    event = next(event for event in events(cluster, tenant.name) if event["verb"] == "delete_agent")
    assert (event["id"], event["agent"], event["outcome"]) == (deleted.decision_id, "helper", "ALLOWED")
    assert (event["details"]["skills_before"], event["details"]["pins_before"]) == (["doc/*"], pins)


def test_what_it_stood_above_comes_to_light(tenant: TestTenant) -> None:
    bundled = tenant.author.call(GET, name="doc-manager").agent
    put = tenant.author.call(PUT, agent={"name": "doc-manager", "skills": ["doc/query"]}).agent
    deleted = tenant.author.call(DELETE, name="doc-manager", etag=put.etag)
    assert deleted.agent == bundled == tenant.author.call(GET, name="doc-manager").agent
    assert (bundled.layer, bundled.etag) == (catalog_pb2.Layer.LAYER_BUNDLE, "")
    # There is nothing of the tenant's left to delete.
    for etag in ("", put.etag):
        failed = refused(tenant.author, DELETE, name="doc-manager", etag=etag)
        assert (failed.code, failed.reason, failed.metadata["agent"]) == ("NOT_FOUND", "AGENT_NOT_FOUND", "doc-manager")


def test_it_takes_the_etag_as_last_read(cluster: Cluster, tenant: TestTenant) -> None:
    first = tenant.author.call(PUT, agent={"name": "helper"}).agent
    second = tenant.author.call(PUT, agent={"name": "helper"}, etag=first.etag).agent
    before = _stored(cluster, tenant)
    failed = refused(tenant.author, DELETE, name="helper")
    assert (failed.code, failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", "etag")
    failed = refused(tenant.author, DELETE, name="helper", etag=first.etag)
    assert (failed.code, failed.reason, failed.metadata["name"]) == ("ABORTED", "ETAG_MISMATCH", "helper")
    assert events(cluster, tenant.name)[-1]["reason"] == "ETAG_MISMATCH"
    assert refused(tenant.author, DELETE, name="Helper", etag=second.etag).reason == "INVALID_NAME"
    assert _stored(cluster, tenant) == before
    tenant.author.call(DELETE, name="helper", etag=second.etag)
    # An agent of the same name is another one.
    third = tenant.author.call(PUT, agent={"name": "helper"}).agent
    assert third.etag not in (first.etag, second.etag)
    assert refused(tenant.author, DELETE, name="helper", etag=second.etag).reason == "ETAG_MISMATCH"


def test_no_agent_can_define_or_delete_one(cluster: Cluster, tenant: TestTenant) -> None:
    etags = {
        name: tenant.author.call(PUT, agent={"name": name, "skills": ["doc/query"]}).agent.etag
        for name in ("mine", "other", "doc-manager")
    }
    bound = tenant.bound(Role.AUTHOR, "mine")
    before = _stored(cluster, tenant)
    for name in (*etags, "new"):
        for change in CHANGES:
            failed = refused(bound, PUT, agent={"name": name, **change}, etag=etags.get(name))
            assert (failed.code, failed.reason, failed.metadata["agent"]) == (
                "PERMISSION_DENIED",
                "ROLE_REQUIRED",
                "mine",
            )
        failed = refused(bound, DELETE, name=name, etag=etags.get(name))
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
    assert _stored(cluster, tenant) == before


def test_bound_keys_stay_bound_to_the_name(tenant: TestTenant) -> None:
    put = tenant.author.call(PUT, agent={"name": "helper", "skills": ["doc/*"]}).agent
    runtime, author = tenant.bound(Role.RUNTIME, "helper"), tenant.bound(Role.AUTHOR, "helper")
    tenant.author.call(DELETE, name="helper", etag=put.etag)
    # Without its agent a key may do nothing, rather than everything.
    for client, method, fields in (
        (runtime, "SkillService.InvokeSkill", {"name": "doc/query"}),
        (runtime, "SkillService.ListSkills", {}),
        (author, "SkillDefService.GetSkillDef", {"name": "doc/query"}),
        (author, "SkillDefService.ListCatalog", {}),
        (author, "AgentService.TestAllowlist", {"skills": ["doc/*"]}),
    ):
        assert refused(client, method, **fields).reason == "AGENT_NOT_FOUND", method
    tenant.author.call(PUT, agent={"name": "helper", "skills": ["seo/*"]})
    assert refused(runtime, "SkillService.InvokeSkill", name="doc/query").reason == "SKILL_NOT_PERMITTED"


def test_of_those_who_put_and_delete_what_they_have_read_one_wins(cluster: Cluster, tenant: TestTenant) -> None:
    etag = tenant.author.call(PUT, agent={"name": "helper"}).agent.etag
    clients = [tenant.server.client(tenant.server.key(tenant.name, Role.AUTHOR), timeout=60) for _ in range(WRITERS)]

    def change(number: int) -> str:
        try:
            if number % 2:
                clients[number].call(DELETE, name="helper", etag=etag)
            else:
                clients[number].call(PUT, agent={"name": "helper", "description": f"{number}"}, etag=etag)
        except CallFailed as failed:
            return failed.reason
        return "put" if number % 2 == 0 else "deleted"

    with ThreadPoolExecutor(WRITERS) as pool:
        ended = list(pool.map(change, range(WRITERS)))
    (won,) = [reason for reason in ended if reason in ("put", "deleted")]
    if won == "put":
        assert set(ended) == {"put", "ETAG_MISMATCH"}
        assert _stored(cluster, tenant)
    else:
        assert set(ended) == {"deleted", "ETAG_MISMATCH", "AGENT_NOT_FOUND"}
        assert _stored(cluster, tenant) == []
