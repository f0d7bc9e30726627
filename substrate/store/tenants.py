"""Tenants, their catalog revisions and their keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Row, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from substrate.domain.audit import GENESIS_HASH
from substrate.domain.errors import KeyNotFound, TenantExists, TenantNotFound
from substrate.domain.identity import Key, Role
from substrate.domain.names import AgentName, KeyId, TenantId
from substrate.store.tables import chain_heads, deployment, keys, tenants


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as operators see it."""

    tenant: TenantId
    display_name: str
    catalog_revision: int
    created_at: datetime


def incarnation(connection: Connection) -> str:
    """Return the identity of this database, which a restored copy shares and a new database does not."""
    return str(connection.execute(select(deployment.c.incarnation)).scalar_one())


def revision(connection: Connection, tenant: TenantId) -> int | None:
    """Return the tenant's catalog revision, or None when there is no such tenant."""
    found: int | None = connection.execute(
        select(tenants.c.catalog_revision).where(tenants.c.tenant_id == tenant)
    ).scalar()
    return found


def bump(connection: Connection, tenant: TenantId) -> int:
    """Advance the tenant's catalog revision and return the new one; every write transaction begins with this.

    The row stays locked until the transaction ends, so writes of one tenant happen one after the other. Raises
    TenantNotFound.
    """
    found: int | None = connection.execute(
        update(tenants)
        .where(tenants.c.tenant_id == tenant)
        .values(catalog_revision=tenants.c.catalog_revision + 1)
        .returning(tenants.c.catalog_revision)
    ).scalar()
    if found is None:
        raise no_tenant(tenant)
    return found


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
    return [Tenant(row.tenant_id, row.display_name, row.catalog_revision, row.created_at) for row in rows]


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


def keys_of(connection: Connection, tenant: TenantId) -> Mapping[KeyId, Key]:
    """Return all keys of the tenant, revoked ones too, by id."""
    rows = connection.execute(select(keys).where(keys.c.tenant_id == tenant).order_by(keys.c.key_id))
    return {row.key_id: _key(row) for row in rows}


def page_keys(connection: Connection, tenant: TenantId, after: str, limit: int) -> Sequence[Key]:
    """Return up to `limit` keys of the tenant, the newest first; those older than the key `after`, if it is given."""
    age = tuple_(keys.c.created_at, keys.c.key_id)
    statement = select(keys).where(keys.c.tenant_id == tenant).order_by(keys.c.created_at.desc(), keys.c.key_id.desc())
    if after:
        last = keys.alias()
        statement = statement.join(last, (last.c.tenant_id == tenant) & (last.c.key_id == after))
        statement = statement.where(age < tuple_(last.c.created_at, last.c.key_id))
    return [_key(row) for row in connection.execute(statement.limit(limit))]


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
