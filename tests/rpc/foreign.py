"""What a tenant has that another may have heard of, and requests of every method that name it."""

import io
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.rpc.wire import METHODS
from tests.skills import NO_ETAG, skill_md

Fields = dict[str, Any]

SOURCE = skill_md("skill")
NOTES = b"Notes of a tenant.\n"
FILES = {"files": [{"path": "notes.txt", "content": NOTES}]}
RUN: Fields = {"agent": "doc-manager"}
EVERYTHING: Fields = {"agent": "own-all"}
"""What a call names for an agent that every tenant has, and for one that the asking tenant has made."""

REQUESTS = 8


@dataclass(frozen=True)
class Things:
    """What a tenant has that can be named; things that do not exist look alike and are nobody's.

    `request_ids` are of requests that were made, `page_tokens` of the second pages of lists, by method.
    """

    tenant: str
    skill: str
    agent: str
    label: str
    digest: str
    key_id: str
    decision_id: str
    call_id: str
    etag: str
    agent_etag: str
    catalog_token: str
    position: str
    request_ids: Sequence[str]
    page_tokens: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """What tells these things from others in an answer."""
        return (self.tenant, self.skill, self.agent, self.label, self.digest, self.key_id, self.decision_id)

    def hidden(self, text: str) -> str:
        """Return `text` with what tells these things from others taken out."""
        for name in self.names:
            text = text.replace(name, "<name>")
        return text


def archive(name: str) -> bytes:
    """Return an archive of one skill."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writing:
        writing.writestr(f"{name}/SKILL.md", SOURCE)
        writing.writestr(f"{name}/notes.txt", NOTES)
    return packed.getvalue()


NAMING = {
    *("agent", "name", "names", "pattern", "label", "from", "to", "version", "tenant", "key_id", "content_sha256"),
    *("expected_digest", "etag", "request_id", "decision_id", "call_id", "catalog_token", "page_token", "archive"),
    *("id", "actor", "position", "recorded"),
}
"""Fields that can name something of a tenant's: the cases of a method give each that it has."""

NAMES_NOTHING = {("TenantService.IssueKey", "label")}
"""Fields with such a name that hold a remark."""


def cases(method: str, t: Things) -> list[Fields]:
    """Return requests of `method` that name `t` in every way there is; KeyError when there are none."""
    made = _CASES[method](t)
    if "request_id" in METHODS[method].input_type.fields_by_name:
        return [{**fields, "request_id": id_} for fields, id_ in zip(made, t.request_ids[: len(made)], strict=True)]
    if method in t.page_tokens:
        made.append({**paged(t.tenant)[method], "page_size": 1, "page_token": t.page_tokens[method]})
    return made


def paged(tenant: str) -> dict[str, Fields]:
    """Return the methods that answer in pages, each with a request of which there are several in a tenant in use."""
    return {
        "SkillService.ListSkills": RUN,
        "SkillDefService.ListSkillDefs": {},
        "SkillDefService.ListSkillDefVersions": {"name": "own/skill"},
        "SkillDefService.ListCatalog": {},
        "AgentService.ListAgents": {},
        "TenantService.ListTenants": {},
        "TenantService.ListKeys": {"tenant": tenant},
        "AuditService.QueryAuditEvents": {},
        "AuditService.WhoCan": {"name": "doc/query"},
        "AuditService.GetSkillHistory": {"name": "own/skill"},
    }


def _skill(t: Things, *more: Fields) -> list[Fields]:
    """Return a request about the skill for each of `more`."""
    return [{"name": t.skill, **fields} for fields in more]


