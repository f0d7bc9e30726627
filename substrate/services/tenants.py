"""What operators do with tenants."""

from collections.abc import Mapping
from dataclasses import dataclass

from substrate.domain.audit import Verb
from substrate.domain.errors import InvalidArgument
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT, TenantId, parse_tenant_id
from substrate.domain.quotas import Quotas, quotas_from_plain, quotas_to_plain
from substrate.domain.tokens import read_page_token
from substrate.services.access import require_role
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, cut, page_limit
from substrate.services.trace import Trace
from substrate.store import agents, skill_defs, tenants
from substrate.store.session import Transaction
from substrate.store.tenants import Tenant

MAX_LABEL_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant has of what its quotas limit; `writes_per_minute` is of the present minute."""

    skills: int
    bytes: int
    agents: int
    writes_per_minute: int


class Tenants:
    """The use cases of `TenantService` for tenants; all need an operator's key."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._clock = decisions.clock

    def create(self, call: Call, tenant: str, display_name: str) -> Tenant:
        """Add a tenant."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            check_label("display_name", display_name)

        def apply(trace: Trace, connection: Transaction, _: int) -> Tenant:
            made = tenants.create(connection, TenantId(tenant), display_name or tenant, self._clock.now())
            trace.subject = made.tenant
            trace.details = {"tenant": made.tenant}
            return made

        return self._decisions.change(call, Verb.CREATE_TENANT, check, apply, subject=TenantId(tenant))

    def list(self, call: Call, page_size: int, token: str) -> Page[Tenant]:
        """Return one page of all tenants, by id."""

        def judge(trace: Trace) -> Page[Tenant]:
            require_role(trace, Role.OPERATOR)
            limit = page_limit(page_size)
            after = read_page_token(token, "ListTenants")
            with self._decisions.database.operator(call.deadline) as connection:
                found = tenants.page(connection, after, limit + 1)
            trace.admitted = min(len(found), limit)
            return cut(found, limit, lambda tenant: tenant.tenant, "ListTenants")

        return self._decisions.settle(call, Verb.LIST_TENANTS, judge, required=False)

    def set_suspended(self, call: Call, tenant: str, *, suspended: bool, reason: str) -> Tenant:
        """Suspend a tenant, with effect on the next call of its keys, or let it go on."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            if parse_tenant_id(tenant) == PLATFORM_TENANT:
                raise InvalidArgument(
                    "tenant", f"The tenant '{PLATFORM_TENANT}' cannot be suspended: nobody could let it go on."
                )
            check_label("reason", reason)

        def apply(trace: Trace, connection: Transaction, _: int) -> Tenant:
            owner = trace.subject = TenantId(tenant)
            trace.details = {"reason": reason}
            if suspended:
                return tenants.suspend(connection, owner, reason, self._clock.now())
            return tenants.resume(connection, owner)

        verb = Verb.SUSPEND_TENANT if suspended else Verb.RESUME_TENANT
        return self._decisions.change(call, verb, check, apply, subject=TenantId(tenant))

    def quotas(self, call: Call, tenant: str) -> tuple[Quotas, Usage]:
        """Return what a tenant may have, and what it has."""

        def judge(trace: Trace) -> tuple[Quotas, Usage]:
            require_role(trace, Role.OPERATOR)
            owner = parse_tenant_id(tenant)
            # Operators have no grant on what a tenant owns, so the tenant's own view counts it.
            with self._decisions.database.tenant(owner, call.deadline) as connection:
                found = tenants.get(connection, owner)
                if found is None:
                    raise tenants.no_tenant(owner)
                skills, own_agents = skill_defs.count(connection, owner), agents.count(connection, owner)
            trace.subject = owner
            return found.quotas, Usage(skills, found.stored_bytes, own_agents, found.writes_at(self._clock.now()))

        return self._decisions.settle(call, Verb.GET_QUOTAS, judge, required=False)

    def set_quotas(self, call: Call, tenant: str, wanted: Mapping[str, int]) -> Quotas:
        """Let the limits in `wanted`, by name, and the defaults of all others hold for a tenant."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            quotas_from_plain(wanted)

        def apply(trace: Trace, connection: Transaction, _: int) -> Quotas:
            owner = trace.subject = TenantId(tenant)
            quotas = tenants.set_quotas(connection, owner, quotas_from_plain(wanted)).quotas
            trace.details = {"quotas": quotas_to_plain(quotas)}
            return quotas

        return self._decisions.change(call, Verb.SET_QUOTAS, check, apply, subject=TenantId(tenant))


def check_label(field: str, text: str) -> None:
    """Raise InvalidArgument unless `text`, which may be empty, is short and printable."""
    if len(text) > MAX_LABEL_LENGTH or not text.isprintable():
        raise InvalidArgument(field, f"Must be printable text of at most {MAX_LABEL_LENGTH} characters.")
