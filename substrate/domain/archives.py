"""Archives of skills: ZIP files in which each folder with a SKILL.md is a skill and the folder's path its name.

Writing is deterministic: the same skills give the same bytes. Reading trusts nothing: every member is checked by its
name and kind before it is unpacked, and unpacking is bounded whatever sizes the archive claims.
"""

import io
import stat
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from substrate.domain.errors import InvalidArchive, Violation
from substrate.domain.names import SkillName, skill_name_problem

SKILL_FILE = "SKILL.md"
MAX_ARCHIVE_BYTES = 8 * 1024 * 1024
MAX_SKILLS = 500
MAX_MEMBERS = 20_000
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
MAX_FILES = 512
MAX_FILE_BYTES = 1024 * 1024
MAX_FILES_BYTES = 16 * 1024 * 1024
MAX_PATH_LENGTH = 512
MAX_DEPTH = 32

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = (stat.S_IFREG | 0o644) << 16
_BASE = b"positional_base="
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class PackedSkill:
    """A skill as an archive holds it: the bytes of its SKILL.md and of its files by path."""

    name: SkillName
    source: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    positional_base: int = 0


def path_problem(path: str) -> str | None:
    """Say what keeps `path` from being a file's path below a skill's folder, or None when it is one."""
    if not path or len(path) > MAX_PATH_LENGTH or not path.isprintable():
        return f"must be 1 to {MAX_PATH_LENGTH} printable characters"
    if "\\" in path or ":" in path.partition("/")[0]:
        return "must use '/' between its segments and name no drive"
    segments = path.split("/")
    if len(segments) > MAX_DEPTH:
        return f"must have at most {MAX_DEPTH} segments"
    if any(segment in ("", ".", "..") for segment in segments):
        return "must be relative, without empty, '.' and '..' segments"
    return None


def files_problems(files: Iterable[tuple[str, int]], where: str = "files") -> list[Violation]:
    """Return what is wrong with a skill's files, given as path and size; `where` names the field."""
    listed = list(files)
    if len(listed) > MAX_FILES:
        return [Violation(where, f"A skill has at most {MAX_FILES} files; these are {len(listed)}.")]
    problems, seen = [], dict[str, str]()
    total = 0
    for path, size in listed:
        total += size
        problem = path_problem(path)
        folded = path.casefold()
        if problem:
            problems.append(Violation(where, f"The path {ascii(path)[:_SHOWN]} {problem}."))
        elif folded.partition("/")[0] == SKILL_FILE.casefold():
            problems.append(Violation(where, f"The path {ascii(path)[:_SHOWN]} is the skill's own text."))
        elif folded in seen:
            problems.append(
                Violation(where, f"The paths {ascii(seen[folded])[:_SHOWN]} and {ascii(path)[:_SHOWN]} collide.")
            )
        if size > MAX_FILE_BYTES:
            problems.append(Violation(where, f"The file {ascii(path)[:_SHOWN]} has more than {MAX_FILE_BYTES} bytes."))
        seen.setdefault(folded, path)
    # A file cannot also be a folder, which no disk could hold.
    folders = {folder for path in seen for folder in _above(path)}
    problems += [
        Violation(where, f"The path {ascii(seen[path])[:_SHOWN]} is a file and a folder.")
        for path in folders & seen.keys()
    ]
    if total > MAX_FILES_BYTES:
        problems.append(Violation(where, f"A skill's files have at most {MAX_FILES_BYTES} bytes; these have {total}."))
    return problems


