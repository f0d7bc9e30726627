import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.arguments import (
    MAX_ARGUMENTS_LENGTH,
    MAX_DECLARED_LENGTH,
    MAX_SUBSTITUTED_LENGTH,
    split_arguments,
    substitute,
)
from substrate.domain.errors import InvalidArgument, TooLarge

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "arguments.yaml").read_text())["substitutions"]
FOLDER = "skill://doc/query"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_case(case: dict[str, Any]) -> None:
    result = substitute(
        case["body"],
        case["args"],
        declared=case.get("declares", ()),
        hint=case.get("hint"),
        positional_base=case.get("positional_base", 0),
        skill_dir=case.get("skill_dir", f"skill://{case.get('name', 'doc/query')}"),
    )
    assert result == case["out"]


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("", []),
        (" \t\n", []),
        ("a  b\nc\u3000d", ["a", "b", "c", "d"]),
        ("\"a b\" 'c d'", ["a b", "c d"]),
        ("'don't stop' it's", ["don't stop", "it's"]),
        ("\"a 'b c' d\"", ["a 'b c' d"]),
        ('"" ""', ["", ""]),
        ('"', ['"']),
        ('"open end', ['"open', "end"]),
        ('x"a b"', ['x"a', 'b"']),
        ('"a "b" c"', ['a "b', 'c"']),
        ("C:\\a\\ \\\" '\\'", ["C:\\a\\", '\\"', "\\"]),
    ],
)
def test_quotes_group_only_at_word_boundaries(raw: str, arguments: list[str]) -> None:
    assert split_arguments(raw) == arguments


@pytest.mark.parametrize(
    ("body", "out"),
    [
        ("($1), **$1** and #$1: '$1'.", "(B), **B** and #B: 'B'."),
        ("|$0|$1|", "|A|B|"),
        ("修复 $1。", "修复 B。"),
        ("US$1 $1k $1,000 $1.5 $1/month $1-2 ~$1", None),
        ("awk -F: '$1 > 0 {print $1}'", None),
        ("`$1` ``a ` $1`` $2", None),
        ("```sh\necho $1\n```", None),
        ("1. Run:\n   ```sh\n   echo $1\n   ```\n   on $1", "1. Run:\n   ```sh\n   echo $1\n   ```\n   on B"),
        ("> ~~~\n> $1 ```\n> ~~~~\n> $1", "> ~~~\n> $1 ```\n> ~~~~\n> B"),
        ("~~~\nnever closed\n\n$1", None),
        ("```no`fence $1", "```no`fence B"),
        ("`a `` b` $1 ``", "`a `` b` B ``"),
        ("a stray ` here\n\nFix $1 `now`", "a stray ` here\n\nFix B `now`"),
        ("an escaped \\` here, $1 `now`", "an escaped \\` here, B `now`"),
        ("\\$1 and $0, but `\\$1` \\$1.50", "$1 and A, but `\\$1` \\$1.50"),
        ("`$1` \\$ARGUMENTS $ARGUMENTSX", "`$1` $ARGUMENTS $ARGUMENTSX\n\nARGUMENTS: A B"),
    ],
)
def test_undeclared_numbers_stay_in_prices_and_code(body: str, out: str | None) -> None:
    expected = f"{body}\n\nARGUMENTS: A B" if out is None else out
    assert substitute(body, "A B", skill_dir=FOLDER) == expected


