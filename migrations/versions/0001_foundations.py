"""Tenants, SkillDefs, agents, keys and the audit chain, with the three roles and row-level security.

A table of tenants is guarded twice: by grants, column by column where only some columns may change, and by row-level
security with FORCE. Partitions of the audit inherit neither, so they get no grants at all and are reached through their
parent alone.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE deployment (
    single boolean DEFAULT true NOT NULL,
    incarnation uuid DEFAULT gen_random_uuid() NOT NULL,
    CONSTRAINT deployment_pkey PRIMARY KEY (single),
    CONSTRAINT deployment_one_row_check CHECK (single)
);
COMMENT ON TABLE deployment IS 'One row: the identity of this database, which catalog tokens carry.';

CREATE TABLE tenants (
    tenant_id text NOT NULL,
    display_name text NOT NULL,
    catalog_revision bigint DEFAULT 1 NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id)
);
COMMENT ON TABLE tenants IS 'Tenants, and the catalog revision that every write of a tenant bumps first.';

CREATE TABLE skill_defs (
    tenant_id text NOT NULL,
    name text NOT NULL,
    active_version integer,
    latest_version integer NOT NULL,
    retired_at timestamptz,
    revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT skill_defs_pkey PRIMARY KEY (tenant_id, name),
    CONSTRAINT skill_defs_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE skill_defs IS 'A tenant''s SkillDefs: which version is active, if any, and whether it is retired.';

CREATE TABLE skill_def_versions (
    tenant_id text NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    header json NOT NULL,
    body text NOT NULL,
    positional_base smallint NOT NULL,
    content_sha256 text NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    promoted_at timestamptz,
    promoted_by text,
    CONSTRAINT skill_def_versions_pkey PRIMARY KEY (tenant_id, name, version),
    CONSTRAINT skill_def_versions_skill_defs_fkey FOREIGN KEY (tenant_id, name) REFERENCES skill_defs (tenant_id, name)
);
COMMENT ON TABLE skill_def_versions IS
    'Immutable versions 1, 2, 3 … of each SkillDef; only their latest promotion is written later.';

CREATE TABLE disabled_names (
    tenant_id text NOT NULL,
    name text NOT NULL,
    reason text NOT NULL,
    revision bigint NOT NULL,
    disabled_at timestamptz NOT NULL,
    disabled_by text NOT NULL,
    CONSTRAINT disabled_names_pkey PRIMARY KEY (tenant_id, name),
    CONSTRAINT disabled_names_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE disabled_names IS 'Tombstones: names a tenant hides, whatever layer defines them.';

CREATE TABLE agents (
    tenant_id text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    tools text[],
    skills text[] NOT NULL,
    definition json NOT NULL,
    content_sha256 text NOT NULL,
    revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    CONSTRAINT agents_pkey PRIMARY KEY (tenant_id, name),
    CONSTRAINT agents_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE agents IS 'A tenant''s agents with their allowlists.';

CREATE TABLE keys (
    tenant_id text NOT NULL,
    key_id text NOT NULL,
    secret_sha256 bytea NOT NULL,
    role text NOT NULL,
    agent text,
    label text NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT keys_pkey PRIMARY KEY (tenant_id, key_id),
    CONSTRAINT keys_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id),
    CONSTRAINT keys_role_check CHECK (role in ('runtime', 'author', 'operator')),
    CONSTRAINT keys_secret_check CHECK (octet_length(secret_sha256) = 32)
);
COMMENT ON TABLE keys IS 'API keys; of the secret only its SHA-256.';

CREATE TABLE chain_heads (
    tenant_id text NOT NULL,
    sequence bigint NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT chain_heads_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT chain_heads_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE chain_heads IS
    'The last sequence number and hash of each tenant''s audit chain; locked by whoever appends.';

CREATE TABLE audit_events (
    tenant_id text NOT NULL,
    sequence bigint NOT NULL,
    event_id uuid NOT NULL,
    occurred_at timestamptz NOT NULL,
    call_id text NOT NULL,
    verb text NOT NULL,
    outcome text NOT NULL,
    agent text NOT NULL,
    name text NOT NULL,
    actor text NOT NULL,
    winner_layer text NOT NULL,
    version integer,
    txid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    previous_hash bytea NOT NULL,
    hash bytea NOT NULL,
    event text NOT NULL,
    CONSTRAINT audit_events_pkey PRIMARY KEY (tenant_id, occurred_at, event_id),
    CONSTRAINT audit_events_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
) PARTITION BY RANGE (occurred_at);
COMMENT ON TABLE audit_events IS 'Append-only events, hash-chained per tenant; `event` is the text that is hashed.';
CREATE INDEX audit_events_tenant_id_sequence_idx ON audit_events (tenant_id, sequence);
CREATE INDEX audit_events_tenant_id_event_id_idx ON audit_events (tenant_id, event_id);
CREATE INDEX audit_events_tenant_id_name_sequence_idx ON audit_events (tenant_id, name, sequence);
CREATE INDEX audit_events_tenant_id_agent_sequence_idx ON audit_events (tenant_id, agent, sequence);
CREATE TABLE audit_events_default PARTITION OF audit_events DEFAULT;
"""

