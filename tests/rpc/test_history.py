"""What a name stood for as time went by: every change, by whom, from what to what, and nobody else's."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from substrate.api.v1 import audit_pb2
from substrate.api.v1.catalog_pb2 import Layer
from substrate.bootstrap import reload_static
from substrate.domain.identity import Role
from substrate.rpc.client import Client
from substrate.services import past
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.skills import add_version, changed, refused, skill_md
from tests.sources.bundle_files import write_bundle, write_skill
from tests.store.owner import change, value, wait_until

HISTORY = "AuditService.GetSkillHistory"
NAME = "doc/plain"
BUNDLED = "bundle:core@1.10/skills/doc/plain/SKILL.md"

LOADED = "SELECT count(*) > %s FROM audit_events WHERE verb = 'load_static'"

Step = tuple[str, str, str, str]
"""A change as verb, origin before, origin after, and cause."""


@pytest.fixture(scope="module")
def apart() -> Iterator[Cluster]:
    """A database whose servers are this module's alone: what other servers load is everybody's history."""
    with running_cluster() as cluster:
        yield cluster


@dataclass(frozen=True)
class Site:
    """A server with a bundle and a config that a test may change."""

    cluster: Cluster
    server: RunningServer
    folder: Path

    def reload(self, body: str | None = "Plainly.\n", **parts: object) -> None:
        """Serve another text of the bundled skill, none for None, and another config, once that is recorded."""
        before = self.loads()
        write_site(self.folder, body, **parts)
        assert reload_static(self.server.app, self.folder / "substrate.yaml")
        wait_until(self.cluster, LOADED, before)

    def loads(self) -> int:
        return int(value(self.cluster, "SELECT count(*) FROM audit_events WHERE verb = 'load_static'"))


def write_site(folder: Path, body: str | None = "Plainly.\n", **parts: object) -> Path:
    root = write_bundle(folder / "core", "doc/other")
    if body is None:
        (root / "skills" / NAME / "SKILL.md").unlink()
    else:
        write_skill(root, NAME, skill_md("plain", body))
    config = folder / "substrate.yaml"
    config.write_text(yaml.safe_dump({"bundles": [{"path": str(root)}], **parts}))
    return config


@pytest.fixture
def site(apart: Cluster, tmp_path: Path) -> Iterator[Site]:
    # Nothing is told of a start that brings what was served before, so each test begins with its own state.
    change(apart, "DELETE FROM audit_events WHERE verb = 'load_static'")
    with running_server(apart, write_site(tmp_path)) as server:
        wait_until(apart, LOADED, 0)
        yield Site(apart, server, tmp_path)


def told(client: Client, name: str = NAME, **fields: object) -> list[Any]:
    """Return the changes of a name, the oldest first, read page by page."""
    pages = list(client.pages(HISTORY, name=name, page_size=2, **fields))
    return [change for page in pages for change in page.changes][::-1]


def steps(changes: Sequence[Any]) -> list[Step]:
    return [
        (c.verb, c.before.origin, c.after.origin, audit_pb2.Cause.Name(c.cause).removeprefix("CAUSE_").lower())
        for c in changes
    ]


OK = "unspecified"


def live(tenant: TestTenant) -> None:
    """Let the tenant's skill live through all that its author can do."""
    author = tenant.author
    author.call("SkillDefService.CreateSkillDef", name=NAME, source=skill_md("plain", "First.\n"), promote=False)
    changed(author, "SkillDefService.PromoteSkillDef", name=NAME, version=1)
    assert add_version(author, NAME, skill_md("plain", "Second.\n")) == 2
    changed(author, "SkillDefService.PromoteSkillDef", name=NAME, version=2)
    changed(author, "SkillDefService.SetLabel", name=NAME, label="stable", version=1)
    changed(author, "SkillDefService.SetSkillDisabled", name=NAME, disabled=True, reason="Wrong.")
    changed(author, "SkillDefService.SetSkillDisabled", name=NAME, disabled=True)
    changed(author, "SkillDefService.SetSkillDisabled", name=NAME, disabled=False)
    changed(author, "SkillDefService.RetireSkillDef", name=NAME)
    changed(author, "SkillDefService.RetireSkillDef", name=NAME, retired=False)


LIFE: list[Step] = [
    ("promote", BUNDLED, "tenant:v1", OK),
    ("promote", "tenant:v1", "tenant:v2", OK),
    ("disable", "tenant:v2", "", "disabled"),
    ("enable", "", "tenant:v2", OK),
    ("retire", "tenant:v2", BUNDLED, OK),
    ("unretire", BUNDLED, "tenant:v2", OK),
]


