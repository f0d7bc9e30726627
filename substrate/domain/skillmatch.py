"""The ordered pattern allowlist: which skill names an agent may list, invoke and author.

**Entries.** ``pattern`` or ``+pattern`` allows, ``-pattern`` denies. A pattern is segments of ``[a-z0-9-*?]`` joined by
``/`` that neither begin nor end with ``-``. ``*`` is any run of characters inside one segment, also an empty one, ``?``
is one character, ``**`` (alone as a segment) is zero or more segments. A lone ``*`` means ``**``: every name. At most
256 characters an entry and 200 entries a list. Anything else is refused with the entry and the reason; a malformed
entry is never skipped, since a skipped deny would be an open door.

**The decision for a name.** The first entry that matches decides, with one refinement that lets a carve-out stand where
a reader expects it, after the rule it carves from:

1. No entry matches: denied when the list has any allow (``UNLISTED``), else allowed (``EMPTY_ALLOWLIST`` for an empty
   list, ``NOT_DENIED`` for one with denies only).
2. The first match denies: denied (``DENY_RULE``).
3. The first match allows: if a later deny matches too and is not strictly broader than that allow, it is an exception
   to it and denies (``DENY_RULE``, the first such entry). Otherwise allowed (``ALLOW_RULE``).

Deny D is strictly broader than allow A when D covers A and A does not cover D. D covers A when D matches the text of A,
where a wildcard in that text is a letter that only an equal or wider wildcard takes. Where this misses a cover that
holds, the deny wins.

**How.** Names and pattern texts are matched by the same RE2 set, so one pass finds every entry that matches a name, and
one pass over an entry's own text finds every entry that covers it. RE2 runs in time linear in the text and never
backtracks, but the automaton of a set grows with the ways in which wildcards can overlap. A list with many wildcards in
its entries is therefore matched entry by entry, and so is one whose automaton outgrew its memory all the same: a canary
entry that matches everything shows that, since RE2 then reports no match at all, which must never pass for an answer.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import re2

from substrate.domain.errors import InvalidAllowlist, InvalidArgument, Violation
from substrate.domain.names import SkillName

MAX_ENTRIES = 200
MAX_PATTERN_LENGTH = 256

_SHOWN = 80
_FREE_WILDCARDS = 2
_MAX_OVERLAPS = 32
_CANARY = "/.*"
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False

# The text of a pattern, as other patterns see it, spells `**` as `#`, which no pattern or name can hold.
_IN_SEGMENT = {"*": "[a-z0-9?*-]*", "?": "[a-z0-9?-]", "-": r"\-"}
_ANY_SEGMENTS = "(?:/(?:[a-z0-9?*-]+|#))*"
_PATTERN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-*?")


class Reason(Enum):
    """Why a decision fell as it did."""

    EMPTY_ALLOWLIST = "EMPTY_ALLOWLIST"
    NOT_DENIED = "NOT_DENIED"
    ALLOW_RULE = "ALLOW_RULE"
    DENY_RULE = "DENY_RULE"
    UNLISTED = "UNLISTED"


@dataclass(frozen=True, slots=True)
class Decision:
    """What an allowlist says of one name: `index` is the deciding entry, counted from 0, or None when none decides."""

    allowed: bool
    reason: Reason
    index: int | None = None


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an allowlist: its text as written, its sign and its pattern."""

    text: str
    denies: bool
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class AllowlistWarning:
    """An entry that cannot do what its author may expect; `index` counts from 0."""

    index: int
    entry: str
    message: str


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


def _entry_problem(text: str) -> str | None:
    if not text:
        return "it is empty"
    if text.isspace():
        return "it is blank"
    if len(text) > MAX_PATTERN_LENGTH:
        return f"it is too long: {len(text)} characters, at most {MAX_PATTERN_LENGTH} are allowed"
    if text in ("+", "-"):
        return "it has no pattern after the sign"
    return pattern_problem(text[1:] if text[0] in "+-" else text)


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


