"""Text for models: skills in frames, the catalog, the note at the start of a run, and the Skill tool's own words.

Nothing here depends on anything but its input, so equal input gives equal bytes and a model's prompt cache holds.
A frame is two lines of ours around somebody else's text::

    <skill name="doc/query" location="skill://doc/query">
    ...
    </skill>

That text may say what it likes, but it cannot close the frame, open another one, or begin a turn of the chat.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

MIN_NOTE_BUDGET = 128
"""Tokens that hold a run-start note without entries, for a tool named in up to 64 of A-Z, a-z, 0-9, ``-`` and ``_``."""

MAX_LISTED_FILES = 50
"""Files of a skill that are named to a model; more are counted."""

TOOL_NAME = "Skill"
TOOL_DESCRIPTION = (
    "Lists and invokes skills: instructions from the operator's catalog, each for one kind of task. "
    "Before you start on a task that a skill fits, invoke the skill and follow the text it returns. "
    "If a call is refused, go on without that skill."
)
_TOOL_PROPERTIES = {
    "op": "list returns names and descriptions of skills; invoke returns the text of one skill.",
    "name": "For invoke: the skill's name as it is listed, such as doc/query.",
    "arguments": "For invoke: what the skill is to work on, as one text; put quotes around a part with blanks.",
    "file": "For invoke: the path of one of the skill's files, to read it instead of the skill's text.",
    "pattern": "For list: which names to return. * stands for anything within a segment, ** for any segments: doc/*",
}

_UNSEEN = re.compile(
    "[\0-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f]"
)
_LINE_BREAK = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_BREAKS_AND_TABS = re.compile(r"[\t\n]+")

# Markers are sought in a skeleton of the text. It is as long as the text: a character that passes for an ASCII one
# stands there as that one, and a character that goes unnoticed within a word as the filler.
_FILLER = "\u200b"
_UNNOTICED = frozenset({"Cf", "Mn", "Me"})
_HANGUL_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
_LOOK_ALIKES = {
    look_alike: character
    for character, look_alikes in {
        "<": "\u2039\u3008\u27e8\u276c\u276e\u2770\u02c2\u1438",
        ">": "\u203a\u3009\u27e9\u276d\u276f\u2771\u02c3\u1433",
        "/": "\u2044\u2215\u29f8\u2571",
        "|": "\u2502\u2758\u2223\u01c0",
        " ": "\u2800",
        "s": "\u0455\u0405",
        "k": "\u043a\u041a\u03ba\u039a",
        "i": "\u0456\u0406\u0131\u03b9\u0399",
        "l": "\u04cf\u04c0",
        "e": "\u0435\u0415",
    }.items()
    for look_alike in look_alikes
}

_F = rf"{_FILLER}*+"
_B = rf"[\s{_FILLER}]*+"
_SKILL = rf"{_F.join('skill')}(?:{_F}s|{_F}[-_]{_F}{_F.join('file')}(?:{_F}s)?)?(?!-?\w)"
_SPACED_SKILL = _SKILL.replace(_F, _B)
_TAG_TOKENS = "start_of_turn|end_of_turn|start_of_text|end_of_text|bos|eos"
_BRACKET_TOKENS = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS"
# Each match ends with the one character whose replacement spoils the marker; what follows is only looked at, so that
# one marker within another is found as well. `< skill` is a tag only with an attribute or a closing bracket after it,
# for `level < skill && done` is a comparison.
_MARKER = re.compile(
    rf"""
    (?i:
        <(?={_B}[/\\]{_B}{_SPACED_SKILL})
      | <(?={_F}{_SKILL} | {_B}{_SKILL}{_B}(?:/?{_B}>|\w++{_B}=))
      | <(?={_F}\|{_F}/?\w | {_B}\|[^|<>\n]{{1,64}}\|{_B}>)
      | <(?={_B}<{_B}/?{_B}SYS{_B}>{_B}>)
      | <(?={_B}/?{_B}(?:{_TAG_TOKENS}){_B}> | {_B}/{_B}s{_B}>)
      | \[(?={_B}/?{_B}(?:{_BRACKET_TOKENS}){_B}\])
    )
    | (?m:^)[ \t{_FILLER}]*+(?:H{_F}(?i:{_F.join("uman")})|A{_F}(?i:{_F.join("ssistant")}))[ \t{_FILLER}]*+:
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """What a model may see of a skill before it invokes it."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class RunNote:
    """The text at the start of a run, and which names it lists and which it leaves out, each in the order given."""

    text: str
    listed: tuple[str, ...]
    omitted: tuple[str, ...]


def tokens(text: str) -> int:
    """Return the size of `text` in tokens: a quarter of its UTF-8 bytes, rounded up."""
    return -(-_size(text) // 4)


def neutralise(text: str) -> str:
    """Return `text` so that no reader takes a part of it for a frame of ours or a token of a chat template.

    The first character of each look-alike becomes a character reference (``&lt;/skill>``), of ``Human:`` and
    ``Assistant:`` at the beginning of a line the colon; all else stays as it is. Line breaks of every kind become LF;
    control, bidirectional and tag characters and lone surrogates are dropped. Idempotent; linear time.
    """
    return _spoil_markers(_LINE_BREAK.sub("\n", _UNSEEN.sub("", text)))


def escape(text: str) -> str:
    """Return `text` on one line for use in a frame's attribute or a catalog entry.

    ``&``, ``<``, ``>`` and ``"`` become character references, each run of line breaks and tabs one blank; the rest is
    neutralised. An XML parser gives back what a reader sees.
    """
    line = text
    if not text.isprintable():
        line = _BREAKS_AND_TABS.sub(" ", _LINE_BREAK.sub("\n", _UNSEEN.sub("", text)))
    for character, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        line = line.replace(character, reference)
    return _spoil_markers(line)


def frame_skill(name: str, location: str, body: str) -> str:
    """Return the body of the skill `name`, which is kept at `location`, neutralised and in its frame."""
    return f'<skill name="{escape(name)}" location="{escape(location)}">\n{neutralise(body)}\n</skill>'


def file_text(name: str, path: str, text: str) -> str:
    """Return the text of the file at `path` of the skill `name`, neutralised and in its frame."""
    return f'<skill-file name="{escape(name)}" path="{escape(path)}">\n{neutralise(text)}\n</skill-file>'


def files_text(files: Sequence[tuple[str, int]]) -> str:
    """Return the list of a skill's files, given as path and size in bytes, and how a model reads one.

    At most MAX_LISTED_FILES are named, in the order given; of the rest it says how many. Empty without files.
    """
    if not files:
        return ""
    lines = ['Files of this skill. Read one with {"op":"invoke","name":"\u2026","file":"\u2026"}:']
    lines += (f"- {escape(path)} ({size} bytes)" for path, size in files[:MAX_LISTED_FILES])
    if len(files) > MAX_LISTED_FILES:
        lines.append(f"- and {len(files) - MAX_LISTED_FILES} more")
    return "\n".join(lines)


def catalog_line(entry: CatalogEntry) -> str:
    """Return `entry` as one line of XML; runs of blanks in its description become one."""
    description = " ".join(escape(entry.description).split())
    return f'<skill name="{escape(entry.name)}">{description}</skill>'


def run_note(entries: Sequence[CatalogEntry], budget: int, tool_name: str = TOOL_NAME) -> RunNote:
    """Return the system text that tells a model how to use the tool `tool_name` and which skills there are.

    Entries are listed whole and in the order given. One that does not fit into `budget` tokens is left out, and the
    text says how many are. The whole text counts: it never exceeds a budget of at least MIN_NOTE_BUDGET; with a
    smaller one it may, and then it lists nothing. Linear in the entries.
    """
    head = (
        f"Skills are instructions from the operator's catalog, each for one kind of task. Use the tool "
        f"{escape(tool_name)}:\n"
        '- to list skills: {"op":"list","pattern":"doc/*"}\n'
        '- to invoke one: {"op":"invoke","name":"\u2026","arguments":"\u2026"}\n'
        "Before you start on a task that a skill fits, invoke it and follow its text. "
        "If a call is refused, go on without that skill."
    )
    lines = [catalog_line(entry) for entry in entries]
    room = 4 * budget - _size(_block(head, [], ""))
    if sum(_size(line) + 1 for line in lines) > room:
        room -= _size(_left_out(len(lines)))
    fitting: list[str] = []
    listed: list[str] = []
    omitted: list[str] = []
    for entry, line in zip(entries, lines, strict=True):
        size = _size(line) + 1
        if size > room:
            omitted.append(entry.name)
        else:
            room -= size
            fitting.append(line)
            listed.append(entry.name)
    rest = _left_out(len(omitted)) if omitted else ""
    return RunNote(_block(head, fitting, rest) if fitting else f"{head}{rest}", tuple(listed), tuple(omitted))


def list_text(entries: Sequence[CatalogEntry], total: int, pattern: str | None) -> str:
    """Return what the tool answers to a list call: the first `entries` of `total` skills that match `pattern`."""
    asked = f' that matches "{escape(pattern)}"' if pattern else ""
    if not total:
        return f"There is no skill{asked} for you to use." + (" List without a pattern to see all." if asked else "")
    rest = ""
    if len(entries) < total:
        rest = f'\n{len(entries)} of {total} shown. Narrow the list with a pattern: {{"op":"list","pattern":"doc/*"}}'
    return _block("", [catalog_line(entry) for entry in entries], rest).lstrip()


def refusal_text(code: str, reason: str, message: str) -> str:
    """Return what a model reads when a call is refused: gRPC's `code`, our `reason`, the sentence, and what to do."""
    names = escape(code) if code == reason else f"{escape(code)}, {escape(reason)}"
    return f"Refused: {names}. {escape(message)}\nGo on without this skill."


