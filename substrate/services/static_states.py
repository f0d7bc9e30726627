"""The record that a process serves other bundles or configuration from now on."""

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.names import PLATFORM_TENANT
from substrate.services.call import Clock
from substrate.sources.static import StaticState


def load_event(clock: Clock, server: str, static: StaticState, previous: StaticState | None) -> AuditEvent:
    """Return the event, in the platform's chain, that `server` serves `static` in place of `previous`.

    With it the static state is kept, so that decisions made on it can be made again.
    """
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
        inputs=(static.kept,),
    )
