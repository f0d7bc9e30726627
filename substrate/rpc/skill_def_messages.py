"""Messages of `SkillDefService` to and from what its use cases take and give."""

from collections.abc import Sequence

from substrate.api.v1 import catalog_pb2
from substrate.api.v1 import skill_defs_pb2 as pb
from substrate.domain.effect import Effect
from substrate.domain.errors import InvalidSkill, Violation
from substrate.domain.skillheader import SkillHeader, header_from_plain
from substrate.domain.skillmd import to_skill_md
from substrate.rpc import convert
from substrate.services.authoring import Authored
from substrate.services.skill_def_views import Found
from substrate.store.labels import Label
from substrate.store.skill_defs import SkillDef, Version


def read_files(message: pb.SkillFileList) -> dict[str, bytes]:
    """Return the files of a request by path; raise InvalidSkill when two have the same."""
    files = {file.path: file.content for file in message.files}
    if len(files) != len(message.files):
        raise InvalidSkill(Violation("files", "Two files have the same path."))
    return files


def own(authored: Authored) -> pb.SkillDef | None:
    """Return the SkillDef after a change, if there is one."""
    row = authored.skill_def
    return _skill_def(row, authored.labels, disabled=authored.disabled) if row else None


def found(found: Found) -> pb.SkillDef:
    """Return a SkillDef as it was read."""
    return _skill_def(found.skill_def, found.labels, disabled=found.disabled)


def effect(effect: Effect) -> pb.Effect:
    """Return what a change does."""
    return pb.Effect(
        before=convert.winner(effect.before),
        after=convert.winner(effect.after),
        gaining=effect.gaining,
        losing=effect.losing,
        changing=effect.changing,
    )


def version(row: Version | None, *, with_source: bool = False) -> pb.SkillDefVersion | None:
    """Return a version, with its SKILL.md text if it is asked for."""
    if row is None:
        return None
    header = _readable(row)
    lineage = row.lineage
    return pb.SkillDefVersion(
        name=row.name,
        version=row.version,
        description=header.description if header else "",
        source=to_skill_md(header, row.body) if with_source and header else "",
        content_sha256=row.content_sha256,
        create_time=convert.timestamp(row.created_at),
        created_by=row.created_by,
        promote_time=convert.timestamp(row.promoted_at),
        promoted_by=row.promoted_by or "",
        allowed_tools=(header.allowed_tools if header else None) or (),
        positional_base=row.positional_base,
        lineage=None
        if lineage is None
        else pb.Lineage(
            origin=lineage["origin"], version=lineage["version"] or 0, content_sha256=lineage["content_sha256"]
        ),
        files=_files(row),
        created_as=row.created_as,
    )


def _readable(row: Version) -> SkillHeader | None:
    """Return a version's header; None for a damaged row, which a list shows by its number alone."""
    try:
        return header_from_plain(row.header)
    except InvalidSkill:
        return None


def _files(row: Version) -> list[catalog_pb2.SkillFile]:
    return [convert.skill_file(file) for file in row.files]


def _skill_def(row: SkillDef, labels: Sequence[Label], *, disabled: bool) -> pb.SkillDef:
    return pb.SkillDef(
        name=row.name,
        active_version=row.active_version or 0,
        latest_version=row.latest_version,
        retired=row.retired_at is not None,
        disabled=disabled,
        etag=row.etag,
        create_time=convert.timestamp(row.created_at),
        update_time=convert.timestamp(row.updated_at),
        created_by=row.created_by,
        labels=[
            pb.Label(
                label=label.label,
                version=label.version,
                update_time=convert.timestamp(label.updated_at),
                updated_by=label.updated_by,
            )
            for label in labels
        ],
    )
