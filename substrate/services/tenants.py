"""What operators do with tenants and their keys."""

import secrets
from datetime import datetime

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import InvalidArgument, KeyExists
from substrate.domain.identity import Key, Role, bearer_text, secret_sha256
from substrate.domain.names import PLATFORM_TENANT, KeyId, TenantId, parse_agent_name, parse_tenant_id, slug_problem
from substrate.domain.tokens import read_page_token
from substrate.services.access import require_role
from substrate.services.call import Call
from substrate.services.decisions import Clock, Decisions
from substrate.services.pages import Page, cut, page_limit
from substrate.services.trace import Trace
from substrate.store import audit, tenants
from substrate.store.session import Database, Transaction
from substrate.store.tenants import Tenant

MAX_LABEL_LENGTH = 256
FIRST_ACTOR = "bootstrap"
"""The actor of what happens before there is any key."""

_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


def new_key(
    tenant: TenantId, role: Role, now: datetime, *, agent: str = "", label: str = "", expires_at: datetime | None = None
) -> tuple[Key, str]:
    """Return a new key, with 256 random bits, and its whole text, which is not kept."""
    key_id = KeyId("".join(secrets.choice(_ID_ALPHABET) for _ in range(12)))
    secret = secrets.token_urlsafe(32)
    bound = parse_agent_name(agent) if agent else None
    key = Key(tenant, key_id, secret_sha256(secret), role, bound, label, now, expires_at)
    return key, bearer_text(tenant, key_id, secret)


def issue_first_key(
    database: Database, clock: Clock, tenant: TenantId, role: Role, label: str, *, replace: bool = False
) -> str:
    """Make a key without a caller, as only the server's own machine can, and return its text.

    Creates the tenant when it does not exist. With `replace`, earlier keys of this role and label are revoked, for
    their texts are lost; without it, raises KeyExists when the platform tenant has a live operator key.
    """
    now = clock.now()
    with database.operator() as connection:
        if tenants.revision(connection, tenant) is None:
            tenants.create(connection, tenant, tenant, now)
        tenants.bump(connection, tenant)
        live = [k for k in tenants.keys_of(connection, tenant).values() if k.role is role and k.is_live(now)]
        if role is Role.OPERATOR and live and not replace:
            raise KeyExists("There is a live operator key already; issue others with it.", tenant=tenant)
        lost = [k.key_id for k in live if replace and k.label == label]
        for key_id in lost:
            tenants.revoke_key(connection, tenant, key_id, now)
        key, text = new_key(tenant, role, now, label=label)
        tenants.add_key(connection, key, FIRST_ACTOR)
        event = AuditEvent(
            id=clock.event_id(),
            tenant=tenant,
            time=now,
            call_id=label,
            verb=Verb.ISSUE_KEY,
            outcome=EventOutcome.ALLOWED,
            actor=FIRST_ACTOR,
            details={"key_id": key.key_id, "role": role.value, "label": label, "replaces": lost},
        )
        audit.append(connection, event)
    return text


class Tenants:
    """The use cases of `TenantService`; all need an operator's key."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._clock = decisions.clock

    def create(self, call: Call, tenant: str, display_name: str) -> Tenant:
        """Add a tenant."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            _check_label("display_name", display_name)

        def apply(trace: Trace, connection: Transaction, _: int) -> Tenant:
            made = tenants.create(connection, TenantId(tenant), display_name or tenant, self._clock.now())
            trace.subject = made.tenant
            trace.details = {"tenant": made.tenant}
            return made

        return self._decisions.change(call, Verb.CREATE_TENANT, check, apply, subject=_subject(tenant))

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

    def issue_key(
        self, call: Call, tenant: str, role: Role | None, agent: str, label: str, expires_at: datetime | None
    ) -> tuple[Key, str]:
        """Make a key for a tenant; its text is returned this once and never stored."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            if role is None:
                raise InvalidArgument("role", "Choose runtime, author or operator.")
            if (role is Role.OPERATOR) is not (tenant == PLATFORM_TENANT):
                raise InvalidArgument(
                    "role", f"Operator keys, and no others, belong to the tenant '{PLATFORM_TENANT}'."
                )
            if agent and role is Role.OPERATOR:
                raise InvalidArgument("agent", "An operator's key cannot be bound to an agent.")
            _check_label("label", label)
            if expires_at is not None and expires_at <= self._clock.now():
                raise InvalidArgument("expire_time", "Must be in the future.")
            if agent:
                wanted = parse_agent_name(agent)
                owner = self._decisions.snapshots.load(TenantId(tenant), call.started, call.deadline)
                if owner.state.revision is None:
                    raise tenants.no_tenant(TenantId(tenant))
                owner.agent(wanted)

        def apply(trace: Trace, connection: Transaction, _: int) -> tuple[Key, str]:
            if role is None:
                raise InvalidArgument("role", "Choose runtime, author or operator.")
            owner = trace.subject = TenantId(tenant)
            key, text = new_key(owner, role, self._clock.now(), agent=agent, label=label, expires_at=expires_at)
            tenants.add_key(connection, key, trace.principal.actor)
            trace.details = {"key_id": key.key_id, "role": role.value, "agent": agent, "label": label}
            return key, text

        return self._decisions.change(call, Verb.ISSUE_KEY, check, apply, subject=_subject(tenant))

    def revoke_key(self, call: Call, tenant: str, key_id: str) -> Key:
        """Revoke a key, with effect on its next call."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            problem = slug_problem(key_id)
            if problem:
                raise InvalidArgument("key_id", f"The key id {problem}.")

        def apply(trace: Trace, connection: Transaction, _: int) -> Key:
            owner = trace.subject = TenantId(tenant)
            key = tenants.revoke_key(connection, owner, KeyId(key_id), self._clock.now())
            trace.details = {"key_id": key_id}
            return key

        return self._decisions.change(call, Verb.REVOKE_KEY, check, apply, subject=_subject(tenant))

    def list_keys(self, call: Call, tenant: str, page_size: int, token: str) -> Page[Key]:
        """Return one page of a tenant's keys, revoked ones too, the newest first."""

        def judge(trace: Trace) -> Page[Key]:
            require_role(trace, Role.OPERATOR)
            owner = parse_tenant_id(tenant)
            limit = page_limit(page_size)
            after = read_page_token(token, "ListKeys", tenant)
            with self._decisions.database.operator(call.deadline) as connection:
                if tenants.revision(connection, owner) is None:
                    raise tenants.no_tenant(owner)
                found = tenants.page_keys(connection, owner, after, limit + 1)
            trace.subject = owner
            return cut(found, limit, lambda key: key.key_id, "ListKeys", tenant)

        return self._decisions.settle(call, Verb.LIST_KEYS, judge, required=False)


def _subject(tenant: str) -> TenantId:
    # The check refuses a malformed id before anything is done with it.
    return TenantId(tenant)


def _check_label(field: str, text: str) -> None:
    if len(text) > MAX_LABEL_LENGTH or not text.isprintable():
        raise InvalidArgument(field, f"Must be printable text of at most {MAX_LABEL_LENGTH} characters.")
