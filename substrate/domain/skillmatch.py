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

How patterns are matched is the business of `substrate.domain.patterns`.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from substrate.domain.errors import InvalidAllowlist, Violation
from substrate.domain.names import SkillName
from substrate.domain.patterns import MAX_PATTERN_LENGTH, Pattern, PatternSet, parse_pattern, pattern_problem

MAX_ENTRIES = 200

_SHOWN = 80


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
