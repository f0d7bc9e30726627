"""The one permission check: who the caller is, what its role admits, and what its agent's allowlist says.

The gate looks at the bare name alone and runs before anything is looked up, so a refusal says nothing about what
exists.
"""

from substrate.domain.agents import Agent
from substrate.domain.audit import deciding_entry
from substrate.domain.errors import InvalidArgument, RoleRequired, SkillNotPermitted
from substrate.domain.identity import Role
from substrate.domain.names import SkillName, TenantId, parse_agent_name, parse_tenant_id
from substrate.services.trace import Trace
from substrate.store.tenants import no_tenant


def require_role(trace: Trace, *roles: Role) -> None:
    """Raise RoleRequired unless the caller's key has one of `roles`."""
    if trace.principal.role not in roles:
        wanted = [role.value for role in roles]
        raise RoleRequired(f"This call needs a key of role {' or '.join(wanted)}.", roles=",".join(wanted))


def acting_agent(trace: Trace, named: str) -> Agent | None:
    """Return the agent that the call acts as: the key's, else the one `named`, else none.

    Raises RoleRequired when the key is bound to another agent than the one named, AgentNotFound, InvalidName.
    """
    bound = trace.principal.agent
    wanted = parse_agent_name(named) if named else bound
    if wanted is None:
        return None
    trace.agent_name = wanted
    if bound is not None and wanted != bound:
        raise RoleRequired(f"This key is bound to the agent '{bound}' and cannot act as another.", agent=bound)
    trace.agent = trace.snapshot.agent(wanted)
    return trace.agent


def runtime_agent(trace: Trace, named: str) -> Agent:
    """Return the agent of a runtime call, which must have one; raise as `acting_agent` does, or InvalidArgument."""
    require_role(trace, Role.RUNTIME, Role.AUTHOR)
    agent = acting_agent(trace, named)
    if agent is None:
        raise InvalidArgument("agent", "Name the agent on whose behalf the call is made.")
    return agent


def gate(trace: Trace, name: SkillName) -> None:
    """Put `name` to the allowlist of the acting agent, if there is one; raise SkillNotPermitted when it denies."""
    trace.name = name
    if trace.agent is None:
        return
    allowlist = trace.agent.allowlist
    decision = allowlist.decide(name)
    trace.decision = deciding_entry(allowlist, decision)
    if not decision.allowed:
        raise SkillNotPermitted(
            f"The agent '{trace.agent.name}' may not use the skill '{name}'.",
            agent=trace.agent.name,
            name=name,
            decision=decision.reason.value,
        )


def require_unbound(trace: Trace) -> None:
    """Raise RoleRequired for a key that is bound to an agent: what is asked for tells of other agents too."""
    bound = trace.principal.agent
    if bound is not None:
        raise RoleRequired(f"This key is bound to the agent '{bound}' and asks for nothing of others.", agent=bound)


def subject_of(trace: Trace, named: str) -> TenantId:
    """Return the tenant that a question about the audit is about: an operator must name it, others have their own.

    Raises RoleRequired, InvalidArgument, InvalidName and TenantNotFound; whether an operator's tenant exists is not
    looked at.
    """
    subject = subject_or_all(trace, named)
    if subject is None:
        raise InvalidArgument("tenant", "An operator must name the tenant.")
    return subject


def subject_or_all(trace: Trace, named: str) -> TenantId | None:
    """As `subject_of`, but None for an operator who names no tenant and so asks about all."""
    require_role(trace, Role.AUTHOR, Role.OPERATOR)
    own = trace.principal.tenant
    if trace.principal.role is not Role.OPERATOR:
        if named and named != own:
            raise no_tenant(parse_tenant_id(named))
        return own
    if not named:
        return None
    subject = parse_tenant_id(named)
    trace.details = {**(trace.details or {}), "tenant": subject}
    return subject
