"""`AgentService` on the wire."""

from grpc import ServicerContext

from substrate.api.v1 import agents_pb2 as pb
from substrate.api.v1.agents_pb2_grpc import AgentServiceServicer
from substrate.domain.agents import Agent
from substrate.domain.skillmatch import Allowlist
from substrate.rpc import convert
from substrate.rpc.interceptors import call_of
from substrate.rpc.repeats import answered
from substrate.services.agents import AgentDraft, Agents

MAX_SHOWN = 1000
"""Names that an answer holds of those that an allowlist gains or loses."""


class AgentServicer(AgentServiceServicer):
    """Reads requests, asks the service, writes responses."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    def PutAgent(self, request: pb.PutAgentRequest, context: ServicerContext) -> pb.PutAgentResponse:
        """Create or replace one of the tenant's agents."""
        call = call_of(context)
        return answered(
            call,
            request,
            lambda: self._agents.put(call, _draft(request.agent), request.etag),
            lambda agent: pb.PutAgentResponse(
                agent=_agent(agent),
                warnings=_warnings(agent.allowlist),
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
        )

    def DeleteAgent(self, request: pb.DeleteAgentRequest, context: ServicerContext) -> pb.DeleteAgentResponse:
        """Remove one of the tenant's agents."""
        call = call_of(context)
        return answered(
            call,
            request,
            lambda: self._agents.delete(call, request.name, request.etag),
            lambda below: pb.DeleteAgentResponse(
                agent=_agent(below) if below else None, state=convert.state(call), decision_id=call.decision_id
            ),
        )

    def GetAgent(self, request: pb.GetAgentRequest, context: ServicerContext) -> pb.GetAgentResponse:
        """Return an agent."""
        call = call_of(context)
        agent = self._agents.get(call, request.name)
        return pb.GetAgentResponse(agent=_agent(agent), state=convert.state(call), decision_id=call.decision_id)

    def ListAgents(self, request: pb.ListAgentsRequest, context: ServicerContext) -> pb.ListAgentsResponse:
        """Return one page of the agents of all layers."""
        call = call_of(context)
        page = self._agents.list(call, request.page_size, request.page_token)
        return pb.ListAgentsResponse(
            agents=[_agent(agent) for agent in page.rows],
            next_page_token=page.next_page_token,
            total_size=page.total,
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def TestAllowlist(self, request: pb.TestAllowlistRequest, context: ServicerContext) -> pb.TestAllowlistResponse:
        """Hold names against an allowlist."""
        call = call_of(context)
        tested = self._agents.test_allowlist(call, request.agent, request.skills, request.names)
        return pb.TestAllowlistResponse(
            decisions=[
                pb.NameDecision(name=name, decision=convert.decision(decision)) for name, decision in tested.decisions
            ],
            warnings=_warnings(tested.allowlist),
            denies_all=tested.allowlist.denies_all,
            has_allow=tested.allowlist.has_allow,
            admitted_count=tested.admitted,
            gained=tested.gained[:MAX_SHOWN],
            lost=tested.lost[:MAX_SHOWN],
            gained_count=len(tested.gained),
            lost_count=len(tested.lost),
            state=convert.state(call),
            decision_id=call.decision_id,
        )


def _draft(message: pb.Agent) -> AgentDraft:
    return AgentDraft(
        name=message.name,
        description=message.description,
        tools=list(message.tools.names) if message.HasField("tools") else None,
        skills=list(message.skills),
        definition_json=message.definition_json,
        scopes_given=message.HasField("skill_def_scopes"),
        pins=dict(message.pins),
    )


def _agent(agent: Agent) -> pb.Agent:
    return pb.Agent(
        name=agent.name,
        description=agent.description,
        tools=None if agent.tools is None else pb.ToolList(names=agent.tools),
        skills=agent.allowlist.texts(),
        definition_json=agent.definition_json,
        content_sha256=agent.content_sha256,
        allowlist_sha256=agent.allowlist_sha256,
        layer=convert.layer(agent.kind),
        origin=agent.origin,
        etag=agent.etag,
        create_time=convert.timestamp(agent.created_at),
        update_time=convert.timestamp(agent.updated_at),
        pins={str(name): pin for name, pin in agent.pins.items()},
    )


def _warnings(allowlist: Allowlist) -> list[pb.AllowlistWarning]:
    return [pb.AllowlistWarning(index=w.index, entry=w.entry, message=w.message) for w in allowlist.warnings]
