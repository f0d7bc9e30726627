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
MAX_GLOBS = 32
MAX_GLOBS_LENGTH = 1024

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def globs_problem(globs: Sequence[str]) -> str | None:
    """Say what keeps `globs` from being used, or None: how many there are and how long they are is bounded."""
    if len(globs) > MAX_GLOBS:
        return f"has {len(globs)} globs; at most {MAX_GLOBS} are allowed"
    if sum(len(glob) for glob in globs) > MAX_GLOBS_LENGTH:
        return f"has globs of more than {MAX_GLOBS_LENGTH} characters together"
    return None


@functools.lru_cache(maxsize=1024)
def _compiled(globs: tuple[str, ...]) -> "re2._Regexp":
    return re2.compile("|".join(_regex(glob) for glob in globs), _OPTIONS)


def _regex(glob: str) -> str:
    segments = _relative(glob).split("/")
    if segments == ["*"]:
        segments = ["**"]
    return "".join("(?:/[^/]+)*" if segment == "**" else "/" + _segment(segment) for segment in segments)


def _segment(segment: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(c) or re2.escape(c) for c in segment)


def _relative(path: str) -> str:
    return path.removeprefix("./").lstrip("/")


def first_eligible(globs: Sequence[str], touched: Iterable[str]) -> str:
    """Return the first of `touched` for which a skill with these `paths` may be used, or an empty text."""
    return next((path for path in touched if eligible(globs, (path,))), "")


def eligible(globs: Sequence[str], touched: Iterable[str]) -> bool:
    """Whether a skill with these `paths` may be used when `touched` paths are at hand; always, when it has none."""
    if not globs:
        return True
    any_glob = _compiled(tuple(globs))
    return any(any_glob.fullmatch(f"/{_relative(path)}") for path in touched)
