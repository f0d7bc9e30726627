"""Patterns of skill names, matched many at a time in time linear in the name.

A pattern is segments of ``[a-z0-9-*?]`` joined by ``/`` that neither begin nor end with ``-``. ``*`` is any run of
characters inside one segment, also an empty one, ``?`` is one character, ``**`` (alone as a segment) is zero or more
segments. A lone ``*`` means ``**``: every name.

Pattern D covers pattern A when D matches the text of A, where a wildcard in that text is a letter that only an equal or
wider wildcard takes.

Names and pattern texts are matched by the same RE2 set, so one pass finds every entry that matches a name, and
one pass over an entry's own text finds every entry that covers it. RE2 runs in time linear in the text and never
backtracks, but the automaton of a set grows with the ways in which wildcards can overlap. A list with many wildcards in
its entries is therefore matched entry by entry, and so is one whose automaton outgrew its memory all the same: a canary
entry that matches everything shows that, since RE2 then reports no match at all, which must never pass for an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import re2

from substrate.domain.errors import InvalidArgument
from substrate.domain.names import SkillName

MAX_PATTERN_LENGTH = 256

_FREE_WILDCARDS = 2
_MAX_OVERLAPS = 32
_CANARY = "/.*"
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False

# The text of a pattern, as other patterns see it, spells `**` as `#`, which no pattern or name can hold.
_IN_SEGMENT = {"*": "[a-z0-9?*-]*", "?": "[a-z0-9?-]", "-": r"\-"}
_ANY_SEGMENTS = "(?:/(?:[a-z0-9?*-]+|#))*"
_PATTERN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-*?")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern; `segments` holds ``**`` for a lone ``*``. Make one with `parse_pattern`."""

    segments: tuple[str, ...]

    @property
    def text(self) -> str:
        """How other patterns see this one: its segments with ``**`` spelled ``#``, each after a slash."""
        return "".join("/#" if segment == "**" else f"/{segment}" for segment in self.segments)

    @property
    def regex(self) -> str:
        """The RE2 expression that takes exactly the names and pattern texts this pattern matches, slash first."""
        return "".join(
            _ANY_SEGMENTS if segment == "**" else "/" + "".join(_IN_SEGMENT.get(c, c) for c in segment)
            for segment in self.segments
        )

    @property
    def matches_all(self) -> bool:
        """Whether every name matches, whatever the spelling: any depth, and nothing asked of any segment."""
        others = [segment for segment in self.segments if segment != "**"]
        return len(others) < len(self.segments) and (
            not others or (len(others) == 1 and "*" in others[0] and others[0].replace("*", "") in ("", "?"))
        )


def pattern_problem(text: str) -> str | None:
    """Say what keeps `text` from being a pattern, or None when it is one."""
    if text.startswith(("+", "-")):
        return "a pattern cannot begin with a sign"
    for segment in text.split("/"):
        if not segment:
            return "it has an empty segment"
        if segment != "**" and "**" in segment:
            return "** must stand alone as a segment"
        if any("A" <= c <= "Z" for c in segment):
            return "it has upper case letters; names are lower case"
        odd = next((c for c in segment if c not in _PATTERN_CHARACTERS), None)
        if odd is not None:
            return f"it has the character {odd!a}; use a-z, 0-9, -, *, ? and /"
        if segment.startswith("-") or segment.endswith("-"):
            return "it has a segment that begins or ends with -"
    return None


def parse_pattern(text: str) -> Pattern:
    """Return the pattern written as `text`, which `pattern_problem` has found no fault with."""
    segments = tuple(text.split("/"))
    return Pattern(("**",) if segments == ("*",) else segments)


def parse_query_pattern(text: str, field: str = "pattern") -> Pattern | None:
    """Return the pattern that a request narrows a list with, or None for no text; raise InvalidArgument for `field`.

    It takes no sign: it selects, it does not allow or deny.
    """
    if not text:
        return None
    problem = (
        pattern_problem(text)
        if len(text) <= MAX_PATTERN_LENGTH
        else f"it is longer than {MAX_PATTERN_LENGTH} characters"
    )
    if problem:
        raise InvalidArgument(field, f"The pattern is refused: {problem}. Write it like doc/*, without a sign.")
    return parse_pattern(text)


def _overlaps(pattern: Pattern) -> int:
    """Return how much a pattern adds to the ways in which a name can be on its way through a set."""
    runs = pattern.text.count("*") + pattern.text.count("#")
    return max(0, runs + pattern.text.count("?") - _FREE_WILDCARDS) if runs else 0


class PatternSet:
    """Patterns matched together; answers which of them match a name or cover a pattern, by index in ascending order."""

    __slots__ = ("_each", "_patterns", "_set")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._each: list[re2._Regexp] | None = None
        self._set: re2.Set | None = None
        if sum(_overlaps(pattern) for pattern in patterns) <= _MAX_OVERLAPS:
            self._set = re2.Set.FullMatchSet(_OPTIONS)
            for pattern in patterns:
                self._set.Add(pattern.regex)
            self._set.Add(_CANARY)
            try:
                self._set.Compile()
            except re2.error:
                self._set = None  # The patterns are too long together for one automaton.

    def matching(self, name: SkillName) -> list[int]:
        """Return the indices of the patterns that match `name`."""
        return self._find(f"/{name}")

    def covering(self, pattern: Pattern) -> list[int]:
        """Return the indices of the patterns that cover `pattern`."""
        return self._find(pattern.text)

    def _find(self, text: str) -> list[int]:
        matcher = self._set
        if matcher is not None:
            found: list[int] = sorted(matcher.Match(text) or ())
            if found and found[-1] == len(self._patterns):
                del found[-1]
                return found
            self._set = None  # The canary was lost: this automaton does not fit, now or later.
        return self.find_one_by_one(text)

    def find_one_by_one(self, text: str) -> list[int]:
        """Return what one pass over all patterns gives, from a pass for each: slower, but never short of memory."""
        if self._each is None:
            self._each = [re2.compile(pattern.regex, _OPTIONS) for pattern in self._patterns]
        return [index for index, regex in enumerate(self._each) if regex.fullmatch(text)]
