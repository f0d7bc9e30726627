"""Tenants, their catalog revisions, quotas and keys."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, Row, case, func, insert, literal, select, text, tuple_, update
from sqlalchemy.exc import IntegrityError

from substrate.domain.audit import GENESIS_HASH
from substrate.domain.errors import KeyNotFound, TenantExists, TenantNotFound
from substrate.domain.identity import Key, Role
from substrate.domain.names import AgentName, KeyId, TenantId
from substrate.domain.quotas import Quotas, quotas_from_plain, quotas_to_plain, require
from substrate.store.tables import audit_events, chain_heads, keys, tenants

INCARNATION = """
SELECT incarnation, (pg_control_system()).system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8),
    (SELECT oid FROM pg_database WHERE datname = current_database()), tableoid
FROM deployment
"""
"""What tells databases apart: the mark that `substrate migrate` makes, the cluster, its timeline, and the numbers that
the cluster has given the database and the table, which a dump that is loaded again gets anew.

The timeline is that of what is being written: the control file tells the old one until the first checkpoint after a
promotion.
"""

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as operators see it.

    `suspended_at` is None unless it is suspended. `stored_bytes` counts the bodies, headers and files of all versions.
    `writes_counted` is the number of changes in the minute that begins at `writes_minute`. `arguments_key` is the
    secret under which the arguments of its calls are recorded.
    """

    tenant: TenantId
    display_name: str
    catalog_revision: int
    created_at: datetime
    suspended_at: datetime | None = None
    suspend_reason: str = ""
    quotas: Quotas = field(default_factory=Quotas)
    stored_bytes: int = 0
    writes_minute: datetime | None = None
    writes_counted: int = 0
    arguments_key: bytes = field(default=b"", repr=False)

    def writes_at(self, now: datetime) -> int:
        """Return how many changes are counted in the minute of `now`."""
        return self.writes_counted if self.writes_minute is not None and now < self.writes_minute + _MINUTE else 0


def incarnation(connection: Connection) -> str:
    """Return the identity of this database as it runs now: 32 hexadecimal digits.

    A dump has another one wherever it is loaded, and so has a database that was recovered to a point in time or
    promoted from a standby. A copy of the files that keeps cluster and timeline has the same one until `substrate
    migrate --restored`. A standby has none: raises StoreUnavailable, through the transaction.
    """
    return incarnation_of(connection.execute(text(INCARNATION)).one())


def incarnation_of(row: Sequence[object]) -> str:
    """Return the incarnation that a row of INCARNATION stands for."""
    return hashlib.sha256("/".join(map(str, row)).encode()).hexdigest()[:32]


def revision(connection: Connection, tenant: TenantId) -> int | None:
    """Return the tenant's catalog revision, or None when there is no such tenant."""
    found: int | None = connection.execute(
        select(tenants.c.catalog_revision).where(tenants.c.tenant_id == tenant)
    ).scalar()
    return found


def get(connection: Connection, tenant: TenantId) -> Tenant | None:
    """Return the tenant, or None when there is no such tenant."""
    row = connection.execute(select(tenants).where(tenants.c.tenant_id == tenant)).first()
    return None if row is None else _tenant(row)


def bump(connection: Connection, tenant: TenantId, now: datetime | None = None) -> int:
    """Advance the tenant's catalog revision and return the new one; every write transaction begins with this.

    The row stays locked until the transaction ends, so writes of one tenant happen one after the other. With `now` the
    write is the tenant's own and counts against its quota; the count is part of the transaction, so a write that is
    rolled back was none. Raises TenantNotFound, and QuotaExceeded for `writes_per_minute`.
    """
    values = {"catalog_revision": tenants.c.catalog_revision + 1}
    if now is not None:
        minute = now.replace(second=0, microsecond=0)
        # A process whose clock is a little behind counts in the minute that another has begun. A row that is further
        # ahead was written by a wrong clock.
        same = tenants.c.writes_minute.between(literal(minute), literal(minute + _MINUTE))
        values["writes_counted"] = case((same, tenants.c.writes_counted + 1), else_=1)
        values["writes_minute"] = case((same, tenants.c.writes_minute), else_=minute)
    row = connection.execute(
        update(tenants)
        .where(tenants.c.tenant_id == tenant)
        .values(values)
        .returning(tenants.c.catalog_revision, tenants.c.quotas, tenants.c.writes_minute, tenants.c.writes_counted)
    ).first()
    if row is None:
        raise no_tenant(tenant)
    if now is not None:
        limit = quotas_from_plain(row.quotas).writes_per_minute
        wait = math.ceil((row.writes_minute + _MINUTE - now).total_seconds())
        require("writes_per_minute", limit, row.writes_counted, retry_after=wait if limit else None)
    return int(row.catalog_revision)


