"""What is known of a decision while it is being made; becomes its audit event and its log lines."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

from substrate.domain.agents import Agent
from substrate.domain.audit import AuditEvent, DecidingEntry, EventOutcome, Verb, candidate_fields
from substrate.domain.candidates import Resolution
from substrate.domain.errors import SubstrateError
from substrate.domain.identity import Principal
from substrate.domain.names import AgentName, SkillName, TenantId
from substrate.services.call import Call
from substrate.services.snapshots import Snapshot

_log = structlog.get_logger("substrate.decisions")


@dataclass(slots=True)
class Trace:
    """One attempt at a decision, on one snapshot.

    A decision fills in what it learns, so that the event of a refusal says as much as was known by then. `resolved`
    holds (name, deciding entry, resolution) of every name looked at, for the debug log. `subject` is the tenant whose
    chain the event belongs to, when that is not the caller's own. `rehearses` says that the change will be rolled back.
    """

    call: Call
    verb: Verb
    snapshot: Snapshot
    principal: Principal
    run_id: str = ""
    turn: int = 0
    agent_name: AgentName | None = None
    agent: Agent | None = None
    requested: str = ""
    name: SkillName | None = None
    caller_kind: str = ""
    drafts: bool = False
    touched: int | None = None
    touched_path: str = ""
    arguments_hmac: str = ""
    decision: DecidingEntry | None = None
    resolution: Resolution | None = None
    filter: str = ""
    admitted: int | None = None
    left_out: int | None = None
    entries_sha256: str = ""
    details: dict[str, Any] | None = None
    subject: TenantId | None = None
    rehearses: bool = False
    resolved: Sequence[tuple[SkillName, DecidingEntry, Resolution]] = field(default_factory=tuple)

    @property
    def tenant(self) -> TenantId:
        """The tenant that the call is about: the one an operator named, else the caller's own."""
        return self.subject or self.principal.tenant

    def event(self, event_id: str, server: str, refusal: SubstrateError | None) -> AuditEvent:
        """Return the audit event of this decision."""
        candidates, winner = candidate_fields(self.resolution) if self.resolution else ([], None)
        kept = self.snapshot.kept(self.agent) if self.agent else None
        return AuditEvent(
            id=event_id,
            tenant=self.tenant,
            time=self.call.arrived,
            call_id=self.call.call_id,
            verb=self.verb,
            outcome=EventOutcome.REFUSED if refusal else EventOutcome.ALLOWED,
            actor=self.principal.actor,
            key_id=self.principal.key_id,
            role=self.principal.role.value,
            agent=self.agent_name or "",
            run_id=self.run_id,
            turn=self.turn,
            requested=self.requested,
            name=self.name or "",
            reason=refusal.reason if refusal else "",
            decision=self.decision,
            candidates=candidates,
            winner=winner,
            revision=self.snapshot.state.revision,
            allowlist_sha256=self.agent.allowlist_sha256 if self.agent else "",
            agent_sha256=kept.sha256 if kept else "",
            static_digest=self.snapshot.static.digest,
            filter=self.filter,
            admitted=self.admitted,
            left_out=self.left_out,
            entries_sha256=self.entries_sha256,
            details={**(self.details or {}), "validate_only": True} if self.rehearses else self.details,
            server=server,
            decide_us=int((time.monotonic() - self.call.started) * 1_000_000),
            caller_kind=self.caller_kind,
            pin=self.resolution.pin if self.resolution else "",
            drafts=self.drafts,
            touched=self.touched,
            touched_path=self.touched_path,
            arguments_hmac=self.arguments_hmac,
            inputs=(kept,) if kept else (),
        )

    def log(self, event: AuditEvent) -> None:
        """Write one `skill.resolved` line at debug level for every name that was decided on."""
        if not debugging():
            return
        if self.resolution is not None or self.decision is not None:
            _log.debug("skill.resolved", **event.fields())
        for name, decision, resolution in self.resolved:
            candidates, winner = candidate_fields(resolution)
            _log.debug(
                "skill.resolved",
                id=event.id,
                tenant=event.tenant,
                call_id=event.call_id,
                verb=event.verb.value,
                agent=event.agent,
                name=name,
                decision=asdict(decision),
                candidates=candidates,
                winner=winner,
                revision=event.revision,
            )


def debugging() -> bool:
    """Whether the debug lines are wanted, so that a list need not gather them for nothing."""
    return bool(_log.is_enabled_for(10))
