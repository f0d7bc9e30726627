"""Whatever one tenant knows of another gets it the same answer as what does not exist."""

import re
import secrets
from typing import Any

import pytest
from sqlalchemy import Connection

from substrate.domain.agents import Agent
from substrate.domain.errors import RequestIdReused, RoleRequired
from substrate.domain.identity import Role
from substrate.domain.names import AgentName, TenantId
from substrate.domain.tokens import CatalogToken, read_catalog_token
from substrate.rpc.client import CallFailed, Client, to_plain
from substrate.services.snapshots import Snapshot
from substrate.store import requests
from tests.rpc.foreign import (
    FILES,
    NAMES_NOTHING,
    NAMING,
    RUN,
    SOURCE,
    Fields,
    Things,
    archive,
    cases,
    paged,
    request_ids,
)
from tests.rpc.wire import METHODS
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import changed, refused, skill_md
from tests.store.owner import rows
from tests.store.roles import TENANT_TABLES

TAIL = "AuditService.TailAuditEvents"

# What the clock, chance and the caller's own revision put into an answer.
VOLATILE = re.compile(r".*_time|decision_id|etag|state|.*key_id|created_by|promoted_by|secret|since|until|position")


@pytest.fixture(scope="module")
def theirs(server: RunningServer) -> Things:
    """A tenant that has one of everything, and has used it."""
    tenant = server.tenant()
    skill, agent = f"own/{secrets.token_hex(4)}/skill", f"agent-{secrets.token_hex(4)}"
    label, source = f"label-{secrets.token_hex(4)}", skill_md("skill", f"Only {skill} says this.\n")
    made = tenant.author.call("SkillDefService.CreateSkillDef", name=skill, source=source, files=FILES)
    _with_versions(tenant)
    put, ids = None, request_ids()
    for number, id_ in enumerate(ids):
        fields = {"agent": {"name": agent, "description": f"{number}"}, "etag": put.agent.etag if put else None}
        put = tenant.author.call("AgentService.PutAgent", request_id=id_, **fields)
    labelled = {"name": skill, "label": label, "version": 1, "etag": made.skill_def.etag}
    labelled_def = tenant.author.call("SkillDefService.SetLabel", **labelled).skill_def
    invoked = tenant.runtime.call("SkillService.InvokeSkill", agent=agent, name=skill)
    (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=invoked.decision_id).events
    tokens = {
        method: _asking(tenant, server, method).call(method, page_size=1, **fields).next_page_token
        for method, fields in paged(tenant.name).items()
    }
    assert all(tokens.values())
    return Things(
        tenant=tenant.name,
        skill=skill,
        agent=agent,
        label=label,
        digest=invoked.content_sha256,
        key_id=event.key_id,
        decision_id=invoked.decision_id,
        call_id=event.call_id,
        etag=labelled_def.etag,
        agent_etag=put.agent.etag if put else "",
        catalog_token=invoked.state.catalog_token,
        position=next(tenant.author.stream(TAIL, timeout=20)).position,
        request_ids=ids,
        page_tokens=tokens,
    )


def _with_versions(tenant: TestTenant) -> None:
    """Give the tenant a skill with two versions, both once in effect, named as other tenants' too."""
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/skill", source=SOURCE)
    fork = {"name": "own/skill", "source": SOURCE, "promote": True, "etag": made.skill_def.etag}
    tenant.author.call("SkillDefService.ForkSkillDef", **fork)


def _asking(tenant: TestTenant, server: RunningServer, method: str) -> Client:
    """Return a client whose role may call `method`."""
    if method.startswith("TenantService."):
        return server.operator()
    return tenant.runtime if method.startswith("SkillService.") else tenant.author


