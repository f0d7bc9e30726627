"""The client: requests made of keyword fields, failures turned into one exception, lists in pages, TLS."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from substrate.api.v1.skills_pb2 import ListSkillsResponse
from substrate.bootstrap import assemble
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client, to_plain
from substrate.rpc.server import Listener
from substrate.settings import Settings
from substrate.sources.static import load_static
from tests.processes import CERTIFICATE, KEY
from tests.servers import Cluster, TestTenant
from tests.skills import changed, refused, skill_md

LIST = "SkillService.ListSkills"
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@contextmanager
def answering(answer: bytes = b"", status: Status | None = None, code: grpc.StatusCode = INVALID) -> Iterator[Client]:
    """Connect to a server that answers ListSkills with these bytes, or fails with these details and this code."""

    def handle(_: bytes, context: grpc.ServicerContext) -> bytes:
        if status is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, "No.")
        return answer

    handlers: dict[str, Any] = {"ListSkills": grpc.unary_unary_rpc_method_handler(handle)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("substrate.api.v1.SkillService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"127.0.0.1:{port}", "sub_a.b_c") as client:
            yield client
    finally:
        server.stop(None).wait()


def status_with(*details: Message) -> Status:
    status = Status(code=INVALID.value[0], message="No.")
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def test_fields_are_taken_in_plain_forms(tenant: TestTenant) -> None:
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    agent = {"name": "ops", "tools": {"names": ["Read"]}, "skills": ["ops/*"]}
    put = tenant.author.call("AgentService.PutAgent", agent=agent, etag=None)
    assert list(put.agent.tools.names) == ["Read"]
    with tenant.server.client(tenant.server.key(PLATFORM_TENANT, Role.OPERATOR)) as operator:
        for role in ("ROLE_RUNTIME", 1):
            issued = operator.call("TenantService.IssueKey", tenant=tenant.name, role=role, expire_time=ahead)
            assert issued.key.expire_time.ToDatetime(UTC) == ahead


def test_what_is_no_request_is_refused_before_anything_is_sent() -> None:
    with Client("127.0.0.1:1", "sub_a.b_c") as client:
        with pytest.raises(TypeError, match=r"no method 'SkillService\.Nothing'"):
            client.call("SkillService.Nothing")
        with pytest.raises(TypeError, match="ListSkills has no field colour, size"):
            client.call(LIST, size=1, colour="red")
        mistyped: list[dict[str, object]] = [{"agent": 5}, {"touched_paths": [None]}, {"caller_kind": []}]
        for fields in mistyped:
            with pytest.raises(TypeError):
                client.call(LIST, **fields)
        for wrong in ({"page_size": 2**31}, {"caller_kind": "ROBOT"}, {"agent": "\ud800"}):
            with pytest.raises(ValueError, match=r"out of range|enum label|surrogates"):
                client.call(LIST, **wrong)


def test_a_refusal_carries_all_that_the_server_says(tenant: TestTenant) -> None:
    failed = refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="writing/linkedin-post")
    assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "SKILL_NOT_PERMITTED")
    assert str(failed) == failed.message == "The agent 'doc-manager' may not use the skill 'writing/linkedin-post'."
    assert failed.decision_id == failed.metadata["decision_id"] != ""
    wrong = refused(tenant.runtime, LIST, agent="doc-manager", page_size=-1)
    assert wrong.violations == [("page_size", "Must not be negative.")]


def test_every_page_is_asked_for_when_the_one_before_is_taken(tenant: TestTenant) -> None:
    for number in range(5):
        tenant.author.call("SkillDefService.CreateSkillDef", name=f"ops/s{number}", source=skill_md(f"s{number}"))
    pages = tenant.author.pages("SkillDefService.ListSkillDefs", page_size=2)
    first = next(pages)
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="ops/s4")
    rest = [[entry.name for entry in page.skill_defs] for page in pages]
    assert [entry.name for entry in first.skill_defs] == ["ops/s0", "ops/s1"]
    assert rest == [["ops/s2", "ops/s3"]]


def test_details_of_others_are_not_taken_for_the_servers() -> None:
    foreign = status_with(ErrorInfo(reason="QUOTA", domain="proxy.example", metadata={"decision_id": "x"}))
    with answering(status=foreign) as client:
        failed = refused(client, LIST)
    assert (failed.code, failed.message, failed.reason, failed.metadata) == ("INVALID_ARGUMENT", "No.", "", {})


def test_details_are_found_beside_others_and_distrusted_when_the_code_was_changed() -> None:
    violation = BadRequest(field_violations=[BadRequest.FieldViolation(field="agent", description="Is bad.")])
    status = status_with(Status(code=1), violation, ErrorInfo(reason="INVALID_NAME", domain="substrate"))
    assert rpc_status.to_status(status).code is INVALID
    with answering(status=status) as client:
        failed = refused(client, LIST)
        assert (failed.reason, failed.violations) == ("INVALID_NAME", [("agent", "Is bad.")])
    with answering(status=status, code=grpc.StatusCode.ABORTED) as client:
        failed = refused(client, LIST)
        assert (failed.code, failed.reason, failed.violations) == ("ABORTED", "", [])


def test_answers_larger_than_grpc_takes_by_default_arrive() -> None:
    large = ListSkillsResponse(next_page_token="x" * (5 * 1024 * 1024))
    with answering(large.SerializeToString()) as client:
        assert client.call(LIST) == large


def test_a_server_that_is_gone_or_silent_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(address, "sub_a.b_c", timeout=0.2) as client:
            failed = refused(client, LIST)
    assert (failed.code, failed.message) == ("DEADLINE_EXCEEDED", f"{address} did not answer within 0.2 s.")
    with Client(address, "sub_a.b_c") as client:
        failed = refused(client, LIST)
    assert failed.code == "UNAVAILABLE"
    assert failed.message.startswith(f"No server can be reached at {address}: ")


def test_no_proxy_of_the_environment_comes_between(tenant: TestTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with tenant.server.client(tenant.server.key(tenant.name, Role.RUNTIME)) as client:
        assert len(client.call(LIST, agent="doc-manager").skills) == 9


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown() -> None:
    for key in ("sub_a.b_geheim\n", "sub_a.b_geheimß", "geheim\x00"):
        with pytest.raises(ValueError, match="characters that no key has") as caught:
            Client("127.0.0.1:1", key)
        assert "geheim" not in str(caught.value)


def test_tls_is_used_where_certificates_are_trusted(cluster: Cluster, tenant: TestTenant) -> None:
    certificate, private = (Path(name).read_bytes() for name in (CERTIFICATE, KEY))
    app = assemble(Settings(), cluster.login_url, load_static(None))
    try:
        address = f"localhost:{app.server.start(Listener('localhost:0', certificate, private))}"
        key = tenant.server.key(tenant.name, Role.RUNTIME)
        with Client(address, key, root_certificates=certificate) as client:
            assert len(client.call(LIST, agent="doc-manager").skills) == 9
        with Client(address, key) as plain:
            assert refused(plain, LIST, agent="doc-manager").code == "UNAVAILABLE"
    finally:
        app.close()


def test_the_plain_form_shows_what_is_unset_and_keeps_numbers(tenant: TestTenant) -> None:
    plain = to_plain(tenant.runtime.call(LIST, agent="doc-manager", pattern="none/*"))
    assert (plain["skills"], plain["next_page_token"], plain["total_size"]) == ([], "", 0)
    assert isinstance(plain["state"]["catalog_revision"], int)
    file = tenant.runtime.call(
        "SkillService.ReadSkillFile",
        agent="doc-manager",
        name="doc/chunk-review",
        path="references/review-checklist.md",
    )
    assert json.loads(json.dumps(to_plain(file)))["content"].startswith("IyBS")
    agent = to_plain(tenant.author.call("AgentService.PutAgent", agent={"name": "free"}))["agent"]
    assert "tools" not in agent
    assert agent["create_time"].endswith("Z")