class Allowlist:
    """An ordered list of allow and deny entries; immutable. Make one with `parse`."""

    __slots__ = ("_covering", "_set", "_sha256", "entries")

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self._set: PatternSet | None = None
        self._sha256 = ""
        self._covering: dict[int, frozenset[int]] = {}

    @classmethod
    def parse(cls, entries: Iterable[str], field: str = "skills") -> "Allowlist":
        """Return the allowlist of `entries`; raise InvalidAllowlist listing every bad entry as ``field[index]``."""
        texts = list(entries)
        if len(texts) > MAX_ENTRIES:
            raise InvalidAllowlist(
                Violation(field, f"An allowlist has at most {MAX_ENTRIES} entries; this one has {len(texts)}.")
            )
        violations = []
        parsed = []
        for index, text in enumerate(texts):
            problem = _entry_problem(text)
            if problem:
                shown = ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
                violations.append(Violation(f"{field}[{index}]", f"The allowlist entry {shown} is refused: {problem}."))
            else:
                bare = text[1:] if text[0] in "+-" else text
                parsed.append(Entry(text, text.startswith("-"), parse_pattern(bare)))
        if violations:
            raise InvalidAllowlist(*violations)
        return cls(tuple(parsed))

    def decide(self, name: SkillName) -> Decision:
        """Decide on `name`, which must be a parsed bare name, without a qualifier."""
        matching = self.matching(name) if self.entries else []
        if not matching:
            if self.has_allow:
                return Decision(allowed=False, reason=Reason.UNLISTED)
            return Decision(allowed=True, reason=Reason.NOT_DENIED if self.entries else Reason.EMPTY_ALLOWLIST)
        first = matching[0]
        if self.entries[first].denies:
            return Decision(allowed=False, reason=Reason.DENY_RULE, index=first)
        for later in matching[1:]:
            if self.entries[later].denies and not self.strictly_broader(later, first):
                return Decision(allowed=False, reason=Reason.DENY_RULE, index=later)
        return Decision(allowed=True, reason=Reason.ALLOW_RULE, index=first)

    def matching(self, name: SkillName) -> list[int]:
        """Return the indices of all entries whose pattern matches `name`, in order, whatever their sign."""
        return self._patterns().matching(name)

    def strictly_broader(self, index: int, than: int) -> bool:
        """Whether entry `index` covers entry `than` and is not covered by it."""
        return index in self._covered_by(than) and than not in self._covered_by(index)

    @property
    def has_allow(self) -> bool:
        """Whether any entry allows; a name that no entry matches is denied then."""
        return any(not entry.denies for entry in self.entries)

    @property
    def denies_all(self) -> bool:
        """Whether a match-all deny stands before any allow, so that the agent is offered no Skill tool at all."""
        for entry in self.entries:
            if not entry.denies:
                return False
            if entry.pattern.matches_all:
                return True
        return False

    @property
    def warnings(self) -> tuple[AllowlistWarning, ...]:
        """Entries that never decide any name, and later denies that look as if they closed an earlier allow."""
        found = []
        letters = [_letters(entry) for entry in self.entries]
        dead: set[int] = set()
        for index in range(len(self.entries)):
            message = self._dead(index)
            if message:
                dead.add(index)
                found.append(AllowlistWarning(index, self.entries[index].text, message))
        for index in range(len(self.entries)):
            message = None if index in dead else self._does_not_reach_back(index, letters, dead)
            if message:
                found.append(AllowlistWarning(index, self.entries[index].text, message))
        return tuple(sorted(found, key=lambda warning: warning.index))

    def texts(self) -> list[str]:
        """Return the entries as they were written, in order."""
        return [entry.text for entry in self.entries]

    @property
    def sha256(self) -> str:
        """The digest, in hex, of the entries in order."""
        if not self._sha256:
            text = json.dumps(self.texts(), separators=(",", ":"), ensure_ascii=False)
            self._sha256 = hashlib.sha256(text.encode()).hexdigest()
        return self._sha256

    def _patterns(self) -> PatternSet:
        # An allowlist may be kept for thousands of idle tenants, so it is compiled when it is first asked.
        if self._set is None:
            self._set = PatternSet([entry.pattern for entry in self.entries])
        return self._set

    def _covered_by(self, index: int) -> frozenset[int]:
        """Return the entries that cover entry `index`, itself included."""
        known = self._covering.get(index)
        if known is None:
            known = frozenset(self._patterns().covering(self.entries[index].pattern))
            self._covering[index] = known
        return known

    def _dead(self, index: int) -> str | None:
        """Say why entry `index` never decides a name, or None; it is silent where that is not certain."""
        entry = self.entries[index]
        earlier = min(self._covered_by(index))
        if not entry.denies:
            if earlier < index:
                return f"never decides: entry {earlier} '{self.entries[earlier].text}' matches all it matches, first"
            for later in range(index + 1, len(self.entries)):
                if self._excepts(later, index) and later in self._covered_by(index):
                    return f"never decides: entry {later} '{self.entries[later].text}' denies all it allows"
            return None
        if earlier < index and all(self._closed(index, allow) for allow in range(index)):
            return f"never decides: entry {earlier} '{self.entries[earlier].text}' matches all it matches, first"
        return None

    def _excepts(self, deny: int, allow: int) -> bool:
        """Whether entry `deny` would be an exception to the earlier entry `allow` for a name that both match."""
        return self.entries[deny].denies and not self.strictly_broader(deny, allow)

    def _closed(self, deny: int, allow: int) -> bool:
        """Whether `deny`, which some earlier entry covers, surely never decides as an exception to entry `allow`."""
        if self.entries[allow].denies or not self._excepts(deny, allow):
            return True
        covering = [index for index in self._covered_by(deny) if index < deny]
        return any(index < allow or (index > allow and self._excepts(index, allow)) for index in covering)

    def _does_not_reach_back(self, index: int, letters: Sequence[str], dead: set[int]) -> str | None:
        """Say when a broader deny, alike but for its wildcards, leaves an earlier allow that decides standing."""
        if not self.entries[index].denies:
            return None
        for allow in range(index):
            stands = not self.entries[allow].denies and allow not in dead and letters[allow] == letters[index]
            if stands and self.strictly_broader(index, allow):
                return (
                    f"does not deny what entry {allow} '{self.entries[allow].text}' allows, since it is broader; "
                    "put it before that entry if it should"
                )
        return None


def _letters(entry: Entry) -> str:
    """Return what an entry's pattern says when its wildcards are struck out."""
    struck = (segment.replace("*", "").replace("?", "") for segment in entry.pattern.segments)
    return "/".join(segment for segment in struck if segment)
