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

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from tests.rpc.wire import METHODS, Failure, bearer, leaves, send, with_field
from tests.servers import Cluster, RunningServer

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
    """A tenant with a skill, an agent and a key of its own, and a key for each service."""

    server: RunningServer
    channel: grpc.Channel
    owner: psycopg.Connection[tuple[Any, ...]]
    tenant: str
    keys: Mapping[str, str]
    spare_key: str

    def send(self, method: str, payload: bytes) -> bytes | Failure:
        """Send raw bytes with a key that may call the method."""
        return send(self.channel, method, payload, bearer(self.keys[method.partition(".")[0]]))

    def revisions(self) -> list[tuple[Any, ...]]:
        """Return the revisions that every write would have moved."""
        return self.owner.execute(
            "SELECT tenant_id, catalog_revision FROM tenants WHERE tenant_id IN (%s, %s) ORDER BY tenant_id",
            (self.tenant, PLATFORM_TENANT),
        ).fetchall()


@pytest.fixture(scope="module")
def ground(server: RunningServer, cluster: Cluster) -> Iterator[Ground]:
    tenant = server.tenant()
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/skill", source=SOURCE.format("skill"))
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
    spare = server.operator().call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_RUNTIME")
    with grpc.insecure_channel(server.address) as channel, psycopg.connect(cluster.owner_url, autocommit=True) as owner:
        yield Ground(server, channel, owner, tenant.name, keys, spare.key.key_id)


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
    "SkillDefService.PromoteSkillDef": lambda _: {"name": "own/skill", "version": 1},
    "SkillDefService.RetireSkillDef": lambda _: {"name": "own/skill", "retired": False},
    "SkillDefService.SetSkillDisabled": lambda _: {"name": f"off/n{next(_numbers)}", "disabled": True},
    "SkillDefService.ListCatalog": lambda _: {},
    "AgentService.PutAgent": lambda _: {"agent": {"name": f"new-{next(_numbers)}", "skills": ["doc/*"]}},
    "AgentService.GetAgent": lambda _: {"name": "own-agent"},
    "AgentService.ListAgents": lambda _: {},
    "AgentService.TestAllowlist": lambda _: {"skills": ["doc/*"], "names": ["doc/query"]},
    "TenantService.CreateTenant": lambda _: {"tenant": f"made-{next(_numbers)}"},
    "TenantService.ListTenants": lambda _: {},
    "TenantService.IssueKey": lambda g: {"tenant": g.tenant, "role": "ROLE_RUNTIME", "expire_time": NEAR_FUTURE},
    "TenantService.RevokeKey": lambda g: {"tenant": g.tenant, "key_id": g.spare_key},
    "TenantService.ListKeys": lambda g: {"tenant": g.tenant},
    "AuditService.QueryAuditEvents": lambda _: {"page_size": 5},
    "AuditService.ExplainResolution": lambda _: {"name": "doc/query"},
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
    is_text = way[-1].type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    values: Mapping[str, bytes | int] = HOSTILE_TEXTS if is_text else {str(n): n for n in HOSTILE_NUMBERS}
    refused = {}
    before = ground.revisions()
    for name, value in values.items():
        answer = ground.send(method, base(ground, method) + with_field(way, value))
        if isinstance(answer, Failure):
            assert answer.reason not in NOT_THE_CALLERS_FAULT
            assert ground.revisions() == before
            refused[name] = answer.reason
        else:
            before = ground.revisions()
    if is_text:
        assert (refused["not utf-8"], refused["surrogate"]) == ("INVALID_MESSAGE", "INVALID_MESSAGE")


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_request_is_answered_or_refused_with_a_reason(ground: Ground, method: str) -> None:
    before = ground.revisions()
    answer = ground.send(method, b"")
    wants_nothing = not BASES[method](ground) or method == "AuditService.QueryAuditEvents"
    wants_nothing |= method == "AgentService.TestAllowlist"
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
