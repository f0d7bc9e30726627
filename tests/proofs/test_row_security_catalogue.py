"""Proof: PostgreSQL's own catalogue says that tenants are kept apart, and every way to undo that is named.

The gate looks at whatever tables, functions, views and roles there are, so a new migration has to pass it as it is.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from substrate.store.migrate import LOGIN_ROLE, migrate
from substrate.store.tables import metadata
from tests.servers import Cluster
from tests.store.owner import empty_database
from tests.store.roles import ROLES

OF_NO_TENANT = {"alembic_version", "deployment"}
OWN_TENANT = "(tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text))"

# Objects with ids below 16384 are PostgreSQL's own: pg_catalog and information_schema.
TABLES = """
    SELECT c.relname, c.relispartition, c.relrowsecurity, c.relforcerowsecurity,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id')
    FROM pg_class c
    WHERE c.relkind IN ('r', 'p', 'f') AND c.oid >= 16384 ORDER BY 1"""

POLICIES = """
    SELECT c.relname, p.polname, p.polcmd::text, pg_get_expr(p.polqual, p.polrelid),
           pg_get_expr(p.polwithcheck, p.polrelid),
           ARRAY(SELECT CASE role WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(role) END FROM unnest(p.polroles) AS role)
    FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid ORDER BY 1, 2"""

GRANTS = """
    SELECT c.relname, c.relispartition, a.privilege_type,
           CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee) END
    FROM pg_class c, LATERAL (
        SELECT * FROM aclexplode(c.relacl)
        UNION ALL SELECT x.* FROM pg_attribute t, aclexplode(t.attacl) AS x WHERE t.attrelid = c.oid
    ) AS a
    WHERE a.grantee <> c.relowner AND c.oid >= 16384 ORDER BY 1, 3, 4"""

KEYS = """
    SELECT c.relname, i.indexrelid::regclass::text, coalesce(a.attname, '')
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
    WHERE (i.indisunique OR i.indisexclusion) AND c.oid >= 16384 ORDER BY 1, 2"""

REFERENCES = """
    SELECT c.relname, k.conname, near.attname, far.attname
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
    JOIN pg_attribute near ON near.attrelid = k.conrelid AND near.attnum = k.conkey[1]
    JOIN pg_attribute far ON far.attrelid = k.confrelid AND far.attnum = k.confkey[1]
    WHERE k.contype = 'f' AND c.oid >= 16384 ORDER BY 1, 2"""

DEFINERS = """
    SELECT p.proname FROM pg_proc p
    WHERE p.prosecdef AND p.oid >= 16384 ORDER BY 1"""

VIEWS = """
    SELECT c.relname, c.relkind::text, coalesce(c.reloptions, '{}')
    FROM pg_class c
    WHERE c.relkind IN ('v', 'm') AND c.oid >= 16384 ORDER BY 1"""

POWERS = """
    SELECT rolname, rolcanlogin, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication
    FROM pg_roles WHERE rolname = ANY(%s) ORDER BY 1"""

MEMBERS = """
    SELECT pg_get_userbyid(member), pg_get_userbyid(roleid), inherit_option FROM pg_auth_members
    WHERE pg_get_userbyid(member) = ANY(%s) ORDER BY 1, 2"""

OWNED = """
    SELECT DISTINCT pg_get_userbyid(refobjid) FROM pg_shdepend
    WHERE deptype = 'o' AND refclassid = 'pg_authid'::regclass AND pg_get_userbyid(refobjid) = ANY(%s) ORDER BY 1"""

# What a session starts with: a tenant that nobody set, or policies switched off.
PRESET = """
    SELECT setting FROM pg_db_role_setting, unnest(setconfig) AS setting
    WHERE setting LIKE 'app.%' OR setting LIKE 'row_security=%' OR setting LIKE 'role=%' ORDER BY 1"""

Connection = psycopg.Connection[tuple[Any, ...]]


def faults(connection: Connection) -> list[str]:
    """Return a sentence for everything in the database's catalogue that could let one tenant see another."""
    return [
        *_faults_of_tables(connection),
        *_faults_of_policies(connection),
        *_faults_of_grants(connection),
        *_faults_of_keys(connection),
        *(f"function {name} is SECURITY DEFINER" for (name,) in connection.execute(DEFINERS)),
        *_faults_of_views(connection),
        *_faults_of_roles(connection),
    ]


def _tenants_tables(connection: Connection) -> set[str]:
    return {name for name, _, _, _, of_tenants in connection.execute(TABLES) if of_tenants}


def _faults_of_tables(connection: Connection) -> Iterator[str]:
    for table, _, enabled, forced, of_tenants in connection.execute(TABLES).fetchall():
        if not of_tenants and table not in OF_NO_TENANT:
            yield f"table {table} has no tenant_id"
        if of_tenants and not enabled:
            yield f"table {table} has no row security"
        if of_tenants and not forced:
            yield f"table {table} does not force row security"


