"""The YAML header of a SKILL.md: read, repaired where that is safe, and typed key by key."""

import re
from collections.abc import Iterator

from substrate.domain.characters import DECEPTIVE_IN_HEADER, LINE_BREAKERS, UNPRINTABLE, code_point, first_places, shown
from substrate.domain.findings import Findings, Mode
from substrate.domain.paths import globs_problem
from substrate.domain.plainyaml import Document, Path, Plain, PlainYamlError, load
from substrate.domain.yamlwriter import quoted

_RESTRICTIONS = ("allowed-tools", "tools", "disable-model-invocation", "user-invocable", "paths")
_STRUCTURES = ("metadata", "arguments")
_TEXTS = ("name", "description", "license", "compatibility", "when_to_use", "argument-hint")
KNOWN_KEYS = frozenset((*_RESTRICTIONS, *_STRUCTURES, *_TEXTS))

_MAX_REPAIRS = 16
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*):[ \t]+(.*)")
_PLAIN_START = re.compile(r"""[^\s\[\]{},#&*!|>'"%@`?:-]|[?:-][^ \t]""")
_COLON = re.compile(r":(?:[ \t]|\Z)")
_WORD = re.compile(r"[^\s,]+")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_DECEPTIVE = "the control or invisible character"


def read_document(text: str, first_line: int, findings: Findings) -> Document:
    """Read the text between the ``---`` lines; raise QuarantinedFile with all that was refused if it cannot be read.

    Unless the author is there to mend it, a line of one key whose plain value holds a colon (or an unprintable
    character), or whose hint begins with a bracket, is read as the text it shows. This happens only to lines that
    YAML refuses, never to a key that restricts the skill, and leaves a diagnostic for each.
    """
    lines = text.split("\n")
    repairs_left = 0 if findings.mode is Mode.AUTHOR else _MAX_REPAIRS
    while True:
        try:
            return load("\n".join(lines), first_line=first_line)
        except PlainYamlError as error:
            problems = error.problems
        broken = dict(problems)
        repairs = {number: repair for number in broken if (repair := _repaired(lines[number - first_line]))}
        repairs_left -= len(broken)
        if repairs_left < 0 or len(repairs) < len(broken):
            for number, message in problems:
                match = _LINE.match(lines[number - first_line])
                key = match.group(1) if match else ""
                findings.refuse(number, key if key in KNOWN_KEYS else "frontmatter", message)
            raise findings.refusal()
        for number, (key, line) in repairs.items():
            lines[number - first_line] = line
            findings.note(number, key, f"{broken[number]} It is read as plain text.")


def _repaired(line: str) -> tuple[str, str] | None:
    """Return the key of `line` and the line with its value quoted, or None when its value is not safe to guess."""
    match = _LINE.fullmatch(line)
    if not match:
        return None
    key, value = match.group(1), match.group(2).strip(" \t")
    # A character that ends a line for YAML may hide a second key, which must not become a part of this one's text.
    if key in _RESTRICTIONS or key in _STRUCTURES or LINE_BREAKERS.search(value):
        return None
    misread = _PLAIN_START.match(value) and (_COLON.search(value) or UNPRINTABLE.search(value))
    bracketed = key == "argument-hint" and value.startswith("[")
    return (key, f"{key}: {quoted(value)}") if misread or bracketed else None


