"""Snapshots: loaded once for all who wait, never older than they claim to be, and never outlived by what they gave."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from substrate.domain.errors import DeadlineExceeded, StoreUnavailable
from substrate.domain.identity import Role
from substrate.domain.names import TenantId
from substrate.services.snapshots import Snapshot, Snapshots
from substrate.sources.static import StaticState, load_static
from substrate.sources.tenant import TenantSource, TenantState
from substrate.store.session import Database
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused, skill_md
from tests.store.chain import events
from tests.store.owner import held_chain, wait_until

DISTANT = 60.0


class CountingSource(TenantSource):
    """Counts its loads, and holds them while its gate is closed."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.loads = 0
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def load(self, tenant: TenantId, deadline: float | None) -> TenantState:
        self.loads += 1
        self.begun.release()
        assert self.gate.wait(timeout=10)
        return super().load(tenant, deadline)


@dataclass
class Bench:
    """Snapshots of their own over a counted source, and threads to ask them from."""

    source: CountingSource
    snapshots: Snapshots
    pool: ThreadPoolExecutor

    def ask(self, tenant: str, after: float, seconds: float = DISTANT) -> "Future[Snapshot]":
        deadline = time.monotonic() + seconds
        return self.pool.submit(self.snapshots.load, TenantId(tenant), after, deadline)

    def await_load(self) -> None:
        assert self.source.begun.acquire(timeout=10)


@pytest.fixture(scope="module")
def static() -> StaticState:
    return load_static(None)


@pytest.fixture
def bench(cluster: Cluster, static: StaticState) -> Iterator[Bench]:
    database = Database(cluster.login_url)
    source = CountingSource(database)
    with ThreadPoolExecutor(20) as pool:
        yield Bench(source, Snapshots(source, static), pool)
    database.close()


def _inline(folder: Path, name: str, body: str) -> StaticState:
    config = folder / f"{name.replace('/', '-')}.yaml"
    config.write_text(
        f"agents:\n  helper: {{}}\nskills:\n  {name}:\n    description: What it is for.\n    body: {body}\n"
    )
    return load_static(config)


def test_sixteen_calls_share_one_load(bench: Bench, tenant: TestTenant) -> None:
    bench.source.gate.clear()
    asked = [bench.pool.submit(bench.snapshots.current, TenantId(tenant.name), None) for _ in range(16)]
    bench.await_load()
    bench.source.gate.set()
    found = {id(call.result(timeout=10)) for call in asked}
    assert len(found) == 1
    assert bench.source.loads == 1


def test_calls_that_arrive_during_a_load_share_the_next_one(bench: Bench, tenant: TestTenant) -> None:
    bench.source.gate.clear()
    first = bench.ask(tenant.name, time.monotonic())
    bench.await_load()
    later = time.monotonic()
    others = [bench.ask(tenant.name, later) for _ in range(15)]
    bench.source.gate.set()
    old = first.result(timeout=10)
    found = [call.result(timeout=10) for call in others]
    assert old.began < later <= found[0].began
    assert len({id(snapshot) for snapshot in found}) == 1
    assert bench.source.loads == 2


def test_a_known_snapshot_is_new_enough_for_whoever_came_before_its_load(bench: Bench, tenant: TestTenant) -> None:
    before = time.monotonic()
    known = bench.snapshots.load(TenantId(tenant.name), before, None)
    assert bench.snapshots.load(TenantId(tenant.name), before, None) is known
    assert bench.snapshots.current(TenantId(tenant.name), None) is known
    assert bench.snapshots.load(TenantId(tenant.name), time.monotonic(), None) is not known
    assert bench.source.loads == 2


def test_loads_of_different_tenants_do_not_wait_for_each_other(bench: Bench, server: RunningServer) -> None:
    slow, quick = server.tenant(), server.tenant()
    bench.source.gate.clear()
    waiting = bench.ask(slow.name, time.monotonic())
    bench.await_load()
    bench.source.gate.set()
    assert bench.ask(quick.name, time.monotonic()).result(timeout=10).state.tenant == quick.name
    assert waiting.result(timeout=10).state.tenant == slow.name


def test_a_failed_load_fails_all_who_wait_for_it_and_is_not_kept(static: StaticState) -> None:
    unreachable = Database("postgresql://nobody@/nowhere?host=/nowhere")
    source = CountingSource(unreachable)
    snapshots = Snapshots(source, static)
    source.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(snapshots.current, TenantId("some"), None) for _ in range(8)]
        assert source.begun.acquire(timeout=10)
        source.gate.set()
        for call in asked:
            with pytest.raises(StoreUnavailable):
                call.result(timeout=10)
    loads = source.loads
    with pytest.raises(StoreUnavailable):
        snapshots.current(TenantId("some"), None)
    assert source.loads == loads + 1
    unreachable.close()


def test_a_leader_that_runs_out_of_time_does_not_take_the_others_with_it(bench: Bench, tenant: TestTenant) -> None:
    bench.source.gate.clear()
    began = time.monotonic()
    leader = bench.ask(tenant.name, began, seconds=0.05)
    bench.await_load()
    follower = bench.ask(tenant.name, began)
    impatient = bench.ask(tenant.name, began, seconds=0.05)
    with pytest.raises(DeadlineExceeded):
        impatient.result(timeout=10)
    bench.source.gate.set()
    with pytest.raises(DeadlineExceeded):
        leader.result(timeout=10)
    assert follower.result(timeout=10).state.tenant == tenant.name
    assert bench.source.loads == 2


