"""Decisions: made on a snapshot that may be old, given only when they are not, and told to the log as to the audit."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import changed, refused, skill_md
from tests.store.chain import events, faults
from tests.store.owner import value

INVOKE = {"agent": "doc-manager", "name": "doc/query"}
OWN = {"agent": "doc-manager", "name": "doc/mine"}


@dataclass(frozen=True)
class Elsewhere:
    """The same tenant on another server, where things change behind the first one's back."""

    here: TestTenant
    author: Client
    operator: Client

    def create(self, name: str) -> str:
        """Create a skill and return its etag."""
        source = skill_md(name.rpartition("/")[2])
        etag: str = self.author.call("SkillDefService.CreateSkillDef", name=name, source=source).skill_def.etag
        return etag


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster) as server:
        yield server


@pytest.fixture
def elsewhere(tenant: TestTenant, second: RunningServer) -> Elsewhere:
    """A tenant that the first server has a snapshot of."""
    author = second.client(second.key(tenant.name, Role.AUTHOR))
    made = Elsewhere(tenant, author, second.operator())
    tenant.runtime.call("SkillService.InvokeSkill", **INVOKE)
    return made


def _verbs(cluster: Cluster, tenant: TestTenant) -> list[tuple[str, str]]:
    return [(event["verb"], event.get("reason", "")) for event in events(cluster, tenant.name)]


def test_a_revoked_key_is_refused_although_the_snapshot_at_hand_admits_it(
    cluster: Cluster, elsewhere: Elsewhere, server: RunningServer
) -> None:
    tenant = elsewhere.here
    made = elsewhere.operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_RUNTIME")
    client = server.client(made.secret)
    client.call("SkillService.InvokeSkill", **INVOKE)
    before = len(events(cluster, tenant.name))
    elsewhere.operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=made.key.key_id)
    failed = refused(client, "SkillService.InvokeSkill", **INVOKE)
    assert (failed.code, failed.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    failed = refused(client, "SkillService.ListSkills", agent="doc-manager")
    assert (failed.code, failed.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    # Whenever the calls that proved nothing are recorded, they are no decisions.
    decided = [found for found in _verbs(cluster, tenant)[before:] if found[0] != "authenticate"]
    assert decided == [("revoke_key", "")]


def test_a_new_key_is_admitted_although_the_snapshot_at_hand_does_not_know_it(
    elsewhere: Elsewhere, server: RunningServer
) -> None:
    made = elsewhere.operator.call("TenantService.IssueKey", tenant=elsewhere.here.name, role="ROLE_RUNTIME")
    assert server.client(made.secret).call("SkillService.InvokeSkill", **INVOKE).name == "doc/query"


def test_a_key_is_refused_from_its_expiry_on(elsewhere: Elsewhere, server: RunningServer) -> None:
    expiry = datetime.now(UTC) + timedelta(seconds=0.7)
    made = elsewhere.operator.call(
        "TenantService.IssueKey", tenant=elsewhere.here.name, role="ROLE_RUNTIME", expire_time=expiry
    )
    client = server.client(made.secret)
    client.call("SkillService.InvokeSkill", **INVOKE)
    while True:
        asked = datetime.now(UTC)
        try:
            client.call("SkillService.ListSkills", agent="doc-manager")
        except CallFailed as failed:
            if failed.reason != "UNAUTHENTICATED":
                raise
            break
        assert asked < expiry
    assert datetime.now(UTC) >= expiry


def test_a_stale_yes_is_corrected(cluster: Cluster, elsewhere: Elsewhere) -> None:
    tenant = elsewhere.here
    etag = elsewhere.create("doc/mine")
    tenant.runtime.call("SkillService.InvokeSkill", **OWN)
    elsewhere.author.call("SkillDefService.RetireSkillDef", name="doc/mine", etag=etag)
    assert refused(tenant.runtime, "SkillService.InvokeSkill", **OWN).reason == "SKILL_NOT_FOUND"
    expected = [("invoke", ""), ("create", ""), ("invoke", ""), ("retire", ""), ("invoke", "SKILL_NOT_FOUND")]
    assert _verbs(cluster, tenant) == expected


def test_a_stale_no_is_corrected(cluster: Cluster, elsewhere: Elsewhere) -> None:
    tenant = elsewhere.here
    assert refused(tenant.runtime, "SkillService.InvokeSkill", **OWN).reason == "SKILL_NOT_FOUND"
    elsewhere.create("doc/mine")
    assert tenant.runtime.call("SkillService.InvokeSkill", **OWN).origin == "tenant:v1"
    expected = [("invoke", ""), ("invoke", "SKILL_NOT_FOUND"), ("create", ""), ("invoke", "")]
    assert _verbs(cluster, tenant) == expected


def test_a_stale_allowlist_neither_admits_nor_refuses(elsewhere: Elsewhere) -> None:
    tenant = elsewhere.here
    for skills, reason in ((["-*"], "SKILL_NOT_PERMITTED"), (["doc/*"], ""), (["doc/query", "-*"], "")):
        changed(elsewhere.author, "AgentService.PutAgent", agent={"name": "doc-manager", "skills": skills})
        if reason:
            assert refused(tenant.runtime, "SkillService.InvokeSkill", **INVOKE).reason == reason
        else:
            tenant.runtime.call("SkillService.InvokeSkill", **INVOKE)


def test_a_change_is_checked_again_on_the_state_that_it_changes(cluster: Cluster, elsewhere: Elsewhere) -> None:
    tenant = elsewhere.here
    changed(elsewhere.author, "AgentService.PutAgent", agent={"name": "helper", "skills": ["doc/*"]})
    bound = tenant.bound(Role.AUTHOR, "helper")
    create = {"name": "doc/mine", "source": skill_md("mine")}
    assert bound.call("SkillDefService.ListSkillDefs").total_size == 0
    changed(elsewhere.author, "AgentService.PutAgent", agent={"name": "helper", "skills": ["own/*"]})
    assert refused(bound, "SkillDefService.CreateSkillDef", **create).reason == "SKILL_NOT_PERMITTED"
    assert value(cluster, "SELECT count(*) FROM skill_defs WHERE tenant_id = %s", tenant.name) == 0
    changed(elsewhere.author, "AgentService.PutAgent", agent={"name": "helper", "skills": ["doc/*"]})
    bound.call("SkillDefService.CreateSkillDef", **create)
    assert faults(cluster, tenant.name) == []
