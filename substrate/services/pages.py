"""Pages of names: cut by key, not by offset, so that a name is neither missed nor repeated while others come and go."""

from collections.abc import Sequence

from substrate.domain.errors import InvalidArgument
from substrate.domain.names import SkillName
from substrate.domain.skillmatch import PatternSet, parse_query_pattern
from substrate.domain.tokens import page_token, read_page_token
from substrate.services.trace import Trace

DEFAULT_PAGE = 100
MAX_PAGE = 1000


def page_limit(page_size: int) -> int:
    """Return how many rows a page holds: `page_size`, 0 for the default, at most `MAX_PAGE`; raise InvalidArgument."""
    if page_size < 0:
        raise InvalidArgument("page_size", "Must not be negative.")
    return min(page_size or DEFAULT_PAGE, MAX_PAGE)


def page_of_names(
    trace: Trace, names: Sequence[SkillName], bound: tuple[object, ...], pattern: str, page_size: int, token: str
) -> tuple[list[SkillName], str]:
    """Return one page of the sorted `names` that `pattern` and the acting agent's allowlist admit, and the next token.

    `bound` is what else selects the rows of the request that the token belongs to.
    """
    limit = page_limit(page_size)
    wanted = parse_query_pattern(pattern)
    trace.filter = pattern
    after = read_page_token(token, *bound, pattern)
    found = [name for name in names if name > after]
    if wanted is not None:
        patterns = PatternSet([wanted])
        found = [name for name in found if patterns.matching(name)]
    if trace.agent is not None:
        found = [name for name in found if trace.agent.allowlist.decide(name).allowed]
    following = page_token(found[limit - 1], *bound, pattern) if len(found) > limit else ""
    trace.admitted = min(len(found), limit)
    return found[:limit], following