def _absent(theirs: Things, ours: TestTenant) -> Things:
    """Return things that look like `theirs` and do not exist; tokens are of requests that nobody can be answering."""
    token = read_catalog_token(theirs.catalog_token)
    other_requests = {
        "SkillService.ListSkills": (ours.runtime, {**RUN, "pattern": "doc/*"}),
        "SkillDefService.ListCatalog": (ours.author, {"pattern": "doc/*"}),
    }
    elsewhere = {m: c.call(m, page_size=1, **f).next_page_token for m, (c, f) in other_requests.items()}
    return Things(
        tenant=f"{theirs.tenant[:-4]}none",
        skill=f"own/{secrets.token_hex(4)}/skill",
        agent=f"agent-{secrets.token_hex(4)}",
        label=f"label-{secrets.token_hex(4)}",
        digest=secrets.token_hex(32),
        key_id=theirs.key_id[::-1],
        decision_id=f"{theirs.decision_id[:-4]}0000",
        call_id="nobody-called",
        etag="r999",
        agent_etag="0" * len(theirs.agent_etag),
        catalog_token=str(CatalogToken("another", TenantId("another"), token.revision, "0" * 64)),
        position=next(ours.author.stream(TAIL, timeout=20, verb="list")).position,
        request_ids=request_ids(),
        page_tokens={
            method: elsewhere.get(method, elsewhere["SkillDefService.ListCatalog"]) for method in theirs.page_tokens
        },
    )


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(inner) for key, inner in value.items() if not VOLATILE.fullmatch(key)}
    if isinstance(value, list):
        return [_stable(inner) for inner in value]
    return value


def _answer(client: Client, method: str, fields: Fields, things: Things) -> str:
    """Return all of an answer or a failure that its caller could learn from, without the names it named itself."""
    try:
        # Of a stream only how it begins: it may go on for ever.
        streams = METHODS[method].server_streaming
        answer = next(client.stream(method, timeout=20, **fields)) if streams else client.call(method, **fields)
    except CallFailed as failed:
        metadata = {key: value for key, value in failed.metadata.items() if key != "decision_id"}
        told: object = [failed.code, failed.reason, failed.message, metadata, failed.violations]
    else:
        told = _stable(to_plain(answer))
    return re.sub(r"tenant:r[0-9]+", "tenant:r<n>", things.hidden(repr(told)))


def told_apart(ours: TestTenant, client: Client, method: str, theirs: Things) -> list[str]:
    """Ask `method` for things of another tenant and for things that do not exist; return every telling answer."""
    absent = _absent(theirs, ours)
    found = []
    for known, unknown in zip(cases(method, theirs), cases(method, absent), strict=True):
        expected = _answer(client, method, unknown, absent)
        answer = _answer(client, method, known, theirs)
        if answer != expected:
            found.append(f"{known} gets {answer}, what does not exist gets {expected}")
        found += [f"{known} gets {expected}" for name in theirs.names if name in expected]
    return found


def _ours(server: RunningServer) -> TestTenant:
    ours = server.tenant()
    ours.author.call("AgentService.PutAgent", agent={"name": "own-all"})
    return ours


@pytest.mark.parametrize("role", [Role.RUNTIME, Role.AUTHOR])
@pytest.mark.parametrize("method", METHODS)
def test_another_tenants_things_are_answered_like_things_that_do_not_exist(
    cluster: Cluster, server: RunningServer, theirs: Things, method: str, role: Role
) -> None:
    ours = _ours(server)
    before = _everything_of(cluster, theirs.tenant)
    assert told_apart(ours, ours.author if role is Role.AUTHOR else ours.runtime, method, theirs) == []
    assert _everything_of(cluster, theirs.tenant) == before


@pytest.mark.parametrize("method", METHODS)
def test_every_field_that_can_name_a_thing_is_tried(theirs: Things, method: str) -> None:
    fields = {field.name for field in METHODS[method].input_type.fields if (method, field.name) not in NAMES_NOTHING}
    assert fields & NAMING <= {field for case in cases(method, theirs) for field in case}


