"""``substrate audit``: what was decided, and why a name stands for what it does."""

import click

from substrate.cli import audit_explain, audit_log, audit_reports, audit_verify


@click.group()
def audit() -> None:
    """Search the audit log and explain decisions."""


for command in (audit_log.query, audit_log.tail, audit_log.show, audit_log.export):
    audit.add_command(command)

for command in (audit_explain.explain, audit_reports.who_can, audit_reports.history, audit_reports.usage):
    audit.add_command(command)

for command in (audit_verify.verify, audit_verify.retention):
    audit.add_command(command)
