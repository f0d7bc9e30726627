"""One audit event, asked for by its id."""

import json

from substrate.api.v1 import catalog_pb2
from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store.chain import events

GET = "AuditService.GetAuditEvent"
QUERY = "AuditService.QueryAuditEvents"
INVOKE = "SkillService.InvokeSkill"
NOTHING = "00000000-0000-7000-8000-000000000000"


def is_given(client: Client, event_id: str, **fields: object) -> bool:
    """Whether the event is given; if not, it must be as if there were none."""
    try:
        return bool(client.call(GET, id=event_id, **fields).event.id == event_id)
    except CallFailed as error:
        failed = error
    assert (failed.code, failed.reason, failed.metadata["id"]) == ("NOT_FOUND", "AUDIT_EVENT_NOT_FOUND", event_id)
    return False


def test_an_event_is_found_by_its_id(server: RunningServer, tenant: TestTenant) -> None:
    other, operator = server.tenant(), server.operator()
    ids = [
        tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query").decision_id,
        refused(tenant.runtime, INVOKE, agent="doc-manager", name="doc/absent").decision_id,
    ]
    for event in operator.call(QUERY, tenant=tenant.name, oldest_first=True).events:
        assert event.id == ids[event.sequence - 1]
        for named in ({}, {"tenant": tenant.name}):
            assert operator.call(GET, id=event.id, **named).event == event
        assert operator.call(GET, id=event.id.upper()).event == event
        assert tenant.author.call(GET, id=event.id).event == event
        assert not is_given(other.author, event.id)
        assert not is_given(operator, event.id, tenant=other.name)
    assert not is_given(operator, NOTHING)


def test_what_is_no_id_and_who_may_not_ask(tenant: TestTenant) -> None:
    for malformed in ("", "7", f"{{{NOTHING}}}"):
        failed = refused(tenant.author, GET, id=malformed)
        assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "id")
    assert refused(tenant.author, GET, id=NOTHING, tenant="nobody-here").reason == "TENANT_NOT_FOUND"
    assert refused(tenant.runtime, GET, id=NOTHING).reason == "ROLE_REQUIRED"


def test_a_bound_key_is_given_its_own_agents_events_alone(tenant: TestTenant) -> None:
    put = tenant.author.call("AgentService.PutAgent", agent={"name": "helper", "skills": ["own/*"]}).decision_id
    own = refused(tenant.runtime, INVOKE, agent="helper", name="own/mine").decision_id
    others = tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query").decision_id
    bound = tenant.bound(Role.AUTHOR, "helper")
    # What others did with the agent in mind, such as defining it, is none of its own doing.
    assert [is_given(bound, id_) for id_ in (put, own, others)] == [False, True, False]
    assert all(is_given(tenant.author, id_) for id_ in (put, own, others))


def test_an_event_says_all_that_is_stored_of_it(tenant: TestTenant, cluster: Cluster) -> None:
    tenant.author.call(
        "SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine", header="paths: [a/*]\n")
    )
    agent = {"name": "helper", "pins": {"own/mine": "v1"}}
    tenant.author.call("AgentService.PutAgent", agent=agent)
    run = {
        "agent": "helper",
        "run_id": "r-1",
        "turn": 3,
        "caller_kind": "CALLER_KIND_USER",
        "touched_paths": ["b", "a/x"],
    }
    answer = tenant.runtime.call("SkillService.InvokeSkill", name="own/mine", arguments="x", **run)
    event = tenant.author.call(GET, id=answer.decision_id).event
    stored = events(cluster, tenant.name)[event.sequence - 1]
    assert json.loads(event.event_json) == stored
    assert (event.caller_kind, event.pin) == (catalog_pb2.CALLER_KIND_USER, "v1")
    assert (event.touched_count, event.touched_path) == (2, "a/x")
    assert (event.agent_sha256, event.arguments_hmac) == (stored["agent_sha256"], stored["arguments_hmac"])
    assert event.drafts is stored.get("drafts", False)
    assert (event.run_id, event.turn, event.tenant) == ("r-1", 3, tenant.name)
