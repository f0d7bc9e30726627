"""One strict reader for all YAML that people hand us: skill headers, bundle manifests, the operator's config.

Every scalar is text, so ``no``, ``1.10`` and ``2026-01-02`` stay as written and whoever knows the key gives it a type.
What a reader could misjudge is refused: duplicate keys, anchors, aliases, tags, keys that are no scalars, further
documents, and characters at which YAML ends a line but an editor does not. The data is built from libyaml's events
in a loop, so neither aliases nor depth can make a small text expensive.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from yaml import CBaseLoader
from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
)

from substrate.domain.characters import LINE_BREAKERS, UNPRINTABLE, code_point, first_places, shown

Plain: TypeAlias = "str | list[Plain] | dict[str, Plain]"
Path: TypeAlias = tuple[str | int, ...]

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16

_NO_MAPPING = "must hold lines of the form `key: value`."
_BYTE_ORDER_MARK = "\ufeff"


class YamlProblem(NamedTuple):
    """One thing wrong with a YAML text; `line` counts from the `first_line` given to `load`."""

    line: int
    message: str


class PlainYamlError(Exception):
    """YAML that cannot be accepted; `problems` lists at least one, in the order of their lines."""

    def __init__(self, *problems: YamlProblem) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__(" ".join(f"line {line}: {message}" for line, message in self.problems))


class Place(NamedTuple):
    """Where a value stands: the line of its key (its own in a list), its line, its offsets in the document's text."""

    key_line: int
    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping read from YAML, and the place of every value in it by path, ``("server", "ports", 0)``."""

    data: dict[str, Plain]
    places: Mapping[Path, Place]
    text: str
    first_line: int

    def line(self, *path: str | int) -> int:
        """Return the line of the key or list item at `path`, or of the closest thing around it that exists."""
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length])
            if place:
                return place.key_line
        return self.first_line

    def source(self, *path: str | int) -> str:
        """Return the text of the value at `path` as it was written, without blanks around it; KeyError if absent."""
        place = self.places[path]
        return self.text[place.start : place.end].strip()


def load(text: str, *, first_line: int = 1, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Document:
    """Read one YAML mapping in which every scalar is text; a text without content is an empty mapping.

    A byte order mark is skipped and CRLF read as LF. Lines count from `first_line`, `max_bytes` are UTF-8 bytes, and
    the root counts as depth 1. Raises PlainYamlError, and nothing else, for every text that is not acceptable.
    """
    text = text.lstrip(_BYTE_ORDER_MARK).replace("\r\n", "\n")
    if len(text) > max_bytes or len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise PlainYamlError(YamlProblem(first_line, f"has more than {max_bytes} bytes."))
    refused = first_places(LINE_BREAKERS, text) + first_places(UNPRINTABLE, text)
    if refused:
        raise PlainYamlError(
            *(
                YamlProblem(first_line + text.count("\n", 0, offset), f"holds the character {code_point(character)}.")
                for character, offset in refused
            )
        )
    return _Reader(text, first_line, max_depth).read()


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been seen; `key` is the one whose value comes next."""

    data: dict[str, Plain] | list[Plain]
    path: Path
    key_line: int
    line: int
    start: int
    key: str | None = None
    next_key_line: int = 0

    @property
    def awaits_key(self) -> bool:
        """Whether what comes next is a key of this mapping."""
        return self.key is None and isinstance(self.data, dict)