def tool_schema_json() -> str:
    """Return the JSON schema of the tool's input as compact JSON with sorted keys."""
    properties: dict[str, dict[str, str | list[str]]] = {
        name: {"type": "string", "description": description} for name, description in _TOOL_PROPERTIES.items()
    }
    properties["op"]["enum"] = ["list", "invoke"]
    schema = {"type": "object", "properties": properties, "required": ["op"], "additionalProperties": False}
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def _block(head: str, lines: Sequence[str], rest: str) -> str:
    """Return a catalog of `lines` after `head` and before `rest`."""
    return "\n".join((head, "<skills>", *lines, "</skills>")) + rest


def _left_out(count: int) -> str:
    """Return the last line of a note that leaves `count` skills out; no shorter for a greater count."""
    return f"\nNot named here for want of room: {count}. They can be listed and invoked all the same."


def _size(text: str) -> int:
    """Return the number of UTF-8 bytes of `text`; a lone surrogate has three."""
    return len(text.encode("utf-8", "surrogatepass"))


def _spoil_markers(text: str) -> str:
    """Return `text`, in which every line ends at LF, with one character of each marker made a character reference."""
    skeleton = text
    if not text.isascii():
        folded = {ord(character): _folded(character) for character in set(text) if not character.isascii()}
        if any(chr(code) != plain for code, plain in folded.items()):
            skeleton = text.translate(folded)
    pieces: list[str] = []
    done = 0
    for marker in _MARKER.finditer(skeleton):
        last = marker.end() - 1
        pieces += text[done:last], "&lt;" if text[last] == "<" else f"&#{ord(text[last])};"
        done = last + 1
    return "".join((*pieces, text[done:]))


def _folded(character: str) -> str:
    """Return the character that stands for `character` in a skeleton: one ASCII character, the filler, or itself."""
    if unicodedata.category(character) in _UNNOTICED or character in _HANGUL_FILLERS:
        return _FILLER
    plain = unicodedata.normalize("NFKD", _LOOK_ALIKES.get(character, character))
    return plain[0] if all(unicodedata.category(mark) in _UNNOTICED for mark in plain[1:]) else character
