"""Lineage, files and labels of SkillDefs, pins of agents, quotas and suspension of tenants, and repeatable requests.

A file's content is stored once for each tenant, under its digest. `requests` keeps the answers of changes that came
with a request id, so that a change sent again is answered and not made twice.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = """
ALTER TABLE tenants
    ADD COLUMN suspended_at timestamptz,
    ADD COLUMN suspend_reason text DEFAULT '' NOT NULL,
    ADD COLUMN quotas json DEFAULT '{}' NOT NULL,
    ADD COLUMN stored_bytes bigint DEFAULT 0 NOT NULL,
    ADD COLUMN writes_minute timestamptz,
    ADD COLUMN writes_counted integer DEFAULT 0 NOT NULL;

ALTER TABLE skill_def_versions
    ADD COLUMN lineage json,
    ADD COLUMN files json DEFAULT '[]' NOT NULL,
    ADD COLUMN created_as text DEFAULT '' NOT NULL;

CREATE TABLE skill_files (
    tenant_id text NOT NULL,
    sha256 text NOT NULL,
    content bytea NOT NULL,
    CONSTRAINT skill_files_pkey PRIMARY KEY (tenant_id, sha256),
    CONSTRAINT skill_files_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE skill_files IS 'Files of SkillDefs'' versions, each content once, under its digest.';

CREATE TABLE skill_labels (
    tenant_id text NOT NULL,
    name text NOT NULL,
    label text NOT NULL,
    version integer NOT NULL,
    updated_at timestamptz NOT NULL,
    updated_by text NOT NULL,
    CONSTRAINT skill_labels_pkey PRIMARY KEY (tenant_id, name, label),
    CONSTRAINT skill_labels_skill_def_versions_fkey
        FOREIGN KEY (tenant_id, name, version) REFERENCES skill_def_versions (tenant_id, name, version)
);
COMMENT ON TABLE skill_labels IS 'Names for versions of SkillDefs, which can be moved.';

ALTER TABLE agents ADD COLUMN pins json DEFAULT '{}' NOT NULL;

ALTER TABLE keys ADD COLUMN principal text DEFAULT '' NOT NULL;

CREATE TABLE requests (
    tenant_id text NOT NULL,
    request_id uuid NOT NULL,
    fingerprint bytea NOT NULL,
    answer bytea,
    created_at timestamptz NOT NULL,
    CONSTRAINT requests_pkey PRIMARY KEY (tenant_id, request_id),
    CONSTRAINT requests_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE requests IS 'Changes that came with a request id, and their answers, for a day.';
CREATE INDEX requests_tenant_id_created_at_idx ON requests (tenant_id, created_at);

-- Only the rows that are there needed these.
ALTER TABLE tenants ALTER COLUMN quotas DROP DEFAULT;
ALTER TABLE skill_def_versions ALTER COLUMN files DROP DEFAULT;
ALTER TABLE agents ALTER COLUMN pins DROP DEFAULT;

CREATE INDEX audit_events_tenant_id_actor_sequence_idx ON audit_events (tenant_id, actor, sequence);
"""

# The owner is held to row-level security too, and no policy admits it; so that is off while it counts.
COUNTED = """
ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY;
ALTER TABLE skill_def_versions NO FORCE ROW LEVEL SECURITY;
ALTER TABLE keys NO FORCE ROW LEVEL SECURITY;
UPDATE tenants SET stored_bytes = (
    SELECT coalesce(sum(octet_length(body) + octet_length(header::text)), 0)
    FROM skill_def_versions WHERE skill_def_versions.tenant_id = tenants.tenant_id
);
UPDATE keys SET principal = key_id;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
ALTER TABLE skill_def_versions FORCE ROW LEVEL SECURITY;
ALTER TABLE keys FORCE ROW LEVEL SECURITY;
"""

GRANTS = """
GRANT SELECT ON deployment TO substrate_audit;

GRANT UPDATE (stored_bytes, writes_minute, writes_counted) ON tenants TO substrate_app;
GRANT UPDATE (suspended_at, suspend_reason, quotas) ON tenants TO substrate_operator;

GRANT SELECT, INSERT ON skill_files TO substrate_app;
GRANT SELECT, INSERT, UPDATE (version, updated_at, updated_by), DELETE ON skill_labels TO substrate_app;

GRANT UPDATE (expires_at) ON keys TO substrate_operator;

GRANT SELECT, INSERT, UPDATE (answer), DELETE ON requests TO substrate_app, substrate_operator;
"""

TENANT_TABLES = ("skill_files", "skill_labels", "requests")

OWN_TENANT = "tenant_id = nullif(current_setting('app.tenant', true), '')"

# Operators' requests are their own tenant's, but for those that they make inside another, which are that tenant's.
OPERATORS = """
CREATE POLICY operators ON requests TO substrate_operator
    USING (tenant_id = 'platform') WITH CHECK (tenant_id = 'platform');
"""


def upgrade() -> None:
    """Create everything."""
    op.execute(TABLES)
    op.execute(COUNTED)
    op.execute(GRANTS)
    for table in TENANT_TABLES:
        op.execute(
            f"CREATE POLICY own_tenant ON {table} TO substrate_app USING ({OWN_TENANT}) WITH CHECK ({OWN_TENANT})"
        )
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(OPERATORS)