def pack(skills: Iterable[PackedSkill]) -> bytes:
    """Return an archive of `skills`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for skill in sorted(skills, key=lambda packed: packed.name):
            base = _BASE + b"%d" % skill.positional_base if skill.positional_base else b""
            _add(archive, f"{skill.name}/{SKILL_FILE}", skill.source, base)
            for path, content in sorted(skill.files.items()):
                _add(archive, f"{skill.name}/{path}", content, b"")
    return buffer.getvalue()


def unpack(data: bytes) -> list[PackedSkill]:
    """Return the skills of an archive, by name; raise InvalidArchive with every problem found."""
    if len(data) > MAX_ARCHIVE_BYTES:
        raise InvalidArchive(Violation("archive", f"Has {len(data)} bytes; at most {MAX_ARCHIVE_BYTES} are allowed."))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _unpacked(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        # Whatever is damaged, encrypted or of an unknown method ends here; zipfile has many words for it.
        problem = f"It cannot be read as a ZIP file: {ascii(str(error))[:200]}."
        raise InvalidArchive(Violation("archive", problem)) from None


def _add(archive: zipfile.ZipFile, name: str, content: bytes, comment: bytes) -> None:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = _MODE
    member.create_system = 3
    member.comment = comment
    archive.writestr(member, content)


def _unpacked(archive: zipfile.ZipFile) -> list[PackedSkill]:
    members = [member for member in archive.infolist() if not member.is_dir()]
    problems = _member_problems(members)
    if problems:
        raise InvalidArchive(*problems)
    folders = sorted(
        member.filename.removesuffix(f"/{SKILL_FILE}") for member in members if _is_skill_file(member.filename)
    )
    if len(folders) > MAX_SKILLS:
        raise InvalidArchive(Violation("archive", f"Holds {len(folders)} skills; at most {MAX_SKILLS} are allowed."))
    known = {*folders}
    owners = [folder for folder in folders if not any(above in known for above in _above(folder))]
    problems = [
        Violation("archive", f"The folder {ascii(folder)[:_SHOWN]} {problem}, so it names no skill.")
        for folder in owners
        if (problem := skill_name_problem(folder))
    ]
    if not owners:
        problems.append(Violation("archive", f"No folder holds a {SKILL_FILE}."))
    if problems:
        raise InvalidArchive(*problems)
    return _read_skills(archive, members, owners)


def _member_problems(members: list[zipfile.ZipInfo]) -> list[Violation]:
    problems = []
    if len(members) > MAX_MEMBERS:
        return [Violation("archive", f"Holds {len(members)} files; at most {MAX_MEMBERS} are allowed.")]
    for member in members:
        shown = ascii(member.filename)[:_SHOWN]
        kind = stat.S_IFMT(member.external_attr >> 16)
        problem = path_problem(member.filename)
        if problem:
            problems.append(Violation("archive", f"The member {shown} {problem}."))
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Of the others zipfile unpacks as much as there is, whatever is asked for.
            problems.append(Violation("archive", f"The member {shown} is neither stored nor deflated."))
        if kind not in (0, stat.S_IFREG):
            problems.append(Violation("archive", f"The member {shown} is no regular file."))
        if member.filename.count("/") == 0 and not problem:
            problems.append(Violation("archive", f"The member {shown} lies in no skill's folder."))
    if len({member.filename for member in members}) != len(members):
        problems.append(Violation("archive", "Two members have the same name."))
    return problems[:MAX_SKILLS]


def _above(path: str) -> list[str]:
    """Return the folders that `path` lies in."""
    segments = path.split("/")
    return ["/".join(segments[:depth]) for depth in range(1, len(segments))]


def _is_skill_file(path: str) -> bool:
    return path.endswith(f"/{SKILL_FILE}")


def _read_skills(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], owners: list[str]) -> list[PackedSkill]:
    sources: dict[str, zipfile.ZipInfo] = {}
    contents: dict[str, dict[str, bytes]] = {owner: {} for owner in owners}
    strays = []
    room = MAX_UNPACKED_BYTES
    for member in members:
        parts = member.filename.split("/")
        owner = next((o for n in range(1, len(parts)) if (o := "/".join(parts[:n])) in contents), None)
        if owner is None:
            strays.append(Violation("archive", f"The member {ascii(member.filename)[:_SHOWN]} belongs to no skill."))
            continue
        path = member.filename[len(owner) + 1 :]
        with archive.open(member) as opened:
            # What a member claims to hold need not be so: no more is unpacked than may be kept.
            content = opened.read(min(MAX_FILE_BYTES, room) + 1)
        room -= len(content)
        if room < 0:
            raise InvalidArchive(Violation("archive", f"Unpacks to more than {MAX_UNPACKED_BYTES} bytes."))
        if path == SKILL_FILE:
            sources[owner] = member
        contents[owner][path] = content
    problems = strays
    skills = []
    for owner in owners:
        source = contents[owner].pop(SKILL_FILE)
        problems += files_problems(((path, len(data)) for path, data in contents[owner].items()), f"archive/{owner}")
        skills.append(
            PackedSkill(SkillName(owner), source, contents[owner], int(sources[owner].comment == _BASE + b"1"))
        )
    if problems:
        raise InvalidArchive(*problems)
    return skills
