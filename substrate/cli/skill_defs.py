"""``substrate skilldef``: the commands that change a tenant's own skills. Those that read are in `skill_def_views`."""

from typing import Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected, refusals
from substrate.cli.parameters import SkillPath, SkillSource
from substrate.cli.skill_def_views import diff, export, get, import_, list_, verify, versions
from substrate.domain.names import parse_skill_name

_agent = click.option("--agent", metavar="NAME", help="Act as this agent, within its allowlist.")
_etag = click.option("--etag", help="Fail when the name has changed since this etag was read; else it is read first.")
_dry_run = click.option("--dry-run", "validate_only", is_flag=True, help="Only say what the change would do.")
_base = click.option("--positional-base", type=int, help="Whether $0 or $1 is the first argument; else 0.")


@click.group()
def skilldef() -> None:
    """Keep skills of the tenant's own, as an author."""


@skilldef.command()
@click.argument("name")
@click.argument("source", metavar="PATH", type=SkillPath())
@_agent
@click.option("--promote/--no-promote", default=True, help="Put it in effect at once (the default), or store a draft.")
@_base
@_dry_run
@connected
def create(remote: Remote, source: SkillSource, **fields: Any) -> None:
    """Create the skill NAME from the SKILL.md at PATH, or from a folder with one; - reads stdin."""
    answer = remote.call("SkillDefService.CreateSkillDef", **source.fields(), **fields)
    _warn(answer)
    form = "" if answer["skill_def"]["active_version"] else " as a draft"
    text = f"{_done('Created', fields)} v{answer['version']['version']}{form}.\n{_stands_for(fields, answer)}"
    text += "".join(f"It shadows {output.printable(shadow['origin'])}.\n" for shadow in answer["shadows"])
    remote.show(answer, text + _for_whom(fields, answer))


@skilldef.command()
@click.argument("name")
@click.argument("source", metavar="[PATH]", type=SkillPath(), required=False)
@click.option("--from", "origin", metavar="WHAT", help="v3, bundle, inline or a label; else what the name stands for.")
@_agent
@click.option("--promote", is_flag=True, help="Put the new version in effect at once.")
@_base
@_etag
@_dry_run
@connected
def fork(remote: Remote, source: SkillSource | None, origin: str | None, **fields: Any) -> None:
    """Add a version to the skill NAME: a copy of WHAT, or the SKILL.md (or folder) at PATH in its stead."""
    if fields["promote"] and fields["etag"] is None:
        fields["etag"] = _name_etag(remote, fields)
    sent = source.fields() if source else {}
    answer = remote.call("SkillDefService.ForkSkillDef", **sent, **fields, **{"from": origin})
    _warn(answer)
    version = answer["version"]
    text = f"{_done('Forked', fields)} v{version['version']} from {output.printable(version['lineage']['origin'])}.\n"
    remote.show(answer, text + _stands_for(fields, answer) + _for_whom(fields, answer))


@skilldef.command()
@click.argument("name")
@click.argument("version", type=int)
@_agent
@_etag
@click.option("--tenant", metavar="NAME", help="Operators: review in this tenant.")
@_dry_run
@connected
def promote(remote: Remote, **fields: Any) -> None:
    """Put VERSION of the SkillDef NAME in effect."""
    fields["etag"] = fields["etag"] or _name_etag(remote, fields)
    answer = remote.call("SkillDefService.PromoteSkillDef", **fields)
    text = f"{_done('Promoted', fields)} v{answer['skill_def']['active_version']}.\n"
    remote.show(answer, text + _stands_for(fields, answer) + _for_whom(fields, answer))


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@_dry_run
@connected
def retire(remote: Remote, **fields: Any) -> None:
    """Withdraw the SkillDef NAME, so that the skill below it shows again."""
    _change(remote, "SkillDefService.RetireSkillDef", "Retired", {**fields, "retired": True})


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@_dry_run
@connected
def unretire(remote: Remote, **fields: Any) -> None:
    """Bring the retired SkillDef NAME back."""
    _change(remote, "SkillDefService.RetireSkillDef", "Brought back", {**fields, "retired": False})


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@click.option("--reason", help="Why, for the audit log.")
@_dry_run
@connected
def disable(remote: Remote, **fields: Any) -> None:
    """Switch the name NAME off for the tenant, whatever layer it comes from."""
    _change(remote, "SkillDefService.SetSkillDisabled", "Disabled", {**fields, "disabled": True})


