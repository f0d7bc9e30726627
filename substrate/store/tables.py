"""The tables, as SQLAlchemy sees them; `migrations/` creates them and adds roles, grants and row-level security.

Every key, unique index and foreign key starts with `tenant_id`. `revision` columns hold the tenant's catalog revision
at which a row last changed. Times are UTC.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, UUID
from sqlalchemy.types import UserDefinedType


class TransactionId(UserDefinedType[str]):
    """PostgreSQL's `xid8`: the id of the transaction that wrote a row, never reused."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's SQL name."""
        return "xid8"


metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(referred_table_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    }
)


def _time(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


deployment = Table(
    "deployment",
    metadata,
    Column("single", Boolean, primary_key=True, server_default=text("true")),
    Column("incarnation", UUID(as_uuid=False), nullable=False, server_default=text("gen_random_uuid()")),
    Column("settled_as", Text, nullable=False, server_default=text("''")),
    CheckConstraint("single", name="one_row"),
    comment="One row: the identity of this database, which catalog tokens carry.",
)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("display_name", Text, nullable=False),
    Column("catalog_revision", BigInteger, nullable=False, server_default=text("1")),
    _time("created_at"),
    _time("suspended_at", nullable=True),
    Column("suspend_reason", Text, nullable=False, server_default=text("''")),
    Column("quotas", JSON, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False, server_default=text("0")),
    _time("writes_minute", nullable=True),
    Column("writes_counted", Integer, nullable=False, server_default=text("0")),
    # Two random ids hold 244 random bits; the database needs no extension for them.
    Column(
        "arguments_key",
        LargeBinary,
        nullable=False,
        server_default=text("sha256((((gen_random_uuid())::text || (gen_random_uuid())::text))::bytea)"),
    ),
    comment="Tenants, and the catalog revision that every write of a tenant bumps first.",
)

skill_defs = Table(
    "skill_defs",
    metadata,
    Column("tenant_id", Text),
    Column("name", Text),
    Column("active_version", Integer),
    Column("latest_version", Integer, nullable=False),
    _time("retired_at", nullable=True),
    Column("revision", BigInteger, nullable=False),
    _time("created_at"),
    Column("created_by", Text, nullable=False),
    _time("updated_at"),
    PrimaryKeyConstraint("tenant_id", "name"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="A tenant's SkillDefs: which version is active, if any, and whether it is retired.",
)

skill_def_versions = Table(
    "skill_def_versions",
    metadata,
    Column("tenant_id", Text),
    Column("name", Text),
    Column("version", Integer),
    Column("header", JSON, nullable=False),
    Column("body", Text, nullable=False),
    Column("positional_base", SmallInteger, nullable=False),
    Column("content_sha256", Text, nullable=False),
    _time("created_at"),
    Column("created_by", Text, nullable=False),
    _time("promoted_at", nullable=True),
    Column("promoted_by", Text),
    Column("lineage", JSON(none_as_null=True)),
    Column("files", JSON, nullable=False),
    Column("created_as", Text, nullable=False, server_default=text("''")),
    PrimaryKeyConstraint("tenant_id", "name", "version"),
    ForeignKeyConstraint(["tenant_id", "name"], ["skill_defs.tenant_id", "skill_defs.name"]),
    comment="Immutable versions 1, 2, 3 … of each SkillDef; only their latest promotion is written later.",
)

skill_files = Table(
    "skill_files",
    metadata,
    Column("tenant_id", Text),
    Column("sha256", Text),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "sha256"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Files of SkillDefs' versions, each content once, under its digest.",
)

skill_labels = Table(
    "skill_labels",
    metadata,
    Column("tenant_id", Text),
    Column("name", Text),
    Column("label", Text),
    Column("version", Integer, nullable=False),
    _time("updated_at"),
    Column("updated_by", Text, nullable=False),
    PrimaryKeyConstraint("tenant_id", "name", "label"),
    ForeignKeyConstraint(
        ["tenant_id", "name", "version"],
        ["skill_def_versions.tenant_id", "skill_def_versions.name", "skill_def_versions.version"],
    ),
    comment="Names for versions of SkillDefs, which can be moved.",
)

disabled_names = Table(
    "disabled_names",
    metadata,
    Column("tenant_id", Text),
    Column("name", Text),
    Column("reason", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    _time("disabled_at"),
    Column("disabled_by", Text, nullable=False),
    PrimaryKeyConstraint("tenant_id", "name"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="Tombstones: names a tenant hides, whatever layer defines them.",
)

agents = Table(
    "agents",
    metadata,
    Column("tenant_id", Text),
    Column("name", Text),
    Column("description", Text, nullable=False),
    Column("tools", ARRAY(Text)),
    Column("skills", ARRAY(Text), nullable=False),
    Column("definition", JSON, nullable=False),
    Column("content_sha256", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    Column("updated_by", Text, nullable=False),
    Column("pins", JSON, nullable=False),
    PrimaryKeyConstraint("tenant_id", "name"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="A tenant's agents with their allowlists.",
)

keys = Table(
    "keys",
    metadata,
    Column("tenant_id", Text),
    Column("key_id", Text),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("role", Text, nullable=False),
    Column("agent", Text),
    Column("label", Text, nullable=False),
    _time("created_at"),
    Column("created_by", Text, nullable=False),
    _time("expires_at", nullable=True),
    _time("revoked_at", nullable=True),
    Column("principal", Text, nullable=False, server_default=text("''")),
    PrimaryKeyConstraint("tenant_id", "key_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    CheckConstraint("role in ('runtime', 'author', 'operator')", name="role"),
    CheckConstraint("octet_length(secret_sha256) = 32", name="secret"),
    comment="API keys; of the secret only its SHA-256.",
)

requests = Table(
    "requests",
    metadata,
    Column("tenant_id", Text),
    Column("request_id", UUID(as_uuid=False)),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("answer", LargeBinary),
    _time("created_at"),
    PrimaryKeyConstraint("tenant_id", "request_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    Index(None, "tenant_id", "created_at"),
    comment="Changes that came with a request id, and their answers, for a day.",
)

chain_heads = Table(
    "chain_heads",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="The last sequence number and hash of each tenant's audit chain; locked by whoever appends.",
)

audit_events = Table(
    "audit_events",
    metadata,
    Column("tenant_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("event_id", UUID(as_uuid=False), nullable=False),
    _time("occurred_at"),
    Column("call_id", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("winner_layer", Text, nullable=False),
    Column("version", Integer),
    Column("txid", TransactionId, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("previous_hash", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("event", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("shadowed", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("tenant_id", "occurred_at", "event_id"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    Index(None, "tenant_id", "sequence", "occurred_at"),
    Index(None, "event_id"),
    Index(None, "call_id"),
    Index(None, "txid", "tenant_id", "sequence"),
    Index(None, "tenant_id", "name", "sequence", "occurred_at"),
    Index(None, "tenant_id", "agent", "sequence", "occurred_at"),
    Index(None, "tenant_id", "actor", "sequence"),
    Index(
        "audit_events_changes_idx",
        "tenant_id",
        "name",
        "sequence",
        # A name's history must not be looked for among its invocations.
        postgresql_where=text("verb IN ('create', 'fork', 'promote', 'retire', 'unretire', 'disable', 'enable')"),
    ),
    postgresql_partition_by="RANGE (occurred_at)",
    comment="Append-only events, hash-chained per tenant; `event` is the text that is hashed.",
)

audit_inputs = Table(
    "audit_inputs",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("kept_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="What decisions were made from, by the SHA-256 that their events name.",
)

audit_starts = Table(
    "audit_starts",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("stragglers", JSON, nullable=False),
    Column("dropped", ARRAY(Text), nullable=False),
    _time("created_at"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.tenant_id"]),
    comment="The last event of the months dropped of a chain, which begins after it; `stragglers` are earlier events "
    "still there.",
)
