"""The chain writer: many tenants' events in one transaction, and none of a call that decided on an old state.

One connection of the audit role locks the chain heads of its tenants, reads their catalog revisions and inserts the
events of those calls that decided on the current one. A batch takes two round trips and is sent as one JSON text:
nothing else costs the server so little for each event.
"""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Any

import psycopg
from psycopg.errors import (
    AdminShutdown,
    CrashShutdown,
    IdleInTransactionSessionTimeout,
    LockNotAvailable,
    UniqueViolation,
)
from sqlalchemy.engine import make_url

from substrate.domain.audit import GENESIS_HASH, AuditEvent
from substrate.domain.names import TenantId
from substrate.store.audit import row_of
from substrate.store.pipeline import Pipeline
from substrate.store.session import DatabaseRole
from substrate.store.tenants import INCARNATION, incarnation_of

_LOCK_TIMEOUT_MS = 25
_STATEMENT_TIMEOUT_MS = 700
"""Below the second after which a call is refused, so that one that may do without its event still gets its answer."""

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


_ENDED = (AdminShutdown, CrashShutdown, IdleInTransactionSessionTimeout)
"""With these the database ends a session, maybe after it has committed."""


class WriteFailedError(Exception):
    """A batch that failed; `outcome_known` says that nothing of it was written, else it may have been committed.

    `ends` are then the chain heads, as (sequence, hash), that its commit would have left.
    """

    def __init__(self, error: psycopg.Error, ends: Mapping[TenantId, tuple[int, bytes]]) -> None:
        super().__init__(str(error))
        # An error that the database reports itself undoes the transaction; without one the connection was lost.
        self.outcome_known = error.sqlstate is not None and not isinstance(error, _ENDED)
        self.ends = ends
        self.is_duplicate = isinstance(error, UniqueViolation)
        # Its own text may quote a row.
        self.told = f"{type(error).__name__} {error.sqlstate or ''}".strip()


class NothingWrittenError(WriteFailedError):
    """A batch of which nothing was written, so that it may be put again."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(error, {})
        self.outcome_known = True


class Verdict(Enum):
    """What became of a call that was put to the chain writer."""

    CURRENT = "current"
    STALE = "stale"
    BUSY = "busy"
    GONE = "gone"


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
        # The heads that the batch in hand leaves where it appends.
        self._moving: dict[TenantId, tuple[int, bytes]] = {}

    def write(self, entries: Sequence[Entry]) -> list[Verdict]:
        """Settle `entries` in one READ COMMITTED transaction and return a verdict for each.

        BUSY means that somebody held the tenant's chain head for longer than the lock timeout: nothing was written for
        that tenant, and the call may be put again. GONE means that the tenant has no chain, as when an older copy of
        the database has taken its place. Raises NothingWrittenError or WriteFailedError.
        """
        self._moving = {}
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
            # Of a single tenant the lock was waited for; it has no chain when none was found.
            held = revisions.keys() - heads.keys() if len(tenants) > 1 else set()
            return self._settle(pipeline, entries, heads, held, stale)
        except LockNotAvailable as error:
            # Somebody asks for the whole table, as the drop of a month does for moments: it may be free the next time.
            self._undo(error)
            raise NothingWrittenError(error) from error
        except psycopg.Error as error:
            self._undo(error)
            raise WriteFailedError(error, self._moving) from error

    def write_again(self, entries: Sequence[Entry]) -> list[Verdict]:
        """As `write`, once more when nothing was written: the connection may only have been lost while idle.

        Or the table was asked for by somebody else, for a moment.
        """
        try:
            return self.write(entries)
        except NothingWrittenError:
            return self.write(entries)

    def was_committed(self, ends: Mapping[TenantId, tuple[int, bytes]]) -> bool | None:
        """Return whether the batch that would have left `ends` was committed; None when that cannot be told.

        Somebody else may have appended since, or still hold the chains, or the database be away.
        """
        try:
            heads, _ = _look(self._connected(), sorted(ends))
            self._connected().run(("rollback", ()))
        except psycopg.Error:
            self.close()
            return None
        if any(heads.get(tenant) == end for tenant, end in ends.items()):
            return True
        # A chain that is shorter than it would be has not got the batch, and all chains of a batch are moved at once.
        if any(tenant in heads and heads[tenant][0] < end[0] for tenant, end in ends.items()):
            return False
        return None

    def probe(self, event: AuditEvent) -> None:
        """Insert `event` and take it back; raise WriteFailedError when events cannot be written."""
        row = _encode([row_of(event, 0, GENESIS_HASH)])
        try:
            self._connected().run(("begin", ()), ("append", ("[]", row)), ("rollback", ()))
        except psycopg.Error as error:
            self._undo(error)
            raise NothingWrittenError(error) from error

    def _undo(self, error: psycopg.Error) -> None:
        """End the transaction that failed, and the connection too unless the database itself has said why."""
        try:
            if self._pipeline is not None and error.sqlstate is not None and not isinstance(error, _ENDED):
                self._pipeline.run(("rollback", ()))
                return
        except psycopg.Error:
            pass
        self.close()

    def _settle(
        self,
        pipeline: Pipeline,
        entries: Sequence[Entry],
        heads: dict[TenantId, tuple[int, bytes]],
        held: AbstractSet[str],
        stale: Sequence[bool],
    ) -> list[Verdict]:
        """Insert the events of the calls that are not stale, with what they were decided from, and commit."""
        verdicts = []
        written = []
        for entry, is_stale in zip(entries, stale, strict=True):
            if entry.tenant in held:
                verdicts.append(Verdict.BUSY)
            elif is_stale:
                verdicts.append(Verdict.STALE)
            elif entry.event is not None and entry.tenant not in heads:
                verdicts.append(Verdict.GONE)
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
        moved = self._moving = {event.tenant: heads[event.tenant] for event in events}
        commands: list[tuple[str, Sequence[str]]] = []
        if inputs:
            kept_rows = [{"tenant_id": key[0], "sha256": key[1], "content": text} for key, text in inputs.items()]
            commands.append(("keep", (_encode(kept_rows),)))
        if rows:
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
