"""The audit's rows: appended under the lock of their tenant's chain head, never changed.

`append` writes in the transaction of a change. `ChainWriter` is the other way in: one connection of the audit role
that, in one transaction, locks the chain heads of many tenants, reads their catalog revisions and inserts the events of
those calls that decided on the current one. A batch takes two round trips and is sent as one JSON text: nothing else
costs the server so little for each event.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import psycopg
from psycopg.errors import DiskFull, InsufficientPrivilege, LockNotAvailable
from sqlalchemy import Connection, Row, and_, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from substrate.domain.audit import GENESIS_HASH, AuditEvent, Verb, chain_hash
from substrate.domain.errors import AuditUnavailable
from substrate.domain.names import TenantId
from substrate.domain.patterns import Pattern
from substrate.store.pipeline import Pipeline
from substrate.store.session import DatabaseRole
from substrate.store.tables import audit_events, audit_inputs, chain_heads
from substrate.store.tenants import INCARNATION, incarnation_of

_LOCK_TIMEOUT_MS = 25
_STATEMENT_TIMEOUT_MS = 1000
_MAX_KEPT_KNOWN = 100_000

_COLUMNS = (
    ("tenant_id", "text"),
    ("sequence", "bigint"),
    ("event_id", "uuid"),
    ("occurred_at", "timestamptz"),
    ("call_id", "text"),
    ("verb", "text"),
    ("outcome", "text"),
    ("agent", "text"),
    ("name", "text"),
    ("actor", "text"),
    ("winner_layer", "text"),
    ("version", "integer"),
    ("previous_hash", "bytea"),
    ("hash", "bytea"),
    ("event", "text"),
    ("reason", "text"),
    ("shadowed", "boolean"),
)
_NAMES = ", ".join(name for name, _ in _COLUMNS)
_TYPED = ", ".join(" ".join(column) for column in _COLUMNS)
_HEADS = """
SELECT tenant_id, sequence, encode(hash, 'hex') FROM chain_heads
WHERE tenant_id = ANY($1::text[]) ORDER BY tenant_id FOR UPDATE
"""
_APPEND = f"""
WITH advanced AS (
    UPDATE chain_heads AS head SET sequence = moved.sequence, hash = moved.hash
    FROM json_to_recordset($1) AS moved (tenant_id text, sequence bigint, hash bytea)
    WHERE head.tenant_id = moved.tenant_id
)
INSERT INTO audit_events ({_NAMES}) SELECT {_NAMES} FROM json_to_recordset($2) AS event ({_TYPED})
"""  # noqa: S608 - made of constants only.
_KEEP = """
INSERT INTO audit_inputs (tenant_id, sha256, content) SELECT tenant_id, sha256, content
FROM json_to_recordset($1) AS input (tenant_id text, sha256 text, content text) ORDER BY 1, 2 ON CONFLICT DO NOTHING
"""
_STATEMENTS = {
    "begin": "BEGIN ISOLATION LEVEL READ COMMITTED",
    "lock": _HEADS,
    "lock free ones": f"{_HEADS} SKIP LOCKED",
    "revisions": "SELECT tenant_id, catalog_revision FROM tenants WHERE tenant_id = ANY($1::text[])",
    "keep": _KEEP,
    "append": _APPEND,
    "commit": "COMMIT",
    "incarnation": INCARNATION,
    "rollback": "ROLLBACK",
}


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as stored: its place in the chain, its hashes and its text."""

    tenant: TenantId
    sequence: int
    previous_hash: bytes
    hash: bytes
    event: str


class WriteFailedError(Exception):
    """A batch that failed; `outcome_known` says that nothing of it was written, else it may have been committed."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        # An error that the database reports itself undoes the transaction; without one the connection was lost.
        self.outcome_known = error.sqlstate is not None


class NothingWrittenError(WriteFailedError):
    """A batch that failed before anything was written, so that it may be put again."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(error)
        self.outcome_known = True


