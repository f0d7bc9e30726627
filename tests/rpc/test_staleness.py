"""Calls that accept an older state while the database is away: within what they accept, never before their token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.metrics import counted
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.skills import refused, skill_md
from tests.store.owner import held_chain

LIST, INVOKE, PREPARE = "SkillService.ListSkills", "SkillService.InvokeSkill", "SkillService.PrepareRun"
HOUR = {"max_staleness": {"seconds": 3600}, "agent": "doc-manager"}
AWAY = ("STORE_UNAVAILABLE", "AUDIT_UNAVAILABLE")


def names(answer: Any) -> list[str]:
    return [skill.name for skill in answer.skills]


def create(tenant: TestTenant, name: str) -> Any:
    source = skill_md(name.rpartition("/")[2])
    return tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source)


@dataclass
class Outage:
    """A tenant whose server has lost its database, what it saw before, and a token of what it had not seen yet."""

    tenant: TestTenant
    seen: Any
    newer_token: str
    server: RunningServer


@pytest.fixture(scope="module")
def outage() -> Iterator[Outage]:
    with running_cluster() as cluster, running_server(cluster) as server, running_server(cluster) as other:
        tenant = server.tenant()
        seen = tenant.runtime.call(LIST, agent="doc-manager")
        newer = create(other.tenant(tenant.name), "doc/new")
        cluster.postgres.stop()
        yield Outage(tenant, seen, newer.state.catalog_token, server)


def test_while_the_database_answers_nothing_old_is_given_nor_an_old_key_accepted(
    cluster: Cluster, server: RunningServer
) -> None:
    with running_server(cluster) as other:
        tenant = server.tenant()
        tenant.runtime.call(LIST, agent="doc-manager")
        create(other.tenant(tenant.name), "doc/new")
        assert "doc/new" in names(tenant.runtime.call(LIST, **HOUR))
        operator = other.operator()
        for key in operator.call("TenantService.ListKeys", tenant=tenant.name).keys:
            operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=key.key_id)
        assert refused(tenant.runtime, LIST, **HOUR).reason == "UNAUTHENTICATED"


def test_a_chain_that_somebody_holds_is_no_reason_to_believe_an_old_key(
    cluster: Cluster, server: RunningServer
) -> None:
    with running_server(cluster) as other:
        tenant = server.tenant()
        tenant.runtime.call(LIST, agent="doc-manager")
        operator = other.operator()
        for key in operator.call("TenantService.ListKeys", tenant=tenant.name).keys:
            operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=key.key_id)
        with held_chain(cluster, tenant.name):
            assert refused(tenant.runtime, LIST, **HOUR).reason in ("UNAUTHENTICATED", *AWAY)


def test_without_a_database_only_who_accepts_an_older_state_is_answered(outage: Outage) -> None:
    runtime = outage.tenant.runtime
    assert names(runtime.call(LIST, **HOUR)) == names(outage.seen)
    assert runtime.call(PREPARE, **HOUR).note
    assert refused(runtime, LIST, agent="doc-manager").reason in AWAY
    assert names(runtime.call(LIST, catalog_token=outage.seen.state.catalog_token, **HOUR)) == names(outage.seen)


def test_what_must_be_recorded_is_not_given(outage: Outage) -> None:
    runtime = outage.tenant.runtime
    assert refused(runtime, INVOKE, name="doc/query", **HOUR).reason == "AUDIT_UNAVAILABLE"
    assert refused(runtime, LIST, max_staleness={"seconds": 3600}, agent="nobody").reason == "AUDIT_UNAVAILABLE"


def test_a_state_older_than_the_token_is_not_enough(outage: Outage) -> None:
    error = refused(outage.tenant.runtime, LIST, catalog_token=outage.newer_token, **HOUR)
    assert error.reason in AWAY


def test_a_state_that_was_confirmed_too_long_ago_is_not_enough(outage: Outage) -> None:
    asked = {"agent": "doc-manager", "max_staleness": {"nanos": 1}}
    assert refused(outage.tenant.runtime, LIST, **asked).reason in AWAY


def test_a_key_that_proves_nothing_is_not_believed_either(outage: Outage) -> None:
    server = outage.tenant.server
    stranger = server.client(f"sub_{outage.tenant.name}.abc_def")
    assert refused(stranger, LIST, **HOUR).reason in ("UNAUTHENTICATED", *AWAY)


@pytest.mark.parametrize("staleness", [{"seconds": -1}, {"seconds": 86_401}, {"nanos": -1}])
def test_it_has_bounds(tenant: TestTenant, staleness: dict[str, int]) -> None:
    error = refused(tenant.runtime, LIST, agent="doc-manager", max_staleness=staleness)
    assert [field for field, _ in error.violations] == ["max_staleness"]


def test_an_event_that_was_not_written_is_counted(outage: Outage) -> None:
    before = counted(outage.server, "substrate_audit_lost_events_total")
    outage.tenant.runtime.call(LIST, **HOUR)
    # A call that waits is settled after the events that were handed over before it.
    refused(outage.tenant.runtime, LIST, agent="doc-manager")
    assert counted(outage.server, "substrate_audit_lost_events_total") > before
