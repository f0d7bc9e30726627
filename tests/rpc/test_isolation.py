"""Whatever one tenant knows of another gets it the same answer as what does not exist."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import TenantId
from substrate.domain.tokens import CatalogToken, read_catalog_token
from substrate.rpc.client import CallFailed, Client, to_plain
from tests.rpc.wire import METHODS
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store.owner import rows

SOURCE = skill_md("skill")
# What the clock, chance and the caller's own revision put into an answer.
VOLATILE = re.compile(r".*_time|decision_id|etag|state|.*key_id|created_by|promoted_by|secret")


@dataclass(frozen=True)
class Things:
    """What a tenant has that can be named: `absent` ones look alike and are nobody's."""

    tenant: str
    skill: str
    agent: str
    key_id: str
    decision_id: str
    call_id: str
    etag: str
    agent_etag: str
    catalog_token: str
    page_tokens: Mapping[str, str]

    def hidden(self, text: str) -> str:
        """Return `text` with what tells these things from others taken out."""
        for name in (self.tenant, self.skill, self.agent, self.key_id, self.decision_id):
            text = text.replace(name, "<name>")
        return text


RUN = {"agent": "doc-manager"}
Fields = dict[str, Any]


def _cases(method: str, t: Things) -> list[Fields]:
    """Return requests of `method` that name `t` in every way there is."""
    skill = {"name": t.skill}
    paged = {"page_size": 1, "page_token": t.page_tokens.get(method, "")}
    cases: dict[str, list[Fields]] = {
        "SkillService.PrepareRun": [{"agent": t.agent}, {**RUN, "catalog_token": t.catalog_token}],
        "SkillService.ListSkills": [
            {"agent": t.agent},
            {"agent": "own-all", "pattern": t.skill},
            {**RUN, "catalog_token": t.catalog_token},
            {**RUN, **paged},
        ],
        "SkillService.InvokeSkill": [
            {"agent": t.agent, "name": "doc/query"},
            {"agent": "own-all", **skill},
            {"agent": "own-all", "name": f"{t.skill}@v1"},
            {**RUN, **skill},
            {**RUN, "name": "doc/query", "catalog_token": t.catalog_token},
        ],
        "SkillService.ReadSkillFile": [
            {"agent": t.agent, "name": "doc/query", "path": "a"},
            {"agent": "own-all", **skill, "path": "a"},
            {"agent": "own-all", "name": "doc/query", "path": "a", "catalog_token": t.catalog_token},
        ],
        "SkillService.CallSkillTool": [
            {"agent": t.agent, "input_json": '{"op":"list"}'},
            {"agent": "own-all", "input_json": f'{{"name":"{t.skill}"}}'},
            {"agent": "own-all", "input_json": f'{{"op":"list","pattern":"{t.skill}"}}'},
            {**RUN, "input_json": f'{{"name":"{t.skill}"}}'},
            {**RUN, "input_json": '{"op":"list"}', "catalog_token": t.catalog_token},
        ],
        "SkillDefService.GetSkillDef": [skill, {**skill, "version": 1}, {**skill, "agent": t.agent}],
        "SkillDefService.ListSkillDefs": [{"pattern": t.skill}, {"agent": t.agent}, paged],
        "SkillDefService.PromoteSkillDef": [{**skill, "version": 1}, {**skill, "version": 1, "etag": t.etag}],
        "SkillDefService.RetireSkillDef": [skill, {**skill, "retired": False}, {**skill, "etag": t.etag}],
        "SkillDefService.SetSkillDisabled": [
            {**skill, "disabled": True, "etag": t.etag},
            {**skill, "disabled": True},
            {**skill, "disabled": False},
        ],
        "SkillDefService.CreateSkillDef": [{**skill, "source": SOURCE, "agent": t.agent}, {**skill, "source": SOURCE}],
        "SkillDefService.ListCatalog": [{"pattern": t.skill}, {"agent": t.agent}, paged],
        "AgentService.GetAgent": [{"name": t.agent}],
        "AgentService.ListAgents": [paged],
        "AgentService.TestAllowlist": [{"agent": t.agent, "names": [t.skill]}, {"skills": ["x"], "names": [t.skill]}],
        "AgentService.PutAgent": [{"agent": {"name": t.agent}, "etag": t.agent_etag}, {"agent": {"name": t.agent}}],
        "TenantService.CreateTenant": [{"tenant": t.tenant}],
        "TenantService.ListTenants": [{}],
        "TenantService.IssueKey": [{"tenant": t.tenant, "role": "ROLE_RUNTIME"}],
        "TenantService.RevokeKey": [{"tenant": t.tenant, "key_id": t.key_id}],
        "TenantService.ListKeys": [{"tenant": t.tenant}],
        "AuditService.QueryAuditEvents": [
            {"tenant": t.tenant},
            {"decision_id": t.decision_id},
            {"call_id": t.call_id},
            {"agent": t.agent},
            {"pattern": t.skill},
            paged,
        ],
        "AuditService.ExplainResolution": [
            {"tenant": t.tenant, "name": "doc/query"},
            skill,
            {"name": f"{t.skill}@v1"},
            {"name": "doc/query", "agent": t.agent},
        ],
    }
    return cases[method]