class Verdict(Enum):
    """What became of a call that was put to the chain writer."""

    CURRENT = "current"
    STALE = "stale"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Entry:
    """One call: its tenant, the revision it decided on (`check` False: not asked), and its event, if it has one.

    With `check`, `incarnation` is that of the database whose state was decided on; empty when it is not asked.
    """

    tenant: TenantId
    check: bool
    revision: int | None
    event: AuditEvent | None
    incarnation: str = ""


def row_of(event: AuditEvent, sequence: int, previous: bytes) -> dict[str, Any]:
    """Return the columns of `event` as the one after `previous` in its tenant's chain."""
    text = event.text()
    winner = event.winner or {}
    return {
        "tenant_id": event.tenant,
        "sequence": sequence,
        "event_id": event.id,
        "occurred_at": event.time,
        "call_id": event.call_id,
        "verb": event.verb.value,
        "outcome": event.outcome.value,
        "agent": event.agent,
        "name": event.name,
        "actor": event.actor,
        "winner_layer": winner.get("layer", ""),
        "version": winner.get("version"),
        "previous_hash": previous,
        "hash": chain_hash(previous, sequence, text),
        "event": text,
        "reason": event.reason,
        "shadowed": event.shadowed,
    }


def append(connection: Connection, event: AuditEvent) -> None:
    """Append `event` in the caller's transaction; call it last, since it holds the tenant's chain head until the end.

    Raises AuditUnavailable when the tenant has no chain, when somebody holds it for a second, without the grants, and
    when the disk is full.
    """
    this_head = chain_heads.c.tenant_id == event.tenant
    try:
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        head = connection.execute(
            select(chain_heads.c.sequence, chain_heads.c.hash).where(this_head).with_for_update()
        ).first()
        if head is None:
            raise AuditUnavailable(f"The tenant '{event.tenant}' has no audit chain.")
        row = row_of(event, head.sequence + 1, bytes(head.hash))
        for kept in event.inputs:
            values = {"tenant_id": event.tenant, "sha256": kept.sha256, "content": kept.content}
            connection.execute(upsert(audit_inputs).values(values).on_conflict_do_nothing())
        connection.execute(insert(audit_events).values(**row))
        connection.execute(update(chain_heads).where(this_head).values(sequence=row["sequence"], hash=row["hash"]))
    except DBAPIError as error:
        if isinstance(error.orig, LockNotAvailable | InsufficientPrivilege | DiskFull):
            raise AuditUnavailable("The change could not be recorded, so it is not made; try again shortly.") from error
        raise


