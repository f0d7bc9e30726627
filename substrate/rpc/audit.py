"""`AuditService` on the wire."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from grpc import ServicerContext

from substrate.api.v1 import audit_pb2 as pb
from substrate.api.v1 import catalog_pb2, tenants_pb2
from substrate.api.v1.audit_pb2_grpc import AuditServiceServicer
from substrate.domain.audit import EventOutcome
from substrate.domain.errors import InvalidArgument
from substrate.rpc import convert
from substrate.rpc.interceptors import call_of
from substrate.services.audit import Audit, AuditQuery
from substrate.store.audit import StoredEvent

_OUTCOMES: dict[int, EventOutcome | None] = {
    pb.OUTCOME_UNSPECIFIED: None,
    pb.OUTCOME_ALLOWED: EventOutcome.ALLOWED,
    pb.OUTCOME_REFUSED: EventOutcome.REFUSED,
    pb.OUTCOME_CANCELLED: EventOutcome.CANCELLED,
}


class AuditServicer(AuditServiceServicer):
    """Reads requests, asks the service, writes responses."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def QueryAuditEvents(
        self, request: pb.QueryAuditEventsRequest, context: ServicerContext
    ) -> pb.QueryAuditEventsResponse:
        """Return one page of audit events."""
        call = call_of(context)
        if request.outcome not in _OUTCOMES:
            raise InvalidArgument("outcome", "Must be OUTCOME_ALLOWED, OUTCOME_REFUSED or OUTCOME_CANCELLED.")
        asked = AuditQuery(
            tenant=request.tenant,
            agent=request.agent,
            pattern=request.pattern,
            verb=request.verb,
            outcome=_OUTCOMES[request.outcome],
            decision_id=request.decision_id,
            call_id=request.call_id,
            since=convert.moment(request.since, "since") if request.HasField("since") else None,
            until=convert.moment(request.until, "until") if request.HasField("until") else None,
            oldest_first=request.oldest_first,
        )
        page = self._audit.query(call, asked, request.page_size, request.page_token)
        return pb.QueryAuditEventsResponse(
            events=[_event(event) for event in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )

    def ExplainResolution(
        self, request: pb.ExplainResolutionRequest, context: ServicerContext
    ) -> pb.ExplainResolutionResponse:
        """Explain what a name resolves to, and why."""
        call = call_of(context)
        explanation = self._audit.explain(call, request.tenant, request.name, request.agent)
        resolution = explanation.resolution
        return pb.ExplainResolutionResponse(
            name=resolution.ref.name,
            winner=convert.winner(resolution),
            candidates=convert.candidates(resolution),
            mode=convert.name_mode(explanation.mode),
            trials=[
                pb.EntryTrial(
                    index=trial.index,
                    entry=trial.entry,
                    matched=trial.matched,
                    effect=trial.effect,
                    decided=trial.decided,
                )
                for trial in explanation.trials
            ],
            decision=convert.decision(explanation.decision) if explanation.decision else None,
            would_succeed=explanation.would_succeed,
            reason=explanation.reason,
            text=explanation.text,
            state=convert.state(call),
            decision_id=call.decision_id,
        )


def _event(stored: StoredEvent) -> pb.AuditEvent:
    """Return a stored event; its fields are read from the very text that is hashed."""
    event = json.loads(stored.event)
    decision = event.get("decision")
    winner = event.get("winner")
    return pb.AuditEvent(
        id=event["id"],
        tenant=stored.tenant,
        sequence=stored.sequence,
        time=convert.timestamp(datetime.fromisoformat(event["time"])),
        call_id=event["call_id"],
        run_id=event.get("run_id", ""),
        turn=event.get("turn", 0),
        actor=event.get("actor", ""),
        key_id=event.get("key_id", ""),
        role=tenants_pb2.Role.Value(f"ROLE_{event['role'].upper()}")
        if event.get("role")
        else tenants_pb2.ROLE_UNSPECIFIED,
        agent=event.get("agent", ""),
        verb=event["verb"],
        requested_name=event.get("requested", ""),
        name=event.get("name", ""),
        outcome=pb.Outcome.Value(f"OUTCOME_{event['outcome']}"),
        reason=event.get("reason", ""),
        decision=_decision(decision) if decision else None,
        candidates=[_candidate(candidate) for candidate in event.get("candidates", ())],
        winner=_candidate(winner) if winner else None,
        catalog_revision=event.get("revision", 0),
        allowlist_sha256=event.get("allowlist_sha256", ""),
        static_digest=event.get("static_digest", ""),
        filter=event.get("filter", ""),
        admitted_count=event.get("admitted", 0),
        left_out_count=event.get("left_out", 0),
        entries_sha256=event.get("entries_sha256", ""),
        server=event.get("server", ""),
        duration_us=event.get("decide_us", 0),
        hash=stored.hash.hex(),
        previous_hash=stored.previous_hash.hex(),
        event_json=stored.event,
    )


def _decision(fields: Mapping[str, Any]) -> catalog_pb2.Decision:
    return catalog_pb2.Decision(
        allowed=fields["allowed"],
        reason=catalog_pb2.AllowlistReason.Value(f"ALLOWLIST_REASON_{fields['reason']}"),
        index=fields["index"],
        entry=fields["entry"] or "",
    )


def _candidate(fields: Mapping[str, Any]) -> catalog_pb2.Candidate:
    return catalog_pb2.Candidate(
        layer=catalog_pb2.Layer.Value(f"LAYER_{fields['layer']}"),
        origin=fields["origin"],
        version=fields["version"] or 0,
        state=catalog_pb2.CandidateState.Value(f"CANDIDATE_STATE_{fields['state']}"),
        content_sha256=fields["digest"],
    )