def add_bytes(connection: Connection, tenant: TenantId, more: int) -> int:
    """Count `more` stored bytes for the tenant and return how many it has then; raise TenantNotFound."""
    total: int | None = connection.execute(
        update(tenants)
        .where(tenants.c.tenant_id == tenant)
        .values(stored_bytes=tenants.c.stored_bytes + more)
        .returning(tenants.c.stored_bytes)
    ).scalar()
    if total is None:
        raise no_tenant(tenant)
    return total


def suspend(connection: Connection, tenant: TenantId, reason: str, now: datetime) -> Tenant:
    """Suspend the tenant as of `now`, or as of when it was, with this `reason`; raise TenantNotFound."""
    return _change(connection, tenant, suspended_at=func.coalesce(tenants.c.suspended_at, now), suspend_reason=reason)


def resume(connection: Connection, tenant: TenantId) -> Tenant:
    """End the tenant's suspension, if there is one; raise TenantNotFound."""
    return _change(connection, tenant, suspended_at=None, suspend_reason="")


def set_quotas(connection: Connection, tenant: TenantId, quotas: Quotas) -> Tenant:
    """Let `quotas` hold for the tenant from now on; raise TenantNotFound."""
    return _change(connection, tenant, quotas=quotas_to_plain(quotas))


def _change(connection: Connection, tenant: TenantId, **values: object) -> Tenant:
    row = connection.execute(
        update(tenants).where(tenants.c.tenant_id == tenant).values(**values).returning(tenants)
    ).first()
    if row is None:
        raise no_tenant(tenant)
    return _tenant(row)


def no_tenant(tenant: TenantId) -> TenantNotFound:
    """Return the error for a tenant that does not exist."""
    return TenantNotFound(f"There is no tenant '{tenant}'.", tenant=tenant)


def create(connection: Connection, tenant: TenantId, display_name: str, now: datetime) -> Tenant:
    """Add a tenant with revision 1 and an empty audit chain; raise TenantExists when the id is taken."""
    try:
        with connection.begin_nested():
            connection.execute(
                insert(tenants).values(
                    tenant_id=tenant, display_name=display_name, catalog_revision=1, created_at=now, quotas={}
                )
            )
    except IntegrityError:
        raise TenantExists(f"The tenant '{tenant}' exists.", tenant=tenant) from None
    connection.execute(insert(chain_heads).values(tenant_id=tenant, sequence=0, hash=GENESIS_HASH))
    return Tenant(tenant, display_name, 1, now)


def page(connection: Connection, after: str, limit: int) -> list[Tenant]:
    """Return up to `limit` tenants whose ids follow `after`, by id."""
    rows = connection.execute(
        select(tenants).where(tenants.c.tenant_id > after).order_by(tenants.c.tenant_id).limit(limit)
    )
    return [_tenant(row) for row in rows]


def add_key(connection: Connection, key: Key, created_by: str) -> None:
    """Store `key`, whose tenant must exist."""
    connection.execute(
        insert(keys).values(
            tenant_id=key.tenant,
            key_id=key.key_id,
            secret_sha256=key.secret_sha256,
            role=key.role.value,
            agent=key.agent,
            label=key.label,
            created_at=key.created_at,
            created_by=created_by,
            expires_at=key.expires_at,
            principal=key.principal or key.key_id,
        )
    )


def revoke_key(connection: Connection, tenant: TenantId, key_id: KeyId, now: datetime) -> Key:
    """Mark a key as revoked at `now`, unless it was before, and return it; raise KeyNotFound."""
    this_key = (keys.c.tenant_id == tenant) & (keys.c.key_id == key_id)
    connection.execute(update(keys).where(this_key & keys.c.revoked_at.is_(None)).values(revoked_at=now))
    row = connection.execute(select(keys).where(this_key)).first()
    if row is None:
        raise KeyNotFound(f"The tenant '{tenant}' has no key '{key_id}'.", tenant=tenant, key_id=key_id)
    return _key(row)


