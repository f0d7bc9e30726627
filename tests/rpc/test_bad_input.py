"""Every RPC with missing, oversized, wrongly encoded and hostile values: a typed error or an answer, and no trace of
what was refused."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import psycopg
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.archives import PackedSkill, pack
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT, SkillName
from substrate.rpc.client import Client
from tests.rpc.wire import METHODS, Failure, bearer, leaves, send, with_field
from tests.servers import Cluster, RunningServer
from tests.skills import NO_ETAG, etag_of

SOURCE = "---\nname: {}\ndescription: What it is for.\n---\n\nDo it.\n"
NEAR_FUTURE = {"seconds": 4102444800}

_numbers = itertools.count()

HOSTILE_TEXTS = {
    "empty": b"",
    "nul": b"\0",
    "nul inside": b"a\0b",
    "long": b"a" * 10_000,
    "not utf-8": b"\xff\xfe",
    "surrogate": b"\xed\xa0\x80",
    "dots": b"../../etc/passwd",
    "upper case": b"Doc/Query",
    "look-alike": "d\u043ec/query".encode(),
    "qualified": b"doc/query@v999999999999999999999999",
    "direction": "doc/\u202eyreuq".encode(),
    "json": b'{"op":"invoke","name":["doc/query"]}',
    "nested": b"[" * 10_000,
    "sql": b"'; DROP TABLE tenants; --",
}
HOSTILE_NUMBERS = (-1, 2, 99, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1)
NOT_THE_CALLERS_FAULT = {
    "INTERNAL",
    "AUDIT_UNAVAILABLE",
    "STORE_UNAVAILABLE",
    "OVERLOADED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
}


@dataclass(frozen=True)
class Ground:
    """A tenant with a skill, an agent and a key of its own, and a key for each service.

    `spare_tenant` is for what would get in the way of the others' calls.
    """

    author: Client
    operator: Client
    channel: grpc.Channel
    owner: psycopg.Connection[tuple[Any, ...]]
    tenant: str
    keys: Mapping[str, str]
    spare_tenant: str
    event: str

    def send(self, method: str, payload: bytes) -> bytes | Failure:
        """Send raw bytes with a key that may call the method."""
        return send(self.channel, method, payload, bearer(self.keys[method.partition(".")[0]]))

    def revisions(self) -> list[tuple[Any, ...]]:
        """Return the revisions that every write would have moved."""
        return self.owner.execute(
            "SELECT tenant_id, catalog_revision FROM tenants WHERE tenant_id IN (%s, %s, %s) ORDER BY tenant_id",
            (self.tenant, self.spare_tenant, PLATFORM_TENANT),
        ).fetchall()


@pytest.fixture(scope="module")
def ground(server: RunningServer, cluster: Cluster) -> Iterator[Ground]:
    tenant, operator_client = server.tenant(), server.operator()
    quotas = {"writes_per_minute": 1_000_000, "versions_per_skill": 1_000_000, "agents": 100_000, "skills": 1_000_000}
    operator_client.call("TenantService.SetQuotas", tenant=tenant.name, quotas=quotas)
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/skill", source=SOURCE.format("skill"))
    tenant.author.call("AgentService.PutAgent", agent={"name": "own-agent", "skills": ["own/*"]})
    author, runtime = server.key(tenant.name, Role.AUTHOR), server.key(tenant.name, Role.RUNTIME)
    operator = server.key(PLATFORM_TENANT, Role.OPERATOR)
    keys = {
        "SkillService": runtime,
        "SkillDefService": author,
        "AgentService": author,
        "TenantService": operator,
        "AuditService": author,
    }
    spare = server.tenant().name
    with grpc.insecure_channel(server.address) as channel, psycopg.connect(cluster.owner_url, autocommit=True) as owner:
        yield Ground(tenant.author, operator_client, channel, owner, tenant.name, keys, spare, made.decision_id)


def _own(ground: Ground) -> dict[str, Any]:
    return {"name": "own/skill", "etag": etag_of(ground.author, "own/skill")}


def _new_agent(ground: Ground) -> dict[str, Any]:
    agent = ground.author.call("AgentService.PutAgent", agent={"name": f"gone-{next(_numbers)}"}).agent
    return {"name": agent.name, "etag": agent.etag}


def _new_key(ground: Ground) -> dict[str, Any]:
    made = ground.operator.call("TenantService.IssueKey", tenant=ground.tenant, role="ROLE_RUNTIME")
    return {"tenant": ground.tenant, "key_id": made.key.key_id}


def _archive() -> bytes:
    name = SkillName(f"new-{next(_numbers)}/skill")
    return pack([PackedSkill(name, SOURCE.format("skill").encode(), {"more.md": b"More."})])


RUN = {"agent": "doc-manager", "run_id": "run-1", "turn": 1}
BASES: Mapping[str, Callable[[Ground], Mapping[str, Any]]] = {
    "SkillService.PrepareRun": lambda _: RUN,
    "SkillService.ListSkills": lambda _: RUN,
    "SkillService.InvokeSkill": lambda _: {**RUN, "name": "doc/query"},
    "SkillService.ReadSkillFile": lambda _: {
        **RUN,
        "name": "doc/chunk-review",
        "path": "references/review-checklist.md",
    },
    "SkillService.CallSkillTool": lambda _: {**RUN, "input_json": '{"op":"list"}'},
    "SkillDefService.CreateSkillDef": lambda _: {
        "name": f"new-{next(_numbers)}/skill",
        "source": SOURCE.format("skill"),
        "promote": False,
    },
    "SkillDefService.GetSkillDef": lambda _: {"name": "own/skill"},
    "SkillDefService.ListSkillDefs": lambda _: {},
    "SkillDefService.ForkSkillDef": lambda g: {**_own(g), "from": "v1", "source": SOURCE.format("skill")},
    "SkillDefService.ListSkillDefVersions": lambda _: {"name": "own/skill"},
    "SkillDefService.PromoteSkillDef": lambda g: {**_own(g), "version": 1},
    "SkillDefService.RetireSkillDef": lambda g: {**_own(g), "retired": False},
    "SkillDefService.SetSkillDisabled": lambda _: {
        "name": f"off/n{next(_numbers)}",
        "disabled": True,
        "etag": NO_ETAG,
    },
    "SkillDefService.SetLabel": lambda g: {**_own(g), "label": "staging", "version": 1},
    "SkillDefService.DiffSkillDefs": lambda _: {"name": "doc/query", "from": "bundle", "to": "bundle"},
    "SkillDefService.VerifySkillDef": lambda _: {"name": "doc/query", "content_sha256": "0" * 64},
    "SkillDefService.ExportSkill": lambda _: {"name": "doc/query"},
    "SkillDefService.ImportSkills": lambda _: {"archive": _archive()},
    "SkillDefService.ListCatalog": lambda _: {},
    "AgentService.PutAgent": lambda _: {"agent": {"name": f"new-{next(_numbers)}", "skills": ["doc/*"]}},
    "AgentService.GetAgent": lambda _: {"name": "own-agent"},
    "AgentService.ListAgents": lambda _: {},
    "AgentService.DeleteAgent": _new_agent,
    "AgentService.TestAllowlist": lambda _: {"skills": ["doc/*"], "names": ["doc/query"]},
    "TenantService.CreateTenant": lambda _: {"tenant": f"made-{next(_numbers)}"},
    "TenantService.ListTenants": lambda _: {},
    "TenantService.IssueKey": lambda g: {"tenant": g.tenant, "role": "ROLE_RUNTIME", "expire_time": NEAR_FUTURE},
    "TenantService.RevokeKey": _new_key,
    "TenantService.RotateKey": _new_key,
    "TenantService.SetTenantSuspended": lambda g: {"tenant": g.spare_tenant, "suspended": True, "reason": "Late."},
    "TenantService.GetQuotas": lambda g: {"tenant": g.tenant},
    "TenantService.SetQuotas": lambda g: {"tenant": g.spare_tenant, "quotas": {"skills": 10}},
    "TenantService.ListKeys": lambda g: {"tenant": g.tenant},
    "AuditService.QueryAuditEvents": lambda _: {"page_size": 5},
    "AuditService.TailAuditEvents": lambda _: {"verb": "invoke"},
    "AuditService.GetAuditEvent": lambda g: {"id": g.event},
    "AuditService.WhoCan": lambda _: {"name": "doc/query", "page_size": 5},
    "AuditService.GetSkillHistory": lambda _: {"name": "own/skill"},
    "AuditService.GetUsageReport": lambda _: {},
    "AuditService.ExplainResolution": lambda _: {"name": "doc/query"},
    "AuditService.VerifyAudit": lambda _: {},
}


def base(ground: Ground, method: str) -> bytes:
    """Return a request of `method` that is in order."""
    message: Message = GetMessageClass(METHODS[method].input_type)(**BASES[method](ground))
    return message.SerializeToString()


def spelt(way: tuple[FieldDescriptor, ...]) -> str:
    return ".".join(field.name for field in way)


FIELDS = [pytest.param(method, way, id=f"{method}-{spelt(way)}") for method in METHODS for way in leaves(method)]


def test_every_rpc_has_a_request_that_is_in_order(ground: Ground) -> None:
    assert BASES.keys() == METHODS.keys()
    assert {method for method in METHODS if isinstance(ground.send(method, base(ground, method)), Failure)} == set()


@pytest.mark.parametrize(("method", "way"), FIELDS)
def test_no_value_of_a_field_is_answered_with_anything_but_an_answer_or_a_typed_error(
    ground: Ground, method: str, way: tuple[FieldDescriptor, ...]
) -> None:
    is_text = way[-1].type == FieldDescriptor.TYPE_STRING
    is_bytes = way[-1].type == FieldDescriptor.TYPE_BYTES
    values: Mapping[str, bytes | int] = HOSTILE_TEXTS if is_text or is_bytes else {str(n): n for n in HOSTILE_NUMBERS}
    refused = {}
    for name, value in values.items():
        request = base(ground, method) + with_field(way, value)
        before = ground.revisions()
        answer = ground.send(method, request)
        if isinstance(answer, Failure):
            assert answer.reason not in NOT_THE_CALLERS_FAULT
            assert ground.revisions() == before
            refused[name] = answer.reason
    if is_text:
        assert (refused["not utf-8"], refused["surrogate"]) == ("INVALID_MESSAGE", "INVALID_MESSAGE")


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_request_is_answered_or_refused_with_a_reason(ground: Ground, method: str) -> None:
    wants_nothing = not BASES[method](ground) or method == "AuditService.QueryAuditEvents"
    wants_nothing |= method in ("AgentService.TestAllowlist", "AuditService.TailAuditEvents")
    before = ground.revisions()
    answer = ground.send(method, b"")
    assert isinstance(answer, Failure) is not wants_nothing
    if isinstance(answer, Failure):
        assert answer.reason.startswith("INVALID_")
        assert answer.violations
    assert ground.revisions() == before


@settings(max_examples=300, deadline=None)
@given(method=st.sampled_from(sorted(METHODS)), payload=st.binary(max_size=40), after_base=st.booleans())
def test_no_bytes_get_anything_but_an_answer_or_a_typed_error(
    ground: Ground, method: str, payload: bytes, *, after_base: bool
) -> None:
    answer = ground.send(method, (base(ground, method) if after_base else b"") + payload)
    if isinstance(answer, Failure):
        assert answer.reason not in NOT_THE_CALLERS_FAULT
    else:
        GetMessageClass(METHODS[method].output_type).FromString(answer)