@pytest.mark.parametrize(
    ("body", "declared", "out"),
    [
        ("$file-name|$file|$file-x", ["file", "file-name"], "B|A|A-x"),
        ("$file_ $file2 $fileé 打开$file文件", ["file"], "$file_ $file2 Aé 打开A文件"),
        ("$größe", ["größe"], "A"),
        ("$a $b", ["a", "a"], "A $b"),
        ("$0 $1 $9", ["9", "1"], "A B $9"),
        ("$ARGUMENTS $ARGUMENTS_X", ["ARGUMENTS", "ARGUMENTS_X"], "A B B"),
        (f"${'n' * 64} ${'m' * 65}", ["n" * MAX_DECLARED_LENGTH, "m" * (MAX_DECLARED_LENGTH + 1)], f"A ${'m' * 65}"),
        ("", ["x"], "\n\nARGUMENTS: A B"),
        ("\\$x \\$y \\${SKILL_DIR} \\$ARGUMENTS[7]", ["x"], "$x \\$y ${SKILL_DIR} $ARGUMENTS[7]\n\nARGUMENTS: A B"),
        ("[$c]", ["a", "b", "c"], "[]\n\nARGUMENTS: A B"),
        ("$ARGUMENTS[2] $2 $00", ["x"], "$ARGUMENTS[2] $2 $00\n\nARGUMENTS: A B"),
        ("$0abc \\\\$0 $$1", ["x"], "Aabc \\$0 $B"),
        (f"${'1' * 5000}", ["x"], f"${'1' * 5000}\n\nARGUMENTS: A B"),
    ],
)
def test_names_and_indexes(body: str, declared: list[str], out: str) -> None:
    assert substitute(body, "A B", declared=declared, skill_dir=FOLDER) == out


@pytest.mark.parametrize("ending", ["", "\n", "\n\n\n", " \n \n"])
def test_appended_arguments_stand_after_one_empty_line(ending: str) -> None:
    assert substitute(f"Do it.{ending}", " fast ", skill_dir=FOLDER) == "Do it.\n\nARGUMENTS:  fast "


def test_blank_arguments_are_not_appended() -> None:
    assert substitute("Do it.\n", " \n", skill_dir=FOLDER) == "Do it.\n"


