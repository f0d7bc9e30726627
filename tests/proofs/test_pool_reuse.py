"""Proof: whatever became of the call before, a connection of the pool serves the next tenant and nobody else."""

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.errors import QueryCanceled
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError

from substrate.domain.errors import DeadlineExceeded, StoreUnavailable
from substrate.domain.names import TenantId
from substrate.store import session
from substrate.store.session import Database
from tests.servers import Cluster
from tests.store.owner import connect, rows

STEPS = 5000
THREADS = 3
KINDS = {"commit": 5, "raise": 3, "savepoint": 3, "wrong": 2, "timeout": 1, "cancel": 1, "interrupt": 1}
"""Kinds of steps, and how often each is taken."""

READ = (
    "SELECT tenant_id, name FROM disabled_names UNION ALL SELECT tenant_id, 'itself' FROM tenants"
    " UNION ALL SELECT reason, 'reason' FROM disabled_names"
)
TENANT = "INSERT INTO tenants (tenant_id, display_name, created_at, quotas) VALUES (%s, '', now(), '{}')"
INSERT = (
    "INSERT INTO disabled_names (tenant_id, name, reason, revision, disabled_at, disabled_by)"
    " VALUES (%s, %s, %s, 1, now(), '')"
)
FORGET = "DELETE FROM disabled_names WHERE name LIKE %s"
# Whatever it was asked for, it waits until somebody cancels it.
CANCEL = (
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query LIKE '%%sleep%%'"
)
LEFT = f"SELECT coalesce(current_setting('app.tenant', true), ''), 'setting' UNION ALL {READ}"


class Mistake(Exception):
    """What a step raises on purpose."""


@dataclass
class Walk:
    """What became of a sequence of steps: everything that was wrong, and how often each kind of step ended how."""

    faults: list[str] = field(default_factory=list)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)


def walk(cluster: Cluster, tenants: Sequence[str], steps: int) -> Walk:
    """Take `steps` steps for `tenants` in turn, in several threads over a pool of two connections."""
    database = Database(cluster.login_url, pool_size=2)
    found = Walk()

    event.listen(database.login(), "checkout", lambda connection, *_: found.faults.extend(_left(connection)))

    def work(seed: int) -> Counter[tuple[str, str]]:
        chance = random.Random(seed)  # noqa: S311 - the same steps each time.
        ends: Counter[tuple[str, str]] = Counter()
        with connect(cluster) as owner:
            for number in range(seed, steps, THREADS):
                mine, theirs = chance.sample(tenants, 2)
                (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
                ends[kind, _step(_Step(database, owner, seed, number, mine, theirs, kind), found)] += 1
        return ends

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(work, seed) for seed in range(THREADS)]:
                found.ends += done.result()
    finally:
        database.close()
    return found


