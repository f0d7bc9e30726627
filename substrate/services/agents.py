"""Agents: tenants define their own, everybody sees those of all layers, and allowlists can be tried out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from substrate.domain.agents import SCOPES_REFUSED, Agent, parse_agent
from substrate.domain.audit import DecidingEntry, Verb, deciding_entry
from substrate.domain.candidates import LayerKind
from substrate.domain.errors import (
    AgentNotFound,
    EtagMismatch,
    InvalidAgent,
    InvalidAllowlist,
    InvalidArgument,
    RoleRequired,
    Violation,
)
from substrate.domain.identity import Role
from substrate.domain.names import AgentName, SkillName, SkillRef, parse_agent_name, parse_skill_name
from substrate.domain.quotas import require
from substrate.domain.skillmatch import Allowlist
from substrate.domain.tokens import read_page_token
from substrate.services.access import acting_agent, require_role
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, cut, page_limit
from substrate.services.trace import Trace
from substrate.store import agents
from substrate.store.session import Transaction

MAX_TESTED_NAMES = 1000


@dataclass(frozen=True, slots=True)
class AgentDraft:
    """An agent as a caller proposes it: `tools` is None for no restriction.

    `scopes_given` says that the refused field `skill_def_scopes` is set, to whatever value.
    """

    name: str
    description: str = ""
    tools: Sequence[str] | None = None
    skills: Sequence[str] = ()
    definition_json: str = ""
    scopes_given: bool = False
    pins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TestedAllowlist:
    """What an allowlist decides on each of the names asked about, in their order, and on the live catalog.

    `gained` and `lost` hold the live names that it admits and the agent's present allowlist does not, and the reverse.
    """

    allowlist: Allowlist
    decisions: Sequence[tuple[SkillName, DecidingEntry]]
    admitted: int
    gained: Sequence[SkillName]
    lost: Sequence[SkillName]


class Agents:
    """The use cases of `AgentService`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def put(self, call: Call, draft: AgentDraft, etag: str) -> Agent:
        """Create or replace one of the tenant's agents; only an author whose key is bound to no agent may."""

        def check(trace: Trace) -> None:
            _require_free_author(trace)
            agent = read_draft(draft)
            trace.agent_name = agent.name

        def apply(trace: Trace, connection: Transaction, revision: int) -> Agent:
            agent = replace(read_draft(draft), origin=f"tenant:r{revision}", revision=revision)
            own = trace.snapshot.state.agents
            known = own.get(agent.name)
            if known is not None or agent.name not in own:
                # A stored definition that cannot be read has no etag that anybody could have read.
                _require_etag(etag, agents.etag(connection, trace.tenant, agent.name), agent.name)
            quotas = trace.snapshot.state.quotas
            require("allowlist_entries", quotas.allowlist_entries, len(agent.allowlist.entries))
            if agent.name not in own:
                require("agents", quotas.agents, len(own) + 1)
            now = self._decisions.clock.now()
            created = agents.put(connection, trace.tenant, agent, revision, now, trace.principal.actor)
            trace.details = {
                "content_sha256": agent.content_sha256,
                "allowlist_sha256": agent.allowlist_sha256,
                "skills": agent.allowlist.texts(),
                "skills_before": known.allowlist.texts() if known else None,
                "pins": dict(agent.pins),
                "pins_before": dict(known.pins) if known else None,
            }
            return replace(agent, created_at=created, updated_at=now)

        return self._decisions.change(call, Verb.PUT_AGENT, check, apply)

    def delete(self, call: Call, name: str, etag: str) -> Agent | None:
        """Remove one of the tenant's agents; return the agent that its name stands for now, if there is one."""

        def check(trace: Trace) -> None:
            _require_free_author(trace)
            trace.agent_name = parse_agent_name(name, "name")

        def apply(trace: Trace, connection: Transaction, _: int) -> Agent | None:
            wanted = parse_agent_name(name, "name")
            current = agents.etag(connection, trace.tenant, wanted)
            if current is None:
                raise AgentNotFound(f"The tenant has no agent '{wanted}' of its own.", agent=wanted)
            known = trace.snapshot.state.agents.get(wanted)
            if known is not None:
                _require_etag(etag, current, wanted)
            agents.remove(connection, trace.tenant, wanted)
            trace.details = {
                "skills_before": known.allowlist.texts() if known else None,
                "pins_before": dict(known.pins) if known else None,
            }
            return trace.snapshot.static.agents.get(wanted)

        return self._decisions.change(call, Verb.DELETE_AGENT, check, apply)

    def get(self, call: Call, name: str) -> Agent:
        """Return the agent that stands for `name`."""

        def judge(trace: Trace) -> Agent:
            require_role(trace, Role.AUTHOR, Role.RUNTIME)
            wanted = parse_agent_name(name or trace.principal.agent or "", "name")
            trace.agent_name = wanted
            _only_own(trace, wanted)
            return trace.snapshot.agent(wanted)

        return self._decisions.settle(call, Verb.GET_AGENT, judge, required=False)

    def list(self, call: Call, page_size: int, token: str) -> Page[Agent]:
        """Return one page of the agents of all layers, by name."""

        def judge(trace: Trace) -> Page[Agent]:
            require_role(trace, Role.AUTHOR)
            limit = page_limit(page_size)
            after = read_page_token(token, "ListAgents", trace.principal.tenant)
            bound = trace.principal.agent
            found = [agent for agent in trace.snapshot.agents() if bound in (None, agent.name)]
            rest = [agent for agent in found if agent.name > after]
            trace.admitted = min(len(rest), limit)
            return cut(
                rest,
                limit,
                lambda agent: agent.name,
                "ListAgents",
                trace.principal.tenant,
                total=len(found),
                weight=_weight,
            )

        return self._decisions.settle(call, Verb.LIST_AGENTS, judge, required=False)

    def test_allowlist(self, call: Call, agent: str, entries: Sequence[str], names: Sequence[str]) -> TestedAllowlist:
        """Decide on `names` by the proposed `entries`, or by the allowlist that `agent` has.

        With both, the proposal is held against the agent's present allowlist over the live catalog: the names that
        resolve, whatever the agent's pins and tools make of them.
        """

        def judge(trace: Trace) -> TestedAllowlist:
            require_role(trace, Role.AUTHOR)
            if len(names) > MAX_TESTED_NAMES:
                raise InvalidArgument("names", f"At most {MAX_TESTED_NAMES} names can be tested in one call.")
            proposed = Allowlist.parse(entries)
            # A key that is bound to an agent tests proposals for that agent, whether it says so or not.
            acting = acting_agent(trace, agent)
            allowlist = proposed if entries or acting is None else acting.allowlist
            parsed = [parse_skill_name(name, f"names[{index}]") for index, name in enumerate(names)]
            live = _live(trace)
            # What an agent's key does not see is left out before it is counted.
            if trace.principal.agent is not None and acting is not None:
                live = _admitted(trace, acting.allowlist, live)
            admitted = _admitted(trace, allowlist, live)
            before = _admitted(trace, acting.allowlist, live) if agent and entries and acting else admitted
            gained, lost = sorted({*admitted} - {*before}), sorted({*before} - {*admitted})
            trace.admitted = len(admitted)
            trace.details = {
                "skills": allowlist.texts(),
                "names": len(parsed),
                "gained": len(gained),
                "lost": len(lost),
            }
            decided = [(name, deciding_entry(allowlist, allowlist.decide(name))) for name in parsed]
            return TestedAllowlist(allowlist, decided, len(admitted), gained, lost)

        return self._decisions.settle(call, Verb.TEST_ALLOWLIST, judge, required=False)


