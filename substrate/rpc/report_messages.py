"""What `AuditService` reports, as messages: who can do what, the history of a name, and usage."""

from substrate.api.v1 import audit_pb2 as pb
from substrate.api.v1 import catalog_pb2
from substrate.domain.candidates import Outcome, Resolution
from substrate.rpc import convert
from substrate.services.past import SkillChange
from substrate.services.usage import DriftedFork, UsageReport
from substrate.services.who_can import AgentAccess
from substrate.store.audit_reports import Invocations

_CAUSES = {
    Outcome.RESOLVED: pb.CAUSE_UNSPECIFIED,
    Outcome.ABSENT: pb.CAUSE_ABSENT,
    Outcome.DRAFT: pb.CAUSE_DRAFT,
    Outcome.RETIRED: pb.CAUSE_RETIRED,
    Outcome.DISABLED: pb.CAUSE_DISABLED,
    Outcome.QUARANTINED: pb.CAUSE_QUARANTINED,
    Outcome.LOCKED: pb.CAUSE_LOCKED,
}


def access(found: AgentAccess) -> pb.AgentAccess:
    """Return what an agent can do with a skill."""
    return pb.AgentAccess(
        tenant=found.tenant,
        agent=found.agent,
        origin=found.origin,
        can_list=found.can_invoke,
        can_invoke=found.can_invoke,
        can_author=found.can_author,
        decision=convert.decision(found.decision) if found.decision else None,
        reason=found.reason,
        text=found.text,
    )


def change(found: SkillChange) -> pb.SkillChange:
    """Return a change of what a name stands for."""
    return pb.SkillChange(
        time=convert.timestamp(found.time),
        verb=found.verb,
        actor=found.actor,
        event_id=found.event_id,
        before=_winner(found.before),
        after=_winner(found.after),
        cause=_CAUSES[found.after.outcome] if found.after else pb.CAUSE_UNSPECIFIED,
        text=found.text,
    )


def usage(found: UsageReport, decision_id: str) -> pb.GetUsageReportResponse:
    """Return a report."""
    return pb.GetUsageReportResponse(
        rows=[_row(row) for row in found.rows],
        never_invoked=found.never_invoked,
        drifted=[_drifted(fork) for fork in found.drifted],
        since=convert.timestamp(found.since),
        until=convert.timestamp(found.until),
        truncated=found.truncated,
        decision_id=decision_id,
    )


def _winner(resolution: Resolution | None) -> catalog_pb2.Candidate | None:
    return convert.winner(resolution) if resolution else None


def _row(row: Invocations) -> pb.UsageRow:
    return pb.UsageRow(
        name=row.name,
        layer=catalog_pb2.Layer.Value(f"LAYER_{row.layer}") if row.layer else catalog_pb2.LAYER_UNSPECIFIED,
        version=row.version or 0,
        agent=row.agent,
        outcome=pb.Outcome.Value(f"OUTCOME_{row.outcome}"),
        reason=row.reason,
        count=row.count,
        last=convert.timestamp(row.last),
    )


def _drifted(found: DriftedFork) -> pb.DriftedFork:
    return pb.DriftedFork(
        name=found.fork.name,
        version=found.fork.version,
        forked_from=found.fork.forked_from,
        forked_sha256=found.fork.forked_sha256,
        bundle_origin=found.bundled.origin if found.bundled else "",
        bundle_sha256=found.bundled.content_sha256 if found.bundled else "",
    )
