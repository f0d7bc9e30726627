"""``substrate audit query``, ``tail``, ``show`` and ``export``: events of the audit log found, followed and kept."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import Moment
from substrate.domain.audit import chain_hash
from substrate.domain.recorded import readable

ALL = "all"
"""Stands for every tenant where one can be named."""

_PAGE = 1000
_QUERY = "AuditService.QueryAuditEvents"
_STYLES = {"OUTCOME": {"allowed": "green", "refused": "red", "cancelled": "yellow"}}
_HEADERS = ("TIME", "VERB", "AGENT", "NAME", "OUTCOME", "REASON", "ACTOR", "ID")
_WIDTHS = (20, 10, 16, 28, 9, 20, 36, 36)
"""How wide the columns of rows are that are printed before the next ones are known."""

_CONDITIONS = (
    click.option(
        "--tenant", metavar="ID", help=f"The tenant, or '{ALL}' for every tenant, for operators; else the key's own."
    ),
    click.option("--agent", metavar="NAME", help="Only events of this agent."),
    click.option("--pattern", help="Only events about names that match, such as 'doc/*'."),
    click.option("--verb", help="Only this verb, such as invoke."),
    click.option("--outcome", type=click.Choice(["allowed", "refused", "cancelled"]), help="Only this outcome."),
    click.option("--reason", help="Only this reason of refusal, such as SKILL_NOT_FOUND."),
    click.option("--denied-only", is_flag=True, help="Only what an allowlist denied."),
    click.option(
        "--layer", type=click.Choice(["tenant", "inline", "bundle"]), help="Only with a winner of this layer."
    ),
    click.option("--version", type=click.IntRange(min=1), help="Only with this version of a SkillDef as the winner."),
    click.option("--shadowed-only", is_flag=True, help="Only where the winner shadowed another candidate."),
    click.option("--actor", help="Only what this actor did, as the column ACTOR has it."),
    click.option("--arguments", help="Only calls with exactly these arguments."),
    click.option("--call-id", metavar="ID", help="Only events of this call."),
    click.option("--since", type=Moment(), help="From this time on: 2h ago as '2h', or an ISO time (UTC)."),
)


def _conditions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which events are meant."""
    for option in reversed(_CONDITIONS):
        command = option(command)
    return command


