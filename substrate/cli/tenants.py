"""``substrate tenant`` and ``substrate key``: what operators manage."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import Length, Moment
from substrate.domain.quotas import QUOTA_NAMES


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
        (
            entry["tenant"],
            entry["display_name"],
            entry["catalog_revision"],
            output.moment(entry.get("create_time")),
            output.moment(entry.get("suspend_time")) or "-",
        )
        for entry in answer["tenants"]
    ]
    remote.show(answer, output.table(("TENANT", "NAME", "REVISION", "CREATED", "SUSPENDED"), rows))


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Why; told to callers and kept in the audit log.")
@connected
def suspend(remote: Remote, tenant_id: str, reason: str | None) -> None:
    """Refuse every call of the tenant ID's keys from the next on; its data stay."""
    answer = remote.call("TenantService.SetTenantSuspended", tenant=tenant_id, suspended=True, reason=reason)
    since = output.moment(answer["tenant"].get("suspend_time"))
    remote.show(answer, f"Tenant {answer['tenant']['tenant']} is suspended since {since}.\n")


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Why; kept in the audit log.")
@connected
def resume(remote: Remote, tenant_id: str, reason: str | None) -> None:
    """Let the suspended tenant ID go on."""
    answer = remote.call("TenantService.SetTenantSuspended", tenant=tenant_id, suspended=False, reason=reason)
    remote.show(answer, f"Tenant {answer['tenant']['tenant']} is not suspended.\n")


class _Limit(click.ParamType[tuple[str, int]]):
    """Reads ``skills=20000``."""

    name = "limit"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the quota's name and its limit; a usage error when `value` is no such pair."""
        if isinstance(value, tuple):
            return value
        name, _, limit = value.partition("=")
        if name not in QUOTA_NAMES or not (limit.isascii() and limit.isdecimal()):
            self.fail(f"{value!r} is not NAME=NUMBER with one of the names {', '.join(QUOTA_NAMES)}.", param, ctx)
        return name, int(limit)


@tenant.command()
@click.argument("tenant_id", metavar="ID")
@click.option(
    "--set", "limits", type=_Limit(), multiple=True, metavar="NAME=NUMBER", help="Change a limit; repeatable."
)
@connected
def quotas(remote: Remote, tenant_id: str, limits: Iterable[tuple[str, int]]) -> None:
    """Show what the tenant ID may have and what it has, or change some of its limits."""
    answer = remote.call("TenantService.GetQuotas", tenant=tenant_id)
    changes = dict(limits)
    if changes:
        # Absent ones would become the default, so those that are to stay are sent too.
        changed = remote.call("TenantService.SetQuotas", tenant=tenant_id, quotas=answer["quotas"] | changes)
        answer = changed | {"usage": answer["usage"]}
    rows = [(name, answer["quotas"][name], answer["usage"].get(name, "-")) for name in QUOTA_NAMES]
    remote.show(answer, output.table(("QUOTA", "LIMIT", "USED"), rows))


@click.group()
def key() -> None:
    """Manage the keys that act for tenants, as an operator."""


@key.command()
@click.argument("tenant_id", metavar="TENANT")
@click.option("--role", type=click.Choice(["runtime", "author", "operator"]), required=True, help="What it may do.")
@click.option("--agent", metavar="NAME", help="The only agent it may act for.")
@click.option("--label", metavar="TEXT", help="A note for people.")
@click.option("--principal", metavar="NAME", help="Who will use it, a slug; else the key's id stands for its user.")
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
            entry["principal"],
            output.moment(entry.get("create_time")),
            output.moment(entry.get("expire_time")) or "-",
            output.moment(entry.get("revoke_time")) or "-",
            output.moment(entry.get("last_use_time")) or "-",
            entry["label"],
        )
        for entry in answer["keys"]
    ]
    headers = ("KEY", "ROLE", "AGENT", "PRINCIPAL", "CREATED", "EXPIRES", "REVOKED", "LAST USED", "LABEL")
    remote.show(answer, output.table(headers, rows))


@key.command()
@click.argument("tenant_id", metavar="TENANT")
@click.argument("key_id", metavar="KEY")
@click.option(
    "--overlap", type=Length(), help="How long the old key is accepted too: '24h', at most 90d.  [default: 24h]"
)
@click.option("--expires", "expire_time", type=Moment(ahead=True), help="When the new key does: '90d', or an ISO time.")
@connected
def rotate(remote: Remote, tenant_id: str, key_id: str, overlap: timedelta | None, **fields: Any) -> None:
    """Issue a key in place of the key with the id KEY of TENANT and print it, this once."""
    answer = remote.call("TenantService.RotateKey", tenant=tenant_id, key_id=key_id, overlap=overlap, **fields)
    until = output.moment(answer["replaced"].get("expire_time"))
    output.note(f"Key {answer['key']['key_id']}; it cannot be shown again. {key_id} is accepted until {until}.")
    remote.show(answer, f"{answer['secret']}\n")


@key.command()
@click.argument("tenant_id", metavar="TENANT")
@click.argument("key_id", metavar="KEY")
@connected
def revoke(remote: Remote, tenant_id: str, key_id: str) -> None:
    """End the key with the id KEY of TENANT, from the next call on."""
    answer = remote.call("TenantService.RevokeKey", tenant=tenant_id, key_id=key_id)
    remote.show(answer, f"Revoked {answer['key']['key_id']} at {output.moment(answer['key'].get('revoke_time'))}.\n")
