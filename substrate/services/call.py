"""One call as the services see it, whatever brought it in."""

import time
from dataclasses import dataclass, field
from datetime import datetime

from substrate.domain.errors import Cancelled, DeadlineExceeded
from substrate.domain.identity import Bearer
from substrate.domain.tokens import CatalogToken


@dataclass(slots=True)
class Call:
    """A call in progress.

    `started` and `deadline` are in `time.monotonic()` seconds. `cancelled` turns true when the caller goes away. Once
    the call is settled, `decision_id` is the id of its audit event, and `catalog` and `catalog_changed` say which
    catalog it was answered from.
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
    log: dict[str, object] = field(default_factory=dict)

    def require_time(self) -> None:
        """Raise Cancelled or DeadlineExceeded when nobody waits for the answer any more."""
        if self.cancelled:
            raise Cancelled("The caller went away.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("The deadline passed before an answer was ready.")