def test_a_tenant_that_is_told_of_anothers_agents_is_found(
    server: RunningServer, theirs: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Snapshot.agent

    def telling(snapshot: Snapshot, name: AgentName) -> Agent:
        if name == theirs.agent:
            raise RoleRequired("This agent is another tenant's.")
        return agent(snapshot, name)

    monkeypatch.setattr(Snapshot, "agent", telling)
    ours = _ours(server)
    methods = [m for m in METHODS if "agent" in METHODS[m].input_type.fields_by_name and m.startswith("Skill")]
    assert [m for m in methods if not told_apart(ours, _asking(ours, server, m), m, theirs)] == []


def test_request_ids_that_all_tenants_share_are_found(
    server: RunningServer, theirs: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = requests.claim

    def shared(connection: Connection, tenant: TenantId, request_id: str, *rest: Any) -> bytes | None:
        if request_id in theirs.request_ids:
            raise RequestIdReused("request_id", "This id came with another request.")
        return claim(connection, tenant, request_id, *rest)

    monkeypatch.setattr(requests, "claim", shared)
    ours = _ours(server)
    for method in ("SkillDefService.CreateSkillDef", "SkillDefService.ImportSkills", "AgentService.PutAgent"):
        assert told_apart(ours, ours.author, method, theirs)


def _everything_of(cluster: Cluster, tenant: str) -> list[object]:
    tables = [table for table in TENANT_TABLES if table != "audit_events"]
    return [rows(cluster, f"SELECT t::text FROM {table} t WHERE tenant_id = %s ORDER BY 1", tenant) for table in tables]  # noqa: S608 - constants.


def test_a_page_token_of_another_tenant_is_no_page_token(server: RunningServer, theirs: Things) -> None:
    ours = server.tenant()
    _with_versions(ours)
    for method, fields in paged(ours.name).items():
        if not method.startswith("TenantService."):
            client = _asking(ours, server, method)
            failed = refused(client, method, page_size=1, page_token=theirs.page_tokens[method], **fields)
            assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")


def test_a_request_that_two_tenants_send_with_one_id_is_made_for_both(server: RunningServer) -> None:
    fields = {"name": "own/skill", "source": SOURCE, "files": FILES, "request_id": request_ids()[0]}
    tenants = [server.tenant() for _ in range(2)]
    for _ in range(2):
        made = {t.author.call("SkillDefService.CreateSkillDef", **fields).state.catalog_token for t in tenants}
        assert len(made) == 2
    for tenant in tenants:
        found = tenant.author.call("SkillDefService.GetSkillDef", name="own/skill").skill_def
        assert (found.latest_version, found.active_version) == (1, 1)


def test_an_archive_that_another_tenant_has_stored_is_new(server: RunningServer) -> None:
    for tenant in (server.tenant(), server.tenant()):
        (skill,) = tenant.author.call("SkillDefService.ImportSkills", archive=archive("own/skill")).skills
        assert (skill.version, skill.created) == (1, True)


def test_a_key_opens_no_other_tenant(server: RunningServer, theirs: Things) -> None:
    key = server.key(server.tenant().name, Role.AUTHOR)
    secret = key.rpartition(".")[2].partition("_")[2]
    told = set()
    for tenant, key_id in ((theirs.tenant, theirs.key_id), (theirs.tenant, "absent"), ("absent", theirs.key_id)):
        client = server.client(f"sub_{tenant}.{key_id}_{secret}")
        failed = refused(client, "SkillDefService.ListSkillDefs")
        told.add((failed.code, failed.reason, failed.message, tuple(failed.metadata)))
    assert len(told) == 1
    assert told.pop()[:2] == ("UNAUTHENTICATED", "UNAUTHENTICATED")


def test_each_tenant_sees_its_own_alone_under_the_same_names(server: RunningServer) -> None:
    first, second = server.tenant(), server.tenant()
    for tenant, body in ((first, "The first.\n"), (second, "The second.\n")):
        tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query", body))
        tenant.author.call("AgentService.PutAgent", agent={"name": "doc-manager", "skills": ["doc/query"]})
    for tenant, body in ((first, "The first.\n"), (second, "The second.\n"), (first, "The first.\n")):
        assert tenant.runtime.call("SkillService.InvokeSkill", **RUN, name="doc/query").body == body
        (event, *_) = tenant.author.call("AuditService.QueryAuditEvents", verb="invoke").events
        assert event.tenant == tenant.name
    changed(first.author, "SkillDefService.SetSkillDisabled", name="doc/query", disabled=True)
    assert refused(first.runtime, "SkillService.InvokeSkill", **RUN, name="doc/query").reason == "SKILL_NOT_FOUND"
    assert second.runtime.call("SkillService.InvokeSkill", **RUN, name="doc/query").body == "The second.\n"
