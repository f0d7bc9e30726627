"""How fast the audit is searched: five million events of two months, asked for over gRPC as people do.

The events look like the product's own and are skewed as in life: one tenant has a third of them, and a few skills have
most of a tenant's. They are written by the owner in one go, in the order of time, and then every kind of question is
asked some hundred times, each time about something else. Nothing here asserts a time.

    python -m tests.perf.audit_search --out search.json
"""

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg
import structlog
from psycopg.sql import SQL
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from substrate.bootstrap import SystemClock
from substrate.domain.names import TenantId
from substrate.rpc.client import Client
from substrate.store import tenants
from substrate.store.embedded import DATABASE, EmbeddedPostgres
from substrate.store.migrate import LOGIN_ROLE, make_partitions, migrate
from substrate.store.session import Database
from tests.servers import Cluster, RunningServer, running_server

GET = "AuditService.GetAuditEvent"
QUERY = "AuditService.QueryAuditEvents"
TAIL = "AuditService.TailAuditEvents"
BARS = {"by id": 20.0, "skill and day": 200.0}
"""What the product promises, in milliseconds at the 99th percentile; longer names fall under those that begin them."""

DAYS = 60
TENANTS = 20
SKILLS = 300
AGENTS = 50
CHUNK = 250_000
HOT, RARE = "doc/skill-000", "rare/once-in-a-while"

_CHOSEN = """
CREATE TEMP TABLE chosen AS
SELECT i, %(start)s::timestamptz + i * %(step)s::interval AS at,
    'tenant-' || lpad(floor(power(t, 3) * {tenants})::text, 2, '0') AS tenant_id,
    CASE WHEN r < 0.00002 THEN '{rare}'
        ELSE 'doc/skill-' || lpad(floor(power(s, 3) * {skills})::text, 3, '0') END AS name,
    'agent-' || lpad(floor(power(a, 2) * {agents})::text, 2, '0') AS agent,
    CASE WHEN k < 0.85 THEN 'invoke' WHEN k < 0.95 THEN 'list' WHEN k < 0.99 THEN 'read_file' ELSE 'get' END AS verb,
    CASE WHEN o < 0.95 THEN '' WHEN o < 0.98 THEN 'SKILL_NOT_PERMITTED' ELSE 'SKILL_NOT_FOUND' END AS reason,
    a < 0.3 AS own
FROM (SELECT i, random() AS t, random() AS s, random() AS a, random() AS k, random() AS o, random() AS r
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS i) AS dice
"""
_INSERT = """
WITH placed AS (
    SELECT chosen.*, head.sequence + row_number() OVER (PARTITION BY chosen.tenant_id ORDER BY i) AS sequence,
        md5(i::text) AS digest,
        lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5('a' || i), 1, 3)
            || '8' || substr(md5('b' || i), 1, 15) AS id,
        CASE WHEN own THEN 'TENANT' ELSE 'BUNDLE' END AS layer
    FROM chosen JOIN chain_heads AS head ON head.tenant_id = chosen.tenant_id
), told AS (
    SELECT *, id::uuid AS event_id, 'runtime:' || tenant_id || '.key' || substr(agent, 7) AS actor,
        '{{"layer":"' || layer || '","state":"WON","version":' || CASE WHEN own THEN '1' ELSE 'null' END
            || ',"digest":"' || digest || digest || '","origin":"bundle:document-agent@1.0.0/skills/' || name
            || '/SKILL.md"}}' AS winner
    FROM placed
)
INSERT INTO audit_events (tenant_id, sequence, event_id, occurred_at, call_id, verb, outcome, agent, name, actor,
    winner_layer, version, previous_hash, hash, event, reason, shadowed, txid)
SELECT tenant_id, sequence, event_id, at, md5('call' || i), verb,
    CASE reason WHEN '' THEN 'ALLOWED' ELSE 'REFUSED' END, agent, name, actor,
    layer, CASE WHEN own THEN 1 END, sha256(int8send(i - 1)), sha256(int8send(i)),
    '{{"id":"' || event_id || '","tenant":"' || tenant_id || '","time":"'
        || to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '+00:00","call_id":"' || md5('call' || i)
        || '","verb":"' || verb || '","outcome":"' || CASE reason WHEN '' THEN 'ALLOWED' ELSE 'REFUSED' END
        || '","actor":"' || actor || '","key_id":"key' || substr(agent, 7) || '","role":"runtime","agent":"' || agent
        || '","run_id":"run-' || i / 8 || '","turn":' || i % 8 || ',"requested":"' || name || '","name":"' || name
        || '","caller_kind":"MODEL","arguments_hmac":"' || digest || md5('h' || i) || '"'
        || CASE reason WHEN '' THEN '' ELSE ',"reason":"' || reason || '"' END
        || ',"decision":{{"allowed":true,"reason":"ALLOW_RULE","index":0,"entry":"doc/*"}},"candidates":[' || winner
        || '],"winner":' || winner || ',"revision":' || i / 5000 || ',"allowlist_sha256":"' || md5(agent) || md5(name)
        || '","agent_sha256":"' || md5(agent) || md5(tenant_id) || '","static_digest":"' || md5('s') || md5('t')
        || '","server":"server-1/4711","decide_us":' || 300 + i % 900 || '}}',
    reason, own AND i % 3 = 0, (1000 + i / 16)::text::xid8
FROM told ORDER BY i
"""
_HEADS = """
UPDATE chain_heads AS head SET sequence = last.sequence, hash = last.hash
FROM (SELECT DISTINCT ON (tenant_id) tenant_id, sequence, hash FROM audit_events
    ORDER BY tenant_id, sequence DESC) AS last
WHERE last.tenant_id = head.tenant_id
"""
_COUNT = """
UPDATE chain_heads AS head SET sequence = sequence + (SELECT count(*) FROM chosen WHERE tenant_id = head.tenant_id)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """How long a kind of question took, in milliseconds, and how many events the answers had on average."""

    question: str
    asked: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    events: float


@dataclass(frozen=True)
class Ground:
    """Whom to ask: the operator's client, and one of each tenant, from the largest tenant to the smallest."""

    operator: Client
    authors: Sequence[Client]
    start: datetime
    ids: Sequence[tuple[str, str]]
    dice: random.Random

    def day(self, days: range = range(DAYS)) -> dict[str, datetime]:
        """Return the bounds of one of the `days`."""
        since = self.start + timedelta(days=self.dice.choice(days))
        return {"since": since, "until": since + timedelta(days=1)}

    def skill(self) -> str:
        """Return a skill, the common ones more often."""
        return f"doc/skill-{int(self.dice.random() ** 3 * SKILLS):03}"

    def author(self) -> Client:
        """Return the author of a tenant, of large ones more often."""
        return self.authors[int(self.dice.random() ** 3 * TENANTS)]