def test_every_change_by_authors_is_told_and_nothing_else(site: Site) -> None:
    tenant, other = site.server.tenant(), site.server.tenant()
    live(tenant)
    fork = {"name": NAME, "promote": True, "source": skill_md("plain", "Third.\n"), "from": "bundle"}
    etag = tenant.author.call("SkillDefService.GetSkillDef", name=NAME).skill_def.etag
    tenant.author.call("SkillDefService.ForkSkillDef", **fork, etag=etag, validate_only=True)
    refused(tenant.author, "SkillDefService.ForkSkillDef", **fork, etag="r1")
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/other", source=skill_md("other"))
    changes = told(tenant.author)
    assert steps(changes) == LIFE
    assert told(other.author) == []
    assert steps(told(tenant.author, "doc/other")) == [("create", BUNDLED.replace("plain", "other"), "tenant:v1", OK)]
    etag = tenant.author.call("SkillDefService.GetSkillDef", name=NAME).skill_def.etag
    tenant.author.call("SkillDefService.ForkSkillDef", **fork, etag=etag)
    assert steps(told(tenant.author)) == [*LIFE, ("fork", "tenant:v2", "tenant:v3", OK)]


def test_a_change_says_who_when_what_and_why(site: Site) -> None:
    tenant = site.server.tenant()
    live(tenant)
    changes = told(tenant.author)
    for row in changes:
        (event,) = tenant.author.call("AuditService.QueryAuditEvents", decision_id=row.event_id).events
        assert (row.verb, row.actor, row.time) == (event.verb, event.actor, event.time)
        assert row.after.content_sha256 == event.winner.content_sha256
    actor = changes[0].actor
    principal = actor.rpartition(".")[2]
    deeds = [row.text.removeprefix(f"{actor} ") for row in changes]
    assert deeds == [
        f"promoted v1, written by {principal}: tenant:v1 took the place of {BUNDLED}.",
        f"promoted v2, written by {principal}: tenant:v2 took the place of tenant:v1.",
        "disabled the name, saying 'Wrong.': from then on it stood for nothing (disabled), before for tenant:v2.",
        "enabled the name: from then on it stood for tenant:v2, before for nothing (disabled).",
        f"retired it: {BUNDLED} took the place of tenant:v2.",
        f"brought it back from retirement: tenant:v2 took the place of {BUNDLED}.",
    ]
    assert changes[0].after.layer == Layer.LAYER_TENANT
    assert changes[0].after.version == 1


def test_a_name_of_its_own_begins_with_nothing(site: Site) -> None:
    tenant = site.server.tenant()
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"), promote=False)
    changed(tenant.author, "SkillDefService.PromoteSkillDef", name="own/x", version=1)
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="own/x")
    source = skill_md("x", "Again.\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/x", source=source)
    assert steps(told(tenant.author, "own/x")) == [
        ("create", "", "", "draft"),
        ("promote", "", "tenant:v1", OK),
        ("retire", "tenant:v1", "", "retired"),
        ("create", "", "tenant:v2", OK),
    ]


def archive(*names: str, body: str = "Do it.\n") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writing:
        for name in names:
            writing.writestr(f"{name}/SKILL.md", skill_md(name.rpartition("/")[2], body))
    return packed.getvalue()


def test_an_import_is_in_the_history_of_what_it_put_in_effect(site: Site) -> None:
    tenant = site.server.tenant()
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/known", source=skill_md("known", "Known.\n"))
    load = {"archive": archive(NAME, "own/new", "own/known"), "promote": True}
    tenant.author.call("SkillDefService.ImportSkills", **load, validate_only=True)
    tenant.author.call("SkillDefService.ImportSkills", **load)
    tenant.author.call("SkillDefService.ImportSkills", **load)
    tenant.author.call("SkillDefService.ImportSkills", archive=archive("own/draft"))
    newer = archive(NAME, "own/draft", body="Newer.\n")
    tenant.author.call("SkillDefService.ImportSkills", archive=newer, promote=True)
    changed(tenant.author, "SkillDefService.PromoteSkillDef", name=NAME, version=2)
    assert steps(told(tenant.author)) == [
        ("import", BUNDLED, "tenant:v1", OK),
        ("promote", "tenant:v1", "tenant:v2", OK),
    ]
    assert steps(told(tenant.author, "own/new")) == [("import", "", "tenant:v1", OK)]
    assert steps(told(tenant.author, "own/known")) == [("create", "", "tenant:v1", OK)]
    assert steps(told(tenant.author, "own/draft")) == [("import", "", "", "draft")]


