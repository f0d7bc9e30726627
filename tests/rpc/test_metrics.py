"""Metrics: each moves with what it counts, under labels of which there are few whoever calls."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from substrate.bootstrap import reload_static
from substrate.domain.identity import Role
from tests.metrics import CALLS, counted, method, samples
from tests.rpc.headers import HeadersOnly
from tests.rpc.test_server import until
from tests.rpc.wire import METHODS, bearer
from tests.servers import Cluster, RunningServer, running_server
from tests.skills import changed, refused, skill_md
from tests.store.owner import change

INVOKE = "SkillService.InvokeSkill"
LOADS = "substrate_snapshot_loads_total"
RESOLUTIONS = "substrate_resolutions_total"

LABELS: Mapping[str, set[str]] = {
    "rpc_server_call_duration_seconds": {"rpc_system_name", "rpc_method", "rpc_response_status_code"},
    "substrate_resolutions": {"outcome", "layer"},
    "substrate_snapshot_loads": {"result"},
    "substrate_snapshot_load_seconds": set(),
    "substrate_snapshot_age_seconds": set(),
    "substrate_snapshots": set(),
    "substrate_audit_lost_events": {"cause"},
    "substrate_audit_refused": set(),
    "substrate_audit_queue_depth": set(),
    "substrate_audit_commit_seconds": set(),
    "substrate_audit_batch_events": set(),
    "substrate_audit_healthy": set(),
    "substrate_static_skills": set(),
}
"""Every metric with its labels."""


@pytest.fixture
def alone(cluster: Cluster) -> Iterator[RunningServer]:
    """A server that nobody else calls."""
    with running_server(cluster) as server:
        yield server


@contextmanager
def moves(server: RunningServer, name: str, by: float, **labels: str) -> Iterator[None]:
    """Expect a metric to have moved by so much at the end."""
    before = counted(server, name, **labels)
    yield
    assert counted(server, name, **labels) - before == by, (name, labels)


def unknown(server: RunningServer, path: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
    """Return the code with which a method is refused that is not served."""
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary(path)
        with pytest.raises(grpc.RpcError) as failed:
            call(b"", metadata=metadata, timeout=10)
        error: Any = failed.value
        code: grpc.StatusCode = error.code()
        return code


def test_calls_are_counted_by_method_and_code(alone: RunningServer) -> None:
    tenant = alone.tenant()
    stranger = alone.client(alone.key(tenant.name, Role.RUNTIME)[:-1] + "!")
    for _ in range(3):
        tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
    refused(tenant.runtime, INVOKE, agent="doc-manager", name="own/x")
    refused(stranger, INVOKE, agent="doc-manager", name="doc/query")
    tenant.author.call("AgentService.ListAgents")
    found = {
        (sample.labels["rpc_method"], sample.labels["rpc_response_status_code"]): sample.value
        for sample in samples(alone)
        if sample.name == CALLS
    }
    assert found == {
        ("substrate.api.v1.SkillService/InvokeSkill", "OK"): 3,
        ("substrate.api.v1.SkillService/InvokeSkill", "PERMISSION_DENIED"): 1,
        ("substrate.api.v1.SkillService/InvokeSkill", "UNAUTHENTICATED"): 1,
        ("substrate.api.v1.AgentService/ListAgents", "OK"): 1,
    }
    assert {sample.labels["rpc_system_name"] for sample in samples(alone) if sample.name == CALLS} == {"grpc"}


def test_a_call_that_is_not_admitted_is_counted(cluster: Cluster) -> None:
    label = {"rpc_method": method("SkillService.ListSkills"), "rpc_response_status_code": "RESOURCE_EXHAUSTED"}
    with running_server(cluster, max_calls=4, threads=4) as server, HeadersOnly.to(server.address) as headers:
        key = server.key(server.tenant().name, Role.RUNTIME)
        headers.begin(key)
        until(lambda: server.app.server.held == 1)
        with moves(server, CALLS, 1, **label):
            # The key is not proven before its tenant is loaded, and of such calls there may be one.
            assert headers.refused(key).reason == "OVERLOADED"


def test_methods_that_are_not_served_are_one(alone: RunningServer) -> None:
    with moves(alone, CALLS, 3, rpc_method="_OTHER", rpc_response_status_code="UNIMPLEMENTED"):
        for path in ("/substrate.api.v1.SkillService/Made", "/up.Service/Made", "/substrate.api.v1.SkillService/"):
            assert unknown(alone, path, *bearer(alone.operator_key)) is grpc.StatusCode.UNIMPLEMENTED
    assert {sample.labels["rpc_method"] for sample in samples(alone) if sample.name == CALLS} == {"_OTHER"}


def test_the_labels_are_few_whoever_calls(alone: RunningServer) -> None:
    tenants = [alone.tenant() for _ in range(3)]
    for tenant in tenants:
        changed(tenant.author, "AgentService.PutAgent", agent={"name": f"agent-{tenant.name}", "skills": ["own/*"]})
        name = f"own/{tenant.name}"
        tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md(tenant.name))
        tenant.runtime.call(INVOKE, agent=f"agent-{tenant.name}", name=name)
        refused(tenant.runtime, INVOKE, agent=f"agent-{tenant.name}", name=f"doc/{tenant.name}")
        refused(alone.client(f"sub_{tenant.name}x.abc_{'x' * 43}"), INVOKE, name=name)
        unknown(alone, f"/substrate.api.v1.SkillService/{tenant.name}")
    found = list(samples(alone))
    texts = {value for sample in found for value in sample.labels.values()}
    assert not [text for text in texts if any(tenant.name in text for tenant in tenants)]
    served = {method(name) for name in METHODS} | {"_OTHER"}
    assert {sample.labels["rpc_method"] for sample in found if "rpc_method" in sample.labels} <= served
    families = {family.name: family for family in alone.app.metrics.registry.collect()}
    assert families.keys() == LABELS.keys()
    for name, family in families.items():
        assert all(sample.labels.keys() - {"le"} == LABELS[name] for sample in family.samples), name


@pytest.mark.parametrize(
    ("name", "outcome", "layer"),
    [
        ("doc/query", "RESOLVED", "BUNDLE"),
        ("doc/own", "RESOLVED", "TENANT"),
        ("doc/nothing", "ABSENT", ""),
        ("doc/draft", "DRAFT", ""),
        ("doc/retired", "RETIRED", ""),
        ("own/x", "DENIED", ""),
    ],
)
def test_decisions_on_single_names_are_counted(server: RunningServer, name: str, outcome: str, layer: str) -> None:
    tenant = server.tenant()
    create = "SkillDefService.CreateSkillDef"
    tenant.author.call(create, name="doc/own", source=skill_md("own"))
    tenant.author.call(create, name="doc/draft", source=skill_md("draft"), promote=False)
    tenant.author.call(create, name="doc/retired", source=skill_md("retired"))
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="doc/retired")
    with moves(server, RESOLUTIONS, 2), moves(server, RESOLUTIONS, 2, outcome=outcome, layer=layer):
        for _ in range(2):
            if outcome == "RESOLVED":
                tenant.runtime.call(INVOKE, agent="doc-manager", name=name)
            else:
                refused(tenant.runtime, INVOKE, agent="doc-manager", name=name)
    with moves(server, RESOLUTIONS, 0):
        tenant.runtime.call("SkillService.ListSkills", agent="doc-manager")
        refused(tenant.runtime, INVOKE, agent="doc-manager", name="NO")


def test_snapshots_are_counted_as_they_come_and_go(alone: RunningServer) -> None:
    tenant = alone.tenant()

    def expect(loads: int, kept: int, outdated: int) -> None:
        assert counted(alone, LOADS, result="ok") == loads
        assert counted(alone, LOADS, result="failed") == 0
        assert counted(alone, "substrate_snapshot_load_seconds_count") == loads
        assert counted(alone, "substrate_snapshots") == kept
        assert counted(alone, "substrate_snapshot_age_seconds_count") == outdated

    expect(loads=0, kept=0, outdated=0)
    for _ in range(2):
        tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
    expect(loads=1, kept=1, outdated=0)
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"))
    expect(loads=1, kept=0, outdated=1)
    tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
    expect(loads=2, kept=1, outdated=1)
    # As if another process had written: the snapshot is found to be old, and a newer one takes its place.
    alone.key(tenant.name, Role.RUNTIME)
    tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
    expect(loads=3, kept=1, outdated=2)


def test_a_snapshot_that_cannot_be_read_is_counted(cluster: Cluster, alone: RunningServer) -> None:
    tenant = alone.tenant()
    change(cluster, "REVOKE SELECT ON disabled_names FROM substrate_app")
    try:
        with moves(alone, LOADS, 1, result="failed"), moves(alone, LOADS, 0, result="ok"):
            failed = refused(tenant.runtime, INVOKE, agent="doc-manager", name="doc/query")
            assert failed.reason == "INTERNAL"
    finally:
        change(cluster, "GRANT SELECT ON disabled_names TO substrate_app")
    with moves(alone, LOADS, 1, result="ok"):
        tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")


def test_batches_of_events_are_counted(alone: RunningServer) -> None:
    tenant = alone.tenant()
    assert counted(alone, "substrate_audit_healthy") == 1
    with moves(alone, "substrate_audit_batch_events_sum", 5), moves(alone, "substrate_audit_refused_total", 0):
        before = counted(alone, "substrate_audit_commit_seconds_count")
        for _ in range(5):
            tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
        batches = counted(alone, "substrate_audit_commit_seconds_count") - before
    assert batches >= 5
    assert counted(alone, "substrate_audit_batch_events_count") == before + batches


def test_an_audit_that_cannot_be_written_is_told_and_what_it_refuses_counted(
    cluster: Cluster, alone: RunningServer
) -> None:
    tenant = alone.tenant()
    tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
    change(cluster, "REVOKE INSERT ON audit_events FROM substrate_audit")
    try:
        with moves(alone, "substrate_audit_refused_total", 2):
            for name in ("doc/query", "own/x"):
                failed = refused(tenant.runtime, INVOKE, agent="doc-manager", name=name)
                assert failed.reason == "AUDIT_UNAVAILABLE"
        assert counted(alone, "substrate_audit_healthy") == 0
        with moves(alone, "substrate_audit_lost_events_total", 1, cause="write_failed"):
            tenant.runtime.call("SkillService.ListSkills", agent="doc-manager")
    finally:
        change(cluster, "GRANT INSERT ON audit_events TO substrate_audit")
    tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query")
    assert counted(alone, "substrate_audit_healthy") == 1


def test_static_skills_are_counted_at_start_and_reload(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    config.write_text("skills: {own/x: {description: X., body: X.}}\n")
    with running_server(cluster, config) as server:
        before = counted(server, "substrate_static_skills")
        config.write_text("skills: {own/x: {description: X., body: X.}, own/y: {description: Y., body: Y.}}\n")
        assert reload_static(server.app, config)
        assert counted(server, "substrate_static_skills") == before + 1