def fill(url: str, events: int, start: datetime) -> None:
    """Write `events` from `start` on, over `DAYS`, with all indexes made at the end as a restore would."""
    names = {"tenants": TENANTS, "skills": SKILLS, "agents": AGENTS, "rare": RARE}
    step = timedelta(days=DAYS) / events
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        for days in (0, 31, DAYS):
            make_partitions(connection, (start + timedelta(days=days)).date())
    engine.dispose()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("SET synchronous_commit = off")
        owner.execute("SELECT setseed(0.5)")
        indexes = owner.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'audit_events' AND indexname NOT LIKE '%pkey'"
        ).fetchall()
        for name, _ in indexes:
            owner.execute(SQL("DROP INDEX ") + SQL(name))
        for first in range(0, events, CHUNK):
            last = min(events, first + CHUNK) - 1
            owner.execute(_CHOSEN.format(**names), {"start": start, "step": step, "first": first, "last": last})
            owner.execute(_INSERT.format(**names))
            owner.execute(_COUNT)
            owner.execute("DROP TABLE chosen")
            note(f"{last + 1:,} events")
        for name, definition in indexes:
            # As it is told, it would be made of the whole alone and of none of its partitions.
            owner.execute(SQL(definition.replace(" ON ONLY ", " ON ")))
            note(name)
        owner.execute(_HEADS)
        owner.execute("VACUUM (ANALYZE) audit_events")


def questions(ground: Ground) -> Mapping[str, Callable[[], Any]]:
    """Return what is asked; the first page of each."""
    g, hot, small = ground, ground.authors[0], ground.authors[-1]

    def query(client: Client, **fields: object) -> Any:
        return client.call(QUERY, **fields)

    def by_id(*, as_operator: bool) -> Any:
        tenant, id_ = g.dice.choice(g.ids)
        client = g.operator if as_operator else g.authors[int(tenant[-2:])]
        return client.call(GET, id=id_)

    return {
        "by id, operator": lambda: by_id(as_operator=True),
        "by id, author": lambda: by_id(as_operator=False),
        "skill and day": lambda: query(g.author(), pattern=g.skill(), **g.day()),
        "skill and day, oldest first": lambda: query(g.author(), pattern=g.skill(), oldest_first=True, **g.day()),
        "skill and day, hot skill on an old day": lambda: query(hot, pattern=HOT, **g.day(range(5))),
        "page of 1,000 of the hot skill's day": lambda: query(hot, pattern=HOT, page_size=1000, **g.day()),
        "skill and day, rare skill": lambda: query(g.author(), pattern=RARE, **g.day()),
        "skill and day, small tenant": lambda: query(small, pattern=g.skill(), **g.day()),
        "skill and day, operator for one tenant": lambda: query(
            g.operator, tenant=f"tenant-{int(g.dice.random() ** 3 * TENANTS):02}", pattern=g.skill(), **g.day()
        ),
        "skill alone": lambda: query(g.author(), pattern=g.skill()),
        "rare skill alone": lambda: query(g.author(), pattern=RARE),
        "pattern and day": lambda: query(g.author(), pattern="doc/skill-0*", **g.day()),
        "agent and day": lambda: query(g.author(), agent=f"agent-{g.dice.randrange(AGENTS):02}", **g.day()),
        "day, denied only": lambda: query(g.author(), denied_only=True, **g.day()),
        "day": lambda: query(g.author(), **g.day()),
        "newest": lambda: query(g.author()),
        "oldest": lambda: query(g.author(), oldest_first=True),
        "newest of all tenants": lambda: query(g.operator),
        "tail of a tenant, two hours back": lambda: first_of(g.author(), g.start + timedelta(days=DAYS, hours=-2)),
        "tail of all tenants, two hours back": lambda: first_of(g.operator, g.start + timedelta(days=DAYS, hours=-2)),
        "skill and day of all tenants": lambda: query(g.operator, pattern=g.skill(), **g.day()),
    }


