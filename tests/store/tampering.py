"""Chains with signed checkpoints for tests, and what somebody who owns the database could do to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from substrate.bootstrap import SystemClock
from substrate.domain.audit import chain_hash
from substrate.rpc.client import Client
from substrate.services.checkpoints import Checkpointer
from substrate.settings import Settings
from substrate.store.checkpoint_file import CheckpointFile
from substrate.store.signing_keys import made_signing_key
from tests.servers import Cluster, RunningServer, TestTenant, running_server

Owner = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Signing:
    """A server whose checkpoints lie in `data_dir`, and what signs them when it is told to."""

    server: RunningServer
    cluster: Cluster
    data_dir: Path
    checkpointer: Checkpointer

    @property
    def file(self) -> Path:
        return Settings(data_dir=self.data_dir).checkpoints_file

    @property
    def key(self) -> Path:
        return Settings(data_dir=self.data_dir).signing_key_file

    def used(self, *counts: int) -> TestTenant:
        """Return a new tenant whose chain was signed after each of `counts` events but the last."""
        tenant = self.server.tenant()
        made = 0
        for count in counts:
            if made:
                self.checkpointer.poll(last=True)
            while made < count:
                tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
                made += 1
        return tenant


@contextmanager
def signing(cluster: Cluster, data_dir: Path) -> Iterator[Signing]:
    """Run a server that verifies with the checkpoints in `data_dir`."""
    settings = Settings(data_dir=data_dir)
    with running_server(cluster, data_dir=data_dir) as server:
        file = CheckpointFile(settings.checkpoints_file, made_signing_key(settings.signing_key_file))
        checkpointer = Checkpointer(server.database, file, SystemClock(), every_events=1, every=timedelta(0))
        yield Signing(server, cluster, data_dir, checkpointer)


def verified(client: Client, tenant: str | None = None) -> dict[str, Any]:
    """Return what verification says in the end, by tenant."""
    found = {}
    for message in client.stream("AuditService.VerifyAudit", timeout=60, tenant=tenant):
        if message.done:
            assert message.tenant not in found
            found[message.tenant] = message
    return found


def rehash(owner: Owner, tenant: str, begin: int) -> None:
    """Give the events from number `begin` on, and the head, the hashes that belong to their texts."""
    previous = owner.execute(
        "SELECT hash FROM audit_events WHERE tenant_id = %s AND sequence = %s", [tenant, begin - 1]
    ).fetchone()
    digest = previous[0] if previous else bytes(32)
    sequence = begin - 1
    tail = "SELECT sequence, event FROM audit_events WHERE tenant_id = %s AND sequence >= %s ORDER BY sequence"
    for sequence, text in owner.execute(tail, [tenant, begin]).fetchall():
        before, digest = digest, chain_hash(digest, sequence, text)
        owner.execute(
            "UPDATE audit_events SET previous_hash = %s, hash = %s WHERE tenant_id = %s AND sequence = %s",
            [before, digest, tenant, sequence],
        )
    owner.execute("UPDATE chain_heads SET sequence = %s, hash = %s WHERE tenant_id = %s", [sequence, digest, tenant])


def move_head(owner: Owner, tenant: str, sequence: int) -> None:
    """Make an event the last one, as far as the chain's head goes."""
    owner.execute(
        "UPDATE chain_heads AS head SET sequence = event.sequence, hash = event.hash FROM audit_events AS event"
        " WHERE head.tenant_id = %s AND event.tenant_id = head.tenant_id AND event.sequence = %s",
        [tenant, sequence],
    )


def copy_event(owner: Owner, tenant: str, sequence: int, /, **changes: object) -> None:
    """Add a row like that of an event but for `changes`, and with an id of its own."""
    (columns,) = owner.execute(
        "SELECT array_agg(column_name::text) FROM information_schema.columns"
        " WHERE table_name = 'audit_events' AND column_name NOT IN ('txid', 'event_id')"
    ).fetchone() or ((),)
    values = ", ".join(f"%({name})s" if name in changes else name for name in columns)
    statement = (
        f"INSERT INTO audit_events (event_id, {', '.join(columns)}) SELECT gen_random_uuid(), {values}"  # noqa: S608 - names of our own columns.
        " FROM audit_events WHERE tenant_id = %(its_tenant)s AND sequence = %(its_sequence)s"
    )
    parameters = {**changes, "its_tenant": tenant, "its_sequence": sequence}
    owner.execute(statement.encode(), parameters)