class ChainWriter:
    """One connection of the audit role; used by one thread at a time."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url).set(drivername="postgresql")
        self._conninfo = parsed.render_as_string(hide_password=False)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._pipeline: Pipeline | None = None
        self._incarnation = ""
        # What this process has kept already, as far as it remembers, so that it is not sent with every event.
        self._kept: set[tuple[str, str]] = set()

    def write(self, entries: Sequence[Entry]) -> list[Verdict]:
        """Settle `entries` in one READ COMMITTED transaction and return a verdict for each.

        BUSY means that somebody held the tenant's chain head for longer than the lock timeout: nothing was written for
        that tenant, and the call may be put again. Raises NothingWrittenError or WriteFailedError.
        """
        tenants = sorted({entry.tenant for entry in entries})
        try:
            pipeline = self._connected()
            if any(entry.check and self._is_foreign(entry) for entry in entries):
                # Either the call decided on what stood behind an earlier connection, or this is what has changed since.
                self._incarnation = _incarnation(pipeline)
            try:
                heads, revisions = _look(pipeline, tenants)
            except LockNotAvailable:
                pipeline.run(("rollback", ()))
                return [Verdict.BUSY] * len(entries)
        except psycopg.Error as error:
            self.close()
            raise NothingWrittenError(error) from error
        try:
            stale = [
                entry.check and (revisions.get(entry.tenant) != entry.revision or self._is_foreign(entry))
                for entry in entries
            ]
            return self._settle(pipeline, entries, heads, revisions, stale)
        except psycopg.Error as error:
            self.close()
            raise WriteFailedError(error) from error

    def probe(self, event: AuditEvent) -> None:
        """Insert `event` and take it back; raise WriteFailedError when events cannot be written."""
        row = _encode([row_of(event, 0, GENESIS_HASH)])
        try:
            self._connected().run(("begin", ()), ("append", ("[]", row)), ("rollback", ()))
        except psycopg.Error as error:
            self.close()
            raise NothingWrittenError(error) from error

    def _settle(
        self,
        pipeline: Pipeline,
        entries: Sequence[Entry],
        heads: dict[TenantId, tuple[int, bytes]],
        revisions: dict[str, int],
        stale: Sequence[bool],
    ) -> list[Verdict]:
        """Insert the events of the calls that are not stale, with what they were decided from, and commit."""
        verdicts = []
        written = []
        for entry, is_stale in zip(entries, stale, strict=True):
            if entry.tenant not in heads and entry.tenant in revisions:
                verdicts.append(Verdict.BUSY)
            elif is_stale:
                verdicts.append(Verdict.STALE)
            elif entry.event is not None and entry.tenant not in heads:
                raise psycopg.DataError(f"The tenant {entry.tenant} has no chain for the event of a call.")
            else:
                verdicts.append(Verdict.CURRENT)
                if entry.event is not None:
                    written.append(entry.event)
        self._commit(pipeline, written, heads)
        return verdicts

    def _commit(
        self, pipeline: Pipeline, events: Sequence[AuditEvent], heads: dict[TenantId, tuple[int, bytes]]
    ) -> None:
        """Append `events` after `heads`, keep what they were decided from, and commit."""
        rows = []
        inputs: dict[tuple[TenantId, str], str] = {}
        for event in events:
            row = row_of(event, heads[event.tenant][0] + 1, heads[event.tenant][1])
            rows.append(row)
            heads[event.tenant] = (row["sequence"], row["hash"])
            for kept in event.inputs:
                if (event.tenant, kept.sha256) not in self._kept:
                    inputs[(event.tenant, kept.sha256)] = kept.content
        commands: list[tuple[str, Sequence[str]]] = []
        if inputs:
            kept_rows = [{"tenant_id": key[0], "sha256": key[1], "content": text} for key, text in inputs.items()]
            commands.append(("keep", (_encode(kept_rows),)))
        if rows:
            moved = {event.tenant: heads[event.tenant] for event in events}
            ends = [{"tenant_id": tenant, "sequence": head[0], "hash": head[1]} for tenant, head in moved.items()]
            commands.append(("append", (_encode(ends), _encode(rows))))
        pipeline.run(*commands, ("commit", ()))
        if len(self._kept) > _MAX_KEPT_KNOWN:
            self._kept.clear()
        self._kept.update(inputs)

    def close(self) -> None:
        """Drop the connection; the next write makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._pipeline = None

    def _connected(self) -> Pipeline:
        if self._pipeline is None:
            options = (
                f"-c role={DatabaseRole.AUDIT.value} -c lock_timeout={_LOCK_TIMEOUT_MS}"
                f" -c statement_timeout={_STATEMENT_TIMEOUT_MS} -c timezone=UTC"
                # A server that hangs between two statements must not keep the chains of its tenants locked.
                f" -c idle_in_transaction_session_timeout={2 * _STATEMENT_TIMEOUT_MS}"
            )
            self._connection = psycopg.connect(self._conninfo, options=options, connect_timeout=2, autocommit=True)
            self._pipeline = Pipeline(self._connection, _STATEMENTS)
            self._incarnation = _incarnation(self._pipeline)
            # It may be another database than before, which has nothing of it.
            self._kept.clear()
        return self._pipeline

    def _is_foreign(self, entry: Entry) -> bool:
        """Whether the call decided on the state of another database than the one behind the connection."""
        return entry.incarnation not in ("", self._incarnation)