def first_of(client: Client, since: datetime) -> Any:
    """Return the first message of a stream that brings events."""
    stream = client.stream(TAIL, timeout=60, since=since)
    first = next(message for message in stream if message.events)
    stream.close()  # type: ignore[attr-defined]  # It is a generator.
    return first


def measure(name: str, ask: Callable[[], Any], times: int) -> Measured:
    """Ask so often, a little more to warm up, and return how long it took."""
    for _ in range(5):
        ask()
    seconds, found = [], []
    for _ in range(times):
        began = time.perf_counter()
        answer = ask()
        seconds.append(time.perf_counter() - began)
        found.append(len(answer.events) if hasattr(answer, "events") else 1)
    seconds.sort()
    ms = [1000 * each for each in seconds]
    return Measured(name, times, statistics.median(ms), ms[int(len(ms) * 0.99)], ms[-1], statistics.mean(found))


def note(text: str) -> None:
    click.echo(f"{datetime.now(UTC):%H:%M:%S} {text}", err=True)


def written(folder: Path, events: int) -> datetime:
    """Write the events to the database in `folder`, unless they are there; return when they begin."""
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    # Written fast, and then to the disk at the end.
    fast = {"fsync": "off", "maintenance_work_mem": "1GB", "max_wal_size": "8GB"}
    with EmbeddedPostgres(folder, settings=fast) as postgres:
        migrate(postgres.owner_url)
        with psycopg.connect(postgres.owner_url, autocommit=True) as owner:
            ((oldest, count),) = owner.execute("SELECT min(occurred_at), count(*) FROM audit_events").fetchall()
            if count >= events:
                return datetime.combine(oldest, datetime.min.time(), UTC)
            make_tenants(postgres.url(LOGIN_ROLE, DATABASE))
            fill(postgres.owner_url, events, start)
            owner.execute("CHECKPOINT")
    os.sync()
    return start


@contextlib.contextmanager
def ground_of(folder: Path, start: datetime) -> Iterator[Ground]:
    """Run PostgreSQL as it ships in `folder`, and a server on it."""
    with EmbeddedPostgres(folder) as postgres:
        with psycopg.connect(postgres.owner_url) as owner:
            sample = owner.execute(
                "SELECT tenant_id, event_id::text FROM audit_events TABLESAMPLE SYSTEM (0.1) REPEATABLE (1)"
                " WHERE tenant_id LIKE 'tenant-%' ORDER BY md5(event_id::text) LIMIT 5000"
            ).fetchall()
        cluster = Cluster(postgres, postgres.owner_url, postgres.url(LOGIN_ROLE, DATABASE))
        with running_server(cluster) as server:
            yield Ground(server.operator(), authors_of(server), start, sample, random.Random(1))  # noqa: S311 - no secret.


def make_tenants(url: str) -> None:
    database = Database(url, pool_size=1)
    with database.operator() as connection:
        for number in range(TENANTS):
            tenant = TenantId(f"tenant-{number:02}")
            if tenants.revision(connection, tenant) is None:
                tenants.create(connection, tenant, tenant, SystemClock().now())
    database.close()


def authors_of(server: RunningServer) -> list[Client]:
    return [server.tenant(f"tenant-{number:02}").author for number in range(TENANTS)]


@click.command()
@click.option("--events", type=click.IntRange(1000), default=5_000_000, show_default=True)
@click.option("--times", type=click.IntRange(1), default=300, show_default=True, help="How often each is asked.")
@click.option("--only", default="", help="Ask only what begins so, such as 'by id'.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Keep the database here, and use it if it is there.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures to this file, as JSON.")
def main(events: int, times: int, only: str, data_dir: Path | None, out: Path | None) -> None:
    """Measure how fast the audit is searched."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with contextlib.ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="substrate-", dir="/tmp")))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        ground = stack.enter_context(ground_of(folder, written(folder, events)))
        measured = []
        asked = {name: ask for name, ask in questions(ground).items() if name.startswith(only)}
        for name, ask in asked.items():
            found = measure(name, ask, times)
            measured.append(found)
            bar = next((f"  bar {most:g}" for start, most in BARS.items() if name.startswith(start)), "")
            click.echo(
                f"{name:<45} p50 {found.p50_ms:8.2f} ms  p99 {found.p99_ms:8.2f} ms  max {found.max_ms:8.2f} ms"
                f"  {found.events:7.1f} events{bar}"
            )
    if out is not None:
        out.write_text(json.dumps({"events": events, "measured": [asdict(each) for each in measured]}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
