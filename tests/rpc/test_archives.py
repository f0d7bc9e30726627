"""Export and import: an archive gives back what went into it, and nothing leaves its folder."""

import io
import stat
import warnings
import zipfile
from typing import Any

import pytest

from substrate.domain.archives import MAX_FILE_BYTES, MAX_SKILLS, pack, unpack
from tests.servers import RunningServer, TestTenant
from tests.skills import refused, skill_md

EXPORT, IMPORT = "SkillDefService.ExportSkill", "SkillDefService.ImportSkills"
SOURCE = skill_md(
    "skill",
    "Use $1.\n\n  Indented.\u2028Odd.\n\n",
    header="zeta: {b: [1, '02'], a: null}\nallowed-tools: Read, Bash(git *)\nmetadata: {x: {y: z}}\nalpha: ''\n",
)
FILES = {
    "files": [{"path": "scripts/run.sh", "content": b"#!/bin/sh\n"}, {"path": "a.bin", "content": bytes(range(256))}]
}


def archive_of(*members: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        # A hostile archive may hold two members of one name.
        warnings.simplefilter("ignore")
        for name, content in members:
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content)
    return buffer.getvalue()


SKILL = ("doc/skill/SKILL.md", skill_md("skill").encode())


def test_export_then_import_is_a_fixed_point(server: RunningServer, tenant: TestTenant) -> None:
    made = tenant.author.call(
        "SkillDefService.CreateSkillDef", name="own/skill", source=SOURCE, files=FILES, positional_base=1
    )
    archive = tenant.author.call(EXPORT, name="own/skill").archive
    other = server.tenant()
    (imported,) = other.author.call(IMPORT, archive=archive, promote=True).skills
    assert (imported.name, imported.version, imported.created) == ("own/skill", 1, True)
    assert imported.content_sha256 == made.version.content_sha256
    assert other.author.call(EXPORT, name="own/skill").archive == archive
    own, theirs = (
        t.author.call("SkillDefService.GetSkillDef", name="own/skill", include_source=True).version
        for t in (tenant, other)
    )
    assert own.source == theirs.source
    assert (own.positional_base, theirs.positional_base) == (1, 1)
    assert "zeta" in theirs.source
    assert list(own.files) == list(theirs.files)
    other.author.call("AgentService.PutAgent", agent={"name": "all"})
    read = {"agent": "all", "name": "own/skill", "path": "a.bin"}
    assert other.runtime.call("SkillService.ReadSkillFile", **read).content == bytes(range(256))
    assert refused(tenant.runtime, "SkillService.ReadSkillFile", **read).reason == "AGENT_NOT_FOUND"


def test_a_bundled_skill_goes_out_with_its_files_and_in_as_its_digest(tenant: TestTenant) -> None:
    found = tenant.author.call(EXPORT, name="doc/chunk-review")
    assert [len(packed.files) for packed in unpack(found.archive)] == [1]
    (imported,) = tenant.author.call(IMPORT, archive=found.archive).skills
    assert imported.content_sha256 == found.candidate.content_sha256


def test_what_is_there_already_is_left_as_it_is(tenant: TestTenant) -> None:
    archive = archive_of(SKILL)
    assert [s.created for s in tenant.author.call(IMPORT, archive=archive, promote=True).skills] == [True]
    assert [s.created for s in tenant.author.call(IMPORT, archive=archive, promote=True).skills] == [False]
    changed = archive_of(("doc/skill/SKILL.md", skill_md("skill", "New.\n").encode()))
    (second,) = tenant.author.call(IMPORT, archive=changed, promote=True).skills
    assert (second.version, second.created) == (2, True)
    assert tenant.author.call("SkillDefService.GetSkillDef", name="doc/skill").skill_def.active_version == 1


def test_all_are_stored_or_none(tenant: TestTenant) -> None:
    archive = archive_of(SKILL, ("doc/bad/SKILL.md", b"---\nname: other\n---\n"), ("doc/worse/SKILL.md", b"x"))
    error = refused(tenant.author, IMPORT, archive=archive)
    assert error.reason == "INVALID_SKILL"
    assert {field for field, _ in error.violations} == {"archive/doc/bad/SKILL.md", "archive/doc/worse/SKILL.md"}
    assert tenant.author.call("SkillDefService.ListSkillDefs").total_size == 0


def test_an_agent_imports_what_its_allowlist_admits(tenant: TestTenant) -> None:
    archive = archive_of(SKILL, ("own/skill/SKILL.md", SKILL[1]))
    error = refused(tenant.author, IMPORT, archive=archive, agent="doc-manager")
    assert error.reason == "SKILL_NOT_PERMITTED"
    assert tenant.author.call("SkillDefService.ListSkillDefs").total_size == 0


