"""The record that a process serves other bundles or configuration from now on."""

import structlog

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import DeadlineExceeded, StoreUnavailable
from substrate.domain.names import PLATFORM_TENANT
from substrate.services.call import Clock
from substrate.sources.static import StaticState
from substrate.store import audit
from substrate.store.session import Database

_log = structlog.get_logger("substrate")


def keep_static(database: Database, static: StaticState) -> None:
    """Keep `static`, so that decisions made on it can be made again; that this fails keeps nobody from serving it.

    It may be large, so it does not go with an event, which calls would have to wait for.
    """
    try:
        with database.tenant(PLATFORM_TENANT) as connection:
            audit.keep(connection, PLATFORM_TENANT, static.kept)
    except (StoreUnavailable, DeadlineExceeded):
        _log.error("static_state.not_kept", static_digest=static.digest)


def load_event(clock: Clock, server: str, static: StaticState, previous: StaticState | None) -> AuditEvent:
    """Return the event, in the platform's chain, that `server` serves `static` in place of `previous`."""
    event_id = clock.event_id()
    return AuditEvent(
        id=event_id,
        tenant=PLATFORM_TENANT,
        time=clock.now(),
        call_id=event_id,
        verb=Verb.LOAD_STATIC,
        outcome=EventOutcome.ALLOWED,
        actor="server",
        static_digest=static.digest,
        details={"previous": previous.digest if previous else ""},
        server=server,
    )
