"""The command line as a person or a script runs it: arguments and stdin in, exit code, stdout and stderr out."""

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from substrate.cli import main


@dataclass(frozen=True)
class Printed:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table without blanks in its cells, below the headers."""
        return [line.split() for line in self.text.splitlines()[1:]]

    def fact(self, label: str) -> str:
        """Return the value of the line `label: value` of an error."""
        lines = [line.strip().partition(": ") for line in self.err.splitlines()]
        return next(value for name, _, value in lines if name == label)


@dataclass(frozen=True)
class CommandLine:
    """Runs commands in this process; `options` follow whatever is given."""

    capture: pytest.CaptureFixture[bytes]
    monkeypatch: pytest.MonkeyPatch
    options: tuple[str, ...] = ()

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Printed:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
            self.capture.readouterr()
            with pytest.raises(SystemExit) as ended:
                main([*arguments, *self.options])
        out, err = self.capture.readouterr()
        return Printed(int(ended.value.code or 0), out, err.decode())

    def ok(self, *arguments: str, stdin: str | bytes = "") -> Printed:
        """Run a command that must succeed."""
        printed = self(*arguments, stdin=stdin)
        assert printed.code == 0, printed.err
        return printed

    def refused(self, reason: str, *arguments: str, stdin: str | bytes = "") -> Printed:
        """Run a command that the server must refuse for `reason`, with nothing on stdout."""
        printed = self(*arguments, stdin=stdin)
        assert (printed.code, printed.out) == (1, b""), printed
        assert printed.err.startswith("error: ")
        assert printed.fact("reason") == reason
        return printed

    def misused(self, *arguments: str, stdin: str | bytes = "") -> str:
        """Run a command that is wrong usage, and return what it says."""
        printed = self(*arguments, stdin=stdin)
        assert (printed.code, printed.out) == (2, b""), printed
        return printed.err

    def with_options(self, *options: str) -> "CommandLine":
        return CommandLine(self.capture, self.monkeypatch, options)
