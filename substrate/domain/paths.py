"""File globs: which touched paths make a skill eligible.

The language is the allowlist's (``*`` inside one segment, ``?`` one character, ``**`` any run of segments, a lone
``*`` everything), on paths relative to the caller's work tree. Paths and globs are compared after a leading ``./`` or
``/`` is dropped; every other character stands for itself.
"""

import functools
from collections.abc import Iterable, Sequence

import re2

MAX_TOUCHED_PATHS = 256
MAX_PATH_LENGTH = 512


@functools.lru_cache(maxsize=4096)
def _compiled(glob: str) -> "re2._Regexp":
    segments = _relative(glob).split("/")
    if segments == ["*"]:
        segments = ["**"]
    parts = ("(?:/[^/]+)*" if segment == "**" else "/" + _segment(segment) for segment in segments)
    return re2.compile("".join(parts))


def _segment(segment: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(c) or re2.escape(c) for c in segment)


def _relative(path: str) -> str:
    return path.removeprefix("./").lstrip("/")


def eligible(globs: Sequence[str], touched: Iterable[str]) -> bool:
    """Whether a skill with these `paths` may be used when `touched` paths are at hand; always, when it has none."""
    if not globs:
        return True
    paths = [f"/{_relative(path)}" for path in touched]
    return any(_compiled(glob).fullmatch(path) for glob in globs for path in paths)