@pytest.fixture(scope="module")
def theirs(server: RunningServer) -> Things:
    """A tenant that has one of everything, and has used it."""
    tenant = server.tenant()
    skill, agent = f"own/{secrets.token_hex(4)}/skill", f"agent-{secrets.token_hex(4)}"
    made = tenant.author.call("SkillDefService.CreateSkillDef", name=skill, source=SOURCE)
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/skill", source=SOURCE)
    put = tenant.author.call("AgentService.PutAgent", agent={"name": agent})
    invoked = tenant.runtime.call("SkillService.InvokeSkill", agent=agent, name=skill)
    (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=invoked.decision_id).events
    lists: dict[str, tuple[Client, Fields]] = {
        "SkillService.ListSkills": (tenant.runtime, RUN),
        "SkillDefService.ListSkillDefs": (tenant.author, {}),
        "SkillDefService.ListCatalog": (tenant.author, {}),
        "AgentService.ListAgents": (tenant.author, {}),
        "AuditService.QueryAuditEvents": (tenant.author, {}),
    }
    tokens = {
        method: client.call(method, page_size=1, **fields).next_page_token for method, (client, fields) in lists.items()
    }
    assert all(tokens.values())
    return Things(
        tenant=tenant.name,
        skill=skill,
        agent=agent,
        key_id=event.key_id,
        decision_id=invoked.decision_id,
        call_id=event.call_id,
        etag=made.skill_def.etag,
        agent_etag=put.agent.etag,
        catalog_token=invoked.state.catalog_token,
        page_tokens=tokens,
    )


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
        key_id=theirs.key_id[::-1],
        decision_id=f"{theirs.decision_id[:-4]}0000",
        call_id="nobody-called",
        etag="r999",
        agent_etag="0" * len(theirs.agent_etag),
        catalog_token=str(CatalogToken("another", TenantId("another"), token.revision, "0" * 64)),
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
        answer = client.call(method, **fields)
    except CallFailed as failed:
        metadata = {key: value for key, value in failed.metadata.items() if key != "decision_id"}
        told: object = [failed.code, failed.reason, failed.message, metadata, failed.violations]
    else:
        told = _stable(to_plain(answer))
    return re.sub(r"tenant:r[0-9]+", "tenant:r<n>", things.hidden(repr(told)))


@pytest.mark.parametrize("role", [Role.RUNTIME, Role.AUTHOR])
@pytest.mark.parametrize("method", METHODS)
def test_another_tenants_things_are_answered_like_things_that_do_not_exist(
    cluster: Cluster, server: RunningServer, theirs: Things, method: str, role: Role
) -> None:
    ours = server.tenant()
    ours.author.call("AgentService.PutAgent", agent={"name": "own-all"})
    client = ours.author if role is Role.AUTHOR else ours.runtime
    absent = _absent(theirs, ours)
    before = _everything_of(cluster, theirs.tenant)
    for known, unknown in zip(_cases(method, theirs), _cases(method, absent), strict=True):
        expected = _answer(client, method, unknown, absent)
        assert _answer(client, method, known, theirs) == expected
        for name in (theirs.tenant, theirs.agent, theirs.skill, theirs.decision_id):
            assert name not in expected
    assert _everything_of(cluster, theirs.tenant) == before


def _everything_of(cluster: Cluster, tenant: str) -> list[object]:
    tables = ("tenants", "skill_defs", "skill_def_versions", "disabled_names", "agents", "keys", "chain_heads")
    return [rows(cluster, f"SELECT t::text FROM {table} t WHERE tenant_id = %s ORDER BY 1", tenant) for table in tables]  # noqa: S608 - constants.


def test_a_page_token_of_another_tenant_is_no_page_token(server: RunningServer, theirs: Things) -> None:
    ours = server.tenant()
    for method, token in theirs.page_tokens.items():
        fields = RUN if method == "SkillService.ListSkills" else {}
        client = ours.runtime if method == "SkillService.ListSkills" else ours.author
        failed = refused(client, method, page_size=1, page_token=token, **fields)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")


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
    first.author.call("SkillDefService.SetSkillDisabled", name="doc/query", disabled=True)
    assert refused(first.runtime, "SkillService.InvokeSkill", **RUN, name="doc/query").reason == "SKILL_NOT_FOUND"
    assert second.runtime.call("SkillService.InvokeSkill", **RUN, name="doc/query").body == "The second.\n"
