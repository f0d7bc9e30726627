r"""What a caller passes to a skill, put into the skill's text in one left-to-right pass.

==================================  ==============================================================================
``$ARGUMENTS``                      everything the caller passed, exactly as written
``$ARGUMENTS[N]``, ``$N``           the argument at index N; left as written when there is none
``$name``                           the argument at the place of a declared `name`; empty when there is none
``${CLAUDE_SKILL_DIR}``,            the folder of the skill
``${SKILL_DIR}``
``\$`` before any of these          a dollar sign; the backslash goes
==================================  ==============================================================================

Values are inert: what an argument contains is never read as a placeholder. Names consist of letters, digits, ``_``
and ``-``, begin with no digit and have at most 64 characters; others are never found in a text. ``$file`` is not
found in ``$filet``: an ASCII letter, digit or ``_`` after a name makes it another name.

Most texts with a ``$1`` mean a price or a column of awk. So a text uses ``$N`` everywhere only when its skill says
that it takes arguments; any other text only where it stands as a word of its own, outside code.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence

from substrate.domain.errors import InvalidArgument, TooLarge

MAX_ARGUMENTS_LENGTH = 128 * 1024
"""Characters that a caller may pass to a skill."""

MAX_SUBSTITUTED_LENGTH = 1024 * 1024
"""Characters that all values put into one text may have together; a text may repeat a placeholder."""

MAX_DECLARED_LENGTH = 64
"""Characters of a declared name that can be found in a text."""

_NAME_CHARACTER = "[A-Za-z0-9_]"  # ASCII alone: Chinese and Japanese put no blank between a name and the next word.
_PLACEHOLDER = re.compile(
    rf"""\$(?:
        ARGUMENTS(?!{_NAME_CHARACTER})(?:\[[0-9]++\])?
      | \{{(?:CLAUDE_)?SKILL_DIR\}}
      | (?P<number>[0-9]++)
      | (?P<word>[^\W\d][\w-]*+)
    )""",
    re.VERBOSE,
)
_DECLARED = re.compile(rf"[^\W\d][\w-]{{0,{MAX_DECLARED_LENGTH - 1}}}")
_MENTION = re.compile(rf"\$ARGUMENTS(?!{_NAME_CHARACTER})")
_ENDS_NAME = re.compile(rf"(?!{_NAME_CHARACTER})")

# A word is what stands between blanks and the bars of a table. Around the placeholder it may have brackets, emphasis,
# quotes and punctuation, before it # and @; a single quote only on both sides, for one alone opens a shell command.
_WORD_OF_ITS_OWN = re.compile(
    r"""(?<![^\s|])[(\["*_#@\u201c\u2018]*+(?:'(?=\\?\$[0-9]++'))?\\?(?P<number>\$[0-9]++)"""
    r"""[)\]"'*_\u201d\u2019.,;:!?\u2026\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f\uff09]*+(?![^\s|])"""
)
_NUMBER = re.compile(r"\$[0-9]")

# Blanks, quote marks and list markers may stand before a fence. One that is never closed runs to the end.
_FENCE = re.compile(
    r"""^[ \t>]*+(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]++)*+
        (?P<run>(?P<tick>[`~])(?P=tick){2,}+)(?=[^`\n]*+$)
        .*?
        (?:^[ \t>]*+(?P=run)(?P=tick)*+[ \t]*+$ | \Z)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
# A code span ends in the block it began in: at an empty line, list item, heading or table row a new block begins.
_TICKS_OR_BLOCK = re.compile(
    r"(?P<ticks>`++)|\n(?:(?:[ \t>]*+\n)++|(?=[ \t>]*+(?:[-*+][ \t]|[0-9]{1,9}[.)][ \t]|[#|])))"
)

_CLOSING_QUOTE = re.compile(r"""["'](?!\S)""")
_ARGUMENT = re.compile(r"\S++")
_REFUSED = re.compile(r"[\0\ud800-\udfff]")


def substitute(
    body: str,
    raw: str,
    *,
    declared: Sequence[str] = (),
    hint: str | None = None,
    positional_base: int = 0,
    skill_dir: str,
) -> str:
    r"""Return `body` with its placeholders replaced by what `raw`, the caller's arguments, gives for them.

    `declared` names the arguments in order; `hint` is the skill's argument hint; `positional_base`, 0 or 1, is the
    index of the first argument. Arguments that are not blank and that no placeholder took are appended after one
    empty line as ``ARGUMENTS: <raw>``. Takes time linear in body, arguments and result.

    Raises InvalidArgument as `split_arguments` does and for another `positional_base`, and TooLarge when the values
    have more than MAX_SUBSTITUTED_LENGTH characters in all.
    """
    if positional_base not in (0, 1):
        raise InvalidArgument("positional_base", f"The first argument's index is {positional_base}; use 0 or 1.")
    values = split_arguments(raw) if raw else []
    taken = not raw or raw.isspace()
    if "$" not in body:
        return body if taken else _appended(body, raw)
    names = {f"${name}": place for place, name in reversed([*enumerate(declared)]) if _DECLARED.fullmatch(name)}
    given = {token: values[place] for token, place in names.items() if place < len(values)}
    for number, value in enumerate(values, positional_base):
        given[f"${number}"] = given[f"$ARGUMENTS[{number}]"] = value
    given["$ARGUMENTS"] = raw
    otherwise = dict.fromkeys(names, "") | {"${CLAUDE_SKILL_DIR}": skill_dir, "${SKILL_DIR}": skill_dir}
    everywhere = bool(declared) or bool(hint and not hint.isspace()) or _mentions_all(body)
    words = frozenset() if everywhere else _words_of_their_own(body)

    pieces: list[str] = []
    done = size = 0
    for match in _PLACEHOLDER.finditer(body):
        start, token = match.start(), match[0]
        if match["number"] and not (everywhere or start in words):
            continue
        if match["word"]:
            token = _longest_name(token, names)
            if not token:
                continue
        escaped = body.endswith("\\", done, start)
        value = token if escaped else given.get(token, otherwise.get(token, token))
        taken = taken or (not escaped and token in given)
        size += len(value)
        if size > MAX_SUBSTITUTED_LENGTH:
            raise TooLarge(f"The arguments make the skill's text longer by over {MAX_SUBSTITUTED_LENGTH} characters.")
        pieces += body[done : start - escaped], value
        done = start + len(token)
    pieces.append(body[done:])
    text = "".join(pieces)
    return text if taken else _appended(text, raw)


def _appended(text: str, raw: str) -> str:
    return f"{text.rstrip()}\n\nARGUMENTS: {raw}"


def _mentions_all(body: str) -> bool:
    """Whether ``$ARGUMENTS`` stands in `body` unescaped."""
    return any(not body.endswith("\\", 0, match.start()) for match in _MENTION.finditer(body))


def split_arguments(raw: str) -> list[str]:
    r"""Return the single arguments in `raw`, which blanks of any kind separate.

    A single or double quote that begins a word groups up to the next quote of its kind that ends one, and both go.
    Any other quote, and every backslash, is a letter. Takes time linear in `raw` but for one binary search a quote.

    Raises InvalidArgument for more than MAX_ARGUMENTS_LENGTH characters, and for NUL and lone surrogates.
    """
    if len(raw) > MAX_ARGUMENTS_LENGTH:
        problem = f"have {len(raw)} characters; at most {MAX_ARGUMENTS_LENGTH} are allowed"
        raise InvalidArgument("arguments", f"The arguments {problem}.")
    refused = _REFUSED.search(raw)
    if refused:
        raise InvalidArgument("arguments", f"The arguments have the character {refused[0]!a}, which is no text.")
    closing: dict[str, list[int]] = {'"': [], "'": []}
    for quote in _CLOSING_QUOTE.finditer(raw):
        closing[quote[0]].append(quote.start())
    arguments: list[str] = []
    done = 0
    while word := _ARGUMENT.search(raw, done):
        start, done = word.span()
        ends = closing.get(raw[start], [])
        following = bisect_right(ends, start)
        if following < len(ends):
            arguments.append(raw[start + 1 : ends[following]])
            done = ends[following] + 1
        else:
            arguments.append(word[0])
    return arguments


def _longest_name(token: str, names: dict[str, int]) -> str:
    """Return the longest of `names` that `token` begins with and that ends there; empty when there is none."""
    for end in range(min(len(token), MAX_DECLARED_LENGTH + 1), 1, -1):
        if token[:end] in names and _ENDS_NAME.match(token, end):
            return token[:end]
    return ""


def _words_of_their_own(body: str) -> frozenset[int]:
    """Return where in `body` a ``$N`` stands as a word of its own, outside code spans and fences."""
    if not _NUMBER.search(body):
        return frozenset()
    return frozenset(word.start("number") for word in _WORD_OF_ITS_OWN.finditer(_without_code(body)))


def _without_code(body: str) -> str:
    """Return `body` with code spans and fences blotted out at the same length."""
    text = _FENCE.sub(lambda fence: " " * len(fence[0]), body)
    marks = [*_TICKS_OR_BLOCK.finditer(text)]
    # Going backwards, `ahead` knows the next run of each length in the block. To search forward from every run
    # instead would take quadratic time on runs that nothing closes.
    ahead: dict[int, int] = {}
    closing: list[int | None] = []
    for index, mark in reversed([*enumerate(marks)]):
        if mark["ticks"]:
            closing.append(ahead.get(len(mark[0])))
            ahead[len(mark[0])] = index
        else:
            closing.append(None)
            ahead.clear()
    closing.reverse()
    pieces: list[str] = []
    done = index = 0
    while index < len(marks):
        end = closing[index]
        start = marks[index].start()
        if end is not None and not text.endswith("\\", 0, start):
            pieces += text[done:start], "`" * (marks[end].end() - start)
            done = marks[end].end()
            index = end
        index += 1
    return "".join((*pieces, text[done:]))