def _asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that the options stand for."""
    asked = dict(fields)
    outcome, layer = asked["outcome"], asked.pop("layer")
    asked["outcome"] = f"OUTCOME_{outcome.upper()}" if outcome else None
    asked["winner_layer"] = f"LAYER_{layer.upper()}" if layer else None
    asked["tenant"] = _scope(asked["tenant"])
    return asked


def _scope(tenant: str | None) -> str | None:
    # An empty tenant is sent with an operator's key; without one it would be the author's.
    return "" if tenant == ALL else tenant


@click.command()
@_conditions
@click.option("--until", type=Moment(), help="Before this time.")
@click.option("--decision-id", metavar="ID", help="Only the event with this id.")
@click.option("--oldest-first", is_flag=True, help="Begin with the oldest event.")
@click.option("--limit", type=click.IntRange(min=0), default=100, show_default=True, help="At most; 0 for all.")
@connected
def query(remote: Remote, limit: int, **fields: Any) -> None:
    """List audit events, the newest first."""
    answer = remote.collect(_QUERY, "events", limit, **_asked(fields), page_size=min(limit or _PAGE, _PAGE))
    of_all = fields["tenant"] == ALL
    rows = [_row(event, of_all=of_all) for event in answer["events"]]
    remote.show(answer, output.table(_headers(of_all=of_all), rows, _STYLES))
    if len(rows) == limit:
        output.note(f"There may be more than the {limit} that are shown; --limit 0 shows all.")


@click.command()
@_conditions
@click.option("--position", default="", metavar="TEXT", help="Go on where an earlier tail said that it ended.")
@connected
def tail(remote: Remote, position: str, **fields: Any) -> None:
    """Follow the audit: print events as they are written, until interrupted.

    Begins with what is written from now on, or with --since. When the connection is lost it goes on where it was.
    With --json each event is one line.
    """
    of_all = fields["tenant"] == ALL
    headers = None if remote.as_json else _headers(of_all=of_all)
    try:
        for message in remote.follow("AuditService.TailAuditEvents", position, **_asked(fields)):
            position = message["position"]
            # Not before the first message: a stream that is refused has printed nothing.
            if headers:
                _print(output.row(headers, _widths(of_all=of_all)))
                headers = None
            for event in message["events"]:
                if remote.as_json:
                    _print(json.dumps(event) + "\n")
                else:
                    cells = _row(event, of_all=of_all)
                    _print(output.row(cells, _widths(of_all=of_all), _headers(of_all=of_all), _STYLES))
    except KeyboardInterrupt:
        # This is how it is meant to end.
        output.note(f"Go on with --position {position}")


@click.command()
@click.argument("event_id", metavar="ID")
@click.option(
    "--tenant", metavar="ID", help=f"The tenant, or '{ALL}' for any tenant, for operators; else the key's own."
)
@connected
def show(remote: Remote, event_id: str, tenant: str | None) -> None:
    """Show everything that is recorded about the event ID: the decision_id of an answer, or of an error."""
    answer = remote.call("AuditService.GetAuditEvent", id=event_id, tenant=_scope(tenant))
    if not _is_as_written(answer["event"]):
        output.warn("This event is not what was written; see `substrate audit verify`.")
    remote.show(answer, _told(answer["event"]))


@click.command()
@click.option(
    "--tenant", metavar="ID", help=f"The tenant, or '{ALL}' for every tenant, for operators; else the key's own."
)
@click.option("--output", "path", type=click.Path(path_type=Path, dir_okay=False), help="The file; else stdout.")
@connected
def export(remote: Remote, tenant: str | None, path: Path | None) -> None:
    """Write the whole audit of a tenant as JSON lines, the oldest event first, as `audit verify --file` reads it.

    Each line has tenant, sequence, previous_hash and hash (in hex), and event: the stored text, byte for byte.
    """
    scopes = [tenant]
    if tenant == ALL:
        # One chain after the other: each is in its own order then.
        listed = remote.collect("TenantService.ListTenants", "tenants", page_size=_PAGE)
        scopes = [each["tenant"] for each in listed["tenants"]]
    count = 0
    with _opened(path) as file:
        for scope in scopes:
            for event in remote.each(_QUERY, "events", tenant=scope, oldest_first=True, page_size=_PAGE):
                line = {name: event[name] for name in ("tenant", "sequence", "previous_hash", "hash")}
                file.write(json.dumps({**line, "event": event["event_json"]}) + "\n")
                count += 1
    if path is not None:
        output.note(f"{count} events are in {path}.")


@contextmanager
def _opened(path: Path | None) -> Iterator[IO[str]]:
    """Give what to write to; a file appears under its name only when it is complete."""
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise output.Refusal(f"{path} cannot be written: {error.strerror}.") from None


def _headers(*, of_all: bool) -> tuple[str, ...]:
    return (*_HEADERS[:1], "TENANT", *_HEADERS[1:]) if of_all else _HEADERS


def _widths(*, of_all: bool) -> tuple[int, ...]:
    return (*_WIDTHS[:1], 16, *_WIDTHS[1:]) if of_all else _WIDTHS


def _row(event: Mapping[str, Any], *, of_all: bool) -> tuple[str, ...]:
    return (
        output.moment(event.get("time")),
        *((event["tenant"],) if of_all else ()),
        event["verb"],
        event["agent"] or "-",
        event["requested_name"] or event["name"] or "-",
        "rehearsed" if _details(event).get("validate_only") else output.word(event["outcome"], "OUTCOME"),
        event["reason"] or "-",
        event["actor"] or "-",
        event["id"],
    )


def _details(event: Mapping[str, Any]) -> dict[str, Any]:
    # What was tampered with is shown as far as it can be.
    return dict(readable(event["event_json"]).get("details", {}))


def _is_as_written(event: Mapping[str, Any]) -> bool:
    stored: str = event["hash"]
    previous = bytes.fromhex(event["previous_hash"])
    return chain_hash(previous, event["sequence"], event["event_json"]).hex() == stored


def _print(line: str) -> None:
    # What is followed is to be seen at once, through a pipe too.
    sys.stdout.write(line)
    sys.stdout.flush()


def _told(event: Mapping[str, Any]) -> str:
    """Lay out an event, without what is empty."""
    decision = event.get("decision")
    winner = event.get("winner")
    facts = [
        ("id", event["id"]),
        ("tenant", event["tenant"]),
        ("sequence", event["sequence"]),
        ("time", event.get("time")),
        ("verb", event["verb"]),
        ("requested", event["requested_name"]),
        ("name", event["name"]),
        ("outcome", output.word(event["outcome"], "OUTCOME")),
        ("reason", event["reason"]),
        ("agent", event["agent"]),
        ("decision", _decision(decision) if decision else ""),
        ("winner", winner["origin"] if winner else ""),
        ("pin", event["pin"]),
        ("drafts", "reached" if event["drafts"] else ""),
        ("caller kind", output.word(event["caller_kind"], "CALLER_KIND")),
        ("touched", f"{event['touched_count']} paths {event['touched_path']}" if event["touched_count"] else ""),
        ("actor", event["actor"]),
        ("role", output.word(event["role"], "ROLE")),
        ("key", event["key_id"]),
        ("call", event["call_id"]),
        ("run", event["run_id"] and f"{event['run_id']}, turn {event['turn']}"),
        ("filter", event["filter"]),
        ("admitted", event["admitted_count"] or ""),
        ("left out", event["left_out_count"] or ""),
        ("entries", event["entries_sha256"]),
        ("arguments HMAC", event["arguments_hmac"]),
        ("catalog revision", event["catalog_revision"] or ""),
        ("static state", event["static_digest"]),
        ("agent as it was", event["agent_sha256"]),
        ("allowlist", event["allowlist_sha256"]),
        ("server", event["server"]),
        ("decided after", f"{event['duration_us'] / 1000:g} ms"),
        ("hash", event["hash"]),
        ("previous hash", event["previous_hash"]),
    ]
    details = _details(event)
    facts.append(("details", json.dumps(details) if details else ""))
    text = output.details(facts)
    if event["candidates"]:
        rows = [
            (output.word(each["state"], "CANDIDATE_STATE"), each["origin"], each["content_sha256"])
            for each in event["candidates"]
        ]
        text += "\n" + output.table(("CANDIDATE", "ORIGIN", "SHA256"), rows)
    return text


def _decision(decision: Mapping[str, Any]) -> str:
    allowed = "allowed" if decision["allowed"] else "denied"
    by = f" by entry {decision['index']}: {decision['entry']}" if decision.get("index") is not None else ""
    return f"{allowed}{by} ({output.word(decision['reason'], 'ALLOWLIST_REASON')})"