def test_bundles_that_change_come_and_go_are_told_where_nothing_stands_above_them(site: Site) -> None:
    bare, covered = site.server.tenant(), site.server.tenant()
    covered.author.call("SkillDefService.CreateSkillDef", name=NAME, source=skill_md("plain", "Ours.\n"))
    site.reload("Changed.\n")
    site.reload("Changed.\n", agents={"any": {}})
    site.reload(None)
    late = site.server.tenant()
    site.reload("Back.\n")
    changes = told(bare.author)
    assert steps(changes) == [
        ("load_static", BUNDLED, BUNDLED, OK),
        ("load_static", BUNDLED, "", "absent"),
        ("load_static", "", BUNDLED, OK),
    ]
    digests = [changes[0].before.content_sha256, changes[0].after.content_sha256]
    assert f"became sha256:{digests[1][:12]}, from sha256:{digests[0][:12]}." in changes[0].text
    assert {row.actor for row in changes} == {"server"}
    assert steps(told(covered.author)) == [("create", BUNDLED, "tenant:v1", OK)]
    assert steps(told(late.author)) == [("load_static", "", BUNDLED, OK)]
    changed(covered.author, "SkillDefService.RetireSkillDef", name=NAME)
    assert told(covered.author)[-1].after.content_sha256 == changes[-1].after.content_sha256


def test_a_lock_that_comes_and_goes_is_told_and_so_is_what_happens_beneath_it(site: Site) -> None:
    lock: dict[str, Any] = {"name_modes": [{"pattern": "doc/*", "mode": "locked"}]}
    kept, retired, off = (site.server.tenant() for _ in range(3))
    for tenant in (kept, retired, off):
        tenant.author.call("SkillDefService.CreateSkillDef", name=NAME, source=skill_md("plain", "Ours.\n"))
    changed(off.author, "SkillDefService.SetSkillDisabled", name=NAME, disabled=True)
    off.author.call("SkillDefService.CreateSkillDef", name="doc/own", source=skill_md("own"))
    site.reload(**lock)
    changed(retired.author, "SkillDefService.RetireSkillDef", name=NAME)
    changed(off.author, "SkillDefService.SetSkillDisabled", name=NAME, disabled=False)
    site.reload()
    created = ("create", BUNDLED, "tenant:v1", OK)
    locked = ("load_static", "tenant:v1", BUNDLED, OK)
    opened = ("load_static", BUNDLED, "tenant:v1", OK)
    assert steps(told(kept.author)) == [created, locked, opened]
    # Retired while it was locked, it does not come back.
    assert steps(told(retired.author)) == [created, locked]
    assert steps(told(off.author)) == [
        created,
        ("disable", "tenant:v1", "", "disabled"),
        ("load_static", "", BUNDLED, OK),
        opened,
    ]
    assert steps(told(off.author, "doc/own")) == [
        ("create", "", "tenant:v1", OK),
        ("load_static", "tenant:v1", "", "locked"),
        ("load_static", "", "tenant:v1", OK),
    ]


def test_a_second_server_with_the_same_files_changes_nothing(site: Site) -> None:
    tenant = site.server.tenant()
    site.reload("Changed.\n")
    before = site.loads()
    with running_server(site.cluster, site.folder / "substrate.yaml"):
        wait_until(site.cluster, LOADED, before)
        assert len(told(tenant.author)) == 1


def test_what_was_served_before_and_is_not_kept_is_not_guessed(site: Site) -> None:
    tenant = site.server.tenant()
    site.reload("Changed.\n")
    first = value(
        site.cluster, "SELECT event::json->>'static_digest' FROM audit_events WHERE verb = 'load_static' LIMIT 1"
    )
    change(site.cluster, "DELETE FROM audit_inputs WHERE sha256 = %s", first)
    # Another server, which has not read it.
    with running_server(site.cluster, site.folder / "substrate.yaml") as other:
        (row,) = told(other.client(other.key(tenant.name, Role.AUTHOR)))
    assert steps([row]) == [("load_static", "", BUNDLED, OK)]
    assert row.text.endswith(f"what was served before, {first}, is not kept.")


def drop(cluster: Cluster, tenant: TestTenant, until: str) -> None:
    """Drop the events of a tenant up to the one with this id, as the end of their months does."""
    sequence = value(cluster, "SELECT sequence FROM audit_events WHERE event_id = %s", until)
    change(cluster, "DELETE FROM audit_events WHERE tenant_id = %s AND sequence <= %s", tenant.name, sequence)
    start = "INSERT INTO audit_starts VALUES (%s, %s, '', '[]', '{}', now()) ON CONFLICT DO NOTHING"
    change(cluster, start, tenant.name, sequence)


