"""Plain data written as YAML that `plainyaml.load` reads back unchanged, in the shape a person would write it."""

import re
from collections.abc import Mapping

from substrate.domain.characters import LINE_BREAKERS, UNPRINTABLE
from substrate.domain.plainyaml import Plain

_PLAIN_START = re.compile(r"[\w/(<$]")
_NEVER_PLAIN = re.compile(rf":[ ]|[ ]#|[:\s]\Z|[\n\t\ufeff]|{LINE_BREAKERS.pattern}|{UNPRINTABLE.pattern}")
_FLOW_INDICATOR = re.compile(r"[,\[\]{}:?]")
_BLOCK_TEXT = re.compile(r"[^\s].*\n(?s:.*)[^\s]")
_NEVER_BLOCK = re.compile(rf"\t|\ufeff|{LINE_BREAKERS.pattern}|{UNPRINTABLE.pattern}")
_ESCAPED = re.compile(rf'[\\"\n\t\ufeff]|{LINE_BREAKERS.pattern}|{UNPRINTABLE.pattern}')
_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}

_LONGEST_SIMPLE_KEY = 128
_INDENT = "  "


def dump(data: Mapping[str, Plain]) -> str:
    """Return `data`, which holds no lone surrogates, as YAML block lines in its own order, each ended by LF."""
    return "".join(f"{line}\n" for line in _mapping_lines(data))


def quoted(text: str) -> str:
    """Return `text` as one double-quoted YAML scalar on one line."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    number = ord(character)
    return _SHORT_ESCAPES.get(character) or (f"\\x{number:02x}" if number <= 0xFF else f"\\u{number:04x}")  # noqa: PLR2004 - the largest number that the two-digit escape can name.


def _scalar(text: str, *, in_flow: bool = False) -> str:
    plain = _PLAIN_START.match(text) and not _NEVER_PLAIN.search(text)
    return text if plain and not (in_flow and _FLOW_INDICATOR.search(text)) else quoted(text)


def _mapping_lines(data: Mapping[str, Plain]) -> list[str]:
    lines = []
    for key, value in data.items():
        name = _scalar(key)
        # YAML finds a key by its colon only near its beginning; a longer one is marked as a key in front.
        head, tail = (f"? {name}", ":") if len(name) > _LONGEST_SIMPLE_KEY else ("", f"{name}:")
        lines += [head] if head else []
        first, *rest = _value_lines(value)
        lines += [f"{tail} {first}" if first else tail, *(f"{_INDENT}{line}" if line else "" for line in rest)]
    return lines


def _value_lines(value: Plain) -> list[str]:
    """Return what follows a key on its own line, which may be nothing, and the lines to indent below it."""
    if isinstance(value, str):
        block = value.removesuffix("\n")
        if _BLOCK_TEXT.fullmatch(block) and not _NEVER_BLOCK.search(block):
            return ["|-" if block == value else "|", *block.split("\n")]
        return [_scalar(value)]
    if isinstance(value, dict):
        return ["", *_mapping_lines(value)] if value else ["{}"]
    texts = [_scalar(item, in_flow=True) for item in value if isinstance(item, str)]
    if len(texts) == len(value):
        return [f"[{', '.join(texts)}]"]
    return ["", *(line for item in value for line in _item_lines(item))]


def _item_lines(item: Plain) -> list[str]:
    first, *rest = _value_lines(item)
    if first:
        return [f"- {first}", *(f"{_INDENT}{line}" if line else "" for line in rest)]
    # A block inside an item begins beside the hyphen: two columns, which is what the indent is wide.
    beside, *below = rest
    return [f"- {beside}", *(f"{_INDENT}{line}" if line else "" for line in below)]
