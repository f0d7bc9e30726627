"""Characters that text written by people may not hold, and how to name one in a message."""

import re

LINE_BREAKERS = re.compile("[\0\r\x85\u2028\u2029\ud800-\udfff]")
"""NUL, lone surrogates, and what YAML takes for the end of a line beside LF: never allowed raw in YAML."""

UNPRINTABLE = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
"""Characters other than LINE_BREAKERS that YAML allows as escapes only."""

DECEPTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Control characters other than TAB and LF, bidirectional overrides, and invisible tag characters."""

DECEPTIVE_IN_HEADER = re.compile(DECEPTIVE.pattern.replace("\u202a", "\u2028"))
"""DECEPTIVE and the line and paragraph separators, which a value on one line has no use for."""

_SHOWN_LENGTH = 64


def first_places(pattern: re.Pattern[str], text: str, start: int = 0) -> list[tuple[str, int]]:
    """Return each distinct character of `text` from `start` on that matches, with its first offset, in text order."""
    if not pattern.search(text, start):
        return []
    found = ((character, text.index(character, start)) for character in set(pattern.findall(text, start)))
    return sorted(found, key=lambda place: place[1])


def code_point(character: str) -> str:
    """Return the character's name in the style ``U+2028``, which is safe to print."""
    return f"U+{ord(character):04X}"


def shown(text: str) -> str:
    """Quote `text` with escapes for what does not print, cut at 64 characters, so it cannot garble a message."""
    return repr(text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "...")
