"""Calls that accept an older state: answered from memory, within what they accept, and never older than their token."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from substrate.services import audit_writer
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.skills import refused, skill_md

LIST, INVOKE = "SkillService.ListSkills", "SkillService.InvokeSkill"
HOUR = {"max_staleness": {"seconds": 3600}, "agent": "doc-manager"}


@pytest.fixture
def two(cluster: Cluster, server: RunningServer) -> Iterator[tuple[TestTenant, TestTenant]]:
    """One tenant, seen through two servers."""
    with running_server(cluster) as other:
        tenant = server.tenant()
        elsewhere = other.tenant(tenant.name)
        yield tenant, elsewhere


def names(answer: Any) -> list[str]:
    return [skill.name for skill in answer.skills]


def create(tenant: TestTenant, name: str) -> Any:
    source = skill_md(name.rpartition("/")[2])
    return tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source)


def test_an_old_state_is_enough_for_who_says_so_and_for_nobody_else(two: tuple[TestTenant, TestTenant]) -> None:
    tenant, elsewhere = two
    tenant.runtime.call(LIST, agent="doc-manager")
    made = create(elsewhere, "doc/new")
    assert "doc/new" not in names(tenant.runtime.call(LIST, **HOUR))
    token = made.state.catalog_token
    assert "doc/new" in names(tenant.runtime.call(LIST, catalog_token=token, **HOUR))
    create(elsewhere, "doc/newer")
    assert "doc/newer" not in names(tenant.runtime.call(LIST, **HOUR))
    assert "doc/newer" in names(tenant.runtime.call(LIST, agent="doc-manager"))
    assert "doc/newer" in names(tenant.runtime.call(LIST, **HOUR))


def test_invoking_and_being_refused_follow_it_too(two: tuple[TestTenant, TestTenant]) -> None:
    tenant, elsewhere = two
    tenant.runtime.call(LIST, agent="doc-manager")
    create(elsewhere, "doc/query")
    old = tenant.runtime.call(INVOKE, name="doc/query", **HOUR)
    assert old.origin.startswith("bundle:")
    assert refused(tenant.runtime, INVOKE, name="doc/none", **HOUR).reason == "SKILL_NOT_FOUND"
    assert tenant.runtime.call(INVOKE, name="doc/query", agent="doc-manager").origin == "tenant:v1"
    recorded = tenant.author.call("AuditService.QueryAuditEvents", verb="invoke", page_size=3)
    assert recorded.events[-1].id == old.decision_id


def test_a_state_that_was_confirmed_too_long_ago_is_not_enough(two: tuple[TestTenant, TestTenant]) -> None:
    tenant, elsewhere = two
    tenant.runtime.call(LIST, agent="doc-manager")
    create(elsewhere, "doc/new")
    asked = {"agent": "doc-manager", "max_staleness": {"nanos": 1}}
    assert "doc/new" in names(tenant.runtime.call(LIST, **asked))


@pytest.mark.parametrize("staleness", [{"seconds": -1}, {"seconds": 86_401}, {"nanos": -1}])
def test_it_has_bounds(tenant: TestTenant, staleness: dict[str, int]) -> None:
    error = refused(tenant.runtime, LIST, agent="doc-manager", max_staleness=staleness)
    assert [field for field, _ in error.violations] == ["max_staleness"]


@contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """Stop a cluster's PostgreSQL."""
    cluster.postgres.stop()
    yield


def test_without_a_database_it_is_all_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    with running_cluster() as cluster, running_server(cluster) as server:
        monkeypatch.setattr(server.app.writer, "_lost", lost.append)
        tenant = server.tenant()
        before = tenant.runtime.call(LIST, agent="doc-manager")
        with stopped(cluster):
            monkeypatch.setattr(audit_writer, "REFUSE_AFTER", 0.5)
            assert names(tenant.runtime.call(LIST, **HOUR)) == names(before)
            assert refused(tenant.runtime, LIST, agent="doc-manager").reason in (
                "STORE_UNAVAILABLE",
                "AUDIT_UNAVAILABLE",
            )
            # What must be recorded is not given without.
            assert refused(tenant.runtime, INVOKE, name="doc/query", **HOUR).reason == "AUDIT_UNAVAILABLE"
        server.app.writer.stop()
        monkeypatch.setattr(server.app.writer, "stop", lambda: None)
    assert sum(lost) >= 1
