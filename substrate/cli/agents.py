"""``substrate agent``: a tenant's agents and what their allowlists decide.

A file with an agent is a YAML mapping of `description`, `tools`, `skills` and `definition`, as in a bundle, and of
`pins`, or a JSON object of the same. Scalars in YAML are text; JSON keeps the types that a definition needs.
"""

import contextlib
import json
from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected, refusals
from substrate.cli.parameters import TextFile
from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import LayerKind
from substrate.domain.plainyaml import PlainYamlError, load

_MAX_FILE_BYTES = 256 * 1024


@click.group()
def agent() -> None:
    """Define agents and try allowlists."""


@agent.command()
@click.argument("name")
@click.argument("text", metavar="FILE", type=TextFile())
@click.option(
    "--pin",
    "pins",
    metavar="NAME=PIN",
    multiple=True,
    help="Let the skill NAME be version v3, or the version of a label, for this agent; repeatable, adds to FILE's.",
)
@click.option(
    "--etag", help="Fail when the agent has changed since this etag was read; else what is there is replaced."
)
@connected
def put(remote: Remote, name: str, text: str, pins: tuple[str, ...], etag: str | None) -> None:
    """Create the agent NAME from FILE (YAML or JSON), or replace it whole; - reads stdin.

    Without --etag the agent's present etag is read first, so what somebody else has just changed is replaced too.
    """
    wanted = _read(name, text, dict(map(_pin, pins)))
    fields = {
        "name": name,
        "description": wanted.description,
        "tools": None if wanted.tools is None else {"names": wanted.tools},
        "skills": wanted.allowlist.texts(),
        "definition_json": wanted.definition_json,
        "pins": wanted.pins,
    }
    answer = remote.call("AgentService.PutAgent", agent=fields, etag=_etag(remote, name) if etag is None else etag)
    _warn(answer)
    remote.show(answer, f"Put agent {name}.\n{output.details(_facts(answer['agent']))}")


@agent.command()
@click.argument("name")
@click.option("--etag", help="Fail when the agent has changed since this etag was read; else what is there is deleted.")
@connected
def delete(remote: Remote, name: str, etag: str | None) -> None:
    """Delete the tenant's own agent NAME; an agent of the configuration or of a bundle comes to light again.

    Without --etag the agent's present etag is read first. Keys that are bound to the agent stay bound to its name.
    """
    answer = remote.call("AgentService.DeleteAgent", name=name, etag=_etag(remote, name) if etag is None else etag)
    below = answer.get("agent")
    stands_for = f"{name} now stands for {below['origin']}." if below else f"There is no agent {name} any more."
    remote.show(answer, output.lines(f"Deleted agent {name}. {stands_for}"))


@agent.command()
@click.argument("name", required=False)
@click.option("--source", is_flag=True, help="Print the definition as JSON, as `agent put` takes it.")
@connected
def get(remote: Remote, name: str | None, *, source: bool) -> None:
    """Show the agent NAME; a key bound to an agent may leave it out."""
    answer = remote.call("AgentService.GetAgent", name=name)
    remote.show(answer, _source(answer["agent"]) if source else output.details(_facts(answer["agent"])))


@agent.command("list")
@connected
def list_(remote: Remote) -> None:
    """List every agent that the tenant can act for."""
    answer = remote.collect("AgentService.ListAgents", "agents")
    rows = [
        (entry["name"], output.word(entry["layer"], "LAYER"), _skills(entry), _tools(entry), entry["description"])
        for entry in answer["agents"]
    ]
    remote.show(answer, output.table(("NAME", "LAYER", "SKILLS", "TOOLS", "DESCRIPTION"), rows))


@agent.command()
@click.option(
    "--agent", metavar="NAME", help="Test this agent's allowlist, or show what the proposed one would change."
)
@click.option(
    "--entry", "-e", "entries", metavar="ENTRY", multiple=True, help="An entry to test, in order; repeatable."
)
@click.option("--file", "text", type=TextFile(), help="Test the allowlist in this file, as `agent put` takes it.")
@click.option("--name", "-n", "names", metavar="NAME", multiple=True, help="A skill's name to decide; repeatable.")
@connected
def test_allowlist(
    remote: Remote, agent: str | None, entries: tuple[str, ...], text: str | None, names: tuple[str, ...]
) -> None:
    """Say what an allowlist decides for names, and which of its entries can never take effect.

    With --agent beside --entry or --file: which skills of the catalog the agent would gain and lose by it.

    An entry that begins with - is taken as it is: -e 'doc/*' -e '-doc/chunk-delete' -n doc/query.
    """
    proposals = sum(map(bool, (entries, text is not None)))
    if proposals > 1 or not (proposals or agent):
        raise click.UsageError("Give --entry or --file, or --agent, or --agent with one of them.")
    skills = _read("agent", text).allowlist.texts() if text is not None else list(entries)
    if agent and text is not None and not skills:
        # Without entries the request would be about the allowlist that the agent has.
        raise click.UsageError("The file has no allowlist, which admits every skill; there is nothing to compare.")
    answer = remote.call("AgentService.TestAllowlist", agent=agent, skills=skills, names=names)
    _warn(answer)
    if answer["denies_all"]:
        output.note("The allowlist denies every name: its agent is offered no tool.")
    output.note(f"It admits {answer['admitted_count']} of the skills in the catalog.")
    compared = bool(agent and skills)
    parts = [_changes(agent or "", answer)] if compared else []
    if names or not compared:
        rows = [_decided(entry["name"], entry["decision"]) for entry in answer["decisions"]]
        parts.insert(0, output.table(("NAME", "DECISION", "REASON", "ENTRY"), rows))
    remote.show(answer, "\n".join(parts))