_CASES: Mapping[str, Callable[[Things], list[Fields]]] = {
    "SkillService.PrepareRun": lambda t: [{"agent": t.agent}, {**RUN, "catalog_token": t.catalog_token}],
    "SkillService.ListSkills": lambda t: [
        {"agent": t.agent},
        {**EVERYTHING, "pattern": t.skill},
        {**RUN, "catalog_token": t.catalog_token},
    ],
    "SkillService.InvokeSkill": lambda t: [
        {"agent": t.agent, "name": "doc/query"},
        *_skill(t, EVERYTHING, RUN, {**EVERYTHING, "expected_digest": t.digest}),
        {**EVERYTHING, "name": f"{t.skill}@v1"},
        {**RUN, "name": "doc/query", "catalog_token": t.catalog_token},
        {**RUN, "name": "doc/query", "expected_digest": t.digest},
    ],
    "SkillService.ReadSkillFile": lambda t: [
        {"agent": t.agent, "name": "doc/query", "path": "a"},
        *_skill(t, {**EVERYTHING, "path": "notes.txt"}),
        {**EVERYTHING, "name": "doc/query", "path": "notes.txt", "catalog_token": t.catalog_token},
    ],
    "SkillService.CallSkillTool": lambda t: [
        {"agent": t.agent, "input_json": '{"op":"list"}'},
        {**EVERYTHING, "input_json": f'{{"name":"{t.skill}"}}'},
        {**EVERYTHING, "input_json": f'{{"name":"{t.skill}","file":"notes.txt"}}'},
        {**EVERYTHING, "input_json": f'{{"op":"list","pattern":"{t.skill}"}}'},
        {**RUN, "input_json": f'{{"name":"{t.skill}"}}'},
        {**RUN, "input_json": '{"op":"list"}', "catalog_token": t.catalog_token},
    ],
    "SkillDefService.CreateSkillDef": lambda t: [
        {"name": t.skill, "source": SOURCE, "agent": t.agent},
        {"name": t.skill, "source": SOURCE, "files": FILES},
        {"name": t.skill, "source": SOURCE},
    ],
    "SkillDefService.ForkSkillDef": lambda t: [
        *_skill(t, {}, {"from": "v1"}, {"from": t.label}, {"source": SOURCE, "agent": t.agent}),
        *_skill(t, {"source": SOURCE, "promote": True, "etag": t.etag}),
        {"name": "doc/query", "from": t.label},
    ],
    "SkillDefService.GetSkillDef": lambda t: [
        *_skill(t, {}, {"version": 1}, {"agent": t.agent}, {"tenant": t.tenant}),
        {"name": "doc/query", "tenant": t.tenant},
    ],
    "SkillDefService.ListSkillDefs": lambda t: [{"pattern": t.skill}, {"agent": t.agent}],
    "SkillDefService.ListSkillDefVersions": lambda t: _skill(t, {}, {"agent": t.agent}, {"tenant": t.tenant}),
    "SkillDefService.PromoteSkillDef": lambda t: _skill(
        t,
        {"version": 1},
        {"version": 1, "etag": t.etag},
        {"version": 1, "etag": t.etag, "agent": t.agent},
        {"version": 1, "etag": t.etag, "tenant": t.tenant},
    ),
    "SkillDefService.RetireSkillDef": lambda t: _skill(
        t, {"etag": t.etag}, {"etag": t.etag, "retired": False}, {"etag": t.etag, "agent": t.agent}
    ),
    "SkillDefService.SetSkillDisabled": lambda t: _skill(
        t,
        {"disabled": True, "etag": t.etag},
        {"disabled": False, "etag": t.etag},
        {"disabled": True, "etag": t.etag, "agent": t.agent},
        {"disabled": True, "etag": NO_ETAG},
    ),
    "SkillDefService.SetLabel": lambda t: _skill(
        t,
        {"label": t.label, "version": 1, "etag": t.etag},
        {"label": t.label, "version": 0, "etag": t.etag},
        {"label": t.label, "version": 1, "etag": t.etag, "agent": t.agent},
    ),
    "SkillDefService.DiffSkillDefs": lambda t: [
        *_skill(t, {"from": "v1"}, {"from": t.label, "to": "v1"}, {"agent": t.agent}, {"tenant": t.tenant}),
        {"name": "doc/query", "from": "bundle", "to": t.label},
    ],
    "SkillDefService.VerifySkillDef": lambda t: [
        *_skill(t, {"content_sha256": t.digest}, {"content_sha256": t.digest, "agent": t.agent}),
        {"name": "doc/query", "content_sha256": t.digest},
    ],
    "SkillDefService.ExportSkill": lambda t: [
        *_skill(t, {}, {"from": "v1"}, {"from": t.label}, {"agent": t.agent}),
        {"name": "doc/query", "from": t.label},
    ],
    "SkillDefService.ImportSkills": lambda t: [
        {"archive": archive(t.skill), "agent": t.agent},
        {"archive": archive(t.skill), "validate_only": True},
        {"archive": archive(t.skill)},
    ],
    "SkillDefService.ListCatalog": lambda t: [{"pattern": t.skill}, {"agent": t.agent}],
    "AgentService.PutAgent": lambda t: [
        {"agent": {"name": t.agent}, "etag": t.agent_etag},
        {"agent": {"name": t.agent, "pins": {t.skill: t.label}}},
        {"agent": {"name": t.agent}},
    ],
    "AgentService.GetAgent": lambda t: [{"name": t.agent}],
    "AgentService.ListAgents": lambda _: [{}],
    "AgentService.DeleteAgent": lambda t: [{"name": t.agent, "etag": t.agent_etag}, {"name": t.agent}],
    "AgentService.TestAllowlist": lambda t: [
        {"agent": t.agent, "names": [t.skill]},
        {"skills": [t.skill], "names": [t.skill]},
        {"skills": [t.skill], **EVERYTHING},
    ],
    "TenantService.CreateTenant": lambda t: [{"tenant": t.tenant}],
    "TenantService.ListTenants": lambda _: [{}],
    "TenantService.SetTenantSuspended": lambda t: [{"tenant": t.tenant, "suspended": True}],
    "TenantService.GetQuotas": lambda t: [{"tenant": t.tenant}],
    "TenantService.SetQuotas": lambda t: [{"tenant": t.tenant, "quotas": {"skills": 0}}],
    "TenantService.IssueKey": lambda t: [{"tenant": t.tenant, "role": "ROLE_RUNTIME", "agent": t.agent}],
    "TenantService.RevokeKey": lambda t: [{"tenant": t.tenant, "key_id": t.key_id}],
    "TenantService.RotateKey": lambda t: [{"tenant": t.tenant, "key_id": t.key_id}],
    "TenantService.ListKeys": lambda t: [{"tenant": t.tenant}],
    "AuditService.QueryAuditEvents": lambda t: [
        {"tenant": t.tenant},
        {"decision_id": t.decision_id},
        {"call_id": t.call_id},
        {"agent": t.agent},
        {"pattern": t.skill},
        {"actor": f"runtime:{t.tenant}.{t.key_id}"},
        {"version": 1},
    ],
    "AuditService.TailAuditEvents": lambda t: [
        {"tenant": t.tenant},
        {"call_id": t.call_id},
        {"agent": t.agent},
        {"pattern": t.skill},
        {"actor": f"runtime:{t.tenant}.{t.key_id}"},
        {"version": 1},
        {"position": t.position},
    ],
    "AuditService.GetAuditEvent": lambda t: [{"id": t.decision_id}, {"tenant": t.tenant, "id": t.decision_id}],
    "AuditService.WhoCan": lambda t: [*_skill(t, {}, {"tenant": t.tenant}), {"tenant": t.tenant, "name": "doc/query"}],
    "AuditService.GetSkillHistory": lambda t: [
        *_skill(t, {}, {"tenant": t.tenant}),
        {"tenant": t.tenant, "name": "doc/query"},
    ],
    "AuditService.GetUsageReport": lambda t: [
        {"tenant": t.tenant},
        {"agent": t.agent},
        {"pattern": t.skill},
        {"pattern": t.skill, "agent": t.agent},
    ],
    "AuditService.VerifyAudit": lambda t: [{"tenant": t.tenant}],
    "AuditService.ExplainResolution": lambda t: [
        {"tenant": t.tenant, "name": "doc/query"},
        *_skill(t, {}),
        {"name": f"{t.skill}@v1"},
        {"name": "doc/query", "agent": t.agent},
        {"recorded": t.decision_id},
        {"recorded": t.decision_id, "tenant": t.tenant},
        {"name": t.skill, "changes": [{"kind": "CHANGE_KIND_PROMOTE", "version": 1}]},
    ],
}


def request_ids() -> list[str]:
    """Return new request ids, as many as a method has cases at most."""
    return [str(uuid.uuid4()) for _ in range(REQUESTS)]
