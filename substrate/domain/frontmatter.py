"""The YAML header of a SKILL.md: read, repaired where that is safe, and typed key by key."""

import re
from collections.abc import Iterator

from substrate.domain.characters import DECEPTIVE_IN_HEADER, LINE_BREAKERS, UNPRINTABLE, code_point, first_places, shown
from substrate.domain.findings import Findings, Mode
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
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def read_document(text: str, first_line: int, findings: Findings) -> Document | None:
    """Read the text between the ``---`` lines; return None when it cannot be read, with the reasons in `findings`.

    Unless the author is there to mend it, a line of one key whose plain value holds a colon (or an unprintable
    character), or whose hint begins with a bracket, is read as the text it shows. This happens only to lines that
    YAML refuses, never to a key that restricts the skill, and leaves a diagnostic for each.
    """
    lines = text.split("\n")
    repairs = 0
    while True:
        try:
            return load("\n".join(lines), first_line=first_line)
        except PlainYamlError as error:
            for line, message in error.problems:
                index = line - first_line
                repaired = _repaired(lines[index]) if index < len(lines) and repairs < _MAX_REPAIRS else None
                if repaired is None or findings.mode is Mode.AUTHOR:
                    _refuse_all(error, findings)
                    return None
                key, lines[index] = repaired
                repairs += 1
                findings.note(line, key, f"{message} The line was read as plain text.")


def _refuse_all(error: PlainYamlError, findings: Findings) -> None:
    for line, message in error.problems:
        findings.refuse(line, "frontmatter", message)


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

        A hint is the source text of its value. Any other list or mapping is one only for a tolerant reader.
        """
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            if key != "argument-hint":
                self._findings.tolerate(self.line(key), key, "must be one text, not a list or a mapping.")
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
            self._findings.tolerate(self.line("metadata"), "metadata", "must be a mapping; it is left out.")
        return {}

    def arguments(self) -> tuple[str, ...]:
        """Return the argument names, from a list or from text with blanks or commas between them."""
        value = self._data.get("arguments", "")
        names = re.split(r"[\s,]+", value.strip(" \t\n,")) if isinstance(value, str) and value.strip() else value or []
        texts = _texts(names) if isinstance(names, list) else None
        if texts is None or len(set(texts)) < len(texts) or not all(map(_ARGUMENT.fullmatch, texts)):
            message = "must be distinct names of letters, digits, _ and -, not beginning with a digit; left out."
            self._findings.tolerate(self.line("arguments"), "arguments", message)
            return ()
        return tuple(texts)

    def paths(self) -> tuple[str, ...]:
        """Return the path patterns, from a list or from text with commas between them (but not inside braces)."""
        return self._restriction("paths", split_on=",", opening="{", closing="}") or ()

    def allowed_tools(self) -> tuple[str, ...] | None:
        """Return the tools of `allowed-tools` or of its synonym `tools`; None when neither is there."""
        allowed = self._restriction("allowed-tools", split_on=", \t\n", opening="(", closing=")")
        synonym = self._restriction("tools", split_on=", \t\n", opening="(", closing=")")
        if allowed is not None and synonym is not None and set(allowed) != set(synonym):
            message = "differs from allowed-tools, which means the same; keep one of them."
            self._findings.refuse(self.line("tools"), "tools", message)
        return synonym if allowed is None else allowed

    def _restriction(self, key: str, *, split_on: str, opening: str, closing: str) -> tuple[str, ...] | None:
        """Return the items of a list or a text; refuse the file when they cannot be told apart with certainty."""
        value = self._data.get(key)
        if value is None or value == []:
            return None if value is None else ()
        texts = [value] if isinstance(value, str) else _texts(value)
        if texts == [""]:
            return ()
        items: list[str] = []
        for text in texts or [""]:
            found = _split(text, split_on, opening, closing)
            if not found or any(item.startswith(opening) for item in found):
                self._findings.refuse(self.line(key), key, "cannot be read as a list; a restriction is never guessed.")
                return ()
            items += found
        return tuple(items)

    def unknown(self) -> dict[str, Plain]:
        """Return the keys that have no meaning here, verbatim and in file order; report the misspelt ones."""
        extra = {key: value for key, value in self._data.items() if key not in KNOWN_KEYS}
        for key in extra:
            meant = _BY_LETTERS.get(_letters(key))
            if meant:
                self._findings.note(self.line(key), None, f"the key {shown(key)} is unknown; {meant} may be meant.")
        return extra

    def check_characters(self) -> None:
        """Report characters that deceive a reader, in what was written and in what escapes stand for."""
        if not DECEPTIVE_IN_HEADER.search(self._document.text) and "\\" not in self._document.text:
            return
        reported = set()
        for path, text in _walk((), self._data):
            for character, _ in first_places(DECEPTIVE_IN_HEADER, text):
                reported.add(character)
                message = f"holds the control or invisible character {code_point(character)}."
                self._findings.suspect(self._document.line(*path), shown_key(path), message)
        for character, offset in first_places(DECEPTIVE_IN_HEADER, self._document.text):
            if character not in reported:
                line = self._document.first_line + self._document.text.count("\n", 0, offset)
                message = f"a comment holds the control or invisible character {code_point(character)}."
                self._findings.suspect(line, "frontmatter", message)


def _split(text: str, split_on: str, opening: str, closing: str) -> list[str]:
    """Split at any character of `split_on` outside brackets; return nothing when the brackets do not match."""
    items: list[str] = []
    item: list[str] = []
    depth = 0
    for character in text:
        depth += (character == opening) - (character == closing)
        if depth < 0:
            return []
        if depth == 0 and character in split_on:
            items.append("".join(item))
            item.clear()
        else:
            item.append(character)
    items.append("".join(item))
    return [] if depth else [stripped for item_text in items if (stripped := item_text.strip())]
