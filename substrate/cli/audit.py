"""``substrate audit``: what was decided, and why a name stands for what it does."""

from typing import Any

import click

from substrate.cli import audit_explain, audit_reports, audit_verify, output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import Moment

_PAGE = 1000

_tenant = click.option("--tenant", metavar="ID", help="The tenant, for operators; else the key's own.")


@click.group()
def audit() -> None:
    """Search the audit log and explain decisions."""


@audit.command()
@_tenant
@click.option("--agent", metavar="NAME", help="Only events of this agent.")
@click.option("--pattern", help="Only events about names that match, such as 'doc/*'.")
@click.option("--verb", help="Only this verb, such as invoke.")
@click.option("--outcome", type=click.Choice(["allowed", "refused", "cancelled"]), help="Only this outcome.")
@click.option("--since", type=Moment(), help="From this time on: 2h ago as '2h', or an ISO time (UTC).")
@click.option("--until", type=Moment(), help="Before this time.")
@click.option("--decision-id", metavar="ID", help="Only the event with this id.")
@click.option("--call-id", metavar="ID", help="Only events of this call.")
@click.option("--oldest-first", is_flag=True, help="Begin with the oldest event.")
@click.option("--limit", type=click.IntRange(min=0), default=100, show_default=True, help="At most; 0 for all.")
@connected
def query(remote: Remote, outcome: str | None, limit: int, **fields: Any) -> None:
    """List audit events, the newest first."""
    fields["outcome"] = f"OUTCOME_{outcome.upper()}" if outcome else None
    fields["page_size"] = min(limit or _PAGE, _PAGE)
    answer = remote.collect("AuditService.QueryAuditEvents", "events", limit, **fields)
    rows = [
        (
            output.moment(event.get("time")),
            event["verb"],
            event["agent"] or "-",
            event["requested_name"] or event["name"] or "-",
            output.word(event["outcome"], "OUTCOME"),
            event["reason"] or "-",
            event["actor"],
            event["id"],
        )
        for event in answer["events"]
    ]
    headers = ("TIME", "VERB", "AGENT", "NAME", "OUTCOME", "REASON", "ACTOR", "ID")
    remote.show(answer, output.table(headers, rows))
    if len(rows) == limit:
        output.note(f"At most {limit} events are shown; --limit 0 shows all.")


for command in (audit_explain.explain, audit_reports.who_can, audit_reports.history, audit_reports.usage):
    audit.add_command(command)

for command in (audit_verify.verify, audit_verify.retention):
    audit.add_command(command)
