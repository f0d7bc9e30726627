"""``substrate tenant`` and ``substrate key``: what operators manage."""

from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import Moment


@click.group()
def tenant() -> None:
    """Manage tenants, as an operator."""


@tenant.command("create")
@click.argument("tenant_id", metavar="ID")
@click.option("--display-name", metavar="TEXT", help="A name for people.")
@connected
def create_tenant(remote: Remote, tenant_id: str, display_name: str | None) -> None:
    """Create the tenant ID, without skills, agents or keys."""
    answer = remote.call("TenantService.CreateTenant", tenant=tenant_id, display_name=display_name)
    remote.show(answer, f"Created tenant {answer['tenant']['tenant']}.\n")


@tenant.command("list")
@connected
def list_tenants(remote: Remote) -> None:
    """List every tenant."""
    answer = remote.collect("TenantService.ListTenants", "tenants")
    rows = [
        (entry["tenant"], entry["display_name"], entry["catalog_revision"], output.moment(entry.get("create_time")))
        for entry in answer["tenants"]
    ]
    remote.show(answer, output.table(("TENANT", "NAME", "REVISION", "CREATED"), rows))


@click.group()
def key() -> None:
    """Manage the keys that act for tenants, as an operator."""


@key.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--role", type=click.Choice(["runtime", "author", "operator"]), required=True, help="What it may do.")
@click.option("--agent", metavar="NAME", help="The only agent it may act for.")
@click.option("--label", metavar="TEXT", help="A note for people.")
@click.option("--expires", "expire_time", type=Moment(ahead=True), help="When: '30d' from now, or an ISO time (UTC).")
@connected
def issue(remote: Remote, tenant_id: str, role: str, **fields: Any) -> None:
    """Issue a key for TENANT and print it, this once."""
    answer = remote.call("TenantService.IssueKey", tenant=tenant_id, role=f"ROLE_{role.upper()}", **fields)
    output.note(f"Key {answer['key']['key_id']}; it cannot be shown again.")
    remote.show(answer, f"{answer['secret']}\n")


@key.command("list")
@click.argument("tenant_id", metavar="TENANT")
@connected
def list_keys(remote: Remote, tenant_id: str) -> None:
    """List the keys of TENANT, revoked and expired ones too."""
    answer = remote.collect("TenantService.ListKeys", "keys", tenant=tenant_id)
    rows = [
        (
            entry["key_id"],
            output.word(entry["role"], "ROLE"),
            entry["agent"] or "-",
            output.moment(entry.get("create_time")),
            output.moment(entry.get("expire_time")) or "-",
            output.moment(entry.get("revoke_time")) or "-",
            entry["label"],
        )
        for entry in answer["keys"]
    ]
    remote.show(answer, output.table(("KEY", "ROLE", "AGENT", "CREATED", "EXPIRES", "REVOKED", "LABEL"), rows))


@key.command()
@click.argument("tenant_id", metavar="TENANT")
@click.argument("key_id", metavar="KEY")
@connected
def revoke(remote: Remote, tenant_id: str, key_id: str) -> None:
    """End the key with the id KEY of TENANT, from the next call on."""
    answer = remote.call("TenantService.RevokeKey", tenant=tenant_id, key_id=key_id)
    remote.show(answer, f"Revoked {answer['key']['key_id']} at {output.moment(answer['key'].get('revoke_time'))}.\n")
