"""What searching, replaying and verifying the audit need.

`audit_inputs` keeps what decisions were made from, each text once for each tenant under its own SHA-256; the static
states that servers have served lie there under the platform's tenant. `audit_starts` says where a chain begins whose
first months were dropped; only the owner writes it. `arguments_key` is the key under which the arguments of a tenant's
calls are recorded. `settled_as` is the incarnation of the database in which `substrate migrate` last looked after the
transaction ids of events; see `substrate.store.migrate`.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = """
-- A random key for each row: the two ids hold 244 random bits.
ALTER TABLE tenants ADD COLUMN arguments_key bytea
    DEFAULT sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea) NOT NULL;

ALTER TABLE deployment ADD COLUMN settled_as text DEFAULT '' NOT NULL;

ALTER TABLE audit_events
    ADD COLUMN reason text DEFAULT '' NOT NULL,
    ADD COLUMN shadowed boolean DEFAULT false NOT NULL;

CREATE TABLE audit_inputs (
    tenant_id text NOT NULL,
    sha256 text NOT NULL,
    content text NOT NULL,
    kept_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT audit_inputs_pkey PRIMARY KEY (tenant_id, sha256),
    CONSTRAINT audit_inputs_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE audit_inputs IS 'What decisions were made from, by the SHA-256 that their events name.';

CREATE TABLE audit_starts (
    tenant_id text NOT NULL,
    sequence bigint NOT NULL,
    hash bytea NOT NULL,
    stragglers json NOT NULL,
    dropped text[] NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT audit_starts_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT audit_starts_tenants_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);
COMMENT ON TABLE audit_starts IS
    'The last event of the months dropped of a chain, which begins after it; `stragglers` are earlier events'
    ' still there.';

-- Conditions on the time are checked in the index, so that an old day is found without a look at all that is younger.
"""

# The owner is held to row-level security too, and no policy admits it; so that is off while it fills the new columns.
FILLED = """
ALTER TABLE audit_events NO FORCE ROW LEVEL SECURITY;
UPDATE audit_events SET
    reason = coalesce(event::json ->> 'reason', ''),
    shadowed = (event::json -> 'winner') IS NOT NULL AND event LIKE '%"state":"SHADOWED"%';
ALTER TABLE audit_events FORCE ROW LEVEL SECURITY;
"""

# Made after the rows have been filled, or each row would be put into each index twice.
INDEXES = """
DROP INDEX audit_events_tenant_id_sequence_idx;
DROP INDEX audit_events_tenant_id_name_sequence_idx;
DROP INDEX audit_events_tenant_id_agent_sequence_idx;
DROP INDEX audit_events_tenant_id_event_id_idx;
CREATE INDEX audit_events_tenant_id_sequence_occurred_at_idx
    ON audit_events (tenant_id, sequence, occurred_at);
CREATE INDEX audit_events_tenant_id_name_sequence_occurred_at_idx
    ON audit_events (tenant_id, name, sequence, occurred_at);
CREATE INDEX audit_events_tenant_id_agent_sequence_occurred_at_idx
    ON audit_events (tenant_id, agent, sequence, occurred_at);
CREATE INDEX audit_events_event_id_idx ON audit_events (event_id);
CREATE INDEX audit_events_call_id_idx ON audit_events (call_id);
CREATE INDEX audit_events_changes_idx ON audit_events (tenant_id, name, sequence)
    WHERE verb IN ('create', 'fork', 'promote', 'retire', 'unretire', 'disable', 'enable');
CREATE INDEX audit_events_txid_tenant_id_sequence_idx ON audit_events (txid, tenant_id, sequence);
"""

GRANTS = """
GRANT SELECT, INSERT ON audit_inputs TO substrate_app, substrate_operator;
GRANT INSERT ON audit_inputs TO substrate_audit;
GRANT SELECT ON audit_starts TO substrate_app, substrate_operator;
"""

TENANT_TABLES = ("audit_inputs", "audit_starts")

OWN_TENANT = "tenant_id = nullif(current_setting('app.tenant', true), '')"

ROLE_POLICIES = """
CREATE POLICY any_tenant_input ON audit_inputs FOR INSERT TO substrate_audit WITH CHECK (true);
CREATE POLICY operators ON audit_inputs TO substrate_operator USING (true) WITH CHECK (true);
CREATE POLICY operators ON audit_starts FOR SELECT TO substrate_operator USING (true);
"""


def upgrade() -> None:
    """Create everything."""
    op.execute(TABLES)
    op.execute(FILLED)
    op.execute(INDEXES)
    op.execute(GRANTS)
    for table in TENANT_TABLES:
        op.execute(
            f"CREATE POLICY own_tenant ON {table} TO substrate_app USING ({OWN_TENANT}) WITH CHECK ({OWN_TENANT})"
        )
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(ROLE_POLICIES)
