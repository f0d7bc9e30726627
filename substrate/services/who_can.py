"""Which agents of which tenants can do what with a skill, decided by the functions that decide for the agents."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from substrate.domain.agents import Agent
from substrate.domain.audit import DecidingEntry, Verb, deciding_entry
from substrate.domain.catalog import NameMode
from substrate.domain.eligibility import CallerKind, barrier_of_caller, barrier_of_tools, tools_of, unresolved
from substrate.domain.errors import AgentNotFound, SkillNotPermitted, TenantSuspended
from substrate.domain.names import PLATFORM_TENANT, AgentName, SkillName, TenantId, parse_skill_name
from substrate.domain.skillmatch import Reason
from substrate.domain.tokens import page_token, read_page_token
from substrate.services.access import require_unbound, subject_or_all
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, page_limit
from substrate.services.snapshots import Snapshot
from substrate.services.trace import Trace
from substrate.sources.tenant import read_name
from substrate.store import tenants

MAX_TENANTS_READ = 100
"""Tenants that are read for one page, however few agents they have."""

_SHOWN = 300
"""How much of a refusal's message is told of each agent: some list tools, and a page has many agents."""


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """What one agent of one tenant can do with a skill, for a model that touches no paths.

    `decision` is None only when the agent's stored definition cannot be read. `reason` is the error reason of an
    invocation, empty when it succeeds; what can be invoked is listed, and nothing else.
    """

    tenant: TenantId
    agent: AgentName
    origin: str
    can_invoke: bool
    can_author: bool
    decision: DecidingEntry | None
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A tenant's state as far as it concerns one name, and the agents to which live author keys are bound."""

    snapshot: Snapshot
    authors: frozenset[AgentName]