def _left(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Yield what is wrong with a connection as the pool gives it, before anybody has said whom it is for."""
    while True:
        try:
            left = connection.execute(LEFT).fetchall()
        except QueryCanceled:
            # An interruption may come at any time.
            connection.rollback()
            continue
        connection.rollback()
        if left != [("", "setting")]:
            yield f"a connection came with {left}"
        return


@dataclass(frozen=True)
class _Step:
    database: Database
    owner: psycopg.Connection[Any]
    seed: int
    number: int
    mine: str
    theirs: str
    kind: str

    @property
    def row(self) -> tuple[str, str, str]:
        """What the step writes."""
        return self.mine, f"step/{self.seed}/{self.number}", self.mine

    @property
    def pattern(self) -> tuple[str]:
        """What matches the rows of this thread's earlier steps."""
        return (f"step/{self.seed}/%",)


def _step(step: _Step, found: Walk) -> str:
    """Take one step and return how it ended; whatever must not be is added to the faults of `found`."""
    deadline = time.monotonic() + 0.01 if step.kind == "timeout" else None
    try:
        with step.database.tenant(TenantId(step.mine), deadline) as connection:
            found.faults += _looked(step, connection)
            _end(step, connection, found)
    except Mistake:
        return "raised"
    except DeadlineExceeded:
        return "late"
    except StoreUnavailable:
        # Another thread's interruption may hit any step.
        return "cancelled"
    except DBAPIError as error:
        return str(getattr(error.orig, "sqlstate", None))
    return "committed"


def _looked(step: _Step, connection: Connection) -> Iterator[str]:
    seen = connection.exec_driver_sql(READ).all()
    foreign = [row for row in seen if row[0] != step.mine]
    if foreign:
        yield f"{step.mine} read {foreign} in step {step.number}"
    if (step.mine, "known") not in [tuple(row) for row in seen]:
        yield f"{step.mine} did not see its own row in step {step.number}"
    foreign_row = (step.theirs, *step.row[1:])
    point = connection.begin_nested()
    try:
        connection.exec_driver_sql(INSERT, foreign_row)
        point.commit()
        yield f"{step.mine} wrote a row of {step.theirs} in step {step.number}"
    except DBAPIError as error:
        point.rollback()
        if getattr(error.orig, "sqlstate", None) != "42501":
            raise


def _end(step: _Step, connection: Connection, found: Walk) -> None:
    match step.kind:
        case "commit":
            connection.exec_driver_sql(FORGET, step.pattern)
            connection.exec_driver_sql(INSERT, step.row)
        case "raise":
            connection.exec_driver_sql(INSERT, step.row)
            raise Mistake
        case "savepoint":
            with connection.begin_nested():
                connection.exec_driver_sql(INSERT, step.row)
            outer = connection.begin_nested()
            connection.exec_driver_sql(FORGET, step.pattern)
            outer.rollback()
            found.faults += _looked(step, connection)
        case "timeout":
            connection.exec_driver_sql("SELECT pg_sleep(20)")
        case "cancel":
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            over = threading.Event()
            canceller = threading.Thread(target=_cancel, args=(step.owner, pid, over))
            canceller.start()
            try:
                connection.exec_driver_sql("SELECT pg_sleep(20)")
            finally:
                over.set()
                canceller.join()
        case "interrupt":
            step.database.interrupt()
        case "wrong":
            connection.exec_driver_sql("SELECT 1 / 0")


def _cancel(owner: psycopg.Connection[Any], pid: int, over: threading.Event) -> None:
    """Cancel what the backend `pid` does as soon as it sleeps, unless it is `over` before."""
    while not over.is_set() and owner.execute(CANCEL, [pid]).fetchone() is None:
        pass


@pytest.fixture(scope="module")
def tenants(cluster: Cluster) -> list[str]:
    """Tenants with one known row each, as the owner has made them."""
    made = [f"pool-{secrets.token_hex(4)}" for _ in range(4)]
    with connect(cluster) as owner:
        for tenant in made:
            owner.execute(TENANT, [tenant])
            owner.execute(INSERT, [tenant, "known", tenant])
    return made


def test_no_tenant_meets_another_over_a_pool_of_two(cluster: Cluster, tenants: list[str]) -> None:
    found = walk(cluster, tenants, STEPS)
    assert found.faults == []
    assert found.ends.total() == STEPS
    # Every kind of end came about often.
    expected = {
        *(("commit", "committed"), ("savepoint", "committed"), ("interrupt", "committed")),
        *(("raise", "raised"), ("wrong", "22012"), ("timeout", "late"), ("cancel", "cancelled")),
    }
    assert {end for end in expected if found.ends[end] < STEPS // 50} == set()
    assert {end for _, end in found.ends} == {end for _, end in expected}
    mixed = "SELECT tenant_id, name, reason FROM disabled_names WHERE tenant_id = ANY(%s) AND tenant_id <> reason"
    assert rows(cluster, mixed, tenants) == []


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        (
            "set_config('app.tenant', :tenant, true)",
            "set_config('app.tenant', :tenant, false)",
            "a connection came with",
        ),
        ("set_config('app.tenant', :tenant, true)", "coalesce(:tenant, '')", "did not see its own row"),
    ],
    ids=["a setting of the session", "no setting"],
)
def test_a_setting_that_outlives_its_transaction_or_is_left_out_is_found(
    cluster: Cluster, tenants: list[str], monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, fault: str
) -> None:
    settings = str(session._SETTINGS)
    assert right in settings
    monkeypatch.setattr(session, "_SETTINGS", text(settings.replace(right, wrong)))
    assert any(fault in found for found in walk(cluster, tenants, 60).faults)
