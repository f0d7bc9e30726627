"""``substrate serve``, ``migrate``, ``bootstrap`` and ``check``: what runs on the server's own machine.

Each imports the server when it runs: loading it takes longer than most commands, which only call one, take in all.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args, get_origin

import click

from substrate.cli import output
from substrate.cli.connection import load_settings, refusals
from substrate.cli.parameters import TextFile
from substrate.settings import CLIENT_SETTINGS, Settings

_config = click.option("--config", type=click.Path(path_type=Path), help="The configuration file, substrate.yaml.")
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")


def _server_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting of a server; the settings themselves check the values."""
    for name, setting in reversed(Settings.model_fields.items()):
        if name not in CLIENT_SETTINGS:
            choices = get_args(setting.annotation) if get_origin(setting.annotation) is Literal else ()
            default = setting.default if isinstance(setting.default, str | int | float) else ""
            option = click.option(
                f"--{name.replace('_', '-')}",
                is_flag=setting.annotation is bool,
                default=None,
                metavar="|".join(choices) or name.rpartition("_")[2].upper(),
                help=f"{setting.description}  [default: {default}]" if default else setting.description,
            )
            command = option(command)
    return command


@click.command()
@_server_settings
@click.option("--worker", is_flag=True, hidden=True)  # For a parent alone, which then talks to it on its input.
def serve(*, worker: bool, **overrides: object) -> None:
    """Run the server until it is told to stop.

    Every option can also be set as SUBSTRATE_<OPTION> in the environment.
    """
    from substrate import bootstrap, serving  # noqa: PLC0415 - see the module's docstring.

    settings = load_settings(**overrides)
    with refusals(*bootstrap.START_ERRORS):
        sys.exit(serving.serve_worker(settings) if worker else serving.serve(settings))


@click.command()
@click.option("--database-url", metavar="URL", help="The database, as a role that may create tables and roles.")
@click.option("--login-role", metavar="NAME", default="substrate_server", show_default=True, help="The server's role.")
@click.option("--login-password-file", "password", type=TextFile(), help="A file with its new password; - is stdin.")
@click.option(
    "--restored", is_flag=True, help="The database is an older copy: refuse the catalog tokens that were given before."
)
@_json
def migrate(database_url: str | None, login_role: str, password: str | None, *, restored: bool, as_json: bool) -> None:
    """Bring a database to the newest schema and make the role that the server logs in as.

    A dump loaded elsewhere, a recovery to a point in time and a promoted standby are told apart from what they were
    without --restored. A copy of the data files is not: run this with --restored on it before a server uses it.
    """
    from substrate import bootstrap  # noqa: PLC0415 - see the module's docstring.

    new_password = password and password.rstrip("\r\n")
    with refusals(*bootstrap.START_ERRORS):
        bootstrap.migrate(_required_url(database_url), login_role, new_password, restored=restored)
    output.show({"login_role": login_role}, f"The database is ready; serve as {login_role}.\n", as_json=as_json)


@click.command("bootstrap")
@click.option("--database-url", metavar="URL", help="The migrated database, as the server's login role.")
@_json
def bootstrap_operator(database_url: str | None, *, as_json: bool) -> None:
    """Make the first operator key and print it, this once."""
    from substrate import bootstrap  # noqa: PLC0415 - see the module's docstring.

    settings = load_settings(database_url=_required_url(database_url))
    with refusals(*bootstrap.START_ERRORS):
        secret = bootstrap.bootstrap_operator(settings)
    output.note("The operator key; it cannot be shown again.")
    output.show({"secret": secret}, f"{secret}\n", as_json=as_json)


@click.command()
@click.argument("bundles", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@_config
@_json
def check(bundles: tuple[Path, ...], config: Path | None, *, as_json: bool) -> None:
    """Check the configuration and the bundles it names, or the folders BUNDLES alone, and list every problem.

    Exit code 1 when something is refused or quarantined; entries of allowlists that can never take effect are warnings.
    """
    from substrate import bootstrap  # noqa: PLC0415 - see the module's docstring.

    if bundles and config:
        raise click.UsageError("Give folders of bundles or --config, not both.")
    with refusals():
        report = bootstrap.check(None if bundles else load_settings(config=config).config, bundles)
    rows = [("refused", place, message) for place, message in report.refused]
    rows += [("quarantined" if found.fatal else "noted", found.place, found.message) for found in report.problems]
    rows += [("warning", place, message) for place, message in report.warnings]
    failed = sum(kind in ("refused", "quarantined") for kind, _, _ in rows)
    text = "".join(output.lines(f"{kind}: {place}: {message}") for kind, place, message in rows)
    text += f"{report.skills} skills, {report.agents} agents; {failed} problems, {len(rows) - failed} remarks.\n"
    findings = [{"kind": kind, "place": place, "message": message} for kind, place, message in rows]
    answer = {"findings": findings, "skills": report.skills, "agents": report.agents}
    output.show(answer, text, as_json=as_json)
    sys.exit(1 if failed else 0)


def _required_url(given: str | None) -> str:
    url = load_settings(database_url=given).database_url
    if url is None:
        raise click.UsageError("Pass --database-url or set SUBSTRATE_DATABASE_URL.")
    return url