def _faults_of_policies(connection: Connection) -> Iterator[str]:
    bound = set()
    for table, policy, command, reads, writes, roles in connection.execute(POLICIES).fetchall():
        place = f"policy {policy} of {table}"
        if command != "a" and reads is None:
            yield f"{place} has no USING"
        if command in ("a", "w", "*") and writes is None:
            yield f"{place} has no WITH CHECK"
        if {"substrate_app", "PUBLIC"} & set(roles):
            bound.add(table)
            if {reads, writes} - {None} != {OWN_TENANT}:
                yield f"{place} is not bound to the session's tenant"
        for role in set(roles) - set(ROLES):
            yield f"{place} admits {role}"
    for table, is_partition, *_, of_tenants in connection.execute(TABLES).fetchall():
        # Partitions are reached through their parent alone, whose policy counts.
        if of_tenants and not is_partition and table not in bound:
            yield f"table {table} has no policy for substrate_app"


def _faults_of_grants(connection: Connection) -> Iterator[str]:
    for table, is_partition, privilege, role in connection.execute(GRANTS).fetchall():
        if is_partition:
            yield f"{privilege} on partition {table} is granted to {role}"
        elif privilege not in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            yield f"{privilege} on {table} is granted to {role}"
        elif role not in ROLES:
            yield f"{privilege} on {table} is granted to {role}, which is no role of the server's"


def _faults_of_keys(connection: Connection) -> Iterator[str]:
    of_tenants = _tenants_tables(connection)
    for table, index, first in connection.execute(KEYS).fetchall():
        if table in of_tenants and first != "tenant_id":
            yield f"key {index} of {table} does not start with tenant_id"
    for table, name, near, far in connection.execute(REFERENCES).fetchall():
        if table in of_tenants and (near, far) != ("tenant_id", "tenant_id"):
            yield f"foreign key {name} of {table} does not start with tenant_id"


def _faults_of_views(connection: Connection) -> Iterator[str]:
    for view, kind, options in connection.execute(VIEWS).fetchall():
        if kind == "m":
            yield f"materialized view {view} keeps rows past every policy"
        elif not {"security_invoker=true", "security_invoker=on", "security_invoker=1"} & set(options):
            yield f"view {view} is not security_invoker"


def _faults_of_roles(connection: Connection) -> Iterator[str]:
    everybody = [*ROLES, LOGIN_ROLE]
    for role, logs_in, powerful in connection.execute(POWERS, [everybody]).fetchall():
        if logs_in and role != LOGIN_ROLE:
            yield f"role {role} may log in"
        if powerful:
            yield f"role {role} has powers past policies"
    for member, of, inherits in connection.execute(MEMBERS, [everybody]).fetchall():
        if member != LOGIN_ROLE or of not in ROLES or inherits:
            yield f"role {member} is a member of {of}{' and inherits' if inherits else ''}"
    yield from (f"role {role} owns something" for (role,) in connection.execute(OWNED, [everybody]))
    yield from (f"sessions start with {setting}" for (setting,) in connection.execute(PRESET))


@pytest.fixture(scope="module")
def connection(cluster: Cluster) -> Iterator[Connection]:
    """The owner's connection to a migrated database that nobody serves from."""
    with empty_database(cluster.owner_url) as url:
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection


def test_a_migrated_database_has_no_fault(connection: Connection) -> None:
    assert faults(connection) == []
    # The gate has looked at what there is.
    of_tenants = _tenants_tables(connection)
    assert of_tenants > set(metadata.tables) - OF_NO_TENANT
    assert {table for table, *_ in connection.execute(POLICIES)} == set(metadata.tables) - OF_NO_TENANT
    assert {table for table, *_ in connection.execute(KEYS)} >= set(metadata.tables)
    assert {table for table, *_ in connection.execute(GRANTS)} == set(metadata.tables) | {"alembic_version"}
    assert len(connection.execute(POWERS, [[*ROLES, LOGIN_ROLE]]).fetchall()) == 4
    assert {table for table, *_ in connection.execute(REFERENCES)} == of_tenants - {"tenants"}


BOUND = "tenant_id = nullif(current_setting('app.tenant', true), '')"

