"""How long the verification of a long chain takes: `python -m tests.perf.audit_verify [EVENTS]`; the bar is 60 s.

Events as a server writes them (an invocation with three candidates, about 1 KiB) are put into a database of its own
over several months, and every thousandth is signed. Then the chain is verified as `VerifyAudit` does it, all told: rows
read from PostgreSQL, texts hashed, columns compared with texts, checkpoints held against hashes.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from substrate.bootstrap import SystemClock
from substrate.domain.audit import GENESIS_HASH, AuditEvent, DecidingEntry, EventOutcome, Verb
from substrate.domain.chain import Point
from substrate.domain.checkpoints import Checkpoint, Signed
from substrate.domain.names import TenantId
from substrate.services.verification import Report, check_chain
from substrate.store import tenants
from substrate.store.audit import row_of
from substrate.store.checkpoint_file import CheckpointFile, read_checkpoints
from substrate.store.session import Database
from tests.servers import Cluster, running_cluster

TENANT = TenantId("long")
BAR_SECONDS = 60.0
SIGNED_EVERY = 1000

_DIGEST = "5e2b6c1f9a7d4830" * 4


def event(clock: SystemClock, number: int, begin: datetime) -> AuditEvent:
    """Return an event such as an invocation leaves; they are spread over four months."""
    candidates = [
        {"layer": layer, "state": state, "version": version, "digest": _DIGEST, "origin": origin}
        for layer, state, version, origin in (
            ("TENANT", "WON", 3, "tenant:v3"),
            ("INLINE", "SHADOWED", None, "config:skills[2]"),
            ("BUNDLE", "SHADOWED", None, "bundle:document-agent@1.0.0/skills/doc/chunk-review/SKILL.md"),
        )
    ]
    return AuditEvent(
        id=clock.event_id(),
        tenant=TENANT,
        time=begin + timedelta(seconds=10 * number),
        call_id=clock.event_id(),
        verb=Verb.INVOKE,
        outcome=EventOutcome.ALLOWED,
        actor="runtime:long.pxqtacqauzii",
        key_id="pxqtacqauzii",
        role="runtime",
        agent="doc-manager",
        run_id="run-17",
        turn=number % 20,
        requested="doc/chunk-review",
        name="doc/chunk-review",
        caller_kind="MODEL",
        decision=DecidingEntry(allowed=True, reason="ALLOW_RULE", index=0, entry="doc/*"),
        candidates=candidates,
        winner=candidates[0],
        revision=17,
        allowlist_sha256=_DIGEST,
        agent_sha256=_DIGEST,
        static_digest=_DIGEST,
        arguments_hmac=_DIGEST,
        server="perf/1",
        decide_us=180,
    )


def fill(cluster: Cluster, file: CheckpointFile, count: int) -> None:
    """Write a chain of `count` events past the server, since that is no part of what is measured."""
    clock = SystemClock()
    begin = datetime.now(UTC) - timedelta(seconds=1)
    last = Point(0, GENESIS_HASH)
    signed: list[Checkpoint] = []

    def rows() -> Iterator[dict[str, object]]:
        nonlocal last
        for number in range(1, count + 1):
            row = row_of(event(clock, number, begin), number, last.hash)
            last = Point(number, row["hash"])
            if number % SIGNED_EVERY == 0:
                signed.append(Checkpoint(TENANT, last, clock.now()))
            yield row

    with psycopg.connect(cluster.owner_url) as owner:
        made = rows()
        first = next(made)
        with owner.cursor().copy(f"COPY audit_events ({', '.join(first)}) FROM STDIN".encode()) as copy:
            copy.write_row(tuple(first.values()))
            for row in made:
                copy.write_row(tuple(row.values()))
        owner.execute(
            "UPDATE chain_heads SET sequence = %s, hash = %s WHERE tenant_id = %s", [last.sequence, last.hash, TENANT]
        )
    with psycopg.connect(cluster.owner_url, autocommit=True) as owner:
        owner.execute("VACUUM ANALYZE audit_events")
    file.append(lambda _: signed)


def verify(database: Database, path: Path, key: Ed25519PrivateKey) -> Report:
    """Return what verification finds in the end."""

    def read(tenant: str) -> Signed:
        return read_checkpoints(path, key.public_key(), tenant)

    *_, last = check_chain(TENANT, database.tenant, read(TENANT), read)
    return last


def main() -> int:
    """Fill, verify, and say how long it took."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    key = Ed25519PrivateKey.generate()
    with tempfile.TemporaryDirectory() as folder, running_cluster() as cluster:
        path = Path(folder) / "checkpoints.jsonl"
        database = Database(cluster.login_url)
        with database.operator() as connection:
            tenants.create(connection, TENANT, "Long", datetime.now(UTC))
        began = time.monotonic()
        fill(cluster, CheckpointFile(path, key), count)
        print(f"{count} events written in {time.monotonic() - began:.1f} s")
        began, used = time.monotonic(), time.process_time()
        report = verify(database, path, key)
        seconds, busy = time.monotonic() - began, time.process_time() - used
        database.close()
    print(
        f"{report.checked} events and {report.checkpoints} checkpoints verified in {seconds:.1f} s ({busy:.1f} s of it"
    )
    print(f"in Python), {report.checked / seconds:.0f} events/s; intact: {report.intact} {report.problem}")
    return 0 if report.intact and report.checked == count and seconds <= BAR_SECONDS * count / 1_000_000 else 1


if __name__ == "__main__":
    sys.exit(main())
