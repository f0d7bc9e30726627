"""Audit events as messages."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from substrate.api.v1 import audit_pb2 as pb
from substrate.api.v1 import catalog_pb2, tenants_pb2
from substrate.domain.recorded import readable
from substrate.rpc import convert
from substrate.store.audit import StoredEvent


def audit_event(stored: StoredEvent) -> pb.AuditEvent:
    """Return a stored event; its fields are read from the very text that is hashed, as far as that can be read."""
    event = readable(stored.event)
    decision = event.get("decision")
    winner = event.get("winner")
    role, caller_kind = event.get("role"), event.get("caller_kind")
    return pb.AuditEvent(
        id=event.get("id", ""),
        tenant=stored.tenant,
        sequence=stored.sequence,
        time=convert.timestamp(datetime.fromisoformat(event["time"])) if "time" in event else None,
        call_id=event.get("call_id", ""),
        run_id=event.get("run_id", ""),
        turn=event.get("turn", 0),
        actor=event.get("actor", ""),
        key_id=event.get("key_id", ""),
        role=tenants_pb2.Role.Value(f"ROLE_{role.upper()}") if role else tenants_pb2.ROLE_UNSPECIFIED,
        agent=event.get("agent", ""),
        verb=event.get("verb", ""),
        requested_name=event.get("requested", ""),
        name=event.get("name", ""),
        outcome=pb.Outcome.Value(f"OUTCOME_{event['outcome']}") if "outcome" in event else pb.OUTCOME_UNSPECIFIED,
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
        caller_kind=catalog_pb2.CallerKind.Value(f"CALLER_KIND_{caller_kind}")
        if caller_kind
        else catalog_pb2.CALLER_KIND_UNSPECIFIED,
        pin=event.get("pin", ""),
        touched_count=event.get("touched", 0),
        touched_path=event.get("touched_path", ""),
        agent_sha256=event.get("agent_sha256", ""),
        arguments_hmac=event.get("arguments_hmac", ""),
        drafts=event.get("drafts", False),
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