def _etag(remote: Remote, name: str) -> str:
    """Return the etag of the tenant's agent as it is now; empty when it has none of the name."""
    # Where reading is refused, there is no such agent, or the change is refused for the same reason.
    with contextlib.suppress(output.Refusal):
        return str(remote.call("AgentService.GetAgent", name=name)["agent"]["etag"])
    return ""


def _pin(text: str) -> tuple[str, str]:
    name, equals, pin = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is no pin such as doc/query=v3 or doc/query=staging.")
    return name, pin


def _read(name: str, text: str, pins: dict[str, str] | None = None) -> Agent:
    """Return the agent that a file's text defines, with more `pins`."""
    is_json = text.lstrip().startswith("{")
    try:
        read = json.loads(text, object_pairs_hook=_unique) if is_json else load(text, max_bytes=_MAX_FILE_BYTES).data
    except (ValueError, RecursionError, PlainYamlError) as error:
        raise output.Refusal(f"The file with the agent cannot be read: {error}") from None
    data: Any = read
    if pins and isinstance(data, dict) and isinstance(data.get("pins", {}), dict):
        data = {**data, "pins": {**data.get("pins", {}), **pins}}
    with refusals():
        return parse_agent(name, data, LayerKind.TENANT, "tenant")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("an object has the same key twice.")
    return data


def _source(entry: dict[str, Any]) -> str:
    data = {"description": entry["description"]}
    if "tools" in entry:
        data["tools"] = entry["tools"]["names"]
    data |= {"skills": entry["skills"], "definition": json.loads(entry["definition_json"] or "{}")}
    if entry["pins"]:
        data["pins"] = dict(sorted(entry["pins"].items()))
    return json.dumps(data, indent=2) + "\n"


def _facts(entry: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("name", entry["name"]),
        ("description", entry["description"]),
        ("skills", _skills(entry)),
        ("tools", _tools(entry)),
        ("pins", ", ".join(f"{name}={pin}" for name, pin in sorted(entry["pins"].items()))),
        ("layer", output.word(entry["layer"], "LAYER")),
        ("origin", entry["origin"]),
        ("sha256", entry["content_sha256"]),
        ("allowlist sha256", entry["allowlist_sha256"]),
        ("etag", entry["etag"]),
        ("created", output.moment(entry.get("create_time"))),
        ("updated", output.moment(entry.get("update_time"))),
    ]


def _skills(entry: dict[str, Any]) -> str:
    return ", ".join(entry["skills"]) or "all"


def _tools(entry: dict[str, Any]) -> str:
    return (", ".join(entry["tools"]["names"]) or "none") if "tools" in entry else "all"


def _decided(name: str, decision: dict[str, Any]) -> tuple[str, str, str, str]:
    allowed = "allowed" if decision["allowed"] else "denied"
    entry = f"{decision['index']}: {decision['entry']}" if "index" in decision else "-"
    return name, allowed, decision["reason"].removeprefix("ALLOWLIST_REASON_"), entry


def _changes(agent: str, answer: dict[str, Any]) -> str:
    """Say what the agent would gain and lose."""
    if not answer["gained_count"] and not answer["lost_count"]:
        return output.lines(f"The agent {agent} would gain and lose nothing.")
    rows = [(change, name) for change, field in (("gains", "gained"), ("loses", "lost")) for name in answer[field]]
    counts = f"The agent {agent} would gain {answer['gained_count']} and lose {answer['lost_count']}."
    more = answer["gained_count"] + answer["lost_count"] - len(rows)
    left_out = f"... and {more} more.\n" if more else ""
    return output.lines(counts) + output.table(("CHANGE", "NAME"), rows) + left_out


def _warn(answer: dict[str, Any]) -> None:
    for warning in answer["warnings"]:
        output.warn(f"entry {warning['index']} {warning['entry']}: {warning['message']}")