class WhoCan:
    """The use case of `WhoCan`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def who_can(self, call: Call, tenant: str, name: str, page_size: int, token: str) -> Page[AgentAccess]:
        """Return one page of agents, by tenant and name: of one tenant, or of all for an operator who names none.

        A page of all tenants may be short, or empty, and not be the last.
        """

        def judge(trace: Trace) -> Page[AgentAccess]:
            subject = subject_or_all(trace, tenant)
            require_unbound(trace)
            trace.requested = name
            bare = trace.name = parse_skill_name(name)
            limit = page_limit(page_size)
            bound = ("WhoCan", trace.principal.tenant, subject, bare)
            after_tenant, _, after_agent = read_page_token(token, *bound).partition(" ")
            found: list[AgentAccess] = []
            read = 0
            for owner, skipped in self._tenants(call, subject, after_tenant, after_agent):
                if read == MAX_TENANTS_READ:
                    # The last one that was read has been read to its end.
                    trace.admitted = len(found)
                    return Page(found, page_token(f"{after_tenant} ~", *bound))
                call.require_time()
                read += 1
                after_tenant = owner
                for row in self._agents_of(call, owner, bare, must_exist=subject is not None):
                    if row.agent <= skipped:
                        continue
                    if len(found) == limit:
                        trace.admitted = limit
                        return Page(found, page_token(f"{found[-1].tenant} {found[-1].agent}", *bound))
                    found.append(row)
            trace.admitted = len(found)
            return Page(found, "")

        return self._decisions.settle(call, Verb.WHO_CAN, judge, required=False)

    def _tenants(
        self, call: Call, subject: TenantId | None, after_tenant: str, after_agent: str
    ) -> Iterator[tuple[TenantId, str]]:
        """Yield the tenants to look into, each with the last of its agents that an earlier page has had."""
        if subject is not None:
            yield subject, after_agent
            return
        with self._decisions.database.operator(call.deadline) as connection:
            begun = tenants.get(connection, TenantId(after_tenant)) if after_agent not in ("", "~") else None
            following = tenants.page(connection, after_tenant, MAX_TENANTS_READ + 2)
        if begun is not None:
            yield begun.tenant, after_agent
        for row in following:
            # Nobody runs or authors anything as the platform.
            if row.tenant != PLATFORM_TENANT:
                yield row.tenant, ""

    def _agents_of(self, call: Call, tenant: TenantId, name: SkillName, *, must_exist: bool) -> list[AgentAccess]:
        began = time.monotonic()
        with self._decisions.database.tenant(tenant, call.deadline, snapshot=True) as connection:
            state = read_name(connection, tenant, name)
            authors = tenants.bound_authors(connection, tenant, self._decisions.clock.now())
        if state.revision is None:
            if must_exist:
                raise tenants.no_tenant(tenant)
            return []
        read = _Tenant(Snapshot(state, self._decisions.snapshots.static, began), authors)
        unreadable = [_unreadable(tenant, agent) for agent, own in state.agents.items() if own is None]
        readable = [_access(read, agent, name) for agent in read.snapshot.agents()]
        return sorted([*readable, *unreadable], key=lambda row: row.agent)


def _access(read: _Tenant, agent: Agent, name: SkillName) -> AgentAccess:
    state, catalog = read.snapshot.state, read.snapshot.catalog
    decided = agent.allowlist.decide(name)
    decision = deciding_entry(agent.allowlist, decided)
    locked = catalog.mode_of(name) is NameMode.LOCKED
    has_key = agent.name in read.authors
    reason, message = _barrier(read, agent, name, allowed=decided.allowed)
    why = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
    can_author = decided.allowed and not locked and has_key and state.suspended is None
    can = [verb for verb, holds in (("list", not reason), ("invoke", not reason), ("author", can_author)) if holds]
    words = (
        [f"It can {_listed(can)} it; {_entry_words(decision)}."]
        if can
        else [f"{why.rstrip('.')}{';' if decided.allowed else ':'} {_entry_words(decision)}."]
    )
    if can and reason:
        words.append(f"It cannot invoke it: {why}")
    if can and not can_author:
        because = "it is locked" if locked else "no author's key is bound to it"
        words.append(f"It cannot author it, since {because}.")
    return AgentAccess(
        state.tenant, agent.name, agent.origin, not reason, can_author, decision, reason, " ".join(words)
    )


def _barrier(read: _Tenant, agent: Agent, name: SkillName, *, allowed: bool) -> tuple[str, str]:
    """Return reason and message with which an invocation is refused, both empty when it succeeds."""
    state = read.snapshot.state
    if state.suspended is not None:
        because = f": {state.suspended}" if state.suspended else ""
        return TenantSuspended.reason, f"The tenant is suspended{because}; none of its agents can do anything."
    if not allowed:
        return SkillNotPermitted.reason, "Its allowlist does not admit the name."
    resolution = read.snapshot.catalog.resolve_for(name, agent.pins)
    winner = resolution.winner
    if winner is None:
        error = unresolved(resolution)
        return error.reason, error.message
    barrier = barrier_of_tools(name, tools_of(winner), agent) or barrier_of_caller(winner, CallerKind.MODEL, ())
    return (barrier.reason, barrier.message) if barrier else ("", "")


def _entry_words(decision: DecidingEntry) -> str:
    match Reason(decision.reason):
        case Reason.EMPTY_ALLOWLIST:
            return "its allowlist is empty, which allows everything"
        case Reason.NOT_DENIED:
            return "its allowlist only denies, and no entry denies this name"
        case Reason.UNLISTED:
            return "no entry matches"
        case Reason.ALLOW_RULE:
            return f"entry {decision.index} '{decision.entry}' allows it"
        case Reason.DENY_RULE:
            return f"entry {decision.index} '{decision.entry}' denies it"


def _listed(verbs: list[str]) -> str:
    return verbs[0] if len(verbs) == 1 else f"{', '.join(verbs[:-1])} and {verbs[-1]}"


def _unreadable(tenant: TenantId, agent: AgentName) -> AgentAccess:
    """Return the row of an agent whose stored definition is corrupt: every call that names it is refused."""
    text = "Its stored definition is corrupt, so that no call can name it; put it again."
    return AgentAccess(
        tenant,
        agent,
        "tenant",
        can_invoke=False,
        can_author=False,
        decision=None,
        reason=AgentNotFound.reason,
        text=text,
    )
