"""``substrate serve``, ``migrate``, ``bootstrap`` and ``check``: what runs on the server's own machine.

Each imports the server when it runs: loading it takes longer than most commands, which only call one, take in all.
"""

import sys
from pathlib import Path

import click

from substrate.cli import output
from substrate.cli.connection import load_settings, refusals
from substrate.cli.parameters import TextFile

_config = click.option("--config", type=click.Path(path_type=Path), help="The configuration file, substrate.yaml.")
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")


@click.command()
@_config
@click.option("--listen", metavar="HOST:PORT", help="Where to listen; else 127.0.0.1:50051.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where to keep the database and keys.json.")
@click.option("--database-url", metavar="URL", help="The PostgreSQL to use; without one the server starts its own.")
@click.option("--insecure", is_flag=True, default=None, help="Listen beyond this machine without TLS.")
@click.option("--threads", type=int, help="How many calls to work on at once.")
@click.option("--audit-mode", metavar="MODE", help="strict (answer when recorded) or best_effort.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="json or console.")
def serve(**overrides: object) -> None:
    """Run the server until it is told to stop.

    Every option can also be set as SUBSTRATE_<OPTION> in the environment.
    """
    from substrate import bootstrap  # noqa: PLC0415 - see the module's docstring.

    settings = load_settings(**overrides)
    with refusals():
        sys.exit(bootstrap.serve(settings))


@click.command()
@click.option("--database-url", metavar="URL", help="The database, as a role that may create tables and roles.")
@click.option("--login-role", metavar="NAME", default="substrate_server", show_default=True, help="The server's role.")
@click.option("--login-password-file", "password", type=TextFile(), help="A file with its new password; - is stdin.")
@_json
def migrate(database_url: str | None, login_role: str, password: str | None, *, as_json: bool) -> None:
    """Bring a database to the newest schema and make the role that the server logs in as."""
    from substrate import bootstrap  # noqa: PLC0415 - see the module's docstring.

    with refusals():
        bootstrap.migrate(_required_url(database_url), login_role, password and password.rstrip("\r\n"))
    output.show({"login_role": login_role}, f"The database is ready; serve as {login_role}.\n", as_json=as_json)


@click.command("bootstrap")
@click.option("--database-url", metavar="URL", help="The migrated database, as the server's login role.")
@_json
def bootstrap_operator(database_url: str | None, *, as_json: bool) -> None:
    """Make the first operator key and print it, this once."""
    from substrate import bootstrap  # noqa: PLC0415 - see the module's docstring.

    settings = load_settings(database_url=_required_url(database_url))
    with refusals():
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
