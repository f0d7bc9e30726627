"""The command line: `main` runs it."""

import sys
from collections.abc import Sequence

import click

from substrate.cli.agents import agent
from substrate.cli.audit import audit
from substrate.cli.catalog import catalog
from substrate.cli.serve import bootstrap_operator, check, migrate, serve
from substrate.cli.skill_defs import skilldef
from substrate.cli.skills import skill
from substrate.cli.tenants import key, tenant

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="skill-substrate", message="%(prog)s %(version)s")
def commands() -> None:
    """Decide which skills exist, which an agent may use, and prove each decision."""


for _command in (serve, migrate, bootstrap_operator, check, skill, skilldef, catalog, agent, audit, tenant, key):
    commands.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` (else the process's own) ask for, and exit.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
    """
    try:
        sys.exit(commands.main(arguments, prog_name="substrate", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
