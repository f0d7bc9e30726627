"""Pages of names: cut by key, not by offset, so that a name is neither missed nor repeated while others come and go."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from substrate.domain.errors import InvalidArgument
from substrate.domain.names import SkillName
from substrate.domain.patterns import PatternSet, parse_query_pattern
from substrate.domain.tokens import page_token, read_page_token
from substrate.services.trace import Trace

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_PAGE_BYTES = 3 * 1024 * 1024
"""Leaves room below the 4 MiB that gRPC clients accept by default."""


T = TypeVar("T")
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list: its rows, the token of the next page ("" on the last), and how many rows there are in all."""

    rows: Sequence[T]
    next_page_token: str
    total: int = 0

    def of(self, rows: Sequence[Row]) -> "Page[Row]":
        """Return the page with other rows in place of its own."""
        return Page(rows, self.next_page_token, self.total)


def cut(
    rows: Sequence[T],
    limit: int,
    key: Callable[[T], str],
    *bound: object,
    total: int = 0,
    weight: Callable[[T], int] | None = None,
) -> Page[T]:
    """Return the first `limit` of `rows`, with the token for the rest bound to what else selects them.

    `weight` says how many bytes a row takes on the wire; a page holds fewer rows, but at least one, where they would
    take more than clients accept by default.
    """
    if weight is not None:
        limit = min(limit, fitting(weight(row) for row in rows))
    following = page_token(key(rows[limit - 1]), *bound) if len(rows) > limit else ""
    return Page(rows[:limit], following, total)


def fitting(weights: Iterable[int]) -> int:
    """Return how many of the rows with these `weights`, in bytes, fit a message; at least one."""
    room = MAX_PAGE_BYTES
    count = 0
    for weight in weights:
        room -= weight
        if room < 0:
            break
        count += 1
    return max(1, count)


def page_limit(page_size: int) -> int:
    """Return how many rows a page holds: `page_size`, 0 for the default, at most `MAX_PAGE`; raise InvalidArgument."""
    if page_size < 0:
        raise InvalidArgument("page_size", "Must not be negative.")
    return min(page_size or DEFAULT_PAGE, MAX_PAGE)


def page_of_names(
    trace: Trace, names: Sequence[SkillName], bound: tuple[object, ...], pattern: str, page_size: int, token: str
) -> Page[SkillName]:
    """Return one page of the sorted `names` that `pattern` and the acting agent's allowlist admit.

    `bound` is what else selects the rows of the request that the token belongs to.
    """
    bound = (trace.principal.tenant, *bound)
    limit = page_limit(page_size)
    wanted = parse_query_pattern(pattern)
    trace.filter = pattern
    after = read_page_token(token, *bound, pattern)
    found = list(names)
    if wanted is not None:
        patterns = PatternSet([wanted])
        found = [name for name in found if patterns.matching(name)]
    if trace.agent is not None:
        found = [name for name in found if trace.agent.allowlist.decide(name).allowed]
    page = cut([name for name in found if name > after], limit, str, *bound, pattern, total=len(found))
    trace.admitted = len(page.rows)
    return page
