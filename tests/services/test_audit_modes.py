"""When only the event cannot be written: what is answered without it, what is refused, and that losses are counted."""

from collections.abc import Iterator

import pytest

from tests.metrics import counted
from tests.servers import Cluster, RunningServer, running_server
from tests.skills import refused
from tests.store.chain import events, faults
from tests.store.owner import change

INVOKE = {"agent": "doc-manager", "name": "doc/query"}
DENIED = {"agent": "doc-manager", "name": "own/x"}
FILE = {"agent": "doc-manager", "name": "doc/chunk-review", "path": "references/review-checklist.md"}


@pytest.fixture
def unwritable(cluster: Cluster) -> Iterator[None]:
    """The audit writer may read revisions and lock chains, but insert nothing."""
    change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    yield
    change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")


@pytest.fixture
def best_effort(cluster: Cluster) -> Iterator[RunningServer]:
    with running_server(cluster, audit_mode="best_effort") as server:
        yield server


def _lost(server: RunningServer) -> float:
    return counted(server, "substrate_audit_lost_events_total")


@pytest.mark.usefixtures("unwritable")
def test_a_strict_server_gives_no_text_and_no_denial_without_its_event(cluster: Cluster, server: RunningServer) -> None:
    tenant = server.tenant()
    before = _lost(server)
    for method, fields in (
        ("InvokeSkill", INVOKE),
        ("ReadSkillFile", FILE),
        ("InvokeSkill", DENIED),
        ("ListSkills", {"agent": "nobody"}),
        ("CallSkillTool", {"agent": "doc-manager", "input_json": '{"name":"doc/query"}'}),
        ("CallSkillTool", {"agent": "doc-manager", "input_json": '{"name":"own/x"}'}),
    ):
        failed = refused(tenant.runtime, f"SkillService.{method}", **fields)
        assert (failed.code, failed.reason, failed.decision_id) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE", "")
    assert _lost(server) == before
    assert events(cluster, tenant.name) == []


@pytest.mark.usefixtures("unwritable")
def test_a_strict_server_answers_lists_without_their_events_and_counts_them(
    cluster: Cluster, server: RunningServer
) -> None:
    tenant = server.tenant()
    before = _lost(server)
    assert tenant.runtime.call("SkillService.ListSkills", agent="doc-manager").total_size > 0
    assert tenant.runtime.call("SkillService.PrepareRun", agent="doc-manager").note
    assert tenant.author.call("SkillDefService.ListCatalog").total_size > 0
    assert tenant.author.call("AgentService.GetAgent", name="doc-manager").agent.name == "doc-manager"
    assert _lost(server) == before + 4
    assert events(cluster, tenant.name) == []


@pytest.mark.usefixtures("unwritable")
def test_lists_need_their_events_too_where_that_is_configured(cluster: Cluster) -> None:
    with running_server(cluster, audit_lists="strict") as server:
        tenant = server.tenant()
        for method in ("SkillService.ListSkills", "SkillService.PrepareRun"):
            failed = refused(tenant.runtime, method, agent="doc-manager")
            assert (failed.code, failed.reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
        assert _lost(server) == 0
    assert events(cluster, tenant.name) == []


@pytest.mark.usefixtures("unwritable")
def test_a_best_effort_server_answers_all_without_their_events_and_counts_them(
    cluster: Cluster, best_effort: RunningServer
) -> None:
    tenant = best_effort.tenant()
    assert tenant.runtime.call("SkillService.InvokeSkill", **INVOKE).body
    assert tenant.runtime.call("SkillService.ReadSkillFile", **FILE).content
    assert refused(tenant.runtime, "SkillService.InvokeSkill", **DENIED).reason == "SKILL_NOT_PERMITTED"
    assert tenant.runtime.call("SkillService.ListSkills", agent="doc-manager").total_size > 0
    assert _lost(best_effort) == 4
    assert events(cluster, tenant.name) == []


def test_a_best_effort_server_records_all_it_can(cluster: Cluster, best_effort: RunningServer) -> None:
    tenant = best_effort.tenant()
    answer = tenant.runtime.call("SkillService.InvokeSkill", **INVOKE)
    denied = refused(tenant.runtime, "SkillService.InvokeSkill", **DENIED)
    assert [event["id"] for event in events(cluster, tenant.name)] == [answer.decision_id, denied.decision_id]
    assert _lost(best_effort) == 0
    assert faults(cluster, tenant.name) == []