MUTANTS = {
    "NO FORCE": ("ALTER TABLE agents NO FORCE ROW LEVEL SECURITY", ["table agents does not force row security"]),
    "DISABLE": ("ALTER TABLE keys DISABLE ROW LEVEL SECURITY", ["table keys has no row security"]),
    "a partition without force": (
        "ALTER TABLE audit_events_default NO FORCE ROW LEVEL SECURITY",
        ["table audit_events_default does not force row security"],
    ),
    "a policy that writes without a check": (
        f"DROP POLICY own_tenant ON agents; CREATE POLICY own_tenant ON agents TO substrate_app USING ({BOUND})",
        ["policy own_tenant of agents has no WITH CHECK"],
    ),
    "a policy that reads everything": (
        "CREATE POLICY more ON agents FOR SELECT TO substrate_app USING (true)",
        ["policy more of agents is not bound to the session's tenant"],
    ),
    "a policy that writes everything": (
        f"ALTER POLICY own_tenant ON skill_defs USING ({BOUND}) WITH CHECK (true)",
        ["policy own_tenant of skill_defs is not bound to the session's tenant"],
    ),
    "a policy for everybody": (
        f"CREATE POLICY more ON agents FOR SELECT USING ({BOUND})",
        ["policy more of agents admits PUBLIC"],
    ),
    "no policy": (
        "DROP POLICY own_tenant ON skill_labels",
        ["table skill_labels has no policy for substrate_app"],
    ),
    "TRUNCATE": (
        "GRANT TRUNCATE ON requests TO substrate_operator",
        ["TRUNCATE on requests is granted to substrate_operator"],
    ),
    "REFERENCES of a column": (
        "GRANT REFERENCES (tenant_id) ON tenants TO substrate_app",
        ["REFERENCES on tenants is granted to substrate_app"],
    ),
    "TRIGGER": ("GRANT TRIGGER ON keys TO PUBLIC", ["TRIGGER on keys is granted to PUBLIC"]),
    "SELECT for everybody": (
        "GRANT SELECT ON deployment TO PUBLIC",
        ["SELECT on deployment is granted to PUBLIC, which is no role of the server's"],
    ),
    "a grant on a partition": (
        "GRANT SELECT ON audit_events_default TO substrate_app",
        ["SELECT on partition audit_events_default is granted to substrate_app"],
    ),
    "a unique index over tenants": (
        "CREATE UNIQUE INDEX leak ON agents (name, tenant_id)",
        ["key leak of agents does not start with tenant_id"],
    ),
    "a unique index of an expression": (
        "CREATE UNIQUE INDEX leak ON agents (lower(tenant_id), name)",
        ["key leak of agents does not start with tenant_id"],
    ),
    "a primary key over tenants": (
        "ALTER TABLE requests DROP CONSTRAINT requests_pkey, ADD PRIMARY KEY (request_id)",
        ["key requests_pkey of requests does not start with tenant_id"],
    ),
    "a foreign key over tenants": (
        (
            "CREATE UNIQUE INDEX target ON skill_defs (name, tenant_id);"
            "ALTER TABLE agents ADD CONSTRAINT leak"
            " FOREIGN KEY (name, tenant_id) REFERENCES skill_defs (name, tenant_id)"
        ),
        [
            "key target of skill_defs does not start with tenant_id",
            "foreign key leak of agents does not start with tenant_id",
        ],
    ),
    "a definer's function": (
        "CREATE FUNCTION every_agent() RETURNS SETOF agents SECURITY DEFINER LANGUAGE sql AS 'SELECT * FROM agents'",
        ["function every_agent is SECURITY DEFINER"],
    ),
    "an owner's view": (
        "CREATE VIEW every_agent AS SELECT * FROM agents",
        ["view every_agent is not security_invoker"],
    ),
    "a materialized view": (
        "CREATE MATERIALIZED VIEW every_agent AS SELECT * FROM agents",
        ["materialized view every_agent keeps rows past every policy"],
    ),
    "a new table without anything": (
        "CREATE TABLE notes (tenant_id text PRIMARY KEY)",
        [
            "table notes has no row security",
            "table notes does not force row security",
            "table notes has no policy for substrate_app",
        ],
    ),
    "a new table without tenants": ("CREATE TABLE notes (id bigint)", ["table notes has no tenant_id"]),
    "a new partition without anything": (
        "CREATE TABLE audit_events_2099_01 PARTITION OF audit_events FOR VALUES FROM ('2099-01-01') TO ('2099-02-01')",
        [
            "table audit_events_2099_01 has no row security",
            "table audit_events_2099_01 does not force row security",
        ],
    ),
    "a role that logs in": ("ALTER ROLE substrate_app LOGIN", ["role substrate_app may log in"]),
    "BYPASSRLS": ("ALTER ROLE substrate_audit BYPASSRLS", ["role substrate_audit has powers past policies"]),
    "SUPERUSER": (f"ALTER ROLE {LOGIN_ROLE} SUPERUSER", [f"role {LOGIN_ROLE} has powers past policies"]),
    "a member": (
        "GRANT substrate_operator TO substrate_app",
        ["role substrate_app is a member of substrate_operator and inherits"],
    ),
    "an owner": ("ALTER TABLE requests OWNER TO substrate_app", ["role substrate_app owns something"]),
    "a tenant that nobody set": (
        "ALTER ROLE substrate_server SET app.tenant = 'platform'",
        ["sessions start with app.tenant=platform"],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_gate_names_what_undoes_it(connection: Connection, name: str) -> None:
    statement, expected = MUTANTS[name]
    with connection.transaction(force_rollback=True):
        connection.execute(statement)
        assert faults(connection) == expected


def test_an_invokers_view_is_no_fault(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE VIEW own_agents WITH (security_invoker = true) AS SELECT * FROM agents")
        assert faults(connection) == []
