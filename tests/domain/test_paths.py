import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.domain.paths import MAX_GLOBS, MAX_GLOBS_LENGTH, MAX_TOUCHED_PATHS, eligible, globs_problem


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*", "src/deep/a.py", True),
        ("**", "a", True),
        ("src/*", "src/a.py", True),
        ("src/*", "src/deep/a.py", False),
        ("src/**", "src/deep/a.py", True),
        ("src/**", "src", True),
        ("**/*.py", "a.py", True),
        ("**/*.py", "src/deep/a.py", True),
        ("**/*.py", "src/a.pyc", False),
        ("src/?.py", "src/a.py", True),
        ("src/?.py", "src/ab.py", False),
        ("./src/a.py", "src/a.py", True),
        ("src/a.py", "./src/a.py", True),
        ("/src/a.py", "src/a.py", True),
        ("a+b.(c)", "a+b.(c)", True),
        ("a.c", "abc", False),
        ("src/a.py", "src/a.py\n", False),
    ],
)
def test_a_glob_matches_as_an_allowlist_pattern_does(glob: str, path: str, matches: bool) -> None:  # noqa: FBT001
    assert eligible([glob], [path]) is matches


def test_a_skill_without_paths_is_always_eligible_and_one_with_them_needs_a_match() -> None:
    assert eligible([], [])
    assert not eligible(["*.py"], [])
    assert eligible(["*.md", "*.py"], ["a.txt", "b.py"])


def test_how_many_and_how_long_globs_may_be() -> None:
    assert globs_problem(["*"] * MAX_GLOBS) is None
    assert "at most" in (globs_problem(["*"] * (MAX_GLOBS + 1)) or "")
    assert globs_problem(["a" * MAX_GLOBS_LENGTH]) is None
    assert "more than" in (globs_problem(["a" * MAX_GLOBS_LENGTH, "b"]) or "")


def parts(text: str) -> list[str]:
    found = text.removeprefix("./").lstrip("/").split("/")
    return ["**"] if found == ["*"] else found


def in_segment(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return in_segment(glob[1:], text) or (bool(text) and in_segment(glob, text[1:]))
    return bool(text) and glob[0] in ("?", text[0]) and in_segment(glob[1:], text[1:])


def in_path(glob: list[str], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] == "**":
        return in_path(glob[1:], path) or (bool(path) and bool(path[0]) and in_path(glob, path[1:]))
    return bool(path) and in_segment(glob[0], path[0]) and in_path(glob[1:], path[1:])


@given(st.lists(st.text(alphabet="ab/*?.+[(", max_size=10), max_size=5), st.text(alphabet="ab/.", max_size=10))
def test_globs_match_as_a_slow_and_obvious_matcher_does(globs: list[str], path: str) -> None:
    expected = not globs or any(in_path(parts(glob), parts(path)) for glob in globs)
    assert eligible(globs, [path]) is expected


def test_hostile_globs_end() -> None:
    globs = ["**/" * 100 + "a*a*a*b", "*a" * 100 + "b"]
    assert globs_problem(globs) is None
    # That this ends is the test: an expression that backtracks would go on for longer than anybody waits.
    assert not eligible(globs, ["a/" * 200 + "a" * 100] * MAX_TOUCHED_PATHS)
