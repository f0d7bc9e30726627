"""The server's database roles as tests take them, and what each may do."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.types.json import Json
from sqlalchemy import JSON

from substrate.store.session import DatabaseRole
from substrate.store.tables import metadata
from tests.servers import Cluster, RunningServer
from tests.skills import changed, skill_md
from tests.store.owner import connect

TENANT_TABLES = sorted(table.name for table in metadata.tables.values() if "tenant_id" in table.c)
ROLES = [role.value for role in DatabaseRole]

EVERY_COLUMN = ("*",)
GRANTS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "substrate_app": {
        "alembic_version": {"SELECT": EVERY_COLUMN},
        "deployment": {"SELECT": EVERY_COLUMN},
        "tenants": {
            "SELECT": EVERY_COLUMN,
            "UPDATE": ("catalog_revision", "stored_bytes", "writes_counted", "writes_minute"),
        },
        "skill_defs": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("active_version", "latest_version", "retired_at", "revision", "updated_at"),
        },
        "skill_def_versions": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("promoted_at", "promoted_by"),
        },
        "skill_files": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
        "skill_labels": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("updated_at", "updated_by", "version"),
            "DELETE": EVERY_COLUMN,
        },
        "disabled_names": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN, "DELETE": EVERY_COLUMN},
        "agents": dict.fromkeys(("SELECT", "INSERT", "UPDATE", "DELETE"), EVERY_COLUMN),
        "keys": {"SELECT": EVERY_COLUMN},
        "requests": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("answer",),
            "DELETE": EVERY_COLUMN,
        },
        "chain_heads": {"SELECT": EVERY_COLUMN, "UPDATE": ("hash", "sequence")},
        "audit_events": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
        "audit_inputs": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
        "audit_starts": {"SELECT": EVERY_COLUMN},
    },
    "substrate_audit": {
        "deployment": {"SELECT": EVERY_COLUMN},
        "tenants": {"SELECT": ("catalog_revision", "tenant_id")},
        "chain_heads": {"SELECT": EVERY_COLUMN, "UPDATE": ("hash", "sequence")},
        "audit_events": {"INSERT": EVERY_COLUMN},
        "audit_inputs": {"INSERT": EVERY_COLUMN},
    },
    "substrate_operator": {
        "deployment": {"SELECT": EVERY_COLUMN},
        "tenants": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("catalog_revision", "display_name", "quotas", "suspend_reason", "suspended_at"),
        },
        "keys": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN, "UPDATE": ("expires_at", "revoked_at")},
        "requests": {
            "SELECT": EVERY_COLUMN,
            "INSERT": EVERY_COLUMN,
            "UPDATE": ("answer",),
            "DELETE": EVERY_COLUMN,
        },
        "chain_heads": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN, "UPDATE": ("hash", "sequence")},
        "audit_events": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
        "audit_inputs": {"SELECT": EVERY_COLUMN, "INSERT": EVERY_COLUMN},
        "audit_starts": {"SELECT": EVERY_COLUMN},
    },
}


@dataclass(frozen=True)
class Pair:
    """Two tenants with at least one row in every table."""

    mine: str
    theirs: str


def used_pair(cluster: Cluster, server: RunningServer) -> Pair:
    """Make two tenants and leave something of each in every table."""
    names = []
    for _ in range(2):
        tenant = server.tenant()
        tenant.author.call(
            "SkillDefService.CreateSkillDef",
            name="doc/mine",
            source=skill_md("mine"),
            files={"files": [{"path": "more.md", "content": b"More."}]},
            request_id=str(uuid.uuid4()),
        )
        changed(tenant.author, "SkillDefService.SetLabel", name="doc/mine", label="staging", version=1)
        changed(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/query", disabled=True)
        tenant.author.call("AgentService.PutAgent", agent={"name": "helper"})
        # With an agent, so that it is kept what the decision was made from.
        tenant.runtime.call("SkillService.ListSkills", agent="helper")
        names.append(tenant.name)
    with connect(cluster) as owner:
        for name in names:
            owner.execute(
                "INSERT INTO audit_starts (tenant_id, sequence, hash, stragglers, dropped, created_at)"
                " VALUES (%s, 0, %s, '{}', '{}', now())",
                [name, bytes(32)],
            )
    return Pair(*names)


@contextmanager
def acting_as(cluster: Cluster, role: str, tenant: str | None = None) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Open a transaction as the server does, in the role of one of its pools, and roll it back."""
    with psycopg.connect(cluster.login_url, options=f"-c role={role}") as connection:
        if tenant is not None:
            connection.execute("SELECT set_config('app.tenant', %s, true)", [tenant])
        yield connection
        connection.rollback()


def row_of(cluster: Cluster, table: str, tenant: str) -> dict[str, Any]:
    with connect(cluster) as connection:
        query = sql.SQL("SELECT * FROM {} WHERE tenant_id = %s LIMIT 1").format(sql.Identifier(table))
        cursor = connection.execute(query, [tenant])
        found = cursor.fetchone()
        assert found is not None, f"the fixture leaves no row in {table}"
        assert cursor.description is not None
        return dict(zip((column.name for column in cursor.description), found, strict=True))


def insert(table: str, row: dict[str, Any]) -> tuple[sql.Composed, list[Any]]:
    """Return a statement that inserts `row`; the id of its transaction is PostgreSQL's to set."""
    columns = [name for name in row if name != "txid"]
    kept = metadata.tables[table].c
    values = [Json(row[name]) if isinstance(kept[name].type, JSON) else row[name] for name in columns]
    return (
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join(sql.Placeholder() * len(columns)),
        ),
        values,
    )


def select(table: str, tail: LiteralString = "") -> sql.Composed:
    return sql.SQL("SELECT * FROM {} {}").format(sql.Identifier(table), sql.SQL(tail))
