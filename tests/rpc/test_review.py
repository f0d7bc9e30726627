"""Names under review: a version takes effect when a second author, or an operator, promotes it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.rpc.client import Client
from substrate.sources.static import load_static
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events
from tests.store.owner import connect, wait_until

NAME = "reviewed/skill"
WAITING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE tenants%%'"
PROMOTE = "SkillDefService.PromoteSkillDef"
CONFIG = "bundles: []\nagents: {any: {}}\nname_modes:\n  - {pattern: 'reviewed/*', mode: review}\n"


@pytest.fixture(scope="module")
def reviewing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    config = Path(tmp_path_factory.mktemp("review")) / "substrate.yaml"
    config.write_text(CONFIG)
    with running_server(cluster, config=config) as server:
        yield server


@pytest.fixture
def drafted(reviewing: RunningServer) -> TestTenant:
    """A tenant with an unpromoted version of a name under review."""
    tenant = reviewing.tenant()
    source = skill_md("skill", "Ours.\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name=NAME, source=source, promote=False)
    return tenant


def etag(client: Client, **fields: Any) -> str:
    return str(client.call("SkillDefService.GetSkillDef", name=NAME, **fields).skill_def.etag)


def test_the_author_cannot_promote_it_and_another_principal_can(
    cluster: Cluster, reviewing: RunningServer, drafted: TestTenant
) -> None:
    promote = {"name": NAME, "version": 1, "etag": etag(drafted.author)}
    assert refused(drafted.author, PROMOTE, **promote).reason == "REVIEW_REQUIRED"
    second = reviewing.client(reviewing.key(drafted.name, Role.AUTHOR))
    done = second.call(PROMOTE, **promote)
    assert done.skill_def.active_version == 1
    version = drafted.author.call("SkillDefService.GetSkillDef", name=NAME).version
    assert version.promoted_by not in ("", version.created_by)
    (event,) = [e for e in events(cluster, drafted.name) if e["verb"] == "promote" and e["outcome"] == "ALLOWED"]
    assert event["details"]["author"] == version.created_by
    assert event["details"]["reviewed_by"] == version.promoted_by


def test_an_agent_is_no_second_author(drafted: TestTenant) -> None:
    bound = drafted.bound(Role.AUTHOR, "any")
    promote = {"name": NAME, "version": 1, "etag": etag(drafted.author)}
    assert refused(bound, PROMOTE, **promote).reason == "REVIEW_REQUIRED"


def test_a_second_key_of_the_same_principal_is_no_second_author(reviewing: RunningServer) -> None:
    operator, tenant = reviewing.operator(), reviewing.tenant()
    issue = {"tenant": tenant.name, "role": "ROLE_AUTHOR", "principal": "ada"}
    first, other = (reviewing.client(operator.call("TenantService.IssueKey", **issue).secret) for _ in range(2))
    source = skill_md("skill", "Ours.\n")
    made = first.call("SkillDefService.CreateSkillDef", name=NAME, source=source, promote=False)
    assert made.version.created_by == "ada"
    promote = {"name": NAME, "version": 1, "etag": made.skill_def.etag}
    assert refused(other, PROMOTE, **promote).reason == "REVIEW_REQUIRED"
    assert tenant.author.call(PROMOTE, **promote).skill_def.active_version == 1


def test_an_operator_reads_and_promotes_it_in_the_tenant_it_names(
    cluster: Cluster, reviewing: RunningServer, drafted: TestTenant
) -> None:
    operator = reviewing.operator()
    inside = {"name": NAME, "tenant": drafted.name}
    assert "Ours." in operator.call("SkillDefService.GetSkillDef", include_source=True, **inside).version.source
    assert [v.version for v in operator.call("SkillDefService.ListSkillDefVersions", **inside).versions] == [1]
    compared = operator.call("SkillDefService.DiffSkillDefs", **inside, **{"from": "v1", "to": "v1"})
    assert compared.body_diff == ""
    promote = {**inside, "version": 1, "etag": etag(operator, tenant=drafted.name)}
    rehearsed = operator.call(PROMOTE, validate_only=True, **promote)
    assert list(rehearsed.effect.gaining) == ["any"]
    assert operator.call(PROMOTE, **promote).skill_def.active_version == 1
    assert drafted.runtime.call("SkillService.InvokeSkill", agent="any", name=NAME).body == "Ours.\n"
    version = drafted.author.call("SkillDefService.GetSkillDef", name=NAME).version
    assert version.promoted_by.startswith(f"{PLATFORM_TENANT}/")
    told = [e for e in events(cluster, drafted.name) if e["actor"].startswith("operator:platform.")]
    assert [e["verb"] for e in told] == ["get", "list_versions", "diff", "get", "promote", "promote"]


def test_only_operators_name_a_tenant_and_they_must(reviewing: RunningServer, drafted: TestTenant) -> None:
    other = reviewing.tenant()
    operator = reviewing.operator()
    for method, fields in (
        ("GetSkillDef", {}),
        ("ListSkillDefVersions", {}),
        ("DiffSkillDefs", {}),
        ("PromoteSkillDef", {"version": 1, "etag": "r1"}),
    ):
        named = {"name": NAME, **fields}
        for tenant in (drafted.name, other.name, "none"):
            error = refused(other.author, f"SkillDefService.{method}", tenant=tenant, **named)
            assert (method, error.reason) == (method, "ROLE_REQUIRED")
        assert refused(operator, f"SkillDefService.{method}", **named).reason == "INVALID_NAME"
        assert refused(operator, f"SkillDefService.{method}", tenant="none", **named).reason == "TENANT_NOT_FOUND"
    for method in ("RetireSkillDef", "ForkSkillDef", "ListSkillDefs", "ExportSkill"):
        fields = {} if method == "ListSkillDefs" else {"name": NAME}
        assert refused(operator, f"SkillDefService.{method}", **fields).reason == "ROLE_REQUIRED"


def test_before_its_review_nobody_can_use_it(drafted: TestTenant) -> None:
    pinned = {"name": "pinned", "pins": {NAME: "v1"}}
    drafted.author.call("AgentService.PutAgent", agent=pinned)
    for client, agent, name in (
        (drafted.author, "any", f"{NAME}@v1"),
        (drafted.runtime, "pinned", NAME),
        (drafted.runtime, "pinned", f"{NAME}@v1"),
    ):
        error = refused(client, "SkillService.InvokeSkill", agent=agent, name=name)
        assert error.reason == "VERSION_NOT_FOUND"


def test_a_review_that_a_reload_brings_holds_for_a_promotion_that_waits(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    config.write_text("bundles: []\nagents: {any: {}}\n")
    with running_server(cluster, config=config) as server:
        tenant = server.tenant()
        source = skill_md("skill", "Ours.\n")
        made = tenant.author.call("SkillDefService.CreateSkillDef", name=NAME, source=source, promote=False)
        promote = {"name": NAME, "version": 1, "etag": made.skill_def.etag}
        with ThreadPoolExecutor(1) as pool:
            with connect(cluster) as owner, owner.transaction():
                # As a writer holds it.
                owner.execute("SELECT 1 FROM tenants WHERE tenant_id = %s FOR NO KEY UPDATE", [tenant.name])
                waiting = pool.submit(refused, tenant.author, PROMOTE, **promote)
                wait_until(cluster, WAITING)
                config.write_text(CONFIG)
                server.app.replace_static(load_static(config))
            assert waiting.result().reason == "REVIEW_REQUIRED"


def test_a_lock_that_a_reload_brings_suppresses_at_once(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    text = "bundles: ['shipped:document-agent']\n"
    config.write_text(text)
    with running_server(cluster, config=config) as server:
        tenant = server.tenant()
        tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query", "Ours.\n"))
        tenant.author.call("AgentService.PutAgent", agent={"name": "pinned", "pins": {"doc/query": "v1"}})
        invoke = {"agent": "doc-manager", "name": "doc/query"}
        assert tenant.runtime.call("SkillService.InvokeSkill", **invoke).body == "Ours.\n"
        config.write_text(f"{text}name_modes: [{{pattern: 'doc/*', mode: locked}}]\n")
        server.app.replace_static(load_static(config))
        assert tenant.runtime.call("SkillService.InvokeSkill", **invoke).body != "Ours.\n"
        error = refused(tenant.runtime, "SkillService.InvokeSkill", agent="pinned", name="doc/query")
        assert error.reason == "VERSION_NOT_FOUND"
        explained = tenant.author.call("AuditService.ExplainResolution", **invoke)
        assert "SUPPRESSED_BY_LOCK" in explained.text
        error = refused(tenant.author, "SkillDefService.ForkSkillDef", name="doc/query")
        assert error.reason == "NAME_LOCKED"
