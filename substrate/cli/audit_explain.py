"""``substrate audit explain``: why a name stands for what it does, did at a recorded call, or would after a change."""

from datetime import datetime, timedelta
from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import Moment, TextFile
from substrate.domain.changes import Change, ChangeKind

_PLAIN = {
    kind.value.lower(): kind
    for kind in (
        *(ChangeKind.RETIRE, ChangeKind.UNRETIRE, ChangeKind.DISABLE, ChangeKind.ENABLE),
        *(ChangeKind.LOCK, ChangeKind.UNLOCK),
    )
}
_SPELT = f"{', '.join(_PLAIN)}, promote=2, qualify=bundle, allow='doc/*' or deny='doc/*', the last two also with @3"


class Supposed(click.ParamType[Change]):
    """Reads a change that is only supposed, such as ``retire``, ``promote=2``, ``allow=doc/*`` or ``deny=doc/a@3``."""

    name = "change"

    def convert(self, value: str | Change, param: click.Parameter | None, ctx: click.Context | None) -> Change:
        """Return the change; a usage error when `value` is none."""
        if isinstance(value, Change):
            return value
        word, equals, rest = value.partition("=")
        if word in _PLAIN and not equals:
            return Change(_PLAIN[word])
        if word == "promote" and rest.removeprefix("v").isdecimal():
            return Change(ChangeKind.PROMOTE, version=int(rest.removeprefix("v")))
        if word == "qualify" and rest:
            return Change(ChangeKind.QUALIFY, qualifier=rest.removeprefix("@"))
        if word in ("allow", "deny") and rest:
            pattern, at, index = rest.partition("@")
            if not at or index.isdecimal():
                sign = "-" if word == "deny" else ""
                # An entry of which nobody says where it goes goes where it decides: before all others.
                return Change(ChangeKind.ADD_ENTRY, entry=f"{sign}{pattern}", index=int(index or 0))
        return self.fail(f"{value!r} is no change that can be supposed; write {_SPELT}.", param, ctx)


@click.command()
@click.argument("name", required=False)
@click.option("--agent", metavar="NAME", help="The agent whose allowlist and tools to consider.")
@click.option("--tenant", metavar="ID", help="The tenant, for operators; else the key's own.")
@click.option("--caller", type=click.Choice(["model", "user"]), help="On whose initiative it is asked for; else model.")
@click.option("--path", "touched_paths", metavar="PATH", multiple=True, help="A path that is touched; repeatable.")
@click.option(
    "--at",
    type=Moment(),
    help="Explain the last invocation of NAME by the agent until then: 14:02 (that minute included), 14:02:30 (that "
    "second included), 2h ago as '2h', or an ISO time (UTC).",
)
@click.option("--recorded", metavar="ID", help="Explain the recorded event with this id; without NAME.")
@click.option(
    "--suppose",
    "supposed",
    type=Supposed(),
    multiple=True,
    help=f"Answer as if this were done: {_SPELT} for the position; repeatable, in order.",
)
@click.option(
    "--skills", metavar="ENTRY", multiple=True, help="Answer as if the allowlist were this; repeatable, in order."
)
@click.option("--skills-file", type=TextFile(), help="As --skills, with one entry a line; - reads stdin.")
@connected
def explain(
    remote: Remote,
    name: str | None,
    caller: str | None,
    recorded: str | None,
    at: datetime | None,
    supposed: tuple[Change, ...],
    skills: tuple[str, ...],
    skills_file: str | None,
    **fields: Any,
) -> None:
    """Explain what the skill NAME stands for at this moment, and why, and what would change it.

    With --recorded, or --at: what it stood for when a call was decided, whether that follows from what was kept,
    and what has changed since. An entry that begins with - is taken as it is: --skills 'doc/*' --skills
    '-doc/query'.
    """
    if (name is None) is (recorded is None):
        raise click.UsageError("Give NAME, or --recorded ID.")
    if at is not None:
        recorded, name = _last_invocation(remote, name, at, fields), None
    if skills and skills_file is not None:
        raise click.UsageError("Give --skills or --skills-file, not both.")
    changes = list(supposed)
    if skills_file is not None:
        skills = tuple(line.strip() for line in skills_file.splitlines() if line.strip())
    if skills or skills_file is not None:
        # Entries that are added are added to what is proposed.
        changes.insert(0, Change(ChangeKind.SET_ALLOWLIST, entries=skills))
    answer = remote.call(
        "AuditService.ExplainResolution",
        name=name,
        recorded=recorded,
        caller_kind=f"CALLER_KIND_{caller.upper()}" if caller else None,
        changes=[_message(change) for change in changes],
        **fields,
    )
    remote.show(answer, output.lines(answer["text"]))


def _last_invocation(remote: Remote, name: str | None, at: datetime, fields: dict[str, Any]) -> str:
    """Return the id of the last invocation of `name` by the agent no later than `at`."""
    agent = fields.pop("agent")
    if name is None or agent is None:
        raise click.UsageError("Give NAME and --agent with --at, and no --recorded.")
    found = remote.call(
        "AuditService.QueryAuditEvents",
        tenant=fields.get("tenant"),
        agent=agent,
        pattern=name.partition("@")[0],
        verb="invoke",
        until=at + _span(at),
        page_size=1,
    )
    if not found["events"]:
        raise output.Refusal(f"No invocation of '{name}' by agent '{agent}' is recorded until {at:%Y-%m-%dT%H:%M:%SZ}.")
    event_id: str = found["events"][0]["id"]
    return event_id


def _span(at: datetime) -> timedelta:
    """Return how long a time lasts that a person has named: a minute or a second is meant whole."""
    if at.microsecond:
        return timedelta(microseconds=1)
    return timedelta(seconds=1) if at.second else timedelta(minutes=1)


def _message(change: Change) -> dict[str, Any]:
    return {
        "kind": f"CHANGE_KIND_{change.kind.value}",
        "entries": change.entries,
        "entry": change.entry,
        "index": change.index,
        "version": change.version,
        "qualifier": change.qualifier,
    }
