"""Keys: how they are made, and what operators do with them."""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.errors import InvalidArgument, KeyExists
from substrate.domain.identity import Key, Role, bearer_text, secret_sha256
from substrate.domain.names import PLATFORM_TENANT, KeyId, TenantId, parse_agent_name, parse_tenant_id, slug_problem
from substrate.domain.tokens import read_page_token
from substrate.services.access import require_role
from substrate.services.call import Call, Clock
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, cut, page_limit
from substrate.services.tenants import check_label
from substrate.services.trace import Trace
from substrate.store import audit, tenants
from substrate.store.session import Database, Transaction

OVERLAP = timedelta(hours=24)
"""How long a key is accepted beside the one that replaces it, unless the operator says otherwise."""

LONGEST_OVERLAP = timedelta(days=90)
FIRST_ACTOR = "bootstrap"
"""The actor of what happens before there is any key."""

_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True)
class Rotation:
    """A key, its whole text, which is not kept, and the key that it replaces."""

    key: Key
    text: str
    replaced: Key


def new_key(
    tenant: TenantId,
    role: Role,
    now: datetime,
    *,
    agent: str = "",
    label: str = "",
    expires_at: datetime | None = None,
    principal: str = "",
) -> tuple[Key, str]:
    """Return a new key, with 256 random bits, and its whole text, which is not kept.

    Without a `principal` the key's id stands for who uses it.
    """
    key_id = KeyId("".join(secrets.choice(_ID_ALPHABET) for _ in range(12)))
    secret = secrets.token_urlsafe(32)
    bound = parse_agent_name(agent) if agent else None
    key = Key(tenant, key_id, secret_sha256(secret), role, bound, label, now, expires_at, principal=principal or key_id)
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


class Keys:
    """The use cases of `TenantService` for keys; all need an operator's key."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._clock = decisions.clock

    def issue(
        self,
        call: Call,
        tenant: str,
        role: Role | None,
        *,
        agent: str,
        label: str,
        expires_at: datetime | None,
        principal: str,
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
            check_label("label", label)
            self._check_expiry(expires_at)
            problem = slug_problem(principal) if principal else None
            if problem:
                raise InvalidArgument("principal", f"The principal {problem}.")
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
            key, text = new_key(
                owner,
                role,
                self._clock.now(),
                agent=agent,
                label=label,
                expires_at=expires_at,
                principal=principal,
            )
            tenants.add_key(connection, key, trace.principal.actor)
            trace.details = _details(key)
            return key, text

        return self._decisions.change(call, Verb.ISSUE_KEY, check, apply, subject=TenantId(tenant))

    def revoke(self, call: Call, tenant: str, key_id: str) -> Key:
        """Revoke a key, with effect on its next call."""

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            _check_key_id(key_id)

        def apply(trace: Trace, connection: Transaction, _: int) -> Key:
            owner = trace.subject = TenantId(tenant)
            key = tenants.revoke_key(connection, owner, KeyId(key_id), self._clock.now())
            trace.details = {"key_id": key_id}
            return key

        return self._decisions.change(call, Verb.REVOKE_KEY, check, apply, subject=TenantId(tenant))

    def rotate(
        self, call: Call, tenant: str, key_id: str, overlap: timedelta | None, expires_at: datetime | None
    ) -> Rotation:
        """Make a key in place of another, which is accepted for `overlap` more; its text is returned this once."""
        both = OVERLAP if overlap is None else overlap

        def check(trace: Trace) -> None:
            require_role(trace, Role.OPERATOR)
            parse_tenant_id(tenant)
            _check_key_id(key_id)
            if not timedelta() <= both <= LONGEST_OVERLAP:
                raise InvalidArgument("overlap", f"Must be from 0 to {LONGEST_OVERLAP.days} days.")
            self._check_expiry(expires_at)

        def apply(trace: Trace, connection: Transaction, _: int) -> Rotation:
            owner = trace.subject = TenantId(tenant)
            now = self._clock.now()
            before = tenants.keys_of(connection, owner).get(KeyId(key_id))
            old = tenants.expire_key(connection, owner, KeyId(key_id), now + both, now)
            key, text = new_key(
                owner,
                old.role,
                now,
                agent=old.agent or "",
                label=old.label,
                # What was granted for a time stays so, unless somebody says otherwise.
                expires_at=expires_at or (before.expires_at if before else None),
                principal=old.principal,
            )
            tenants.add_key(connection, key, trace.principal.actor)
            trace.details = {**_details(key), "replaces": [key_id], "overlap_seconds": int(both.total_seconds())}
            return Rotation(key, text, old)

        return self._decisions.change(call, Verb.ROTATE_KEY, check, apply, subject=TenantId(tenant))

    def list(self, call: Call, tenant: str, page_size: int, token: str) -> Page[Key]:
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

    def _check_expiry(self, expires_at: datetime | None) -> None:
        if expires_at is not None and expires_at <= self._clock.now():
            raise InvalidArgument("expire_time", "Must be in the future.")


def _details(key: Key) -> dict[str, object]:
    """Return what a new key's event says of it."""
    return {
        "key_id": key.key_id,
        "role": key.role.value,
        "agent": key.agent or "",
        "label": key.label,
        "principal": key.principal,
    }


def _check_key_id(key_id: str) -> None:
    problem = slug_problem(key_id)
    if problem:
        raise InvalidArgument("key_id", f"The key id {problem}.")
