"""A change and its event are made together, or neither is."""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from substrate.domain.archives import PackedSkill, pack
from substrate.domain.identity import Role
from substrate.domain.names import SkillName
from substrate.rpc.client import Client
from tests.servers import Cluster, TestTenant
from tests.skills import etag_of, refused, skill_md
from tests.store.chain import events, faults
from tests.store.owner import change, held_chain, rows, wait_until

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "SkillDefService.CreateSkillDef": {"name": "own/new", "source": skill_md("new")},
    "SkillDefService.ForkSkillDef": {"name": "doc/query"},
    "SkillDefService.PromoteSkillDef": {"name": "own/draft", "version": 1},
    "SkillDefService.RetireSkillDef": {"name": "own/mine"},
    "SkillDefService.SetSkillDisabled": {"name": "doc/query", "disabled": True},
    "SkillDefService.SetLabel": {"name": "own/mine", "label": "staging", "version": 1},
    "SkillDefService.ImportSkills": {"archive": pack([PackedSkill(SkillName("own/new"), skill_md("new").encode())])},
    "AgentService.PutAgent": {"agent": {"name": "helper"}},
}

GUARDED = ("PromoteSkillDef", "RetireSkillDef", "SetSkillDisabled", "SetLabel")


@pytest.fixture
def author(tenant: TestTenant) -> Client:
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/draft", source=skill_md("draft"), promote=False)
    return tenant.author


def _everything(cluster: Cluster, tenant: str) -> list[object]:
    """Return every row of the tenant, of whatever table: as text, with the transaction that wrote it."""
    skills = ("skill_defs", "skill_def_versions", "skill_files", "skill_labels", "disabled_names")
    tables = ("tenants", *skills, "agents", "keys", "requests", "chain_heads", "audit_events")
    query = "SELECT t.xmin::text, t::text FROM {} t WHERE tenant_id = %s ORDER BY 2"
    return [rows(cluster, query.format(table), tenant) for table in tables]


@contextmanager
def _revoked(cluster: Cluster, privilege: str, role: str) -> Iterator[None]:
    change(cluster, f"REVOKE {privilege} FROM {role}")
    try:
        yield
    finally:
        change(cluster, f"GRANT {privilege} TO {role}")


@pytest.mark.parametrize("method", CHANGES)
def test_a_change_that_cannot_be_recorded_is_not_made(
    cluster: Cluster, tenant: TestTenant, author: Client, method: str
) -> None:
    fields = {"request_id": str(uuid.uuid4())} if method.startswith("SkillDef") else {}
    if method.partition(".")[2] in GUARDED:
        fields["etag"] = etag_of(author, CHANGES[method]["name"])
    before = _everything(cluster, tenant.name)
    with _revoked(cluster, "INSERT ON audit_events", "substrate_app"):
        failed = refused(author, method, **CHANGES[method], **fields)
    assert (failed.code, failed.reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
    assert _everything(cluster, tenant.name) == before
    answer = author.call(method, **CHANGES[method], **fields)
    assert events(cluster, tenant.name)[-1]["id"] == answer.decision_id
    assert faults(cluster, tenant.name) == []


def test_a_key_that_cannot_be_recorded_is_not_issued(cluster: Cluster, tenant: TestTenant) -> None:
    operator = tenant.server.operator()
    issue = {"tenant": tenant.name, "role": "ROLE_RUNTIME"}
    before = _everything(cluster, tenant.name)
    with _revoked(cluster, "INSERT ON audit_events", "substrate_operator"):
        failed = refused(operator, "TenantService.IssueKey", **issue)
    assert (failed.code, failed.reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
    assert _everything(cluster, tenant.name) == before


def test_a_change_is_refused_in_a_second_while_the_chain_is_held(
    cluster: Cluster, tenant: TestTenant, author: Client
) -> None:
    before = _everything(cluster, tenant.name)
    with held_chain(cluster, tenant.name):
        began = time.monotonic()
        failed = refused(author, "SkillDefService.CreateSkillDef", name="own/new", source=skill_md("new"))
        assert 0.8 < time.monotonic() - began < 1.8
    assert (failed.code, failed.reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
    assert _everything(cluster, tenant.name) == before
    author.call("SkillDefService.CreateSkillDef", name="own/new", source=skill_md("new"))


def test_a_change_that_waits_too_long_for_the_chain_is_not_made(
    cluster: Cluster, tenant: TestTenant, author: Client
) -> None:
    hasty = tenant.server.client(tenant.server.key(tenant.name, Role.AUTHOR), timeout=0.3)
    before = _everything(cluster, tenant.name)
    with held_chain(cluster, tenant.name):
        failed = refused(hasty, "SkillDefService.CreateSkillDef", name="own/new", source=skill_md("new"))
        assert failed.code == "DEADLINE_EXCEEDED"
        # The caller's patience ends first; by then the server may not have given up yet.
        wait_until(cluster, "SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    author.call("SkillDefService.GetSkillDef", name="own/mine")
    assert refused(author, "SkillDefService.GetSkillDef", name="own/new").reason == "SKILL_DEF_NOT_FOUND"
    after = _everything(cluster, tenant.name)
    assert after[:-2] == before[:-2]
    assert faults(cluster, tenant.name) == []


@pytest.fixture
def failing_commit(cluster: Cluster, tenant: TestTenant) -> Iterator[None]:
    """Everything that this tenant writes of skills is refused at the very commit."""
    change(
        cluster,
        "CREATE FUNCTION fail_at_commit() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'a secret of the database'; END $$",
    )
    change(
        cluster,
        "CREATE CONSTRAINT TRIGGER fail_at_commit AFTER INSERT OR UPDATE ON skill_defs DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW WHEN (NEW.tenant_id = '{tenant.name}') EXECUTE FUNCTION fail_at_commit()",
    )
    yield
    change(cluster, "DROP FUNCTION IF EXISTS fail_at_commit() CASCADE")


@pytest.mark.usefixtures("failing_commit")
def test_a_commit_that_fails_leaves_neither_the_change_nor_its_event(cluster: Cluster, tenant: TestTenant) -> None:
    before = _everything(cluster, tenant.name)
    create = {"name": "own/new", "source": skill_md("new")}
    failed = refused(tenant.author, "SkillDefService.CreateSkillDef", **create)
    assert (failed.code, failed.reason) == ("INTERNAL", "INTERNAL")
    assert "secret of the database" not in failed.message
    assert _everything(cluster, tenant.name) == before
    change(cluster, "DROP TRIGGER fail_at_commit ON skill_defs")
    assert tenant.author.call("SkillDefService.CreateSkillDef", **create).winner.origin == "tenant:v1"
    assert faults(cluster, tenant.name) == []
