"""The usage report: as many invocations as there were, what was never invoked, and forks whose origin has moved on."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from substrate.api.v1 import audit_pb2
from substrate.api.v1.catalog_pb2 import Layer
from substrate.bootstrap import reload_static
from substrate.domain.identity import Role
from substrate.rpc.client import Client
from substrate.services import usage
from tests.rpc.rich import rich_server, rich_tenant
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import changed, refused, skill_md
from tests.sources.bundle_files import write_skill
from tests.store import owner

REPORT = "AuditService.GetUsageReport"
INVOKE = "SkillService.InvokeSkill"


@pytest.fixture(scope="module")
def rich(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with rich_server(cluster, tmp_path_factory.mktemp("rich")) as server:
        yield server


@pytest.fixture(scope="module")
def used(rich: RunningServer) -> TestTenant:
    """A tenant of which fourteen calls were made, of another's one more."""
    tenant, other = rich_tenant(rich), rich.tenant()
    for _ in range(3):
        tenant.runtime.call(INVOKE, agent="docs", name="doc/own")
    tenant.runtime.call(INVOKE, agent="everything", name="doc/own")
    for _ in range(2):
        tenant.runtime.call(INVOKE, agent="docs", name="doc/shadowed")
        tenant.runtime.call(INVOKE, agent="docs", name="doc/shadowed@bundle")
        tenant.runtime.call("SkillService.CallSkillTool", agent="docs", input_json='{"name":"doc/plain"}')
        refused(tenant.runtime, INVOKE, agent="nothing", name="doc/own")
    refused(tenant.runtime, INVOKE, agent="docs", name="doc/draft")
    refused(tenant.runtime, INVOKE, agent="everything", name="call/user")
    tenant.runtime.call("SkillService.ListSkills", agent="docs")
    other.runtime.call(INVOKE, agent="docs", name="doc/many")
    return tenant


Line = tuple[str, str, int, str, str, str, int]


def lines(report: Any) -> list[Line]:
    return [
        (
            row.name,
            Layer.Name(row.layer).removeprefix("LAYER_"),
            row.version,
            row.agent,
            audit_pb2.Outcome.Name(row.outcome).removeprefix("OUTCOME_"),
            row.reason,
            row.count,
        )
        for row in report.rows
    ]


def test_it_counts_the_calls_that_were_made(used: TestTenant) -> None:
    report = used.author.call(REPORT)
    assert lines(report) == [
        ("call/user", "BUNDLE", 0, "everything", "REFUSED", "INVOCATION_NOT_ALLOWED", 1),
        ("doc/draft", "UNSPECIFIED", 0, "docs", "REFUSED", "SKILL_NOT_FOUND", 1),
        ("doc/own", "TENANT", 1, "docs", "ALLOWED", "", 3),
        ("doc/own", "UNSPECIFIED", 0, "nothing", "REFUSED", "SKILL_NOT_PERMITTED", 2),
        ("doc/own", "TENANT", 1, "everything", "ALLOWED", "", 1),
        ("doc/plain", "BUNDLE", 0, "docs", "ALLOWED", "", 2),
        ("doc/shadowed", "BUNDLE", 0, "docs", "ALLOWED", "", 2),
        ("doc/shadowed", "TENANT", 1, "docs", "ALLOWED", "", 2),
    ]
    assert not report.truncated
    events = used.author.call("AuditService.QueryAuditEvents", verb="invoke", page_size=1000).events
    assert Counter({(line[0], line[3], line[5]): 0 for line in lines(report)}) + Counter(
        (event.name, event.agent, event.reason) for event in events
    ) == sum((Counter({(line[0], line[3], line[5]): line[6]}) for line in lines(report)), Counter())
    for row in report.rows:
        newest = next(e for e in events if (e.name, e.agent, e.winner.layer) == (row.name, row.agent, row.layer))
        assert row.last == newest.time


def test_what_was_never_invoked_is_what_resolves_and_nobody_got(used: TestTenant) -> None:
    report = used.author.call(REPORT)
    resolving = {
        entry.name
        for entry in used.author.call("SkillDefService.ListCatalog", page_size=1000).entries
        if entry.HasField("winner")
    }
    assert list(report.never_invoked) == sorted(resolving - {"doc/own", "doc/plain", "doc/shadowed"})
    assert {"call/user", "doc/many", "doc/old"} <= set(report.never_invoked)
    assert not {"doc/draft", "doc/off"} & set(report.never_invoked)


def test_agent_and_pattern_narrow_it(used: TestTenant) -> None:
    everything = used.author.call(REPORT, agent="everything")
    assert {line[:1] + line[3:4] for line in lines(everything)} == {
        ("call/user", "everything"),
        ("doc/own", "everything"),
    }
    assert "doc/plain" in everything.never_invoked
    narrowed = used.author.call(REPORT, pattern="doc/*o*")
    assert {line[0] for line in lines(narrowed)} == {"doc/own", "doc/shadowed"}
    assert list(narrowed.never_invoked) == ["doc/old"]
    assert lines(used.author.call(REPORT, pattern="doc/own", agent="nothing"))[0][-1] == 2