def test_tenants_that_do_not_exist_displace_none_that_do(bench: Bench, tenant: TestTenant) -> None:
    known = bench.snapshots.current(TenantId(tenant.name), None)
    for name in ("nobody-1", "nobody-2", "nobody-1"):
        assert bench.snapshots.current(TenantId(name), None).state.revision is None
    assert list(bench.snapshots._known) == [tenant.name]
    assert bench.snapshots.current(TenantId(tenant.name), None) is known


def test_a_tenant_is_served_from_the_moment_it_is_made(server: RunningServer) -> None:
    name = f"late-{secrets.token_hex(6)}"
    stranger = server.client(f"sub_{name}.absent_secret")
    for _ in range(2):
        assert refused(stranger, "SkillService.ListSkills", agent="doc-manager").code == "UNAUTHENTICATED"
    tenant = server.tenant(name)
    assert tenant.runtime.call("SkillService.ListSkills", agent="doc-manager").total_size > 0


def test_what_is_derived_is_made_once_for_its_key_and_goes_with_its_snapshot(
    bench: Bench, tenant: TestTenant, tmp_path: Path
) -> None:
    made: list[str] = []

    def make(text: str) -> Callable[[], str]:
        def making() -> str:
            made.append(text)
            return text

        return making

    name = TenantId(tenant.name)
    first = bench.snapshots.current(name, None)
    assert [first.derive(key, make(key)) for key in ("a", "b", "a", "b")] == ["a", "b", "a", "b"]
    assert made == ["a", "b"]
    fresh = bench.snapshots.load(name, time.monotonic(), None)
    assert fresh.derive("a", make("of the fresh one")) == "of the fresh one"
    bench.snapshots.replace_static(_inline(tmp_path, "own/one", "One."))
    replaced = bench.snapshots.current(name, None)
    assert replaced.derive("a", make("of the new static state")) == "of the new static state"
    assert first.derive("a", make("never")) == "a"


def test_what_is_derived_is_bounded(bench: Bench, tenant: TestTenant) -> None:
    snapshot = bench.snapshots.current(TenantId(tenant.name), None)
    for key in range(2000):
        assert snapshot.derive(key, lambda key=key: str(key)) == str(key)  # type: ignore[misc]  # Bound at once.
        assert len(snapshot._derived) <= 256


def test_new_static_state_needs_no_load_and_leaves_snapshots_in_use_as_they_are(
    bench: Bench, tenant: TestTenant, static: StaticState, tmp_path: Path
) -> None:
    before = bench.snapshots.current(TenantId(tenant.name), None)
    names = before.catalog.names()
    changed = _inline(tmp_path, "own/one", "One.")
    bench.snapshots.replace_static(changed)
    after = bench.snapshots.current(TenantId(tenant.name), None)
    assert (before.static, before.catalog.names()) == (static, names)
    assert (after.static, after.catalog.names()) == (changed, ["own/one"])
    assert after.token.differs_from(before.token)
    assert bench.source.loads == 1
    assert bench.snapshots.load(TenantId(tenant.name), before.began, None).static is changed


def test_a_call_in_progress_finishes_on_the_static_state_it_began_with(cluster: Cluster, tmp_path: Path) -> None:
    old, new = _inline(tmp_path, "own/one", "The old text."), _inline(tmp_path, "own/two", "The new text.")
    with running_server(cluster, static=old) as server, ThreadPoolExecutor(1) as pool:
        tenant = server.tenant()
        invoke = {"agent": "helper", "name": "own/one"}
        tenant.runtime.call("SkillService.InvokeSkill", **invoke)
        with held_chain(cluster, tenant.name):
            running = pool.submit(tenant.runtime.call, "SkillService.InvokeSkill", **invoke)
            wait_until(
                cluster,
                "SELECT EXISTS (SELECT FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND query LIKE '%%chain_heads%%')",
            )
            server.app.snapshots.replace_static(new)
        answer = running.result(timeout=5)
        assert (answer.body.strip(), answer.state.static_digest) == ("The old text.", old.digest)
        assert refused(tenant.runtime, "SkillService.InvokeSkill", **invoke).reason == "SKILL_NOT_FOUND"
        listed = tenant.runtime.call(
            "SkillService.ListSkills", agent="helper", catalog_token=answer.state.catalog_token
        )
        assert [skill.name for skill in listed.skills] == ["own/two"]
        assert (listed.catalog_changed, listed.state.static_digest) == (True, new.digest)
        assert [event["static_digest"] for event in events(cluster, tenant.name)[1:]] == [
            old.digest,
            new.digest,
            new.digest,
        ]


def test_every_write_is_seen_by_the_very_next_call_on_either_server(cluster: Cluster, server: RunningServer) -> None:
    tenant = server.tenant()
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="doc/mine", source=skill_md("mine"))
    etag = made.skill_def.etag
    invoke = {"agent": "doc-manager", "name": "doc/mine"}
    with running_server(cluster) as second:
        authors = (tenant.author, second.client(second.key(tenant.name, Role.AUTHOR)))
        runtimes = (tenant.runtime, second.client(second.key(tenant.name, Role.RUNTIME)))
        for turn in range(200):
            disabled = turn % 2 == 0
            written = authors[turn // 2 % 2].call(
                "SkillDefService.SetSkillDisabled", name="doc/mine", disabled=disabled, etag=etag
            )
            etag = written.etag
            for runtime in runtimes:
                listed = runtime.call("SkillService.ListSkills", agent="doc-manager", pattern="doc/mine").skills
                assert len(listed) == (0 if disabled else 1)
                if disabled:
                    assert refused(runtime, "SkillService.InvokeSkill", **invoke).reason == "SKILL_NOT_FOUND"
                else:
                    read = runtime.call("SkillService.InvokeSkill", **invoke)
                    assert read.state.catalog_token == written.state.catalog_token