def expire_key(connection: Connection, tenant: TenantId, key_id: KeyId, at: datetime, now: datetime) -> Key:
    """Let a key expire at `at`, unless it does so sooner, and return it.

    Raises KeyNotFound, also for one that is not live at `now`.
    """
    row = connection.execute(
        update(keys)
        .where(
            (keys.c.tenant_id == tenant)
            & (keys.c.key_id == key_id)
            & keys.c.revoked_at.is_(None)
            & (keys.c.expires_at.is_(None) | (keys.c.expires_at > now))
        )
        .values(expires_at=func.least(keys.c.expires_at, at))
        .returning(keys)
    ).first()
    if row is None:
        raise KeyNotFound(f"The tenant '{tenant}' has no live key '{key_id}'.", tenant=tenant, key_id=key_id)
    return _key(row)


def keys_of(connection: Connection, tenant: TenantId) -> Mapping[KeyId, Key]:
    """Return all keys of the tenant, revoked ones too, by id."""
    rows = connection.execute(select(keys).where(keys.c.tenant_id == tenant).order_by(keys.c.key_id))
    return {row.key_id: _key(row) for row in rows}


def bound_authors(connection: Connection, tenant: TenantId, now: datetime) -> frozenset[AgentName]:
    """Return the agents to which author keys of the tenant are bound that are live at `now`."""
    found = connection.execute(
        select(keys.c.agent)
        .distinct()
        .where(
            (keys.c.tenant_id == tenant)
            & (keys.c.role == Role.AUTHOR.value)
            & keys.c.agent.is_not(None)
            & keys.c.revoked_at.is_(None)
            & (keys.c.expires_at.is_(None) | (keys.c.expires_at > now))
        )
    )
    return frozenset(AgentName(agent) for agent in found.scalars())


def page_keys(connection: Connection, tenant: TenantId, after: str, limit: int) -> Sequence[Key]:
    """Return up to `limit` keys of the tenant, the newest first; those older than the key `after`, if it is given.

    When each was last used is read from the audit events that are kept.
    """
    age = tuple_(keys.c.created_at, keys.c.key_id)
    actor = func.concat(keys.c.role, ":", keys.c.tenant_id, ".", keys.c.key_id)
    last_use = (
        select(audit_events.c.occurred_at)
        .where((audit_events.c.tenant_id == keys.c.tenant_id) & (audit_events.c.actor == actor))
        .order_by(audit_events.c.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    statement = (
        select(keys, last_use.label("last_used_at"))
        .where(keys.c.tenant_id == tenant)
        .order_by(keys.c.created_at.desc(), keys.c.key_id.desc())
    )
    if after:
        last = keys.alias()
        statement = statement.join(last, (last.c.tenant_id == tenant) & (last.c.key_id == after))
        statement = statement.where(age < tuple_(last.c.created_at, last.c.key_id))
    return [replace(_key(row), last_used_at=row.last_used_at) for row in connection.execute(statement.limit(limit))]


def _key(row: Row[tuple[object, ...]]) -> Key:
    return Key(
        tenant=TenantId(row.tenant_id),
        key_id=KeyId(row.key_id),
        secret_sha256=bytes(row.secret_sha256),
        role=Role(row.role),
        agent=AgentName(row.agent) if row.agent else None,
        label=row.label,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        principal=row.principal,
    )


def _tenant(row: Row[tuple[object, ...]]) -> Tenant:
    return Tenant(
        tenant=TenantId(row.tenant_id),
        display_name=row.display_name,
        catalog_revision=row.catalog_revision,
        created_at=row.created_at,
        suspended_at=row.suspended_at,
        suspend_reason=row.suspend_reason,
        quotas=quotas_from_plain(row.quotas),
        stored_bytes=row.stored_bytes,
        writes_minute=row.writes_minute,
        writes_counted=row.writes_counted,
        arguments_key=bytes(row.arguments_key),
    )