def test_the_time_is_the_last_thirty_days_unless_told_otherwise(cluster: Cluster, rich: RunningServer) -> None:
    tenant = rich.tenant()
    for days in (0, 1, 29, 31):
        invoked = tenant.runtime.call(INVOKE, agent="docs", name="doc/plain")
        moved = "UPDATE audit_events SET occurred_at = occurred_at - make_interval(days => %s) WHERE event_id = %s"
        assert owner.change(cluster, moved, days, invoked.decision_id) == 1
    now = datetime.now(UTC)

    def count(**fields: object) -> int:
        return sum(row.count for row in tenant.author.call(REPORT, **fields).rows)

    assert count() == 3
    assert count(since=now - timedelta(days=60)) == 4
    assert count(since=now - timedelta(days=60), until=now - timedelta(days=30)) == 1
    assert count(until=now - timedelta(hours=12)) == 2
    report = tenant.author.call(REPORT)
    begin, end = report.since.ToDatetime(UTC), report.until.ToDatetime(UTC)
    assert end - begin == timedelta(days=30)
    assert now <= end <= datetime.now(UTC)
    # An end is not part of the time, a beginning is.
    last = report.rows[0].last.ToDatetime(UTC)
    assert (count(until=last), count(since=last)) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 2, tzinfo=UTC)}, "until"),
        ({"since": datetime(9999, 1, 1, tzinfo=UTC)}, "until"),
        ({"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)}, "since"),
        ({"since": datetime(2024, 1, 1, tzinfo=UTC)}, "since"),
        ({"pattern": "Doc/*"}, "pattern"),
        ({"agent": "No Agent"}, "agent"),
    ],
)
def test_what_cannot_be_reported_is_refused_by_field(used: TestTenant, fields: dict[str, object], field: str) -> None:
    failed = refused(used.author, REPORT, **fields)
    assert (failed.code, failed.violations[0][0]) == ("INVALID_ARGUMENT", field)


def test_times_at_the_ends_of_the_calendar_are_answered(used: TestTenant) -> None:
    first, last = datetime(1, 1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
    assert not used.author.call(REPORT, until=first).rows
    assert not used.author.call(REPORT, since=last - timedelta(days=400), until=last).rows


def test_a_report_holds_so_much_and_says_so(used: TestTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = used.author.call(REPORT)
    monkeypatch.setattr(usage, "MAX_ROWS", 4)
    cut = used.author.call(REPORT)
    assert (lines(cut), list(cut.never_invoked)) == (lines(whole)[:4], list(whole.never_invoked)[:4])
    assert cut.truncated
    # What the rows leave out was invoked all the same.
    assert "doc/shadowed" not in cut.never_invoked
    assert not used.author.call(REPORT, pattern="doc/own").truncated


@pytest.fixture
def disk(cluster: Cluster, tmp_path: Path) -> Iterator[RunningServer]:
    with rich_server(cluster, tmp_path) as server:
        yield server


def fork(client: Client, name: str, origin: str) -> Any:
    source = skill_md(name.rpartition("/")[2], "Ours.\n")
    return client.call("SkillDefService.ForkSkillDef", name=name, source=source, **{"from": origin})


def test_forks_whose_bundled_skill_has_changed_or_gone_are_drifted(disk: RunningServer, tmp_path: Path) -> None:
    tenant, other = disk.tenant(), disk.tenant()
    names = ("doc/plain", "doc/many", "doc/files", "doc/arguments", "code/none", "top", "doc/shadowed")
    for name in names:
        forked = fork(tenant.author, name, "inline" if name == "doc/shadowed" else "bundle")
        changed(tenant.author, "SkillDefService.PromoteSkillDef", name=name, version=forked.version.version)
    # Changed by its author since, it goes back to the bundle all the same.
    fork(tenant.author, "doc/many", "v1")
    changed(tenant.author, "SkillDefService.PromoteSkillDef", name="doc/many", version=2)
    # Promoted or not: a draft stands before nothing, and neither does what is retired.
    fork(tenant.author, "doc/old", "bundle")
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="doc/arguments")
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/off", source=skill_md("off", "Mine.\n"))
    before = {row.name: row for row in tenant.author.call("SkillDefService.ListCatalog", page_size=1000).entries}
    assert list(tenant.author.call(REPORT).drifted) == []
    root = tmp_path / "core"
    for name in ("doc/plain", "doc/many", "doc/arguments", "doc/old", "doc/off", "doc/shadowed"):
        write_skill(root, name, skill_md(name.rpartition("/")[2], "Moved on.\n"))
    (root / "skills" / "code" / "none" / "SKILL.md").unlink()
    assert reload_static(disk.app, tmp_path / "substrate.yaml")
    report = tenant.author.call(REPORT)
    after = {row.name: row for row in tenant.author.call("SkillDefService.ListCatalog", page_size=1000).entries}

    def digest(entries: dict[str, Any], name: str) -> str:
        return str(entries[name].candidates[-1].content_sha256)

    origin = "bundle:core@1.10/skills/{}/SKILL.md"
    assert [
        (row.name, row.version, row.forked_from, row.forked_sha256, row.bundle_origin, row.bundle_sha256)
        for row in report.drifted
    ] == [
        ("code/none", 1, origin.format("code/none"), digest(before, "code/none"), "", ""),
        *(
            (name, version, origin.format(name), digest(before, name), origin.format(name), digest(after, name))
            for name, version in (("doc/many", 2), ("doc/plain", 1))
        ),
    ]
    assert [row.name for row in tenant.author.call(REPORT, pattern="code/*").drifted] == ["code/none"]
    assert list(other.author.call(REPORT).drifted) == []
    operator = disk.operator().call(REPORT, tenant=tenant.name)
    assert operator.drifted == report.drifted


def test_who_may_ask(rich: RunningServer, used: TestTenant) -> None:
    other, operator = rich.tenant(), rich.operator()
    assert lines(operator.call(REPORT, tenant=used.name)) == lines(used.author.call(REPORT))
    assert refused(other.author, REPORT, tenant=used.name).reason == "TENANT_NOT_FOUND"
    assert refused(operator, REPORT, tenant="nowhere").reason == "TENANT_NOT_FOUND"
    failed = refused(operator, REPORT)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "tenant")
    for client in (used.runtime, used.bound(Role.AUTHOR, "docs")):
        assert refused(client, REPORT).reason == "ROLE_REQUIRED"
