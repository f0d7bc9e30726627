"""``substrate audit verify`` and ``retention``: whether the audit is as it was written, and how months of it go."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected, load_settings, refusals

_ALL = "all"
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)

_path = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "--tenant", metavar="ID", help=f"The tenant, or '{_ALL}' for every tenant, for operators; else the key's own."
)
@click.option("--file", type=_path, metavar="EXPORT", help="Verify this export instead, without a server.")
@click.option("--checkpoints", type=_path, help="With --file: hold it against these signed checkpoints.")
@click.option("--public-key", type=_path, help="With --checkpoints: the PEM file of the key that verifies them.")
@connected
def verify(
    remote: Remote, tenant: str | None, file: Path | None, checkpoints: Path | None, public_key: Path | None
) -> None:
    """Verify that the audit is as it was written, and name the first event that is not.

    The server holds the chains against its own checkpoints. An export is held against those that are given: copy them
    before it is made, since what was signed later is missed in it. With --tenant all it must hold every chain that was
    signed. Exit code 1 when anything is wrong.
    """
    if file is None:
        if checkpoints or public_key:
            raise click.UsageError("--checkpoints and --public-key go with --file; the server has its own.")
        fields = {"tenant": "" if tenant == _ALL else tenant}
        reports = [answer for answer in remote.stream("AuditService.VerifyAudit", **fields) if answer["done"]]
    else:
        if (checkpoints is None) is not (public_key is None):
            raise click.UsageError("Pass both --checkpoints and --public-key, or neither.")
        reports = _of_export(file, checkpoints, public_key, whole=tenant == _ALL)
        if tenant not in (None, _ALL):
            reports = [report for report in reports if report["tenant"] == tenant]
        if not reports:
            raise output.Refusal(f"{file} holds no events to verify.")
        if any(report["first_bad_sequence"] > report["last_sequence"] for report in reports):
            output.note("Was the export made before the checkpoints were copied? Then copy, export and verify again.")
        if checkpoints is None:
            output.note("Without --checkpoints a chain that was rewritten whole, or cut at its end, passes for intact.")
    remote.show({"chains": reports}, "".join(map(_line, reports)))
    sys.exit(0 if all(report["intact"] for report in reports) else 1)


def _of_export(file: Path, checkpoints: Path | None, key: Path | None, *, whole: bool) -> list[dict[str, Any]]:
    from substrate.domain.checkpoints import Signed  # noqa: PLC0415 - loads what no other command needs.
    from substrate.services.exports import verify_export  # noqa: PLC0415 - as above.
    from substrate.store.checkpoint_file import read_checkpoints  # noqa: PLC0415 - as above.
    from substrate.store.signing_keys import public_key  # noqa: PLC0415 - as above.

    with refusals(OSError):
        signed = read_checkpoints(checkpoints, public_key(key)) if checkpoints and key else Signed()
        with file.open("rb") as lines:
            reports = verify_export(lines, signed, whole=whole)
    return [
        {
            "tenant": report.tenant,
            "checked_count": report.checked,
            "done": report.done,
            "intact": report.intact,
            "first_bad_sequence": report.first_bad,
            "problem": report.problem,
            "first_sequence": report.first,
            "last_sequence": report.last,
            "checkpoint_count": report.checkpoints,
            "last_checkpoint_sequence": report.last_checkpoint,
        }
        for report in reports
    ]


def _line(report: dict[str, Any]) -> str:
    tenant, checked, signed = report["tenant"], report["checked_count"], report["checkpoint_count"]
    held = f"held against {signed} checkpoint{'' if signed == 1 else 's'}"
    if signed:
        held += f", the last of event {report['last_checkpoint_sequence']}"
    if report["intact"]:
        span = f", {report['first_sequence']} to {report['last_sequence']}" if checked else ""
        return output.lines(f"{tenant}: intact; {checked} events{span}; {held}.")
    bad = f"first bad event {report['first_bad_sequence']}: " if report["first_bad_sequence"] else ""
    return output.lines(f"{tenant}: NOT INTACT; {bad}{report['problem']} ({checked} events checked; {held})")


@click.command()
@click.option("--before", required=True, metavar="YYYY-MM", help="Drop the months before this one, a past month.")
@click.option("--database-url", metavar="URL", help="The database, as the owner of its tables; else the embedded one.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where the embedded server that runs has its data.")
@click.option("--checkpoints", type=_path, help="The server's file of checkpoints; else the one that is set.")
@click.option("--signing-key", type=_path, help="The key that signs them; else the one that is set.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
def retention(
    before: str,
    database_url: str | None,
    data_dir: Path | None,
    checkpoints: Path | None,
    signing_key: Path | None,
    *,
    as_json: bool,
) -> None:
    """Drop whole months of the audit, for all tenants, on the server's own machine.

    Every chain is verified first, and nothing is dropped when one is not intact. Where each chain begins from then on
    is signed into the server's checkpoints. Events in the default partition stay, however old.
    """
    from substrate import bootstrap  # noqa: PLC0415 - loading the server takes long.

    first = _past_month(before)
    settings = load_settings(
        database_url=database_url, data_dir=data_dir, audit_checkpoints=checkpoints, audit_signing_key=signing_key
    )
    dropped: list[dict[str, Any]] = []
    with refusals(*bootstrap.RETENTION_ERRORS):
        for month in bootstrap.retention(settings, first):
            dropped.append(asdict(month))
            output.note(f"Dropped {month.month}: {month.events} events of {month.tenants} tenants.")
    output.show({"dropped": dropped}, _summary(dropped, before), as_json=as_json)


def _past_month(text: str) -> date:
    if not _MONTH.fullmatch(text) or text.startswith("0000"):
        raise click.BadParameter(f"{text!r} is no month such as 2026-01.", param_hint="--before")
    first = date.fromisoformat(f"{text}-01")
    if first >= datetime.now(UTC).date().replace(day=1):
        raise click.BadParameter(
            f"{text} is not over: name a past month, so that the last whole month stays.", param_hint="--before"
        )
    return first


def _summary(dropped: Sequence[dict[str, Any]], before: str) -> str:
    if not dropped:
        return f"There is no month before {before} to drop.\n"
    return f"The audit begins with {before} or later; {len(dropped)} months were dropped.\n"
