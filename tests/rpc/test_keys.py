"""Who is let in: nothing but health is answered without a live key, and a refusal tells nothing about keys."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from substrate.domain.identity import Role
from substrate.domain.names import TenantId
from substrate.rpc.client import CallFailed
from substrate.services.keys import new_key
from substrate.store import tenants
from tests.rpc.wire import METHODS, Failure, bearer, send, typed
from tests.servers import RunningServer, TestTenant

SERVICES = sorted({method.containing_service.full_name for method in METHODS.values()})
LIST = "SkillService.ListSkills"


def test_no_method_answers_without_a_key(server: RunningServer, tenant: TestTenant) -> None:
    wrong = server.key(tenant.name, Role.AUTHOR)[:-1] + "?"
    with grpc.insecure_channel(server.address) as channel:
        for method in METHODS:
            for metadata in ((), bearer(wrong)):
                answer = send(channel, method, metadata=metadata)
                assert isinstance(answer, Failure)
                assert (answer.code, answer.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED"), method


def test_every_key_that_is_no_live_key_is_refused_in_the_same_words(server: RunningServer, tenant: TestTenant) -> None:
    key = server.key(tenant.name, Role.RUNTIME)
    other = server.tenant().name
    head, _, secret = key.partition("_")[2].partition("_")
    name, _, key_id = head.partition(".")
    spellings = {
        "no metadata": (),
        "no scheme": (("authorization", key),),
        "another scheme": (("authorization", f"Basic {key}"),),
        "scheme alone": (("authorization", "Bearer"),),
        "blank": bearer(" "),
        "another field": (("x-api-key", f"Bearer {key}"),),
        "no prefix": bearer(key.removeprefix("sub_")),
        "no secret": bearer(f"sub_{name}.{key_id}_"),
        "another secret": bearer(f"sub_{name}.{key_id}_{secret[::-1]}"),
        "part of the secret": bearer(key[:-1]),
        "more than the secret": bearer(f"{key}a"),
        "another key id": bearer(f"sub_{name}.aaaaaaaaaaaa_{secret}"),
        "another tenant": bearer(f"sub_{other}.{key_id}_{secret}"),
        "no such tenant": bearer(f"sub_nobody.{key_id}_{secret}"),
        "a tenant that is no slug": bearer(f"sub_../{name}.{key_id}_{secret}"),
        "upper case": bearer(key.upper()),
        "too long": bearer(key + "a" * 10_000),
        "two keys": bearer(f"{key} {key}"),
    }
    with grpc.insecure_channel(server.address) as channel:
        assert isinstance(send(channel, LIST, b"\x0a\x0bdoc-manager", bearer(key)), bytes)
        answers = {name: send(channel, LIST, metadata=metadata) for name, metadata in spellings.items()}
    assert {name for name, answer in answers.items() if not isinstance(answer, Failure)} == set()
    shown = {(a.code, a.reason, a.message, tuple(a.metadata)) for a in answers.values() if isinstance(a, Failure)}
    assert [(code, reason, metadata) for code, reason, _, metadata in shown] == [
        ("UNAUTHENTICATED", "UNAUTHENTICATED", ())
    ]


def test_a_scheme_in_any_case_and_blanks_around_a_key_are_no_obstacle(
    server: RunningServer, tenant: TestTenant
) -> None:
    key = server.key(tenant.name, Role.RUNTIME)
    with grpc.insecure_channel(server.address) as channel:
        for spelling in (f"bearer {key}", f"BEARER   {key}"):
            metadata = (("authorization", spelling),)
            assert isinstance(send(channel, LIST, b"\x0a\x0bdoc-manager", metadata), bytes)


@pytest.mark.parametrize("role", ["ROLE_RUNTIME", "ROLE_AUTHOR"])
def test_a_revoked_key_is_refused_from_the_next_call_on(server: RunningServer, tenant: TestTenant, role: str) -> None:
    operator = server.operator()
    issued = operator.call("TenantService.IssueKey", tenant=tenant.name, role=role)
    client = server.client(issued.secret)
    assert client.call(LIST, agent="doc-manager").total_size > 0
    operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=issued.key.key_id)
    for method, fields in ((LIST, {"agent": "doc-manager"}), ("AgentService.GetAgent", {"name": "doc-manager"})):
        with pytest.raises(CallFailed) as refused:
            client.call(method, **fields)
        assert refused.value.reason == "UNAUTHENTICATED"
    assert tenant.runtime.call(LIST, agent="doc-manager").total_size > 0


def test_a_revoked_operators_key_can_change_nothing_any_more(server: RunningServer, tenant: TestTenant) -> None:
    operator = server.operator()
    issued = operator.call("TenantService.IssueKey", tenant="platform", role="ROLE_OPERATOR")
    second = server.client(issued.secret)
    second.call("TenantService.ListTenants")
    operator.call("TenantService.RevokeKey", tenant="platform", key_id=issued.key.key_id)
    with pytest.raises(CallFailed) as refused:
        second.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_AUTHOR")
    assert refused.value.reason == "UNAUTHENTICATED"


@pytest.mark.parametrize(("left", "reason"), [(timedelta(seconds=-1), "UNAUTHENTICATED"), (timedelta(hours=1), "")])
def test_a_key_is_accepted_until_it_expires(
    server: RunningServer, tenant: TestTenant, left: timedelta, reason: str
) -> None:
    now = datetime.now(UTC)
    key, text = new_key(TenantId(tenant.name), Role.RUNTIME, now - timedelta(days=1), expires_at=now + left)
    with server.database.operator() as connection:
        tenants.bump(connection, key.tenant)
        tenants.add_key(connection, key, "test")
    with grpc.insecure_channel(server.address) as channel:
        answer = send(channel, LIST, b"\x0a\x0bdoc-manager", bearer(text))
    assert (answer.reason if isinstance(answer, Failure) else "") == reason


def test_reflection_takes_a_live_key_and_describes_every_service(server: RunningServer, tenant: TestTenant) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        for metadata in ((), bearer(f"sub_{tenant.name}.aaaaaaaaaaaa_secret")):
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.ServerReflectionInfo(iter([asked]), metadata=metadata, timeout=10))
            assert typed(refused.value).reason == "UNAUTHENTICATED"
        key = bearer(server.key(tenant.name, Role.RUNTIME))
        (answer,) = stub.ServerReflectionInfo(iter([asked]), metadata=key, timeout=10)
        named = {service.name for service in answer.list_services_response.service}
        assert {*SERVICES, "grpc.health.v1.Health"} <= named
        for service in SERVICES:
            wanted = reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
            (described,) = stub.ServerReflectionInfo(iter([wanted]), metadata=key, timeout=10)
            assert described.file_descriptor_response.file_descriptor_proto


def test_health_is_answered_without_a_key(server: RunningServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", *SERVICES):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=10)
        assert next(iter(watched)).status == health_pb2.HealthCheckResponse.SERVING
        watched.cancel()
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
