"""What commands print: answers on stdout, for people or as JSON, and remarks and errors on stderr.

Text from servers and files is shown with control characters escaped, so that no description can steer a terminal.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP = "  "
_PROSE_WIDTH = 30


Styles = Mapping[str, Mapping[str, str]]


class Refusal(click.ClickException):
    """A command that was understood and refused or failed: exit code 1.

    `facts` are label and value, `violations` field and description; each gets a line below the message.
    """

    def __init__(
        self, message: str, facts: Iterable[tuple[str, str]] = (), violations: Sequence[tuple[str, str]] = ()
    ) -> None:
        placed = [f"{field}: {description}" for field, description in violations]
        described = " ".join(description for _, description in violations)
        if placed and message in ("\n".join(placed), described):
            # The lines below say the same, and are easier to read.
            message = f"The input has {len(placed)} problems." if len(placed) > 1 else described
        super().__init__(message)
        self.facts = list(facts)
        self._lines = [f"{label}: {value}" for label, value in self.facts if value]
        self._lines += [f"- {problem}" for problem in placed]

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message and its lines on stderr, or to `file`."""
        console = Console(file=file, stderr=True)
        console.print(Text.assemble(("error:", "bold red"), " ", printable(self.message)), soft_wrap=True)
        for line in self._lines:
            console.print(Text(_GAP + printable(line)), soft_wrap=True)


def show(answer: object, text: str | bytes, *, as_json: bool) -> None:
    """Print `answer` as one JSON document, or `text` as it is: the same answer for people."""
    if as_json:
        text = json.dumps(answer, indent=2) + "\n"
    if isinstance(text, str):
        sys.stdout.write(text)
    else:
        # Bodies and files go out byte for byte, but must not leave a prompt at the end of their last line.
        unended = sys.stdout.isatty() and not text.endswith(b"\n")
        sys.stdout.buffer.write(text + b"\n" if unended else text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a remark beside the answer on stderr."""
    Console(stderr=True).print(Text(printable(text), style="dim"), soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    Console(stderr=True).print(Text.assemble(("warning:", "yellow"), " ", printable(text)), soft_wrap=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], styles: Styles | None = None) -> str:
    """Lay `rows` out below `headers`: on a terminal with prose folded to its width, else one line a row.

    `styles` say, by header and cell, how a terminal shows cells.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    return _fitted(headers, cells, styles or {}) if sys.stdout.isatty() else _aligned([headers, *cells])


def row(cells: Sequence[str], widths: Sequence[int], headers: Sequence[str] = (), styles: Styles | None = None) -> str:
    """Lay one row out whose neighbours are not known, in columns at least so wide; `styles` as in `table`."""
    line = Text()
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        shown = printable(cell)
        style = (styles or {}).get(headers[number], {}).get(cell, "") if headers else ""
        line.append(shown, style)
        if number < len(cells) - 1:
            line.append(" " * max(0, width - cell_len(shown)) + _GAP)
    console = Console()
    with console.capture() as captured:
        console.print(line, soft_wrap=True)
    return captured.get()


def details(pairs: Iterable[tuple[str, object]]) -> str:
    """Lay out label and value, one pair a line, without those whose value is empty."""
    return _aligned([(f"{label}:", printable(str(value))) for label, value in pairs if value not in ("", None)])


def lines(text: str) -> str:
    """Return `text` of several lines as whole lines that are safe to print."""
    return "".join(f"{printable(line)}\n" for line in text.removesuffix("\n").split("\n"))


def printable(text: str) -> str:
    """Return `text` on one line: line breaks and tabs as blanks, other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character in "\n\r\t" else ascii(character)[1:-1]
        for character in text
    )


def word(value: object, enum: str) -> str:
    """Return an enum value of the API as a lower-case word, without the prefix `enum`; empty when unspecified."""
    return str(value).removeprefix(f"{enum}_").lower().replace("unspecified", "")


def moment(text: str | None) -> str:
    """Return an RFC 3339 time in UTC to the second; empty when there is none."""
    return "" if not text else f"{text[: len('2026-01-31T00:00:00')]}Z"


def _fitted(headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Styles) -> str:
    laid_out = Table(box=None, pad_edge=False, header_style="bold")
    needed = 0
    for header, *column in zip(headers, *rows, strict=True):
        # Only prose is folded: a name or an id in two pieces could not be copied. The terminal may wrap the line.
        prose = any(" " in cell for cell in column)
        needed += _PROSE_WIDTH if prose else max(map(cell_len, (header, *column))) + len(_GAP)
        laid_out.add_column(header, no_wrap=not prose, overflow="fold")
    for row in rows:
        laid_out.add_row(
            *(Text(cell, styles.get(header, {}).get(cell, "")) for header, cell in zip(headers, row, strict=True))
        )
    console = Console()
    console.width = max(console.width, needed)
    with console.capture() as captured:
        console.print(laid_out)
    return captured.get()


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    padded = (
        _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in padded)