def _live(trace: Trace) -> Sequence[SkillName]:
    """Return the names that resolve in the tenant's catalog, in order."""
    catalog = trace.snapshot.catalog
    return trace.snapshot.derive(
        ("live",), lambda: tuple(name for name in catalog.names() if catalog.resolve(SkillRef(name)).winner)
    )


def _admitted(trace: Trace, allowlist: Allowlist, names: Sequence[SkillName]) -> list[SkillName]:
    """Return those of `names` that `allowlist` admits, in order."""
    found = []
    for name in names:
        trace.call.require_time()
        if allowlist.decide(name).allowed:
            found.append(name)
    return found


def _require_etag(etag: str, current: str | None, name: AgentName) -> None:
    """Raise InvalidArgument when there is an agent and no etag, EtagMismatch when it is not the agent's."""
    if current is not None and not etag:
        raise InvalidArgument("etag", "The tenant has this agent: give its etag as last read, by GetAgent.")
    if etag and etag != current:
        raise EtagMismatch(f"The agent '{name}' is not as it was when its etag was read; read it again.", name=name)


def read_draft(draft: AgentDraft) -> Agent:
    """Return the agent that `draft` describes; raise InvalidAgent or InvalidAllowlist with every problem."""
    violations = [Violation("agent.skill_def_scopes", SCOPES_REFUSED)] if draft.scopes_given else []
    data: dict[str, object] = {"description": draft.description, "skills": list(draft.skills), "pins": draft.pins}
    if draft.tools is not None:
        data["tools"] = list(draft.tools)
    try:
        definition = json.loads(draft.definition_json or "{}")
    except (ValueError, RecursionError):
        violations.append(Violation("agent.definition_json", "Must be the JSON text of an object."))
    else:
        data["definition"] = definition
    try:
        agent = parse_agent(draft.name, data, LayerKind.TENANT, "tenant")
    except InvalidAgent as error:
        for violation in error.violations:
            field = "definition_json" if violation.field == "definition" else violation.field
            violations.append(Violation(f"agent.{field}", violation.description))
        entries_alone = all(violation.field.startswith("agent.skills") for violation in violations)
        raise (InvalidAllowlist if entries_alone else InvalidAgent)(*violations) from None
    if violations:
        raise InvalidAgent(*violations)
    return agent


def _weight(agent: Agent) -> int:
    tools = sum(len(tool.encode()) + 4 for tool in agent.tools or ())
    entries = sum(len(text) + 4 for text in agent.allowlist.texts())
    pins = sum(len(name) + len(pin) + 8 for name, pin in agent.pins.items())
    return len(agent.definition_json.encode()) + len(agent.description.encode()) + tools + entries + pins + 1024


def _require_free_author(trace: Trace) -> None:
    """No agent may define an agent or change an allowlist, its own or another's."""
    require_role(trace, Role.AUTHOR)
    if trace.principal.agent is not None:
        bound = trace.principal.agent
        raise RoleRequired(f"This key is bound to the agent '{bound}' and cannot define agents.", agent=bound)


def _only_own(trace: Trace, wanted: AgentName) -> None:
    bound = trace.principal.agent
    if bound is not None and bound != wanted:
        raise RoleRequired(f"This key is bound to the agent '{bound}' and sees no other.", agent=bound)