class _Reader:
    """Builds a Document from libyaml's events and collects the problems it meets on the way."""

    def __init__(self, text: str, first_line: int, max_depth: int) -> None:
        self._text = text
        self._first_line = first_line
        self._last_line = first_line + text.count("\n")
        self._max_depth = max_depth
        self._root: dict[str, Plain] = {}
        self._places: dict[Path, Place] = {}
        self._open: list[_Open] = []
        self._documents = 0
        self._problems: list[YamlProblem] = []

    def read(self) -> Document:
        parser = CBaseLoader(self._text)
        try:
            while (event := parser.get_event()) is not None:
                self._take(event)
        except YAMLError as error:
            self._refuse(_syntax_line(error), _syntax_message(error))
        if self._problems:
            raise PlainYamlError(*self._problems)
        return Document(self._root, self._places, self._text, self._first_line)

    def _line(self, mark_line: int) -> int:
        """Return the line for libyaml's, which counts from 0 and may put the end of a text one line below its last."""
        return min(self._first_line + mark_line, self._last_line)

    def _refuse(self, mark_line: int, message: str) -> None:
        """Note a problem after which reading can go on."""
        self._problems.append(YamlProblem(self._line(mark_line), message))

    def _stop(self, mark_line: int, message: str) -> PlainYamlError:
        """Return the error for a problem after which what follows would be misread."""
        self._refuse(mark_line, message)
        return PlainYamlError(*self._problems)

    def _take(self, event: Event) -> None:
        # The stubs allow marks to be absent; libyaml always gives them.
        start: Any = event.start_mark
        end: Any = event.end_mark
        if isinstance(event, ScalarEvent):
            self._check_properties(event, start.line)
            self._scalar(event.value, start, end)
        elif isinstance(event, CollectionStartEvent):
            self._check_properties(event, start.line)
            self._start({} if isinstance(event, MappingStartEvent) else [], start)
        elif isinstance(event, CollectionEndEvent):
            done = self._open.pop()
            self._places[done.path] = Place(done.key_line, done.line, done.start, end.index)
        elif isinstance(event, AliasEvent):
            raise self._stop(start.line, "anchors and aliases are not allowed.")
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._stop(start.line, "a second document is not allowed.")

    def _check_properties(self, event: ScalarEvent | CollectionStartEvent, mark_line: int) -> None:
        if event.anchor is not None:
            self._refuse(mark_line, "anchors and aliases are not allowed.")
        if event.tag is not None:
            self._refuse(mark_line, "tags are not allowed.")

    def _scalar(self, value: str, start: Any, end: Any) -> None:
        if "\0" in value:
            self._refuse(start.line, "the character U+0000 is not allowed, not even as an escape.")
        if not self._open:
            if value:
                raise self._stop(start.line, _NO_MAPPING)
            return
        parent = self._open[-1]
        if parent.awaits_key:
            if value in parent.data:
                first = self._places[*parent.path, value].key_line
                self._refuse(start.line, f"the key {shown(value)} is given twice, first in line {first}.")
            parent.key = value
            parent.next_key_line = self._line(start.line)
            return
        line = self._line(start.line)
        path, key_line = _attach(parent, value, line)
        self._places[path] = Place(key_line, line, start.index, end.index)

    def _start(self, data: dict[str, Plain] | list[Plain], start: Any) -> None:
        if len(self._open) >= self._max_depth:
            raise self._stop(start.line, f"is nested more than {self._max_depth} levels deep.")
        line = self._line(start.line)
        if self._open:
            parent = self._open[-1]
            if parent.awaits_key:
                raise self._stop(start.line, "a key must be text, not a list or a mapping.")
            path, key_line = _attach(parent, data, line)
        elif isinstance(data, dict):
            self._root, path, key_line = data, (), line
        else:
            raise self._stop(start.line, _NO_MAPPING)
        self._open.append(_Open(data, path, key_line, line, start.index))


def _attach(parent: _Open, value: Plain, line: int) -> tuple[Path, int]:
    """Put `value` into `parent`; return its path and the line of its key, which for a list item is its own `line`."""
    if isinstance(parent.data, list):
        parent.data.append(value)
        return (*parent.path, len(parent.data) - 1), line
    key = parent.key or ""
    parent.data[key] = value
    parent.key = None
    return (*parent.path, key), parent.next_key_line


def _syntax_line(error: YAMLError) -> int:
    """Return the line, from 0, at which a person should look."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return 0
    # What is left open is noticed far below; the useful line is where it began.
    left_open = (error.context or "").startswith(("while parsing a flow", "while scanning a quoted"))
    mark = error.context_mark if left_open and error.context_mark else error.problem_mark
    return int(mark.line)


def _syntax_message(error: YAMLError) -> str:
    problem = error.problem if isinstance(error, MarkedYAMLError) else None
    if problem == "mapping values are not allowed in this context":
        return "a colon and a blank inside a value: put the value in quotes."
    return f"is not valid YAML: {problem or 'it cannot be read'}."