# Roles belong to the whole cluster: another database may have made them, at this very moment too.
ROLES = """
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['substrate_app', 'substrate_audit', 'substrate_operator'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE', wanted);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END
$$;
"""

GRANTS = """
GRANT USAGE ON SCHEMA public TO substrate_app, substrate_audit, substrate_operator;

GRANT SELECT ON alembic_version TO substrate_app;
GRANT SELECT ON deployment TO substrate_app, substrate_operator;

GRANT SELECT, UPDATE (catalog_revision) ON tenants TO substrate_app;
GRANT SELECT (tenant_id, catalog_revision) ON tenants TO substrate_audit;
GRANT SELECT, INSERT, UPDATE (display_name, catalog_revision) ON tenants TO substrate_operator;

GRANT SELECT, INSERT, UPDATE (active_version, latest_version, retired_at, revision, updated_at) ON skill_defs
    TO substrate_app;
GRANT SELECT, INSERT, UPDATE (promoted_at, promoted_by) ON skill_def_versions TO substrate_app;
GRANT SELECT, INSERT, DELETE ON disabled_names TO substrate_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON agents TO substrate_app;

GRANT SELECT ON keys TO substrate_app;
GRANT SELECT, INSERT, UPDATE (revoked_at) ON keys TO substrate_operator;

GRANT SELECT, UPDATE (sequence, hash) ON chain_heads TO substrate_app, substrate_audit;
GRANT SELECT, INSERT, UPDATE (sequence, hash) ON chain_heads TO substrate_operator;

GRANT SELECT, INSERT ON audit_events TO substrate_app, substrate_operator;
GRANT INSERT ON audit_events TO substrate_audit;
"""

TENANT_TABLES = (
    "tenants",
    "skill_defs",
    "skill_def_versions",
    "disabled_names",
    "agents",
    "keys",
    "chain_heads",
    "audit_events",
)

# The empty text is what an ended transaction leaves of the setting, so it must not match a tenant either.
OWN_TENANT = "tenant_id = nullif(current_setting('app.tenant', true), '')"

ROLE_POLICIES = """
CREATE POLICY any_tenant ON tenants FOR SELECT TO substrate_audit USING (true);
CREATE POLICY any_tenant_head ON chain_heads TO substrate_audit USING (true) WITH CHECK (true);
CREATE POLICY any_tenant_event ON audit_events FOR INSERT TO substrate_audit WITH CHECK (true);
CREATE POLICY operators ON tenants TO substrate_operator USING (true) WITH CHECK (true);
CREATE POLICY operators ON keys TO substrate_operator USING (true) WITH CHECK (true);
CREATE POLICY operators ON chain_heads TO substrate_operator USING (true) WITH CHECK (true);
CREATE POLICY operators ON audit_events TO substrate_operator USING (true) WITH CHECK (true);
"""

PLATFORM = """
INSERT INTO deployment DEFAULT VALUES;
INSERT INTO tenants (tenant_id, display_name, created_at) VALUES ('platform', 'Operators', now());
INSERT INTO chain_heads (tenant_id, sequence, hash) VALUES ('platform', 0, decode(repeat('00', 32), 'hex'));
"""


def upgrade() -> None:
    """Create everything."""
    op.execute(TABLES)
    op.execute(ROLES)
    op.execute(GRANTS)
    for table in TENANT_TABLES:
        op.execute(
            f"CREATE POLICY own_tenant ON {table} TO substrate_app USING ({OWN_TENANT}) WITH CHECK ({OWN_TENANT})"
        )
    op.execute(ROLE_POLICIES)
    op.execute(PLATFORM)
    for table in (*TENANT_TABLES, "audit_events_default"):
        # Forced last: the migration's own rows above are the only ones that no policy admits.
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
