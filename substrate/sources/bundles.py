"""Bundles: folders of skills that an operator puts on the server's disk.

A bundle is a folder with ``bundle.yaml`` (name, version, description, agents) and ``skills/**/SKILL.md``; the folders
below ``skills`` give a skill its name. A folder with ``SKILL.md`` is one skill and is not searched further: whatever
else lies in it are the skill's resource files. All of it is read once, checked and hashed; then headers and digests
stay in memory, and a skill's text is read again, and compared, when it is asked for.

No symbolic link below a bundle's own folder is followed. What is wrong with one skill quarantines that skill alone.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from substrate.domain.agents import Agent
from substrate.domain.candidates import Candidate, Layer, LayerKind, SkillFile, Standing
from substrate.domain.characters import shown
from substrate.domain.errors import SkillChanged, SkillFileNotFound, Violation
from substrate.domain.names import SkillName, skill_name_problem, slug_problem
from substrate.domain.skillmd import Problem, QuarantinedFile, body_of, content_sha256, parse_lenient
from substrate.sources.configfile import invalid_config, parse_file
from substrate.sources.disk import LINK, MAX_FILE_BYTES, Unreadable, list_folder, read_regular

MANIFEST = "bundle.yaml"
SKILL_FILE = "SKILL.md"
MAX_FILES = 512
MAX_TOTAL_BYTES = 16 * 1024 * 1024
MAX_PATH_LENGTH = 512

_SKILLS = "skills"
_TEXTS = ("name", "version", "description")
_MAX_TEXT = 1024
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Something an operator should know: `place` is a path, with the line after a colon where there is one.

    A `fatal` problem keeps a skill from being served; any other was repaired or is only worth a look.
    """

    place: str
    message: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it was read from the folder `root`."""

    name: str
    version: str
    description: str
    root: Path
    layer: Layer
    agents: tuple[Agent, ...]
    problems: tuple[SourceProblem, ...]


def load_bundle(root: Path, positional_base: int = 0) -> Bundle:
    """Read the bundle in the folder `root`, where ``$N`` in its skills counts from `positional_base` (0 or 1).

    Raises InvalidConfig with every problem when the manifest is missing or wrong. Everything else that is wrong is in
    the bundle's `problems`: the skill it concerns is quarantined or, when it has no valid name, left out.
    """
    name, version, description, agents = _read_manifest(root)
    origin = _origin(name, version)
    # A release that later takes this one's place behind a link is not what was checked here.
    real = os.path.realpath(root)
    problems: list[SourceProblem] = []
    candidates = {}
    for folder in _skill_folders(real, problems):
        place = f"{folder}/{SKILL_FILE}"
        skill_name = folder.removeprefix(_SKILLS).removeprefix("/")
        problem = skill_name_problem(skill_name)
        if problem:
            problems.append(_fatal(place, f"The skill name {shown(skill_name)} {problem}."))
            continue
        candidate = Candidate(
            SkillName(skill_name),
            LayerKind.BUNDLE,
            f"{origin}/{place}",
            folder=f"{real}/{folder}",
            positional_base=positional_base,
        )
        candidates[candidate.name] = _load_skill(candidate, folder, problems)
    return Bundle(
        name,
        version,
        description,
        root,
        Layer(LayerKind.BUNDLE, origin, dict(sorted(candidates.items()))),
        agents,
        tuple(replace(problem, place=f"{root}/{problem.place}") for problem in problems),
    )


def read_body(candidate: Candidate) -> str:
    """Return the body of a bundled skill; raise SkillChanged when its file is gone or not what was loaded."""
    return body_of(_read_again(candidate, SKILL_FILE, candidate.file_sha256))


def read_file(candidate: Candidate, path: str) -> bytes:
    """Return the resource file at `path`, one of those that `candidate` lists.

    Raises SkillFileNotFound for any other path, and SkillChanged when the file is gone or not what was loaded.
    """
    digest = next((file.sha256 for file in candidate.files if file.path == path), None)
    if digest is None:
        message = f"The skill {candidate.name} has no file {shown(path)}."
        raise SkillFileNotFound(message, name=candidate.name, path=path[:MAX_PATH_LENGTH])
    return _read_again(candidate, path, digest)


def _read_again(candidate: Candidate, path: str, sha256: str) -> bytes:
    try:
        data = read_regular(f"{candidate.folder}/{path}")
        problem = "" if hashlib.sha256(data).hexdigest() == sha256 else "has changed since it was loaded."
    except Unreadable as error:
        data, problem = b"", str(error)
    if problem:
        raise SkillChanged(f"The file {path} of the skill {candidate.name} {problem}", name=candidate.name)
    return data


def _origin(name: str, version: str) -> str:
    return f"bundle:{name}@{version}"


def _read_manifest(root: Path) -> tuple[str, str, str, tuple[Agent, ...]]:
    """Return the name, version, description and agents that the manifest gives."""
    path = root / MANIFEST
    violations: list[Violation] = []
    try:
        manifest = parse_file(path, read_regular(path), violations, max_bytes=MAX_FILE_BYTES)
    except Unreadable as error:
        raise invalid_config([Violation(str(path), str(error))]) from None
    if manifest is None:
        raise invalid_config(violations)
    fields = manifest.fields((*_TEXTS, "agents"), required=_TEXTS)
    name, version, description = (fields[key].text(_MAX_TEXT) if key in fields else "" for key in _TEXTS)
    problem = slug_problem(name)
    if name and problem:
        fields["name"].refuse(f"{problem}.")
    if version and not _VERSION.fullmatch(version):
        fields["version"].refuse("must be at most 64 of A-Z, a-z, 0-9, . + _ - and begin with a letter or digit.")
    agents = fields["agents"].agents(LayerKind.BUNDLE, _origin(name, version)) if "agents" in fields else ()
    if violations:
        raise invalid_config(violations)
    return name, version, description, agents


def _skill_folders(root: str, problems: list[SourceProblem]) -> Iterator[str]:
    """Yield the folders below `root` that hold a SKILL.md, relative to it, in an order that names alone decide."""
    top = Path(root, _SKILLS)
    if top.is_symlink():
        problems.append(_fatal(_SKILLS, LINK))
        return
    if not top.exists():
        problems.append(SourceProblem(_SKILLS, "is missing, so this bundle has no skills.", fatal=False))
        return
    pending = [_SKILLS]
    while pending:
        folder = pending.pop()
        try:
            entries = list_folder(f"{root}/{folder}")
        except Unreadable as error:
            problems.append(_fatal(folder, str(error)))
            continue
        if folder != _SKILLS and any(entry.name == SKILL_FILE for entry in entries):
            yield folder
            continue
        below = []
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.is_symlink():
                problems.append(_fatal(path, LINK))
            elif entry.is_dir(follow_symlinks=False):
                below.append(path)
            elif entry.name.upper() == SKILL_FILE.upper():
                problems.append(_fatal(path, f"is no skill: that is a file {SKILL_FILE} in a folder below {_SKILLS}/."))
        pending.extend(reversed(below))


def _load_skill(candidate: Candidate, folder: str, problems: list[SourceProblem]) -> Candidate:
    """Return `candidate` with what its folder holds, or quarantined; everything found goes to `problems`."""
    place = f"{folder}/{SKILL_FILE}"
    found: list[SourceProblem] = []
    loaded = candidate
    try:
        data = read_regular(f"{candidate.folder}/{SKILL_FILE}")
        skill = parse_lenient(data, folder=candidate.name.rpartition("/")[2])
    except Unreadable as error:
        found.append(_fatal(place, str(error)))
    except QuarantinedFile as error:
        found += (_in_file(place, problem, fatal=True) for problem in error.problems)
    else:
        found += (_in_file(place, problem, fatal=False) for problem in skill.diagnostics)
        files = _load_files(candidate.folder, folder, found)
        loaded = replace(
            candidate,
            header=skill.header,
            content_sha256=content_sha256(skill.header, skill.body, [(file.path, file.sha256) for file in files]),
            files=files,
            file_sha256=hashlib.sha256(data).hexdigest(),
        )
    problems += found
    reasons = [f"{problem.place}: {problem.message}" for problem in found if problem.fatal]
    return replace(candidate, standing=Standing.QUARANTINED, problem=" ".join(reasons)) if reasons else loaded


def _load_files(root: str, folder: str, problems: list[SourceProblem]) -> tuple[SkillFile, ...]:
    """Return the resource files in the skill folder `root`, in the order of their paths.

    What must not be served goes to `problems`, with places below `folder`. The reading ends with the first file that is
    one too many, so that no folder costs more than what a skill may have.
    """
    files: list[SkillFile] = []
    total = 0
    for seen, path in enumerate(_resource_paths(root, folder, problems)):
        if seen == MAX_FILES:
            problems.append(_fatal(folder, f"has more than {MAX_FILES} files beside {SKILL_FILE}."))
            break
        try:
            data = read_regular(f"{root}/{path}")
        except Unreadable as error:
            problems.append(_fatal(f"{folder}/{path}", str(error)))
            continue
        total += len(data)
        if total > MAX_TOTAL_BYTES:
            problems.append(_fatal(folder, f"has files of more than {MAX_TOTAL_BYTES:,} bytes beside {SKILL_FILE}."))
            break
        files.append(SkillFile(path, len(data), hashlib.sha256(data).hexdigest()))
    return tuple(sorted(files, key=lambda file: file.path))


def _resource_paths(root: str, folder: str, problems: list[SourceProblem]) -> Iterator[str]:
    """Yield the paths below `root` of everything but folders and the skill's own SKILL.md."""
    pending = [""]
    while pending:
        inner = pending.pop()
        try:
            entries = list_folder(f"{root}/{inner}")
        except Unreadable as error:
            problems.append(_fatal(f"{folder}/{inner}", str(error)))
            continue
        for entry in entries:
            path = f"{inner}{entry.name}"
            if len(path) > MAX_PATH_LENGTH or not path.isprintable():
                message = f"must have a printable path of at most {MAX_PATH_LENGTH} characters in its skill."
                problems.append(_fatal(f"{folder}/{path}", message))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(f"{path}/")
            elif path != SKILL_FILE:
                yield path


def _in_file(place: str, problem: Problem, *, fatal: bool) -> SourceProblem:
    message = f"{problem.field}: {problem.message}" if problem.field else problem.message
    return SourceProblem(f"{place}:{problem.line}" if problem.line else place, message, fatal)


def _fatal(place: str, message: str) -> SourceProblem:
    return SourceProblem(place if place.isprintable() else ascii(place), message, fatal=True)