class Frontmatter:
    """Typed access to a header; what a key cannot hold goes to `findings` and reads as absent."""

    def __init__(self, document: Document, findings: Findings) -> None:
        self._document = document
        self._data = document.data
        self._findings = findings

    def line(self, key: str) -> int | None:
        """Return the line of `key`, or None when it is absent."""
        return self._document.line(key) if key in self._data else None

    def text(self, key: str) -> str | None:
        """Return the stripped text of `key`, or None when it is absent or blank.

        A list or mapping counts as its source text: always for a hint, else only for a tolerant reader.
        """
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            if key != "argument-hint":
                message = "must be one text, not a list or a mapping."
                self._findings.tolerate(self.line(key), key, message, "It is read as the text it shows.")
            value = self._document.source(key)
        return value.strip() or None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the flag `key`: true, yes, on and 1, or false, no, off and 0, in any case of letters."""
        value = self._data.get(key)
        if value is None:
            return default
        flag = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else None
        if flag is None:
            self._findings.refuse(self.line(key), key, "must be true or false.")
            return default
        return flag

    def metadata(self) -> dict[str, Plain]:
        """Return the mapping `metadata` with its texts stripped, at any nesting."""
        value = self._data.get("metadata", "")
        if isinstance(value, dict):
            return {key: _stripped(item) for key, item in value.items()}
        if value:
            self._findings.tolerate(self.line("metadata"), "metadata", "must be a mapping.", "It is left out.")
        return {}

    def arguments(self) -> tuple[str, ...]:
        """Return the argument names, from a list or from text with blanks or commas between them."""
        value = self._data.get("arguments", "")
        names = _WORD.findall(value) if isinstance(value, str) else _texts(value)
        if names is None or len(set(names)) < len(names) or not all(map(_ARGUMENT.fullmatch, names)):
            message = "must be distinct names made of letters, digits, _ and - that begin with a letter or _."
            self._findings.tolerate(self.line("arguments"), "arguments", message, "They are left out.")
            return ()
        return tuple(names)

    def paths(self) -> tuple[str, ...]:
        """Return the path patterns, from a list or from text with commas between them, except inside braces."""
        globs = self._restriction("paths", separators=",", brackets="{}") or ()
        problem = globs_problem(globs)
        if problem:
            self._findings.refuse(self.line("paths"), "paths", f"{problem}.")
        return globs

    def allowed_tools(self) -> tuple[str, ...] | None:
        """Return the tools of `allowed-tools` or of its synonym `tools`; None when neither is there."""
        allowed = self._tools("allowed-tools")
        synonym = self._tools("tools")
        if allowed is not None and synonym is not None and set(allowed) != set(synonym):
            message = "differs from allowed-tools, which means the same; keep one of them."
            self._findings.refuse(self.line("tools"), "tools", message)
        return synonym if allowed is None else allowed

    def _tools(self, key: str) -> tuple[str, ...] | None:
        tools = self._restriction(key, separators=", \t\n", brackets="()")
        if any(tool.startswith("(") for tool in tools or ()):
            self._findings.refuse(self.line(key), key, "has parentheses without a tool; write them beside its name.")
        return tools

    def _restriction(self, key: str, *, separators: str, brackets: str) -> tuple[str, ...] | None:
        """Return the items of a list or a text; None when it is absent, or refused because it cannot be told apart."""
        value = self._data.get(key)
        if value is None:
            return None
        if value == [] or (isinstance(value, str) and not value.strip()):
            return ()
        texts = [value] if isinstance(value, str) else _texts(value)
        items = [_split(text, separators, brackets) for text in texts or [""]]
        if not all(items):
            self._findings.refuse(self.line(key), key, "cannot be read as a list; a restriction is never guessed.")
            return None
        return tuple(item for part in items for item in part)

    def unknown(self) -> dict[str, Plain]:
        """Return the keys that have no meaning here, verbatim and in file order; report the misspelt ones."""
        extra = {key: value for key, value in self._data.items() if key not in KNOWN_KEYS}
        for key in extra:
            meant = _BY_LETTERS.get(_letters(key))
            if meant:
                message = f"the key {shown(key)} has no meaning; {meant} may be meant."
                self._findings.note(self.line(key), "frontmatter", message)
        return extra

    def check_characters(self) -> None:
        """Report characters that deceive a reader, in what was written and in what escapes stand for."""
        written = self._document.text
        if "\\" not in written and not DECEPTIVE_IN_HEADER.search(written):
            return
        reported = set()
        for path, text in _walk((), self._data):
            for character, _ in first_places(DECEPTIVE_IN_HEADER, text):
                reported.add(character)
                field = str(path[0]) if path[0] in KNOWN_KEYS else "frontmatter"
                self._findings.suspect(
                    self._document.line(*path), field, f"holds {_DECEPTIVE} {code_point(character)}."
                )
        for character, offset in first_places(DECEPTIVE_IN_HEADER, written):
            if character not in reported:
                line = self._document.first_line + written.count("\n", 0, offset)
                self._findings.suspect(line, "frontmatter", f"a comment holds {_DECEPTIVE} {code_point(character)}.")


def _texts(value: Plain) -> list[str] | None:
    """Return the stripped items of a list of texts, or None when `value` is none."""
    if not isinstance(value, list):
        return None
    texts = [item.strip() for item in value if isinstance(item, str)]
    return texts if len(texts) == len(value) else None


def _stripped(value: Plain) -> Plain:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return {key: _stripped(item) for key, item in value.items()}


def _walk(path: Path, value: Plain) -> Iterator[tuple[Path, str]]:
    """Yield every key and text with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk((*path, index), item)
    else:
        for key, item in value.items():
            yield (*path, key), key
            yield from _walk((*path, key), item)


def _split(text: str, separators: str, brackets: str) -> list[str]:
    """Split at any of `separators` outside `brackets`; return nothing when the text is blank or they do not match."""
    items = []
    depth = start = 0
    for offset, character in enumerate(text):
        depth += (character == brackets[0]) - (character == brackets[1])
        if depth < 0:
            return []
        if depth == 0 and character in separators:
            items.append(text[start:offset])
            start = offset + 1
    items.append(text[start:])
    return [] if depth else [item for padded in items if (item := padded.strip())]


def _letters(key: str) -> str:
    """Reduce a key to what misspellings of it share: its letters in lower case, with one spelling of *invocable*."""
    return re.sub(r"[^a-z]", "", key.lower()).replace("invok", "invoc")


_BY_LETTERS = {_letters(key): key for key in sorted(KNOWN_KEYS)}
