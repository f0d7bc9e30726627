"""``substrate skilldef``: a tenant's own skills."""

from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected
from substrate.cli.parameters import TextFile

_agent = click.option("--agent", metavar="NAME", help="Act as this agent, within its allowlist.")
_etag = click.option("--etag", help="Fail when the SkillDef has changed since this etag was read.")


@click.group()
def skilldef() -> None:
    """Keep skills of the tenant's own, as an author."""


@skilldef.command()
@click.argument("name")
@click.argument("source", metavar="FILE", type=TextFile())
@_agent
@click.option("--promote/--no-promote", default=True, help="Put it in effect at once (the default), or store a draft.")
@click.option("--positional-base", type=int, help="Whether $0 or $1 is the first argument; else 0.")
@connected
def create(remote: Remote, **fields: Any) -> None:
    """Create the skill NAME from the SKILL.md in FILE; - reads stdin."""
    answer = remote.call("SkillDefService.CreateSkillDef", **fields)
    for warning in answer["warnings"]:
        output.warn(warning)
    form = "" if answer["skill_def"]["active_version"] else " as a draft"
    text = f"Created {fields['name']} v{answer['version']['version']}{form}.\n{_stands_for(fields['name'], answer)}"
    text += "".join(f"It shadows {output.printable(shadow['origin'])}.\n" for shadow in answer["shadows"])
    remote.show(answer, text)


@skilldef.command()
@click.argument("name")
@_agent
@click.option("--version", type=int, help="The version wanted; else the one in effect, or the newest.")
@click.option("--source", "include_source", is_flag=True, help="Print the SKILL.md text as it is stored.")
@connected
def get(remote: Remote, **fields: Any) -> None:
    """Show the SkillDef NAME and one of its versions."""
    answer = remote.call("SkillDefService.GetSkillDef", **fields)
    definition, version = answer["skill_def"], answer["version"]
    if fields["include_source"]:
        output.note(f"{definition['name']} v{version['version']}, sha256 {version['content_sha256']}")
        remote.show(answer, version["source"].encode())
        return
    pairs = (
        ("name", definition["name"]),
        ("state", _state(definition)),
        ("active version", definition["active_version"] or "none"),
        ("latest version", definition["latest_version"]),
        ("etag", definition["etag"]),
        ("created", _when_and_who(definition.get("create_time"), definition["created_by"])),
        ("updated", output.moment(definition.get("update_time"))),
        ("shown version", version["version"]),
        ("description", version["description"]),
        ("tools", ", ".join(version["allowed_tools"])),
        ("positional base", version["positional_base"]),
        ("sha256", version["content_sha256"]),
        ("version created", _when_and_who(version.get("create_time"), version["created_by"])),
        ("promoted", _when_and_who(version.get("promote_time"), version["promoted_by"])),
    )
    remote.show(answer, output.details(pairs))


@skilldef.command("list")
@_agent
@click.option("--pattern", help="Only names that match, such as 'doc/*'.")
@click.option("--retired", "include_retired", is_flag=True, help="List retired SkillDefs too.")
@connected
def list_(remote: Remote, **fields: Any) -> None:
    """List the tenant's SkillDefs."""
    answer = remote.collect("SkillDefService.ListSkillDefs", "skill_defs", **fields)
    rows = [
        (
            entry["name"],
            _state(entry),
            entry["active_version"] or "-",
            entry["latest_version"],
            output.moment(entry.get("update_time")),
        )
        for entry in answer["skill_defs"]
    ]
    remote.show(answer, output.table(("NAME", "STATE", "ACTIVE", "LATEST", "UPDATED"), rows))


@skilldef.command()
@click.argument("name")
@click.argument("version", type=int)
@_agent
@_etag
@connected
def promote(remote: Remote, **fields: Any) -> None:
    """Put VERSION of the SkillDef NAME in effect."""
    answer = remote.call("SkillDefService.PromoteSkillDef", **fields)
    text = f"Promoted {fields['name']} v{answer['skill_def']['active_version']}.\n"
    remote.show(answer, text + _stands_for(fields["name"], answer))


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@connected
def retire(remote: Remote, **fields: Any) -> None:
    """Withdraw the SkillDef NAME, so that the skill below it shows again."""
    answer = remote.call("SkillDefService.RetireSkillDef", retired=True, **fields)
    remote.show(answer, f"Retired {fields['name']}.\n{_stands_for(fields['name'], answer)}")


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@connected
def unretire(remote: Remote, **fields: Any) -> None:
    """Bring the retired SkillDef NAME back."""
    answer = remote.call("SkillDefService.RetireSkillDef", retired=False, **fields)
    remote.show(answer, f"Brought back {fields['name']}.\n{_stands_for(fields['name'], answer)}")


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@click.option("--reason", help="Why, for the audit log.")
@connected
def disable(remote: Remote, **fields: Any) -> None:
    """Switch the name NAME off for the tenant, whatever layer it comes from."""
    answer = remote.call("SkillDefService.SetSkillDisabled", disabled=True, **fields)
    remote.show(answer, f"Disabled {fields['name']}.\n{_stands_for(fields['name'], answer)}")


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@click.option("--reason", help="Why, for the audit log.")
@connected
def enable(remote: Remote, **fields: Any) -> None:
    """Switch the name NAME on again."""
    answer = remote.call("SkillDefService.SetSkillDisabled", disabled=False, **fields)
    remote.show(answer, f"Enabled {fields['name']}.\n{_stands_for(fields['name'], answer)}")


def _stands_for(name: str, answer: dict[str, Any]) -> str:
    winner = answer.get("winner")
    return f"{name} now stands for {output.printable(winner['origin']) if winner else 'nothing'}.\n"


def _state(definition: dict[str, Any]) -> str:
    words = [word for word in ("disabled", "retired") if definition[word]]
    return ", ".join(words) or ("in effect" if definition["active_version"] else "draft")


def _when_and_who(time: str | None, who: str) -> str:
    return f"{output.moment(time)} by {who}" if time and who else output.moment(time)
