"""Signs, while a server runs, what the audit's chains have become: the part of the audit outside the database."""

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import structlog

from substrate.domain.chain import Point
from substrate.domain.checkpoints import Checkpoint
from substrate.domain.errors import DeadlineExceeded, StoreUnavailable
from substrate.services.call import Clock
from substrate.store import audit_chain
from substrate.store.checkpoint_file import CheckpointFile, Latest
from substrate.store.session import Database

POLL_SECONDS = 1.0
EVERY_EVENTS = 1000
EVERY = timedelta(seconds=60)

_STOP_SECONDS = 10.0

_log = structlog.get_logger("substrate.checkpoints")


class Checkpointer:
    """A thread that appends a signed checkpoint of each chain that has grown enough, or has grown and waited enough.

    A chain is due once it has `every_events` more events than when it was last signed, or any more and `every` has
    passed. `ended` closes the database that it was given for itself. It never raises: what fails is tried again.
    """

    def __init__(
        self,
        database: Database,
        file: CheckpointFile,
        clock: Clock,
        *,
        every_events: int = EVERY_EVENTS,
        every: timedelta = EVERY,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._database = database
        self._file = file
        self._clock = clock
        self._every_events = every_events
        self._every = every
        self._poll_seconds = poll_seconds
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._known_file = False
        self._failing = False
        self._short: set[str] = set()

    def start(self) -> None:
        """Begin, with a first look at once."""
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, once every chain that has grown has been signed; a database that is away is not waited for."""
        if self._thread is None:
            return
        self._ending.set()
        self._thread.join(_STOP_SECONDS)

    def poll(self, *, last: bool = False) -> int:
        """Sign the chains that are due, or, for the `last` time, all that have grown; return how many."""
        with self._database.operator() as connection:
            heads = audit_chain.heads(connection)
        self._look_for_short(heads)

        def due(latest: Mapping[str, Latest]) -> Iterator[Checkpoint]:
            return self._due(heads, latest, last=last)

        # The file's lock, and its disk, are not troubled while nothing is due; in the end it must be there.
        if self._known_file and not last and next(due(self._file.latest), None) is None:
            return 0
        signed = self._file.append(due)
        self._known_file = True
        return signed

    def _due(self, heads: Mapping[str, Point], latest: Mapping[str, Latest], *, last: bool) -> Iterator[Checkpoint]:
        now = self._clock.now()
        for tenant, head in heads.items():
            before = latest.get(tenant)
            grown = head.sequence - (before.sequence if before else 0)
            # A clock that was set back tells of no time that has passed: what it says is signed at once, to go on from.
            waited = before is None or not timedelta() <= now - before.time < self._every
            if grown >= self._every_events or (grown > 0 and (last or waited)):
                yield Checkpoint(tenant, head, now)

    def _run(self) -> None:
        while True:
            last = self._ending.is_set()
            self._attempt(self.poll, last=last)
            if last:
                return
            self._ending.wait(self._poll_seconds)

    def _attempt(self, poll: Callable[..., int], *, last: bool) -> None:
        """Poll; say once when that begins to fail, and once when it works again."""
        try:
            poll(last=last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on, and so does this thread.
            if not self._failing:
                away = isinstance(error, (StoreUnavailable, DeadlineExceeded))
                say = _log.warning if away else _log.error
                say("checkpoints.failing", error=type(error).__name__)
            self._failing = True
        else:
            if self._failing:
                _log.info("checkpoints.working")
            self._failing = False

    def _look_for_short(self, heads: Mapping[str, Point]) -> None:
        """Say once of a chain that it is shorter than it was: it has been cut, or the database is an older copy."""
        latest = self._file.latest
        short = {
            tenant
            for tenant, signed in latest.items()
            if signed.sequence > (heads[tenant].sequence if tenant in heads else 0)
        }
        for tenant in sorted(short - self._short):
            _log.error(
                "checkpoints.chain_is_short",
                tenant=tenant,
                signed=latest[tenant].sequence,
                found=heads[tenant].sequence if tenant in heads else 0,
                hint="Run `substrate audit verify`; the database was cut, or is an older copy.",
            )
        self._short = short
