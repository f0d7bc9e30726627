"""``substrate audit who-can``, ``history`` and ``usage``: what the audit and the catalog say, put together."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import Moment

_PAGE = 1000
_ALL = "all"
_DIGEST = 12

_tenant = click.option("--tenant", metavar="ID", help="The tenant, for operators; else the key's own.")
_limit = click.option(
    "--limit", type=click.IntRange(min=0), default=_PAGE, show_default=True, help="At most; 0 for all."
)


@click.command("who-can")
@click.argument("name")
@click.option(
    "--tenant", metavar="ID", help=f"The tenant, or '{_ALL}' for every tenant, for operators; else the key's own."
)
@_limit
@connected
def who_can(remote: Remote, name: str, tenant: str | None, limit: int) -> None:
    """Say which agents can list, invoke and author the skill NAME, and which entry of their allowlists decides.

    An operator's key without --tenant asks about all tenants too.
    """
    fields = {"name": name, "tenant": "" if tenant == _ALL else tenant, "page_size": min(limit or _PAGE, _PAGE)}
    answer = remote.collect("AuditService.WhoCan", "agents", limit, **fields)
    rows = [
        (row["tenant"], row["agent"], _can(row), _by(row), row["reason"] or "-", row["text"])
        for row in answer["agents"]
    ]
    remote.show(answer, output.table(("TENANT", "AGENT", "CAN", "BY", "REASON", "WHY"), rows))
    _note_cut(rows, limit)


@click.command()
@click.argument("name")
@_tenant
@click.option("--since", type=Moment(), help="From this time on: 30d ago as '30d', or an ISO time (UTC).")
@_limit
@connected
def history(remote: Remote, limit: int, **fields: Any) -> None:
    """Tell every change of what the skill NAME stood for in a tenant, the newest first."""
    fields["page_size"] = min(limit or _PAGE, _PAGE)
    answer = remote.collect("AuditService.GetSkillHistory", "changes", limit, **fields)
    rows = [(output.moment(row["time"]), row["verb"], row["event_id"], row["text"]) for row in answer["changes"]]
    remote.show(answer, output.table(("TIME", "VERB", "EVENT", "WHAT"), rows) if rows else "")
    _note_cut(rows, limit)
    if not rows:
        output.note("Nothing has changed what the name stands for in that time; `audit explain` says what that is.")


@click.command()
@_tenant
@click.option("--since", type=Moment(), help="From this time on: 7d ago as '7d', or an ISO time (UTC); else 30 days.")
@click.option("--until", type=Moment(), help="Before this time; else until now.")
@click.option("--agent", metavar="NAME", help="Only calls of this agent.")
@click.option("--pattern", help="Only skills whose names match, such as 'doc/*'.")
@connected
def usage(remote: Remote, since: datetime | None, until: datetime | None, **fields: Any) -> None:
    """Count a tenant's invocations, and name skills that were not invoked and forks that bundles have left behind."""
    answer = remote.call("AuditService.GetUsageReport", since=since, until=until, **fields)
    parts = [output.table(_USAGE, map(_used, answer["rows"]))]
    if answer["never_invoked"]:
        parts.append(output.table(("NEVER INVOKED WITH SUCCESS",), [(name,) for name in answer["never_invoked"]]))
    if answer["drifted"]:
        parts.append(output.table(_DRIFTED, map(_drifted, answer["drifted"])))
    remote.show(answer, "\n".join(parts))
    output.note(f"From {output.moment(answer['since'])} to {output.moment(answer['until'])}.")
    if answer["truncated"]:
        output.warn("There is more than one report holds; narrow it with --pattern, --agent or --since.")


_USAGE = ("NAME", "LAYER", "VERSION", "AGENT", "OUTCOME", "REASON", "COUNT", "LAST")
_DRIFTED = ("DRIFTED FORK", "VERSION", "FORKED FROM", "WAS", "IS NOW")


def _note_cut(rows: Sequence[object], limit: int) -> None:
    if len(rows) == limit:
        output.note(f"There may be more than the {limit} that are shown; --limit 0 shows all.")


def _used(row: Mapping[str, Any]) -> Sequence[object]:
    return (
        row["name"] or "-",
        output.word(row["layer"], "LAYER") or "-",
        row["version"] or "-",
        row["agent"] or "-",
        output.word(row["outcome"], "OUTCOME"),
        row["reason"] or "-",
        row["count"],
        output.moment(row.get("last")),
    )


def _drifted(row: Mapping[str, Any]) -> Sequence[object]:
    now = f"{row['bundle_origin']} {row['bundle_sha256'][:_DIGEST]}" if row["bundle_origin"] else "gone"
    return row["name"], row["version"], row["forked_from"], row["forked_sha256"][:_DIGEST], now


def _can(row: Mapping[str, Any]) -> str:
    return ",".join(verb for verb in ("list", "invoke", "author") if row[f"can_{verb}"]) or "-"


def _by(row: Mapping[str, Any]) -> str:
    """Return the deciding entry after its position, or in a word why none decided."""
    decision = row.get("decision")
    if decision is None:
        return "-"
    if decision["entry"]:
        return f"{decision['index']}:{decision['entry']}"
    return output.word(decision["reason"], "ALLOWLIST_REASON")
