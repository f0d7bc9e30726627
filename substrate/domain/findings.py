"""What is found wrong in a SKILL.md, and whether its reader must refuse the file for it."""

from dataclasses import dataclass
from enum import Enum

from substrate.domain.errors import Violation


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: the line in the file from 1 and the frontmatter key (or ``body``), where it has them."""

    line: int | None
    field: str | None
    message: str

    def __str__(self) -> str:
        where = (f"line {self.line}" if self.line else None, self.field, self.message)
        return ": ".join(part for part in where if part)

    def violation(self) -> Violation:
        """Return this problem as a violation of the field ``source`` of a request, or of a part of it."""
        return Violation(f"source.{self.field}" if self.field else "source", str(self))


class QuarantinedFile(Exception):
    """A SKILL.md that cannot be used safely; `problems` says why, at least once, in the order of lines."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = _by_line(problems)
        super().__init__(" ".join(str(problem) for problem in self.problems))


class Mode(Enum):
    """For whom a file is read: its author now, an import of somebody else's file, or a bundle on disk."""

    AUTHOR = "author"
    IMPORT = "import"
    BUNDLE = "bundle"


class Findings:
    """Collects the problems of one file and sorts them by what they mean in the file's mode."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._refused: list[Problem] = []
        self._noted: list[Problem] = []

    def refuse(self, line: int | None, field: str | None, message: str) -> None:
        """Record what makes the file unacceptable in every mode."""
        self._refused.append(Problem(line, field, message))

    def note(self, line: int | None, field: str | None, message: str) -> None:
        """Record what is worth reporting in every mode and stops none."""
        self._noted.append(Problem(line, field, message))

    def tolerate(self, line: int | None, field: str | None, message: str, instead: str) -> None:
        """Record what an author must mend; every other reader does what `instead` says."""
        if self.mode is Mode.AUTHOR:
            self.refuse(line, field, message)
        else:
            self.note(line, field, f"{message} {instead}")

    def suspect(self, line: int | None, field: str | None, message: str) -> None:
        """Record what may deceive the person who looks at it: only files on the operator's own disk may hold it."""
        (self.note if self.mode is Mode.BUNDLE else self.refuse)(line, field, message)

    def refusal(self) -> QuarantinedFile:
        """Return the error to raise when what was refused leaves nothing to go on with."""
        return QuarantinedFile(*self._refused)

    def settle(self) -> tuple[Problem, ...]:
        """Return the diagnostics in the order of lines; raise QuarantinedFile if anything was refused."""
        if self._refused:
            raise self.refusal()
        return _by_line(self._noted)


def _by_line(problems: list[Problem] | tuple[Problem, ...]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: (problem.line is None, problem.line)))
