"""What nothing that a test leaves behind may hold: keys, and the bodies that tests' skills have by default."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.skills import DEFAULT_BODY

BUNDLED_BODY = "Question: $ARGUMENTS"
"""A line of `doc/query`, a shipped skill that many tests invoke."""

_KEY = re.compile(r"sub_[a-z0-9-]+\.[a-z0-9]+_[A-Za-z0-9_-]{43}")


def secrets_in(text: str) -> list[str]:
    """Return each kind of secret that `text` holds."""
    found = ["a key"] if _KEY.search(text) else []
    return found + [f"the body {body!r}" for body in (DEFAULT_BODY.strip(), BUNDLED_BODY) if body in text]


def leaks(files: Iterable[Path]) -> list[str]:
    """Return what the files hold that they may not, each with the file's name."""
    return [f"{file} holds {secret}" for file in files for secret in secrets_in(file.read_text(errors="replace"))]
