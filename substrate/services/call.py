"""One call as the services see it, whatever brought it in."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from substrate.domain.errors import Cancelled, DeadlineExceeded
from substrate.domain.identity import Bearer
from substrate.domain.tokens import CatalogToken


class Clock(Protocol):
    """Where the time and new event ids come from."""

    def now(self) -> datetime:
        """Return the time, in UTC."""

    def event_id(self) -> str:
        """Return a new UUIDv7."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """What lets a change be sent again: the caller's id for it, the digest of what it asks, and its answer's bytes.

    `fingerprint` is the SHA-256 of method and request; `respond` encodes the answer of the use case.
    """

    request_id: str
    fingerprint: bytes
    respond: Callable[[Any], bytes]


@dataclass(slots=True)
class Call:
    """A call in progress.

    `started` and `deadline` are in `time.monotonic()` seconds. `cancelled` turns true when the caller goes away. Once
    the call is settled, `decision_id` is the id of its audit event, and `catalog` and `catalog_changed` say which
    catalog it was answered from. `repeat` is set for a change that came with a request id, and `ended` for a call that
    stays open: it wakes who pauses.
    """

    method: str
    call_id: str
    bearer: Bearer
    arrived: datetime
    started: float
    deadline: float | None = None
    cancelled: bool = False
    decision_id: str = ""
    catalog: CatalogToken | None = None
    catalog_changed: bool = False
    repeat: Repeat | None = None
    ended: threading.Event | None = None
    log: dict[str, object] = field(default_factory=dict)

    def require_time(self) -> None:
        """Raise Cancelled or DeadlineExceeded when nobody waits for the answer any more."""
        if self.cancelled:
            raise Cancelled("The caller went away.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("The deadline passed before an answer was ready.")

    def cancel(self) -> None:
        """Note that nobody waits for the answer any more, and wake who pauses; may be called from any thread."""
        self.cancelled = True
        if self.ended is not None:
            self.ended.set()

    def pause(self, seconds: float) -> None:
        """Wait in a call that stays open, not beyond its deadline; raise Cancelled or DeadlineExceeded at its end."""
        if self.ended is None:
            raise RuntimeError("A call that is to be answered at once does not pause.")
        left = seconds if self.deadline is None else min(seconds, self.deadline - time.monotonic())
        self.ended.wait(max(0.0, left))
        self.require_time()
