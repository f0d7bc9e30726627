"""``substrate catalog``: what every layer says about every name."""

from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected


@click.group()
def catalog() -> None:
    """Look into the merged catalog, as an author."""


@catalog.command("list")
@click.option("--agent", metavar="NAME", help="Only names that this agent's allowlist permits.")
@click.option("--pattern", help="Only names that match, such as 'doc/*'.")
@connected
def list_(remote: Remote, **fields: Any) -> None:
    """List every name with all its candidates, from the highest layer to the lowest."""
    answer = remote.collect("SkillDefService.ListCatalog", "entries", **fields)
    rows = [
        (
            entry["name"],
            output.word(candidate["state"], "CANDIDATE_STATE"),
            output.word(candidate["layer"], "LAYER"),
            output.word(entry["mode"], "NAME_MODE"),
            candidate["origin"],
            candidate["problem"],
        )
        for entry in answer["entries"]
        for candidate in entry["candidates"]
    ]
    remote.show(answer, output.table(("NAME", "STATE", "LAYER", "MODE", "ORIGIN", "PROBLEM"), rows))