@pytest.mark.parametrize("raw", ["x" * (MAX_ARGUMENTS_LENGTH + 1), "a\0b", "a\ud800"])
def test_arguments_out_of_range_are_refused(raw: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        substitute("Do it.", raw, skill_dir=FOLDER)
    assert [violation.field for violation in refused.value.violations] == ["arguments"]
    assert len(refused.value.message) < 100
    refused.value.message.encode()


def test_the_longest_arguments_are_accepted() -> None:
    raw = "x" * MAX_ARGUMENTS_LENGTH
    assert substitute("$ARGUMENTS", raw, skill_dir=FOLDER) == raw


def test_a_template_cannot_multiply_its_arguments_without_bound() -> None:
    raw = "x" * MAX_ARGUMENTS_LENGTH
    fitting = MAX_SUBSTITUTED_LENGTH // MAX_ARGUMENTS_LENGTH
    assert len(substitute("$ARGUMENTS" * fitting, raw, skill_dir=FOLDER)) == MAX_SUBSTITUTED_LENGTH
    with pytest.raises(TooLarge):
        substitute("$ARGUMENTS" * (fitting + 1), raw, skill_dir=FOLDER)


@pytest.mark.parametrize("base", [-1, 2])
def test_another_base_is_refused(base: int) -> None:
    with pytest.raises(InvalidArgument) as refused:
        substitute("$1", "a", positional_base=base, skill_dir=FOLDER)
    assert [violation.field for violation in refused.value.violations] == ["positional_base"]


HOSTILE = [
    *"$`\\'\"(|",
    "`a",
    "``\n`",
    "```\n",
    "~~~\n~~~~\n",
    "$0 ",
    "$1'",
    "$a-",
    "$ARGUMENTS[0",
    "\n- `",
    "\n",
    "> ",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear_in_the_body(unit: str) -> None:
    body = unit * (128 * 1024 // len(unit)) + " $1"
    started = time.process_time()
    for declared in ((), ("a", "a-a" * 20)):
        substitute(body, "", declared=declared, skill_dir=FOLDER)
    assert time.process_time() - started < 2, "quadratic time would be minutes"


@pytest.mark.parametrize("unit", ['"a ', "'a' ", '"', "' \""])
def test_time_is_linear_in_the_arguments(unit: str) -> None:
    started = time.process_time()
    split_arguments(unit * (MAX_ARGUMENTS_LENGTH // len(unit)))
    assert time.process_time() - started < 1, "quadratic time would be minutes"


# What follows is the same contract once more: slow, one character at a time, without a regular expression.

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
BEFORE = frozenset('(["*_#@\u201c\u2018')
AFTER = frozenset(")]\"'*_\u201d\u2019.,;:!?\u2026\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f\uff09")


def reference_split(raw: str) -> list[str]:
    arguments: list[str] = []
    at = 0
    while at < len(raw):
        if raw[at].isspace():
            at += 1
            continue
        rest = raw[at:]
        ends = [i for i in range(1, len(rest)) if rest[i] == rest[0] and (i + 1 == len(rest) or rest[i + 1].isspace())]
        if rest[0] in "\"'" and ends:
            arguments.append(rest[1 : ends[0]])
            at += ends[0] + 1
        else:
            arguments.append(rest.split()[0])
            at += len(arguments[-1])
    return arguments


def without_markers(line: str) -> str:
    rest = line.lstrip(" \t>")
    while True:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        marker = 1 if rest[:1] in {"-", "*", "+"} else digits + 1 if digits and rest[digits : digits + 1] in ".)" else 0
        if not marker or rest[marker : marker + 1] not in {" ", "\t"}:
            return rest
        rest = rest[marker:].lstrip(" \t")


def fence_of(line: str) -> str:
    rest = without_markers(line)
    length = len(rest) - len(rest.lstrip(rest[:1])) if rest[:1] in {"`", "~"} else 0
    return rest[:length] if length >= 3 and "`" not in rest[length:] else ""


def reference_code(body: str) -> set[int]:
    """Return the positions of `body` that are in a fence or a code span."""
    code: set[int] = set()
    blocks: list[list[int]] = [[]]
    fence = ""
    at = 0
    for line in body.split("\n"):
        positions = list(range(at, at + len(line)))
        at += len(line) + 1
        bare = line.lstrip(" \t>")
        if fence:
            code.update(positions)
            closing = bare.rstrip(" \t")
            if len(closing) >= len(fence) and set(closing) == set(fence):
                fence = ""
        elif fence_of(line):
            fence = fence_of(line)
            code.update(positions)
            blocks.append([])
        else:
            if not bare or bare[0] in "#|" or without_markers(line) != bare:
                blocks.append([])
            blocks[-1] += positions
    for block in blocks:
        code |= spans(body, block)
    return code


def spans(body: str, block: list[int]) -> set[int]:
    runs: list[list[int]] = []
    for position in block:
        if body[position] == "`":
            if runs and runs[-1][-1] == position - 1:
                runs[-1].append(position)
            else:
                runs.append([position])
    code: set[int] = set()
    while runs:
        opening = runs.pop(0)
        closing = next((run for run in runs if len(run) == len(opening)), None)
        if closing and body[opening[0] - 1 : opening[0]] != "\\":
            code.update(range(opening[0], closing[-1] + 1))
            del runs[: runs.index(closing) + 1]
    return code


def stands_alone(body: str, start: int, end: int, code: set[int]) -> bool:
    def boundary(position: int) -> bool:
        outside = not 0 <= position < len(body)
        return outside or (position not in code and (body[position].isspace() or body[position] == "|"))

    left = start - 1 if body[start - 1 : start] == "\\" else start
    right = end
    if body[left - 1 : left] == "'" and body[right : right + 1] == "'":
        left -= 1
    while not boundary(left - 1) and body[left - 1] in BEFORE and left - 1 not in code:
        left -= 1
    while not boundary(right) and body[right] in AFTER and right not in code:
        right += 1
    return start not in code and boundary(left - 1) and boundary(right)


def digits_at(body: str, at: int) -> str:
    end = at
    while body[end : end + 1] in set("0123456789"):
        end += 1
    return body[at:end]


def mentions(body: str) -> bool:
    places = [i for i in range(len(body)) if body.startswith("$ARGUMENTS", i)]
    return any(body[i - 1 : i] != "\\" and body[i + 10 : i + 11] not in NAME_CHARACTERS for i in places)


def reference_placeholder(body: str, at: int, declared: Sequence[str], *, positional: bool) -> str:
    """Return the placeholder that begins at the dollar sign `at`, or nothing."""
    rest = body[at:]
    for folder in ("${CLAUDE_SKILL_DIR}", "${SKILL_DIR}"):
        if rest.startswith(folder):
            return folder
    if rest.startswith("$ARGUMENTS") and rest[10:11] not in NAME_CHARACTERS:
        index = digits_at(rest, 11) if rest[10:11] == "[" else ""
        return f"$ARGUMENTS[{index}]" if index and rest[11 + len(index) :].startswith("]") else "$ARGUMENTS"
    for name in sorted(declared, key=len, reverse=True):
        if rest.startswith(f"${name}") and rest[1 + len(name) : 2 + len(name)] not in NAME_CHARACTERS:
            return f"${name}"
    number = digits_at(rest, 1)
    alone = positional or stands_alone(body, at, at + 1 + len(number), reference_code(body))
    return f"${number}" if number and alone else ""


def reference(body: str, raw: str, declared: Sequence[str], hint: str | None, base: int) -> str:
    values = reference_split(raw)
    positional = bool(declared) or bool(hint and hint.strip()) or mentions(body)
    out = ""
    taken = False
    at = 0
    while at < len(body):
        escaped = body[at : at + 2] == "\\$"
        dollar = at + escaped
        found = body[dollar] == "$" and reference_placeholder(body, dollar, declared, positional=positional)
        if not found:
            out += body[at]
            at += 1
            continue
        at = dollar + len(found)
        number = "".join(c for c in found if c.isdigit())
        place = int(number) - base if number else declared.index(found[1:]) if found[1:] in declared else None
        if escaped:
            out += found
        elif found.endswith("SKILL_DIR}"):
            out += FOLDER
        elif found == "$ARGUMENTS":
            out += raw
            taken = True
        elif place is not None and 0 <= place < len(values):
            out += values[place]
            taken = True
        elif number:
            out += found
    return out if taken or not raw.strip() else f"{out.rstrip()}\n\nARGUMENTS: {raw}"


PIECES = [
    *("$ARGUMENTS", "$ARGUMENTS[0]", "$ARGUMENTS[1]", "$ARGUMENTS[", "$ARGUMENTS_X", "$0", "$1", "$2", "$10", "$file"),
    *("$file-name", "$filet", "${SKILL_DIR}", "${CLAUDE_SKILL_DIR}", "${HOME}", "$", "\\", "`", "``", "```", "~~~"),
    *("\n", "\n\n", "\n```\n", "\n- ", "\n> ", "\n12. ", "\n# ", "\n|", " ", "  ", "\t", "\u3000", "'", '"', "(", ")"),
    *(
        "[",
        "]",
        ".",
        ",",
        "|",
        "*",
        "#",
        "\u201c",
        "\u3002",
        "\u6587",
        "\xe9",
        "x",
        "7",
        "-",
        "/",
        " $0 ",
        " $1 ",
        " '$1' ",
    ),
]
templates = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
arguments = st.one_of(
    st.just(""),
    st.just("one two three"),
    st.lists(
        st.sampled_from(["a", "b c", " ", "  ", "\n", '"', "'", "\\", "$0", "$ARGUMENTS", "\xe9"]), max_size=9
    ).map("".join),
)


@settings(max_examples=500, deadline=None)
@given(
    body=templates,
    raw=arguments,
    declared=st.lists(st.sampled_from(["file", "file-name", "line", "x"]), unique=True, max_size=3),
    hint=st.sampled_from([None, None, "", " ", "[file]"]),
    base=st.integers(0, 1),
)
def test_agrees_with_the_reference(body: str, raw: str, declared: list[str], hint: str | None, base: int) -> None:
    expected = reference(body, raw, declared, hint, base)
    assert substitute(body, raw, declared=declared, hint=hint, positional_base=base, skill_dir=FOLDER) == expected


@settings(max_examples=500, deadline=None)
@given(raw=arguments)
def test_splitting_agrees_with_the_reference(raw: str) -> None:
    assert split_arguments(raw) == reference_split(raw)


@settings(deadline=None)
@given(body=st.text(max_size=200), raw=st.text(max_size=50).filter(lambda text: "\0" not in text))
def test_text_without_placeholders_stays(body: str, raw: str) -> None:
    body = body.replace("$", "")
    expected = f"{body.rstrip()}\n\nARGUMENTS: {raw}" if raw.strip() else body
    assert substitute(body, raw, skill_dir=FOLDER) == expected
