"""The part that all runtime calls share: which agent, in which run, touching what."""

from collections.abc import Sequence
from dataclasses import dataclass

from substrate.domain.agents import Agent
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import InvalidArgument
from substrate.domain.paths import MAX_PATH_LENGTH, MAX_TOUCHED_PATHS
from substrate.services.access import runtime_agent
from substrate.services.staleness import Reads, follow_token
from substrate.services.trace import Trace

MAX_RUN_ID_LENGTH = 128
MAX_STALENESS = 86_400


@dataclass(frozen=True, slots=True)
class Run:
    """What every runtime call says of itself; `max_staleness`, in seconds, is for when the database is away."""

    agent: str = ""
    run_id: str = ""
    turn: int = 0
    catalog_token: str = ""
    caller_kind: CallerKind = CallerKind.MODEL
    touched_paths: Sequence[str] = ()
    max_staleness: float = 0.0

    @property
    def reads(self) -> Reads:
        """How old a state the call accepts."""
        return Reads(self.max_staleness, self.catalog_token)


RUN_FIELDS = frozenset({"agent", "run_id", "turn", "catalog_token", "caller_kind", "touched_paths", "max_staleness"})


def check_touched(paths: Sequence[str]) -> None:
    """Raise InvalidArgument when there are too many touched paths, or one of them is none."""
    if len(paths) > MAX_TOUCHED_PATHS:
        raise InvalidArgument("touched_paths", f"At most {MAX_TOUCHED_PATHS} paths are allowed.")
    for index, path in enumerate(paths):
        if not path or len(path) > MAX_PATH_LENGTH or "\0" in path:
            raise InvalidArgument(
                f"touched_paths[{index}]", f"A path has 1 to {MAX_PATH_LENGTH} characters, none of them NUL."
            )


def begin(trace: Trace, run: Run) -> Agent:
    """Check what the call says of its run, and return its agent; raise InvalidArgument or as `runtime_agent` does."""
    if len(run.run_id) > MAX_RUN_ID_LENGTH or not run.run_id.isprintable():
        raise InvalidArgument("run_id", f"Must be printable text of at most {MAX_RUN_ID_LENGTH} characters.")
    if run.turn < 0:
        raise InvalidArgument("turn", "Must not be negative.")
    check_touched(run.touched_paths)
    if not 0 <= run.max_staleness <= MAX_STALENESS:
        raise InvalidArgument("max_staleness", f"Must be from 0 to {MAX_STALENESS} seconds.")
    trace.caller_kind = run.caller_kind.value
    trace.touched = len(run.touched_paths) or None
    trace.run_id = run.run_id
    trace.turn = run.turn
    agent = runtime_agent(trace, run.agent)
    follow_token(trace, run.catalog_token)
    return agent