@skilldef.command()
@click.argument("name")
@_agent
@_etag
@click.option("--reason", help="Why, for the audit log.")
@_dry_run
@connected
def enable(remote: Remote, **fields: Any) -> None:
    """Switch the name NAME on again."""
    _change(remote, "SkillDefService.SetSkillDisabled", "Enabled", {**fields, "disabled": False})


@skilldef.command()
@click.argument("name")
@click.argument("label")
@click.argument("version", type=int, required=False)
@click.option("--remove", is_flag=True, help="Take the label away, as VERSION 0 does.")
@_agent
@_etag
@_dry_run
@connected
def label(remote: Remote, version: int | None, *, remove: bool, **fields: Any) -> None:
    """Let LABEL point at VERSION of the SkillDef NAME, or take it away."""
    if (version is None) is not remove:
        raise click.UsageError("Give one of VERSION and --remove.")
    fields["version"] = version or 0
    fields["etag"] = fields["etag"] or _name_etag(remote, fields)
    answer = remote.call("SkillDefService.SetLabel", **fields)
    done = f"points at v{version}" if version else "is taken away"
    would = "Would be: " if fields["validate_only"] else ""
    remote.show(answer, f"{would}{fields['label']} of {fields['name']} {done}.\n{_for_whom(fields, answer)}")


def _change(remote: Remote, method: str, verb: str, fields: dict[str, Any]) -> None:
    fields["etag"] = fields["etag"] or _name_etag(remote, fields)
    answer = remote.call(method, **fields)
    remote.show(answer, f"{_done(verb, fields)}.\n{_stands_for(fields, answer)}{_for_whom(fields, answer)}")


def _name_etag(remote: Remote, fields: dict[str, Any]) -> str:
    """Return the etag of the name as it is now, whether or not there is anything of that name."""
    with refusals():
        parse_skill_name(fields["name"])
    if fields.get("tenant"):
        # Operators list no catalog of a tenant's. The version asked for may be sound although the one in effect is not.
        asked = {key: fields[key] for key in ("name", "tenant", "version")}
        return str(remote.call("SkillDefService.GetSkillDef", **asked)["skill_def"]["etag"])
    asked = {"pattern": fields["name"], "agent": fields["agent"]}
    entries = remote.call("SkillDefService.ListCatalog", **asked)["entries"]
    # Of a name that nobody has said anything of there is nothing to guard; the server answers for it.
    return str(entries[0]["etag"]) if entries else "r0"


def _done(verb: str, fields: dict[str, Any]) -> str:
    return f"{'Not done; it would be: ' if fields['validate_only'] else ''}{verb} {fields['name']}"


def _stands_for(fields: dict[str, Any], answer: dict[str, Any]) -> str:
    winner = answer.get("winner")
    now = "would stand for" if fields["validate_only"] else "now stands for"
    return f"{fields['name']} {now} {output.printable(winner['origin']) if winner else 'nothing'}.\n"


def _for_whom(fields: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return who is concerned by a change, one line for each way; nothing for a change that concerns nobody."""
    effect = answer["effect"]
    ways = (("gaining", "it"), ("losing", "it"), ("changing", "to another content"))
    lines = []
    for way, what in ways:
        agents = effect[way]
        if agents:
            lines.append(f"Agents {way} {what}: {output.printable(', '.join(agents))}.\n")
    before = effect.get("before")
    if fields["validate_only"]:
        lines.insert(0, f"It stands for {output.printable(before['origin']) if before else 'nothing'} now.\n")
    return "".join(lines)


def _warn(answer: dict[str, Any]) -> None:
    for warning in answer["warnings"]:
        output.warn(warning)


for _view in (get, list_, versions, diff, verify, export, import_):
    skilldef.add_command(_view)
