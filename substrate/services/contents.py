"""The contents that authors work on: any version of a SkillDef, and the inline or bundled skill of its name.

Unlike a runtime's reference these reach drafts, retired SkillDefs and what is shadowed, for an author has to see what
there is. What is quarantined is refused here too: nobody can say what it was.
"""

from dataclasses import dataclass

from substrate.domain.candidates import Candidate, LayerKind, Standing
from substrate.domain.eligibility import unresolved
from substrate.domain.errors import InvalidName, SkillNotFound, SkillQuarantined, VersionNotFound
from substrate.domain.names import QualifierKind, SkillName, SkillRef, parse_pin, parse_skill_ref
from substrate.domain.skillheader import SkillHeader
from substrate.services.trace import Trace
from substrate.sources import static
from substrate.sources.bundles import read_file
from substrate.sources.tenant import version_candidate
from substrate.store import labels, skill_defs
from substrate.store.session import Transaction
from substrate.store.skill_defs import Version


@dataclass(frozen=True, slots=True)
class Content:
    """One content of a name: its candidate, whose header and files are there, and its body."""

    candidate: Candidate
    header: SkillHeader
    body: str


def parse_content(name: SkillName, text: str, field: str) -> SkillRef | str:
    """Return what `text` asks for: a reference (``v3``, ``bundle``, ``inline``, empty for the winner), or a label.

    A leading ``@`` may be there. Raises InvalidName, naming `field`.
    """
    bare = text.removeprefix("@")
    if not bare:
        return SkillRef(name)
    if bare in (QualifierKind.BUNDLE.value, QualifierKind.INLINE.value):
        return parse_skill_ref(f"{name}@{bare}", field)
    try:
        pin = parse_pin(bare, field)
    except InvalidName:
        raise InvalidName(
            field, f"{ascii(text)[:80]} is no content of a skill; use v<number>, bundle, inline or a label."
        ) from None
    return parse_skill_ref(f"{name}@v{pin}", field) if isinstance(pin, int) else pin


def static_content(trace: Trace, asked: SkillRef | str) -> Content | None:
    """Return the inline or bundled content that `asked` means, read from its file; None when it means a version."""
    if isinstance(asked, str):
        return None
    catalog = trace.snapshot.catalog
    found = catalog.resolve(SkillRef(asked.name))
    if asked.qualifier is None:
        candidate = found.winner
    elif asked.qualifier.kind is QualifierKind.VERSION:
        return None
    else:
        kind = LayerKind.INLINE if asked.qualifier.kind is QualifierKind.INLINE else LayerKind.BUNDLE
        of_kind = [ruling.candidate for ruling in found.rulings if ruling.candidate.kind is kind]
        sound = [candidate for candidate in of_kind if candidate.standing is Standing.ACTIVE]
        if not sound:
            raise (
                _quarantined(of_kind[0]) if of_kind else SkillNotFound(f"There is no skill '{asked}'.", name=asked.name)
            )
        candidate = sound[0]
    if candidate is None or candidate.kind is LayerKind.TENANT or candidate.header is None:
        return None
    return Content(candidate, candidate.header, static.read_body(candidate))


def content_of(connection: Transaction, trace: Trace, name: SkillName, asked: SkillRef | str) -> Content:
    """Return the content that `asked` means in the trace's catalog.

    Raises SkillNotFound, VersionNotFound, SkillQuarantined; SkillChanged when a bundle's file has changed.
    """
    outside = static_content(trace, asked)
    if outside is not None:
        return outside
    number = _number(connection, trace, name, asked)
    found = skill_defs.version(connection, trace.tenant, name, number)
    if found is None:
        raise no_version(name, number)
    return version_content(found)


def version_content(version: Version) -> Content:
    """Return a version's content; raise SkillQuarantined when its row is not what was stored."""
    candidate = version_candidate(version)
    if candidate.standing is Standing.QUARANTINED or candidate.header is None:
        raise _quarantined(candidate)
    return Content(candidate, candidate.header, version.body)


def static_files(candidate: Candidate) -> dict[str, bytes]:
    """Return the bytes of a bundled skill's files by path; raise SkillChanged when they are not what was loaded."""
    return {file.path: read_file(candidate, file.path) for file in candidate.files}


def file_contents(connection: Transaction, trace: Trace, candidate: Candidate) -> dict[str, bytes]:
    """Return the bytes of a candidate's files by path; raise SkillQuarantined or SkillChanged for damaged ones."""
    if candidate.kind is not LayerKind.TENANT:
        return static_files(candidate)
    contents = {}
    for file in candidate.files:
        content = skill_defs.file(connection, trace.tenant, file.sha256)
        if content is None:
            raise _quarantined(candidate)
        contents[file.path] = content
    return contents


def no_version(name: SkillName, number: int | str) -> VersionNotFound:
    """Return the error for a version that is not there."""
    return VersionNotFound(f"The SkillDef '{name}' has no version {number}.", name=name, version=str(number))


def _number(connection: Transaction, trace: Trace, name: SkillName, asked: SkillRef | str) -> int:
    if isinstance(asked, str):
        pointing = {row.label: row.version for row in labels.of_tenant(connection, trace.tenant, [name])}
        if asked not in pointing:
            raise VersionNotFound(f"The SkillDef '{name}' has no label '{asked}'.", name=name, version=asked)
        return pointing[asked]
    if asked.qualifier is not None and asked.qualifier.version is not None:
        return asked.qualifier.version
    found = trace.snapshot.catalog.resolve(asked)
    if found.winner is None or found.winner.version is None:
        raise unresolved(found)
    return found.winner.version


def _quarantined(candidate: Candidate) -> SkillQuarantined:
    return SkillQuarantined(
        f"What '{candidate.name}' is in {candidate.origin} is quarantined. {candidate.problem}", name=candidate.name
    )