def test_what_was_before_the_months_that_were_dropped_is_not_guessed(site: Site) -> None:
    tenant = site.server.tenant()
    live(tenant)
    whole = told(tenant.author)
    drop(site.cluster, tenant, whole[2].event_id)
    # The disabling that changed nothing is the first event that is left, and tells what is known from then on.
    first, *rest = told(tenant.author)
    assert (first.verb, first.HasField("before"), first.HasField("after")) == ("disable", False, False)
    assert first.text.endswith("what it stood for before is not known, as the first months of the log were dropped.")
    assert rest == whole[3:]
    drop(site.cluster, tenant, whole[-1].event_id)
    assert told(tenant.author) == []
    # Without any change in the log it always was as it is.
    site.reload("Changed.\n")
    assert told(tenant.author) == []
    changed(tenant.author, "SkillDefService.RetireSkillDef", name=NAME)
    assert steps(told(tenant.author)) == [("retire", "", BUNDLED, OK)]


def test_pages_and_times_cut_the_history(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = site.server.tenant()
    live(tenant)
    site.reload("Changed.\n")
    changed(tenant.author, "SkillDefService.RetireSkillDef", name=NAME)
    whole = told(tenant.author)
    assert len(whole) == len(LIFE) + 1
    times = [row.time.ToDatetime(UTC) for row in whole]
    assert times == sorted(times)
    assert told(tenant.author, since=times[3]) == whole[3:]
    assert told(tenant.author, since=times[-1] + timedelta(microseconds=1)) == []
    assert told(tenant.author, since=datetime(1, 1, 1, tzinfo=UTC)) == whole
    monkeypatch.setattr(past, "_CHUNK", 2)
    assert told(tenant.author) == whole
    monkeypatch.setattr(past, "MAX_EVENTS_READ", 1)
    assert told(tenant.author) == whole
    (first, *_) = tenant.author.pages(HISTORY, name=NAME, page_size=1)
    for fields in ({"name": "doc/other"}, {"name": NAME, "since": times[0]}):
        failed = refused(tenant.author, HISTORY, page_token=first.next_page_token, **fields)
        assert failed.reason == "INVALID_PAGE_TOKEN"


def test_what_happens_between_two_pages_belongs_to_neither(site: Site) -> None:
    tenant = site.server.tenant()
    # The last of its changes brings a retired skill back, so before it what is bundled stood; no load is told yet.
    live(tenant)
    before = told(tenant.author)
    pages = tenant.author.pages(HISTORY, name=NAME, page_size=1)
    first = [*next(pages).changes]
    site.reload("Changed.\n")
    changed(tenant.author, "SkillDefService.RetireSkillDef", name=NAME)
    assert [*first, *(change for page in pages for change in page.changes)][::-1] == before


def test_a_name_first_changed_between_two_pages_was_before_as_it_was(site: Site) -> None:
    tenant = site.server.tenant()
    for body in ("Two.\n", "Three.\n"):
        site.reload(body)
    drop(site.cluster, tenant, tenant.author.call(HISTORY, name=NAME).decision_id)
    before = told(tenant.author)
    assert len(before) == 2
    pages = tenant.author.pages(HISTORY, name=NAME, page_size=1)
    first = [*next(pages).changes]
    tenant.author.call("SkillDefService.CreateSkillDef", name=NAME, source=skill_md("plain", "Ours.\n"))
    rest = [change for page in pages for change in page.changes]
    # The months before were dropped, so that now nobody can say whether it always was so.
    assert first == before[1:]
    assert all(row.after.layer != Layer.LAYER_TENANT for row in rest)


def test_who_may_ask(site: Site) -> None:
    tenant, other, operator = site.server.tenant(), site.server.tenant(), site.server.operator()
    live(tenant)
    assert steps(told(operator, tenant=tenant.name)) == LIFE
    assert refused(other.author, HISTORY, name=NAME, tenant=tenant.name).reason == "TENANT_NOT_FOUND"
    assert refused(operator, HISTORY, name=NAME, tenant="nowhere").reason == "TENANT_NOT_FOUND"
    failed = refused(operator, HISTORY, name=NAME)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "tenant")
    for client in (tenant.runtime, tenant.bound(Role.AUTHOR, "doc-manager")):
        assert refused(client, HISTORY, name=NAME).reason == "ROLE_REQUIRED"
