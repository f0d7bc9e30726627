"""How many changes of one tenant are made at once in a process.

The writers of a tenant take turns, each waiting in a thread of its own for the tenant's row. A tenant that sends more
than the threads would hold them all, and keep other tenants waiting for what is none of their business.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from substrate.domain.names import TenantId
from substrate.domain.quotas import require

RETRY_AFTER_SECONDS = 1


class Writers:
    """Counts the changes in progress; of the `threads` that handle calls one tenant's take three quarters."""

    def __init__(self, threads: int) -> None:
        self._limit = max(1, threads * 3 // 4)
        self._lock = threading.Lock()
        self._writing: Counter[TenantId] = Counter()

    @contextmanager
    def turn(self, tenant: TenantId) -> Iterator[None]:
        """Hold one of the tenant's places; raise QuotaExceeded, without waiting, when all are taken."""
        with self._lock:
            require("calls_in_flight", self._limit, self._writing[tenant] + 1, RETRY_AFTER_SECONDS)
            self._writing[tenant] += 1
        try:
            yield
        finally:
            with self._lock:
                self._writing[tenant] -= 1
                if not self._writing[tenant]:
                    del self._writing[tenant]
