"""``substrate skilldef``: the commands that read a tenant's own skills, and that take them out and in as archives."""

import json
import sys
from pathlib import Path
from typing import IO, Any

import click

from substrate.cli import output
from substrate.cli.connection import Remote, connected

_agent = click.option("--agent", metavar="NAME", help="Act as this agent, within its allowlist.")
_tenant = click.option("--tenant", metavar="NAME", help="Operators: read in this tenant.")


@click.command()
@click.argument("name")
@_agent
@_tenant
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
        ("labels", ", ".join(f"{label['label']} (v{label['version']})" for label in definition["labels"])),
        ("etag", definition["etag"]),
        ("created", _when_and_who(definition.get("create_time"), definition["created_by"])),
        ("updated", output.moment(definition.get("update_time"))),
        ("shown version", version["version"]),
        ("description", version["description"]),
        ("tools", ", ".join(version["allowed_tools"])),
        ("positional base", version["positional_base"]),
        ("files", ", ".join(file["path"] for file in version["files"])),
        ("sha256", version["content_sha256"]),
        ("forked from", version.get("lineage", {}).get("origin", "")),
        ("version created", _when_and_who(version.get("create_time"), version["created_by"])),
        ("as agent", version["created_as"]),
        ("promoted", _when_and_who(version.get("promote_time"), version["promoted_by"])),
    )
    remote.show(answer, output.details(pairs))


@click.command("list")
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


@click.command()
@click.argument("name")
@_agent
@_tenant
@connected
def versions(remote: Remote, **fields: Any) -> None:
    """List the versions of the SkillDef NAME, the newest first."""
    answer = remote.collect("SkillDefService.ListSkillDefVersions", "versions", **fields)
    definition = answer["skill_def"]
    labels: dict[int, list[str]] = {}
    for label in definition["labels"]:
        labels.setdefault(label["version"], []).append(label["label"])
    rows = [
        (
            entry["version"],
            "in effect" if entry["version"] == definition["active_version"] else "",
            ", ".join(labels.get(entry["version"], [])),
            entry.get("lineage", {}).get("origin", "-"),
            _when_and_who(entry.get("create_time"), entry["created_by"]),
            _when_and_who(entry.get("promote_time"), entry["promoted_by"]) or "-",
            entry["content_sha256"][:12],
        )
        for entry in answer["versions"]
    ]
    headers = ("VERSION", "STATE", "LABELS", "FORKED FROM", "CREATED", "PROMOTED", "SHA256")
    remote.show(answer, output.table(headers, rows))


@click.command()
@click.argument("name")
@click.argument("from_", metavar="FROM")
@click.argument("to", metavar="TO")
@_agent
@_tenant
@connected
def diff(remote: Remote, from_: str, **fields: Any) -> None:
    """Compare two contents of NAME: v1, bundle, inline, or a label."""
    answer = remote.call("SkillDefService.DiffSkillDefs", **fields, **{"from": from_})
    lines = [
        f"{found['field']}: {_shown(found['from_json'])} -> {_shown(found['to_json'])}" for found in answer["fields"]
    ]
    lines += [f"file {path} differs" for path in answer["files"]]
    text = "".join(output.lines(line) for line in lines)
    text += output.lines(answer["body_diff"]) if answer["body_diff"] else ""
    remote.show(answer, text or "They do not differ.\n")


@click.command()
@click.argument("name")
@click.argument("content_sha256", metavar="DIGEST")
@_agent
@connected
def verify(remote: Remote, **fields: Any) -> None:
    """Say whether DIGEST is that of what NAME stands for now; exit code 1 when it is not."""
    answer = remote.call("SkillDefService.VerifySkillDef", **fields)
    winner = answer.get("winner")
    stands = f"{winner['origin']}, sha256 {winner['content_sha256']}" if winner else "nothing"
    verdict = "It is" if answer["matches"] else "It is not"
    text = f"{verdict} the digest of what {fields['name']} stands for: {stands}.\n"
    if answer["versions"]:
        text += f"Versions with it: {', '.join(f'v{number}' for number in answer['versions'])}.\n"
    remote.show(answer, output.lines(text))
    sys.exit(0 if answer["matches"] else 1)


@click.command()
@click.argument("name")
@click.option("--from", "origin", metavar="WHAT", help="v3, bundle, inline or a label; else what the name stands for.")
@click.option("-o", "--output", "path", type=click.Path(path_type=Path, dir_okay=False), required=True, help="A file.")
@_agent
@connected
def export(remote: Remote, origin: str | None, path: Path, **fields: Any) -> None:
    """Write the skill NAME with its files to a ZIP file that import takes."""
    archive = remote.raw("SkillDefService.ExportSkill", **fields, **{"from": origin})
    path.write_bytes(archive.archive)
    candidate = archive.candidate
    text = f"Exported {fields['name']} from {candidate.origin}, sha256 {candidate.content_sha256}, to {path}.\n"
    remote.show({"path": str(path), "content_sha256": candidate.content_sha256}, output.lines(text))


@click.command("import")
@click.argument("archive", type=click.File("rb"))
@_agent
@click.option("--promote", is_flag=True, help="Put skills in effect that were not there before.")
@click.option("--dry-run", "validate_only", is_flag=True, help="Only say what would be stored.")
@connected
def import_(remote: Remote, archive: IO[bytes], **fields: Any) -> None:
    """Store every skill of the ZIP file ARCHIVE, or none."""
    answer = remote.call("SkillDefService.ImportSkills", archive=archive.read(), **fields)
    done = "would be new" if fields["validate_only"] else "new"
    rows = [
        (entry["name"], f"v{entry['version']}", done if entry["created"] else "there already", entry["content_sha256"])
        for entry in answer["skills"]
    ]
    remote.show(answer, output.table(("NAME", "VERSION", "WHAT", "SHA256"), rows))


def _shown(value: str) -> str:
    """Return a value of a field for people: a text as it is, all else as JSON."""
    read = json.loads(value) if value else "(none)"
    return read if isinstance(read, str) else value


def _state(definition: dict[str, Any]) -> str:
    words = [word for word in ("disabled", "retired") if definition[word]]
    return ", ".join(words) or ("in effect" if definition["active_version"] else "draft")


def _when_and_who(time: str | None, who: str) -> str:
    return f"{output.moment(time)} by {who}" if time and who else output.moment(time)
