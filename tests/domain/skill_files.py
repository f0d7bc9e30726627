"""Texts of SKILL.md files, and what their readers say about them."""

import pytest

from substrate.domain.errors import InvalidSkill
from substrate.domain.skillmd import QuarantinedFile, Skill, parse_lenient, parse_strict


def file(*lines: str, body: str = "Body\n") -> str:
    return "\n".join(["---", "name: demo", "description: works", *lines, "---", body])


def problems(text: str | bytes, name: str | None = None) -> list[str]:
    with pytest.raises(InvalidSkill) as refused:
        parse_strict(text, name=name)
    return [violation.description for violation in refused.value.violations]


def quarantined(text: str, folder: str = "demo", *, keep_folder_name: bool = True) -> list[str]:
    with pytest.raises(QuarantinedFile) as refused:
        parse_lenient(text.encode(), folder=folder, keep_folder_name=keep_folder_name)
    return [str(problem) for problem in refused.value.problems]


def lenient(text: str, folder: str = "demo", *, keep_folder_name: bool = True) -> Skill:
    return parse_lenient(text.encode(), folder=folder, keep_folder_name=keep_folder_name)


def notes(skill: Skill) -> list[str]:
    return [str(problem) for problem in skill.diagnostics]


def mentioned(expected: list[str], messages: list[str]) -> bool:
    return all(any(part in message for message in messages) for part in expected)