def _incarnation(pipeline: Pipeline) -> str:
    ((row,),) = pipeline.run(("incarnation", ()))
    return incarnation_of(row)


def _look(pipeline: Pipeline, tenants: list[TenantId]) -> tuple[dict[TenantId, tuple[int, bytes]], dict[str, int]]:
    """Begin a transaction, lock the chain heads of `tenants` and read their revisions."""
    # With several tenants, one whose chain is held must not keep the others waiting: it is skipped and BUSY.
    lock = "lock" if len(tenants) == 1 else "lock free ones"
    # Quoted, since a bare `null` in an array is no name.
    names = ("{" + ",".join(f'"{tenant}"' for tenant in tenants) + "}",)
    # The revisions are read by a statement of their own: it sees what was committed while the lock was waited for.
    _, locked, current = pipeline.run(("begin", ()), (lock, names), ("revisions", names))
    heads = {TenantId(tenant): (int(sequence), bytes.fromhex(digest)) for tenant, sequence, digest in locked}
    return heads, {tenant: int(revision) for tenant, revision in current}


def _as_text(value: Any) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value.isoformat())


_encode = json.JSONEncoder(separators=(",", ":"), default=_as_text).encode


_RUNTIME_VERBS = [verb.value for verb in (Verb.PREPARE, Verb.LIST, Verb.INVOKE, Verb.READ_FILE)]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events a query wants; an empty field asks for nothing. `pattern` is of skill names.

    `as_agent` is the actor of a key that is bound to the agent: of what others did with it in mind it sees runs alone.
    """

    agent: str = ""
    pattern: Pattern | None = None
    verb: str = ""
    outcome: str = ""
    event_id: str = ""
    call_id: str = ""
    as_agent: str = ""
    since: Any = None
    until: Any = None


def query(
    connection: Connection, tenant: TenantId, wanted: Filter, after: int | None, limit: int, *, oldest_first: bool
) -> list[StoredEvent]:
    """Return up to `limit` events of the tenant in order of their sequence, those beyond the sequence `after`."""
    columns = audit_events.c
    conditions = [columns.tenant_id == tenant]
    for column, value in (
        (columns.agent, wanted.agent),
        (columns.verb, wanted.verb),
        (columns.outcome, wanted.outcome),
        (columns.event_id, wanted.event_id),
        (columns.call_id, wanted.call_id),
    ):
        if value:
            conditions.append(column == value)
    if wanted.pattern is not None and not wanted.pattern.matches_all:
        conditions.append(_names_matching(wanted.pattern))
    if wanted.as_agent:
        conditions.append((columns.actor == wanted.as_agent) | columns.verb.in_(_RUNTIME_VERBS))
    if wanted.since is not None:
        conditions.append(columns.occurred_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(columns.occurred_at < wanted.until)
    if after is not None:
        conditions.append(columns.sequence > after if oldest_first else columns.sequence < after)
    order = columns.sequence.asc() if oldest_first else columns.sequence.desc()
    rows = connection.execute(select(audit_events).where(and_(*conditions)).order_by(order).limit(limit))
    return [_stored(row) for row in rows]


def _names_matching(pattern: Pattern) -> Any:
    """Return the condition that an event's name matches `pattern`; PostgreSQL's expressions do not backtrack either."""
    column = audit_events.c.name
    if not any(c in "*?" for segment in pattern.segments for c in segment):
        return column == "/".join(pattern.segments)
    return ("/" + column).bool_op("~")(f"^{pattern.regex}$") & (column != "")


def _stored(row: Row[Any]) -> StoredEvent:
    return StoredEvent(TenantId(row.tenant_id), row.sequence, bytes(row.previous_hash), bytes(row.hash), row.event)
