"""`AuditService` on the wire."""

from collections.abc import Iterator
from dataclasses import replace

from grpc import ServicerContext

from substrate.api.v1 import audit_pb2 as pb
from substrate.api.v1 import catalog_pb2
from substrate.api.v1.audit_pb2_grpc import AuditServiceServicer
from substrate.domain.audit import EventOutcome
from substrate.domain.candidates import LayerKind
from substrate.domain.errors import InvalidArgument
from substrate.rpc import convert, explain_messages, report_messages
from substrate.rpc.audit_messages import audit_event
from substrate.rpc.interceptors import call_of
from substrate.services.audit import Audit
from substrate.services.audit_conditions import AuditQuery
from substrate.services.explain import Explain
from substrate.services.history import History
from substrate.services.usage import Usage
from substrate.services.verification import Verification
from substrate.services.who_can import WhoCan

_OUTCOMES: dict[int, EventOutcome | None] = {
    pb.OUTCOME_UNSPECIFIED: None,
    pb.OUTCOME_ALLOWED: EventOutcome.ALLOWED,
    pb.OUTCOME_REFUSED: EventOutcome.REFUSED,
    pb.OUTCOME_CANCELLED: EventOutcome.CANCELLED,
}

_LAYERS: dict[int, LayerKind | None] = {catalog_pb2.LAYER_UNSPECIFIED: None} | {
    convert.layer(kind): kind for kind in LayerKind
}


class AuditServicer(AuditServiceServicer):
    """Reads requests, asks the service, writes responses."""

    def __init__(
        self,
        audit: Audit,
        explain: Explain,
        who_can: WhoCan,
        history: History,
        usage: Usage,
        verification: Verification,
    ) -> None:
        self._audit = audit
        self._explain = explain
        self._who_can = who_can
        self._history = history
        self._usage = usage
        self._verification = verification

    def QueryAuditEvents(
        self, request: pb.QueryAuditEventsRequest, context: ServicerContext
    ) -> pb.QueryAuditEventsResponse:
        """Return one page of audit events."""
        call = call_of(context)
        asked = replace(
            _asked(request),
            decision_id=request.decision_id,
            until=convert.moment(request.until, "until") if request.HasField("until") else None,
            oldest_first=request.oldest_first,
        )
        page = self._audit.query(call, asked, request.page_size, request.page_token)
        return pb.QueryAuditEventsResponse(
            events=[audit_event(event) for event in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )

    def TailAuditEvents(
        self, request: pb.TailAuditEventsRequest, context: ServicerContext
    ) -> Iterator[pb.TailAuditEventsResponse]:
        """Yield audit events as they are written."""
        call = call_of(context)
        for tailed in self._audit.tail(call, _asked(request), request.position):
            yield pb.TailAuditEventsResponse(
                events=[audit_event(event) for event in tailed.events],
                position=tailed.position,
                decision_id=call.decision_id,
            )

    def GetAuditEvent(self, request: pb.GetAuditEventRequest, context: ServicerContext) -> pb.GetAuditEventResponse:
        """Return one audit event."""
        call = call_of(context)
        event = self._audit.get(call, request.tenant, request.id)
        return pb.GetAuditEventResponse(event=audit_event(event), decision_id=call.decision_id)

    def WhoCan(self, request: pb.WhoCanRequest, context: ServicerContext) -> pb.WhoCanResponse:
        """Return one page of agents with what they can do with a skill."""
        call = call_of(context)
        page = self._who_can.who_can(call, request.tenant, request.name, request.page_size, request.page_token)
        return pb.WhoCanResponse(
            agents=[report_messages.access(row) for row in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )

    def GetSkillHistory(
        self, request: pb.GetSkillHistoryRequest, context: ServicerContext
    ) -> pb.GetSkillHistoryResponse:
        """Return one page of changes of what a name stands for."""
        call = call_of(context)
        since = convert.moment(request.since, "since") if request.HasField("since") else None
        page = self._history.history(call, request.tenant, request.name, since, request.page_size, request.page_token)
        return pb.GetSkillHistoryResponse(
            changes=[report_messages.change(row) for row in page.rows],
            next_page_token=page.next_page_token,
            decision_id=call.decision_id,
        )

    def GetUsageReport(self, request: pb.GetUsageReportRequest, context: ServicerContext) -> pb.GetUsageReportResponse:
        """Count a tenant's invocations."""
        call = call_of(context)
        since = convert.moment(request.since, "since") if request.HasField("since") else None
        until = convert.moment(request.until, "until") if request.HasField("until") else None
        report = self._usage.report(call, request.tenant, since, until, request.agent, request.pattern)
        return report_messages.usage(report, call.decision_id)

    def VerifyAudit(self, request: pb.VerifyAuditRequest, context: ServicerContext) -> Iterator[pb.VerifyAuditResponse]:
        """Yield how far the check of the chains has come, and what it finds."""
        call = call_of(context)
        for report in self._verification.verify(call, request.tenant):
            yield pb.VerifyAuditResponse(
                tenant=report.tenant,
                checked_count=report.checked,
                done=report.done,
                intact=report.intact,
                first_bad_sequence=report.first_bad,
                problem=report.problem,
                first_sequence=report.first,
                last_sequence=report.last,
                checkpoint_count=report.checkpoints,
                last_checkpoint_sequence=report.last_checkpoint,
                decision_id=call.decision_id,
            )

    def ExplainResolution(
        self, request: pb.ExplainResolutionRequest, context: ServicerContext
    ) -> pb.ExplainResolutionResponse:
        """Explain what a name resolves to, and why."""
        call = call_of(context)
        explained = self._explain.explain(call, explain_messages.asked(request))
        return explain_messages.explanation(explained, call)


def _asked(request: pb.QueryAuditEventsRequest | pb.TailAuditEventsRequest) -> AuditQuery:
    """Return the conditions that pages and streams share; raise InvalidArgument for values that no enum has."""
    if request.outcome not in _OUTCOMES:
        raise InvalidArgument("outcome", "Must be OUTCOME_ALLOWED, OUTCOME_REFUSED or OUTCOME_CANCELLED.")
    if request.winner_layer not in _LAYERS:
        raise InvalidArgument("winner_layer", "Must be LAYER_TENANT, LAYER_INLINE or LAYER_BUNDLE.")
    return AuditQuery(
        tenant=request.tenant,
        agent=request.agent,
        pattern=request.pattern,
        verb=request.verb,
        outcome=_OUTCOMES[request.outcome],
        call_id=request.call_id,
        since=convert.moment(request.since, "since") if request.HasField("since") else None,
        winner_layer=_LAYERS[request.winner_layer],
        actor=request.actor,
        version=request.version,
        shadowed_only=request.shadowed_only,
        denied_only=request.denied_only,
        reason=request.reason,
        arguments=request.arguments,
    )
