"""``substrate skill``: what an agent runtime asks for."""

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected

_CALLERS = {"model": "CALLER_KIND_MODEL", "user": "CALLER_KIND_USER"}


@click.group()
def skill() -> None:
    """List, invoke and read skills as an agent."""


def _as_agent(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say for whom it acts; they fill the request fields of the same names."""
    agent = click.option("--agent", metavar="NAME", help="The agent to act for; not needed with a key bound to one.")
    run_id = click.option("--run-id", metavar="ID", help="The run to note in the audit log.")
    touched_paths = click.option(
        "--touched-path", "touched_paths", metavar="PATH", multiple=True, help="A file the run is about; repeatable."
    )
    return agent(run_id(touched_paths(command)))


def _caller(context: click.Context, parameter: click.Parameter, value: str) -> str:
    del context, parameter
    return _CALLERS[value]


_as_caller = click.option(
    "--caller",
    "caller_kind",
    type=click.Choice(list(_CALLERS)),
    default="model",
    callback=_caller,
    help="On whose initiative; skills may exclude either.",
)


@skill.command("list")
@_as_agent
@_as_caller
@click.option("--pattern", help="Only names that match, such as 'doc/*'.")
@connected
def list_(remote: Remote, **fields: Any) -> None:
    """List the skills that the agent can invoke."""
    answer = remote.collect("SkillService.ListSkills", "skills", **fields)
    rows = [(entry["name"], entry["argument_hint"], entry["description"]) for entry in answer["skills"]]
    remote.show(answer, output.table(("NAME", "ARGUMENTS", "DESCRIPTION"), rows))


@skill.command()
@click.argument("name")
@_as_agent
@_as_caller
@click.option("--arguments", metavar="TEXT", help="The arguments as one line, quotes grouping words.")
@click.option("--skill-dir", metavar="DIR", help="Where the skill's files lie for the agent.")
@click.option("--expected-digest", metavar="SHA256", help="Fail when the skill has another digest.")
@connected
def invoke(remote: Remote, **fields: Any) -> None:
    """Print the body of the skill NAME as it is, and where it comes from on stderr.

    NAME may end in @bundle, @inline or @v<number> to ask for another candidate.
    """
    answer = remote.call("SkillService.InvokeSkill", **fields)
    output.note(f"{answer['name']} from {answer['origin']}, sha256 {answer['content_sha256']}")
    if answer["allowed_tools"]:
        output.note(f"tools: {', '.join(answer['allowed_tools'])}")
    for file in answer["files"]:
        output.note(f"file: {file['path']} ({file['size']} bytes, {file['media_type']})")
    if answer["files_omitted"]:
        output.note(f"and {answer['files_omitted']} more files")
    remote.show(answer, answer["body"].encode())


@skill.command()
@click.argument("name")
@click.argument("path")
@_as_agent
@_as_caller
@connected
def file(remote: Remote, **fields: Any) -> None:
    """Print the file PATH of the skill NAME byte for byte."""
    answer = remote.call("SkillService.ReadSkillFile", **fields)
    if not (answer["is_text"] or remote.as_json) and sys.stdout.isatty():
        raise output.Refusal(f"{answer['path']} is {answer['media_type']}, not text; redirect the output to a file.")
    output.note(f"{answer['path']}, {answer['media_type']}, sha256 {answer['sha256']}")
    remote.show(answer, base64.b64decode(answer["content"]))


@skill.command()
@_as_agent
@_as_caller
@click.option("--budget", "budget_tokens", type=int, metavar="TOKENS", help="Largest size of the note; else 2,000.")
@connected
def prepare(remote: Remote, **fields: Any) -> None:
    """Print what to wire into a model at the start of a run: the tool and the note."""
    answer = remote.call("SkillService.PrepareRun", **fields)
    if answer["omitted_count"]:
        output.note(f"left out of the note: {answer['omitted_count']} ({', '.join(answer['omitted_names'])})")
    remote.show(answer, _tool(answer) + (f"\nNOTE\n{output.lines(answer['note'])}" if answer["note"] else ""))


def _tool(answer: dict[str, Any]) -> str:
    tool = answer.get("tool")
    if tool is None:
        return "No tool: the agent's allowlist denies everything.\n"
    schema = json.dumps(json.loads(tool["input_schema_json"]), indent=2, ensure_ascii=False)
    return f"TOOL {output.printable(tool['name'])}\n{output.lines(tool['description'])}{output.lines(schema)}"


@skill.command()
@click.argument("input_json", metavar="JSON")
@_as_agent
@click.option("--skill-dir", metavar="DIR", help="Where the skill's files lie for the agent.")
@connected
def tool(remote: Remote, **fields: Any) -> None:
    """Call the skill tool with a model's input and print its result as the model would get it.

    Exit code 1 when the result is an error.
    """
    answer = remote.call("SkillService.CallSkillTool", **fields)
    remote.show(answer, f"{answer['text']}\n".encode())
    if answer["is_error"]:
        output.note(f"is_error, reason {answer['reason']}")
        sys.exit(1)