HOSTILE: dict[str, bytes] = {
    "no archive": b"nothing of the kind",
    "empty": b"",
    "no skill": archive_of(("doc/skill/README.md", b"x")),
    "a climbing member": archive_of(SKILL, ("doc/skill/../../x", b"x")),
    "an absolute member": archive_of(SKILL, ("/etc/passwd", b"x")),
    "a backslash": archive_of(SKILL, ("doc/skill/..\\x", b"x")),
    "a drive": archive_of(SKILL, ("C:/x", b"x")),
    "a member at the top": archive_of(SKILL, ("README.md", b"x")),
    "a stray member": archive_of(SKILL, ("other/README.md", b"x")),
    "a link": archive_of(SKILL, ("doc/skill/link", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777),
    "a device": archive_of(SKILL, ("doc/skill/null", b""), mode=stat.S_IFCHR | 0o666),
    "two of one name": archive_of(SKILL, SKILL),
    "colliding names": archive_of(SKILL, ("doc/skill/A.md", b"x"), ("doc/skill/a.md", b"x")),
    "a file that is a folder": archive_of(SKILL, ("doc/skill/a", b"x"), ("doc/skill/a/b", b"x")),
    "no skill's name": archive_of(("Doc/Skill/SKILL.md", SKILL[1])),
    "a control character": archive_of(SKILL, ("doc/skill/a\x1b[2J", b"x")),
    "a large file": archive_of(SKILL, ("doc/skill/a", bytes(MAX_FILE_BYTES + 1))),
    "too many skills": archive_of(*((f"s/s{n}/SKILL.md", b"x") for n in range(MAX_SKILLS + 1))),
    "damaged": archive_of(SKILL)[:-30],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_with_its_reason(tenant: TestTenant, kind: str) -> None:
    error = refused(tenant.author, IMPORT, archive=HOSTILE[kind])
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_ARCHIVE")
    assert error.violations
    assert tenant.author.call("SkillDefService.ListSkillDefs").total_size == 0


def test_what_a_member_claims_to_hold_is_not_believed(tenant: TestTenant) -> None:
    """Sixty-five members of a megabyte of zeros compress to nearly nothing, and are not unpacked beyond the limit."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(*SKILL)
        for number in range(65):
            archive.writestr(f"doc/skill/{number}", bytes(MAX_FILE_BYTES))
    error = refused(tenant.author, IMPORT, archive=buffer.getvalue())
    assert error.reason == "INVALID_ARCHIVE"
    assert "Unpacks to more than" in error.message


def bad_files(*files: tuple[str, bytes]) -> dict[str, Any]:
    return {"files": [{"path": path, "content": content} for path, content in files]}


@pytest.mark.parametrize(
    "files",
    [
        bad_files(("../x", b"")),
        bad_files(("/x", b"")),
        bad_files(("SKILL.md", b"")),
        bad_files(("skill.MD", b"")),
        bad_files(("a", b""), ("A", b"")),
        bad_files(("a", b""), ("a", b"x")),
        bad_files(("a", b""), ("a/b", b"x")),
        bad_files(("", b"")),
        bad_files(("a" * 513, b"")),
        bad_files(*((f"f{n}", b"") for n in range(513))),
        bad_files(("big", bytes(MAX_FILE_BYTES + 1))),
    ],
)
def test_files_that_no_folder_could_hold_are_refused(tenant: TestTenant, files: dict[str, Any]) -> None:
    create = {"name": "own/skill", "source": skill_md("skill"), "files": files}
    error = refused(tenant.author, "SkillDefService.CreateSkillDef", **create)
    assert (error.reason, {field for field, _ in error.violations}) == ("INVALID_SKILL", {"files"})


def test_many_folders_and_deep_paths_are_refused_by_their_number(tenant: TestTenant) -> None:
    many = archive_of(*((f"s/{n}/SKILL.md", b"") for n in range(5_000)))
    error = refused(tenant.author, IMPORT, archive=many)
    assert [description for _, description in error.violations] == ["Holds 5000 skills; at most 500 are allowed."]
    deep = bad_files(("/".join(["d"] * 33), b""))
    error = refused(tenant.author, "SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"), files=deep)
    assert "must have at most 32 segments" in error.message
    deep = bad_files(*((f"{n}/" + "/".join(["d"] * 200), b"") for n in range(2_000)))
    error = refused(tenant.author, "SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"), files=deep)
    assert len(error.violations) == 1


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_deflated_members_are_unpacked(tenant: TestTenant, method: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(*SKILL)
        archive.writestr("doc/skill/zeros", bytes(50 * MAX_FILE_BYTES))
    error = refused(tenant.author, IMPORT, archive=buffer.getvalue())
    assert error.reason == "INVALID_ARCHIVE"
    assert "is neither stored nor deflated" in error.message


def test_packing_does_not_depend_on_order() -> None:
    skills = unpack(archive_of(SKILL, ("b/c/SKILL.md", b"x"), ("doc/skill/z", b"1"), ("doc/skill/y", b"2")))
    assert pack(skills) == pack(reversed(skills))
    assert unpack(pack(skills)) == skills
