"""SKILL.md: a YAML header between two ``---`` lines, then the body that a model reads.

Two ways in. `parse_strict` is for authors, who can mend what they wrote: it refuses everything doubtful and says all
of it at once. `parse_lenient` is for files that somebody else wrote: it fills in and repairs what cannot change what
the skill is allowed to do, notes each such step, and quarantines the rest.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from substrate.domain.characters import DECEPTIVE, code_point, first_places, shown
from substrate.domain.errors import InvalidSkill
from substrate.domain.findings import Findings, Mode, Problem, QuarantinedFile
from substrate.domain.frontmatter import Frontmatter, read_document
from substrate.domain.names import MAX_SEGMENT_LENGTH, slug_problem
from substrate.domain.plainyaml import Plain
from substrate.domain.skillheader import SkillHeader, content_sha256, header_from_plain, header_to_plain
from substrate.domain.yamlwriter import dump

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_DESCRIPTION_LENGTH",
    "MAX_FILE_BYTES",
    "Problem",
    "QuarantinedFile",
    "Skill",
    "SkillHeader",
    "body_of",
    "content_sha256",
    "header_from_plain",
    "header_to_plain",
    "made_slug",
    "parse_lenient",
    "parse_strict",
    "to_skill_md",
]

MAX_DESCRIPTION_LENGTH = 1024
MAX_BODY_BYTES = 128 * 1024
MAX_FILE_BYTES = 1024 * 1024

_FIRST_FRONTMATTER_LINE = 2
_OPENING = re.compile(r"---[ \t]*(?:\n|\Z)")
_CLOSING = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)
_ALMOST_OPENING = re.compile(r"[\s\ufeff]*---[ \t]*(?:[^\S \t]|\Z)")
_NOT_BLANK = re.compile(r"[^ \t\n]")
_FIRST_TEXT_LINE = re.compile(r"^[^\S\n]*([^\s#].*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Skill:
    """A SKILL.md that was accepted, and what its reader should know about it all the same."""

    header: SkillHeader
    body: str
    diagnostics: tuple[Problem, ...]


def parse_strict(text: str | bytes, *, name: str | None = None) -> Skill:
    """Read a SKILL.md as its author must write it, under the last segment `name` if one is given.

    Required: a slug as name, a description of 1 to 1,024 characters, a body that is not blank and has at most 128 KiB
    of UTF-8. Raises InvalidSkill with a violation of ``source`` or ``source.<key>`` for every problem in the file.
    """
    try:
        return _read(text, Findings(Mode.AUTHOR), lambda fields, findings: _written_name(fields, name, findings))
    except QuarantinedFile as refused:
        raise InvalidSkill(*(problem.violation() for problem in refused.problems)) from None


def parse_lenient(data: bytes, *, folder: str, keep_folder_name: bool = True) -> Skill:
    """Read somebody else's SKILL.md from a folder called `folder`; raise QuarantinedFile when it is not safe to use.

    In a bundle the folder names the skill. With `keep_folder_name` False the file is imported: a valid name in the
    file comes first, and control or invisible characters, which a bundle's operator is told of, are refused.
    """
    mode = Mode.BUNDLE if keep_folder_name else Mode.IMPORT
    return _read(data, Findings(mode), lambda fields, findings: _found_name(fields, folder, findings))


def body_of(data: bytes) -> str:
    """Return the body that parsing these bytes gives, without reading the header.

    Meant for files that parsed before; of others, those whose body cannot be found raise QuarantinedFile.
    """
    findings = Findings(Mode.BUNDLE)
    text = _decoded(data, findings)
    return text[_split(text, findings)[1] :]


def to_skill_md(header: SkillHeader, body: str) -> str:
    """Write a SKILL.md that `parse_strict`, if it accepts it, reads as the same header and body."""
    known: dict[str, Plain | None] = {
        "name": header.name,
        "description": header.description,
        "license": header.license,
        "compatibility": header.compatibility,
        "allowed-tools": None if header.allowed_tools is None else ", ".join(header.allowed_tools),
        "metadata": dict(header.metadata) or None,
        "when_to_use": header.when_to_use,
        "argument-hint": header.argument_hint,
        "arguments": list(header.arguments) or None,
        "disable-model-invocation": "true" if header.disable_model_invocation else None,
        "user-invocable": None if header.user_invocable else "false",
        "paths": list(header.paths) or None,
    }
    written = {key: value for key, value in known.items() if value is not None}
    return f"---\n{dump({**written, **header.extra})}---\n\n{body}"


def made_slug(text: str) -> str:
    """Return `text` as a slug: lower-case ASCII, accents dropped, any run of other characters one hyphen.

    A slug stays as it is. The result has at most 64 characters and is empty when nothing of `text` is left.
    """
    letters = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return re.sub(r"[^a-z0-9]+", "-", letters.lower()).strip("-")[:MAX_SEGMENT_LENGTH].rstrip("-")


def _read(data: str | bytes, findings: Findings, name_for: Callable[[Frontmatter, Findings], str]) -> Skill:
    text = _decoded(data, findings)
    frontmatter, start = _split(text, findings)
    if frontmatter is None:
        message = "there is no frontmatter; begin with a --- line, name, description and another --- line."
        findings.tolerate(1, "frontmatter", message, "Folder and body stand in for it.")
    _check_body(text, start, findings)
    document = read_document(frontmatter or "", _FIRST_FRONTMATTER_LINE, findings)
    fields = Frontmatter(document, findings)
    body = text[start:]
    header = SkillHeader(
        name=name_for(fields, findings),
        description=_description(fields, body, findings),
        allowed_tools=fields.allowed_tools(),
        license=fields.text("license"),
        compatibility=fields.text("compatibility"),
        when_to_use=fields.text("when_to_use"),
        argument_hint=fields.text("argument-hint"),
        metadata=fields.metadata(),
        arguments=fields.arguments(),
        disable_model_invocation=fields.flag("disable-model-invocation", default=False),
        user_invocable=fields.flag("user-invocable", default=True),
        paths=fields.paths(),
        extra=fields.unknown(),
    )
    fields.check_characters()
    return Skill(header, body, findings.settle())


def _decoded(data: str | bytes, findings: Findings) -> str:
    """Return the text without a byte order mark and with CRLF as LF."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_FILE_BYTES:
        findings.refuse(None, None, f"has {len(raw):,} bytes; at most {MAX_FILE_BYTES:,} are allowed.")
        raise findings.refusal()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        findings.refuse(line, None, "holds bytes that are not UTF-8, or half a surrogate pair.")
        raise findings.refusal() from None
    # Asked first, since that takes a hundredth of the time and most texts have none.
    return (text.replace("\r\n", "\n") if "\r" in text else text).removeprefix("\ufeff")


