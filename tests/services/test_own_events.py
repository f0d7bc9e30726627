"""What a server records of itself: unproven calls, gaps, the static state it serves, and whether it is healthy."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from substrate.domain.audit import KeptInput
from substrate.domain.inputs import agent_of, static_of
from substrate.domain.names import SkillName
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused
from tests.store.chain import events, faults
from tests.store.owner import change, rows, value, wait_until

TOOLS = ["ReadDocument", "ListChunks", "ReadChunk", "SearchChunks"]
INVOKE = {"agent": "doc-manager", "name": "doc/query"}


def _recorded(cluster: Cluster, tenant: str, verb: str) -> list[dict[str, Any]]:
    return [event for event in events(cluster, tenant) if event["verb"] == verb]


def _wait_for(cluster: Cluster, tenant: str, verb: str, at_least: int = 1) -> list[dict[str, Any]]:
    query = "SELECT count(*) >= %s FROM audit_events WHERE tenant_id = %s AND verb = %s"
    wait_until(cluster, query, at_least, tenant, verb)
    return _recorded(cluster, tenant, verb)


def test_calls_that_prove_nothing_are_recorded_once_and_then_counted(cluster: Cluster) -> None:
    with running_server(cluster) as server:
        tenant = server.tenant()
        wrong = server.client(f"sub_{tenant.name}.abcdef_wrongsecret")
        for _ in range(5):
            assert refused(wrong, "SkillService.InvokeSkill", **INVOKE).reason == "UNAUTHENTICATED"
        (first,) = _wait_for(cluster, tenant.name, "authenticate")
        assert (first["reason"], first["outcome"]) == ("UNAUTHENTICATED", "REFUSED")
        assert "wrongsecret" not in str(first)
    # The rest is told when the server stops, at the latest.
    told = _recorded(cluster, tenant.name, "authenticate")
    assert sum(event["details"]["count"] for event in told) == 5
    assert {key for event in told for key in event["details"]["keys"]} == {"abcdef"}
    assert faults(cluster, tenant.name) == []


def test_calls_without_a_key_and_of_tenants_that_are_none_are_the_platforms(cluster: Cluster) -> None:
    before = len(_recorded(cluster, "platform", "authenticate"))
    with running_server(cluster) as server:
        stranger = server.client("sub_nobody-of-this-name.abcdef_wrongsecret")
        assert refused(stranger, "SkillService.InvokeSkill", **INVOKE).reason == "UNAUTHENTICATED"
        with grpc.insecure_channel(server.address) as channel:
            send: Any = channel.unary_unary("/substrate.api.v1.SkillService/ListSkills")
            with pytest.raises(grpc.RpcError):
                send(b"")
    keys = [event["details"]["keys"] for event in _recorded(cluster, "platform", "authenticate")[before:]]
    assert sum(found.get("abcdef", 0) for found in keys) == 1
    assert sum(found.get("none", 0) for found in keys) == 1


def test_events_that_were_lost_leave_a_gap_event_with_their_exact_number(cluster: Cluster) -> None:
    with running_server(cluster, audit_mode="best_effort") as server:
        tenant = server.tenant()
        change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
        try:
            for _ in range(7):
                tenant.runtime.call("SkillService.InvokeSkill", **INVOKE)
        finally:
            change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")
        (gap,) = _wait_for(cluster, tenant.name, "gap")
        assert (gap["details"]["count"], gap["details"]["causes"]) == (7, {"write_failed": 7})
        assert gap["details"]["since"] <= gap["details"]["until"]
        assert tenant.runtime.call("SkillService.InvokeSkill", **INVOKE).decision_id
    assert len(_recorded(cluster, tenant.name, "invoke")) == 1
    assert faults(cluster, tenant.name) == []


def _status(server: RunningServer) -> int:
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service="substrate.api.v1.SkillService"), timeout=10)
    status: int = answer.status
    return status


@pytest.mark.parametrize(("mode", "meanwhile"), [("strict", "NOT_SERVING"), ("best_effort", "SERVING")])
def test_a_strict_server_that_cannot_record_is_not_serving_and_recovers_by_itself(
    cluster: Cluster, mode: str, meanwhile: str
) -> None:
    with running_server(cluster, audit_mode=mode) as server:
        tenant = server.tenant()
        change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
        try:
            if mode == "strict":
                assert refused(tenant.runtime, "SkillService.InvokeSkill", **INVOKE).reason == "AUDIT_UNAVAILABLE"
            else:
                assert tenant.runtime.call("SkillService.InvokeSkill", **INVOKE).body
            assert _status(server) == health_pb2.HealthCheckResponse.ServingStatus.Value(meanwhile)
        finally:
            change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")
        # Nobody calls: the server finds out by itself.
        channel = grpc.insecure_channel(server.address)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(service="substrate.api.v1.SkillService"), timeout=30)
        serving = health_pb2.HealthCheckResponse.SERVING
        assert next(answer.status for answer in watched if answer.status == serving) == serving
        channel.close()


def test_the_static_state_that_is_served_is_recorded_and_kept(cluster: Cluster, tmp_path: Path) -> None:
    before = len(_recorded(cluster, "platform", "load_static"))
    config = tmp_path / "substrate.yaml"
    config.write_text("bundles: []\nskills:\n  own/mine: {description: Mine., body: Text.}\n")
    with running_server(cluster, config) as server:
        digest = server.app.snapshots.static.digest
        wait_until(
            cluster, "SELECT EXISTS (SELECT FROM audit_inputs WHERE tenant_id = 'platform' AND sha256 = %s)", digest
        )
        text = value(cluster, "SELECT content FROM audit_inputs WHERE tenant_id = 'platform' AND sha256 = %s", digest)
        name = SkillName("own/mine")
        kept = static_of(KeptInput(digest, text), name)
        now = server.app.snapshots.static.catalog
        assert kept.resolutions[name].winner is not None
        assert kept.resolutions[name].winner.content_sha256 == now.resolutions[name].winner.content_sha256  # type: ignore[union-attr]  # It resolves, or the test fails.
    (event,) = _recorded(cluster, "platform", "load_static")[before:]
    assert (event["static_digest"], event["details"]) == (digest, {"previous": ""})


def test_an_invocation_names_the_agent_as_it_was_and_hides_its_arguments(cluster: Cluster, tenant: TestTenant) -> None:
    tenant.author.call(
        "AgentService.PutAgent",
        agent={"name": "helper", "skills": ["doc/*", "-doc/review"], "tools": {"names": TOOLS}},
    )
    said = {"agent": "helper", "name": "doc/query", "caller_kind": "CALLER_KIND_USER", "touched_paths": ["a", "b"]}
    for arguments in ("the secret words", "the secret words", "others", ""):
        tenant.runtime.call("SkillService.InvokeSkill", **said, arguments=arguments)
    found = _recorded(cluster, tenant.name, "invoke")
    assert "secret words" not in str(found)
    digests = [event.get("arguments_hmac", "") for event in found]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 64
    assert digests[3] == ""
    assert {(event["caller_kind"], event["touched"]) for event in found} == {("USER", 2)}
    (agent_sha256,) = {event["agent_sha256"] for event in found}
    ((content,),) = rows(
        cluster, "SELECT content FROM audit_inputs WHERE tenant_id = %s AND sha256 = %s", tenant.name, agent_sha256
    )
    agent = agent_of(KeptInput(agent_sha256, content))
    assert [entry.text for entry in agent.allowlist.entries] == ["doc/*", "-doc/review"]
    assert (agent.name, agent.tools) == ("helper", tuple(TOOLS))
