"""YAML files that operators write, read so that every problem in one is told at once, each with its place."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import LayerKind
from substrate.domain.characters import shown
from substrate.domain.errors import InvalidAgent, InvalidConfig, Violation
from substrate.domain.plainyaml import MAX_BYTES, MAX_DEPTH, Document, Plain, PlainYamlError, load

_BASES = {"0": 0, "1": 1}
_ITEM = re.compile(r"(.+)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a file, reached by `keys` from its root; what is wrong with it goes to `violations`.

    Readers return something harmless for what they refuse, so that the rest of the file can be looked at. Nothing read
    may be used once `violations` holds anything.
    """

    value: Plain
    keys: tuple[str | int, ...]
    path: Path
    document: Document
    violations: list[Violation]

    def place(self, *keys: str | int) -> str:
        """Say where this value, or the one at `keys` below it, stands: ``path:line: a.b[2]``."""
        full = (*self.keys, *keys)
        spelled = "".join(f"[{key}]" if isinstance(key, int) else f".{_printable(key)}" for key in full)
        line = f"{self.path}:{self.document.line(*full)}"
        return f"{line}: {spelled[1:]}" if full else line

    def refuse(self, message: str, *keys: str | int) -> None:
        """Note what is wrong with this value, or with the one at `keys` below it."""
        self.violations.append(Violation(self.place(*keys), message))

    def has(self, *keys: str | int) -> bool:
        """Whether the file has a value at `keys` below this one."""
        return (*self.keys, *keys) in self.document.places

    def source(self) -> str:
        """Return the text of this value as the file spells it."""
        return self.document.source(*self.keys)

    def entries(self) -> dict[str, "Node"]:
        """Return the values of a mapping by key, in file order; refuse anything else."""
        if isinstance(self.value, dict):
            return {key: self._below(key, value) for key, value in self.value.items()}
        self.refuse("must be a mapping.")
        return {}

    def fields(self, known: Sequence[str], required: Iterable[str] = ()) -> dict[str, "Node"]:
        """Return the values of a mapping that may have the keys `known` alone and must have those `required`."""
        entries = self.entries()
        for key, node in entries.items():
            if key not in known:
                node.refuse(f"Unknown key; known here are {', '.join(known)}.")
        if isinstance(self.value, dict):
            for key in required:
                if key not in entries:
                    self.refuse("is missing.", key)
        return {key: node for key, node in entries.items() if key in known}

    def items(self) -> list["Node"]:
        """Return the values of a list in order; refuse anything else."""
        if isinstance(self.value, list):
            return [self._below(index, value) for index, value in enumerate(self.value)]
        self.refuse("must be a list.")
        return []

    def text(self, limit: int) -> str:
        """Return text of 1 to `limit` characters, without blanks around it; refuse anything else."""
        if isinstance(self.value, str) and 0 < len(self.value.strip()) <= limit:
            return self.value.strip()
        self.refuse(f"must be text of 1 to {limit} characters.")
        return ""

    def positional_base(self) -> int:
        """Return what ``$N`` counts from, 0 or 1; refuse anything else."""
        base = _BASES.get(self.value.strip()) if isinstance(self.value, str) else None
        if base is None:
            self.refuse("must be 0 or 1.")
        return base or 0

    def agents(self, kind: LayerKind, origin: str) -> tuple[Agent, ...]:
        """Return the agents of a mapping from name to definition; refuse all that is wrong with each."""
        agents = []
        for name, node in self.entries().items():
            try:
                agents.append(parse_agent(name, node.value, kind, origin))
            except InvalidAgent as error:
                for violation in error.violations:
                    item = _ITEM.fullmatch(violation.field)
                    keys = (item[1], int(item[2])) if item else (violation.field,)
                    # A violation of no key that the agent has is about the agent itself, or its name.
                    node.refuse(violation.description, *(keys if node.has(*keys) else ()))
        return tuple(agents)

    def _below(self, key: str | int, value: Plain) -> "Node":
        return Node(value, (*self.keys, key), self.path, self.document, self.violations)


def parse_file(
    path: Path, data: bytes, violations: list[Violation], *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> Node | None:
    """Return the mapping written in `data`, which was read from `path`; None, and why, when it is no acceptable YAML.

    `max_depth` counts levels, the root being the first.
    """
    try:
        document = load(data.decode(), max_bytes=max_bytes, max_depth=max_depth)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        violations.append(Violation(f"{path}:{line}", "is not UTF-8."))
        return None
    except PlainYamlError as error:
        violations.extend(Violation(f"{path}:{line}", message) for line, message in error.problems)
        return None
    return Node(document.data, (), path, document, violations)


def invalid_config(violations: Sequence[Violation]) -> InvalidConfig:
    """Return the error that lists `violations`, of which there is at least one, each on a line with its place."""
    summary = "\n".join(f"{violation.field}: {violation.description}" for violation in violations)
    return InvalidConfig(*violations, summary=summary)


def _printable(key: str) -> str:
    return key if key.isprintable() else shown(key)