def _split(text: str, findings: Findings) -> tuple[str | None, int]:
    """Return the text between the ``---`` lines, None without them, and the offset at which the body begins."""
    opening = _OPENING.match(text)
    if opening:
        closing = _CLOSING.search(text, opening.end())
        if closing:
            return text[opening.end() : closing.start()], _first_line_with_text(text, closing.end())
        findings.refuse(1, "frontmatter", "is never closed; end it with a line that is exactly ---.")
        raise findings.refusal()
    # Read as a body, a header that is merely displaced would lose the restrictions in it.
    if _ALMOST_OPENING.match(text):
        findings.refuse(1, "frontmatter", "must open with exactly --- on the first line of the file.")
        raise findings.refusal()
    return None, _first_line_with_text(text, 0)


def _first_line_with_text(text: str, start: int) -> int:
    """Return where the first line from the line at `start` begins that is not blank, or the end of `text`."""
    visible = _NOT_BLANK.search(text, start)
    return text.rfind("\n", 0, visible.start()) + 1 if visible else len(text)


def _check_body(text: str, start: int, findings: Findings) -> None:
    body = text[start:]
    if not body.strip():
        findings.refuse(None, "body", "must not be blank.")
    size = len(body.encode())
    if size > MAX_BODY_BYTES:
        message = f"has {size:,} bytes; at most {MAX_BODY_BYTES:,} are allowed."
        findings.tolerate(None, "body", message, "It is kept whole.")
    for character, offset in first_places(DECEPTIVE, text, start):
        report = findings.refuse if character == "\0" else findings.suspect
        line = text.count("\n", 0, offset) + 1
        report(line, "body", f"holds the control or invisible character {code_point(character)}.")


def _written_name(fields: Frontmatter, expected: str | None, findings: Findings) -> str:
    """Return the name that the author gave, which must be a slug and the expected one."""
    name = fields.text("name") or ""
    problem = slug_problem(name)
    if problem:
        findings.refuse(fields.line("name"), "name", f"{shown(name)} {problem}." if name else "is missing.")
    elif expected not in (None, name):
        findings.refuse(fields.line("name"), "name", f"is {shown(name)}, but the skill is called {expected!r}.")
    return name


def _found_name(fields: Frontmatter, folder: str, findings: Findings) -> str:
    """Return the name of a file found in `folder`: the folder's, or for an import first its own."""
    name = fields.text("name")
    if name and findings.mode is Mode.IMPORT and slug_problem(name) is None:
        return name
    slug = made_slug(folder)
    if not slug:
        message = f"the folder {shown(folder)} holds no letter or digit to make a name of."
        findings.refuse(fields.line("name"), "name", message)
    elif name != slug:
        given = f"{shown(name)} is not used" if name else "is missing"
        message = f"{given}; the folder {shown(folder)} names the skill {slug!r}."
        findings.note(fields.line("name"), "name", message)
    elif folder != slug:
        findings.note(None, "name", f"the folder {shown(folder)} is not called {slug!r}, as the skill is.")
    return slug


def _description(fields: Frontmatter, body: str, findings: Findings) -> str:
    """Return the description; for a tolerant reader the first line of the body that is no heading can stand in."""
    description = fields.text("description")
    line = fields.line("description")
    if description:
        if len(description) > MAX_DESCRIPTION_LENGTH:
            message = f"has {len(description):,} characters; at most {MAX_DESCRIPTION_LENGTH:,} are allowed."
            findings.tolerate(line, "description", message, "It is kept whole.")
        return description
    missing = "is missing; say what the skill does and when to use it."
    first = _FIRST_TEXT_LINE.search(body)
    if not first:
        findings.refuse(line, "description", missing)
        return ""
    findings.tolerate(line, "description", missing, "The first line of the body stands in for it.")
    return first.group(1).strip()[:MAX_DESCRIPTION_LENGTH]
