"""``substrate agent``: a tenant's agents and what their allowlists decide.

A file with an agent is a YAML mapping of `description`, `tools`, `skills` and `definition`, as in a bundle, or a JSON
object of the same. Scalars in YAML are text; JSON keeps the types that a definition needs.
"""

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
@click.option("--etag", help="Fail when the agent has changed since this etag was read.")
@connected
def put(remote: Remote, name: str, text: str, etag: str | None) -> None:
    """Create the agent NAME from FILE (YAML or JSON), or replace it whole; - reads stdin."""
    wanted = _read(name, text)
    fields = {
        "name": name,
        "description": wanted.description,
        "tools": None if wanted.tools is None else {"names": wanted.tools},
        "skills": wanted.allowlist.texts(),
        "definition_json": wanted.definition_json,
    }
    answer = remote.call("AgentService.PutAgent", agent=fields, etag=etag)
    _warn(answer)
    remote.show(answer, f"Put agent {name}.\n{output.details(_facts(answer['agent']))}")


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
@click.option("--agent", metavar="NAME", help="Test the allowlist that this agent has.")
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

    An entry that begins with - is taken as it is: -e 'doc/*' -e '-doc/chunk-delete' -n doc/query.
    """
    if sum(map(bool, (agent, entries, text is not None))) != 1:
        raise click.UsageError("Give one of --agent, --entry and --file.")
    skills = _read("agent", text).allowlist.texts() if text is not None else entries
    answer = remote.call("AgentService.TestAllowlist", agent=agent, skills=skills, names=names)
    _warn(answer)
    if answer["denies_all"]:
        output.note("The allowlist denies every name: its agent is offered no tool.")
    rows = [_decided(entry["name"], entry["decision"]) for entry in answer["decisions"]]
    remote.show(answer, output.table(("NAME", "DECISION", "REASON", "ENTRY"), rows))


def _read(name: str, text: str) -> Agent:
    """Return the agent that a file's text defines."""
    is_json = text.lstrip().startswith("{")
    try:
        data = json.loads(text, object_pairs_hook=_unique) if is_json else load(text, max_bytes=_MAX_FILE_BYTES).data
    except (ValueError, RecursionError, PlainYamlError) as error:
        raise output.Refusal(f"The file with the agent cannot be read: {error}") from None
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
    return json.dumps(data, indent=2) + "\n"


def _facts(entry: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("name", entry["name"]),
        ("description", entry["description"]),
        ("skills", _skills(entry)),
        ("tools", _tools(entry)),
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


def _warn(answer: dict[str, Any]) -> None:
    for warning in answer["warnings"]:
        output.warn(f"entry {warning['index']} {warning['entry']}: {warning['message']}")
