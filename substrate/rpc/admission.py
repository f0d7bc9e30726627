"""Admission: which calls the server takes in hand, so that neither a tenant nor whoever has no key keeps out the rest.

Each tenant has its own number of places. A call counts as a tenant's only if its key is proven, and on grpc's one
serving thread that can only be by what is in memory. All other calls (their tenant has not been loaded yet, their key
is wrong, or they have none) share a quarter of the places and a few threads of their own. So made-up keys can neither
use up a tenant's places nor take all that there are.

Streams stay open, so they have threads of their own and are not let into the pools of the other calls. They count as
calls in hand as well, and of their threads neither a tenant nor the unproven calls get more than a part.

A call is admitted and put into its pool by the same thread, one call after the other; so what is counted when it is put
cannot have changed for the worse since it was admitted.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from substrate.domain.errors import Overloaded, Unauthenticated
from substrate.domain.identity import Bearer, parse_bearer
from substrate.domain.names import TenantId
from substrate.domain.quotas import require

RETRY_AFTER_SECONDS = 1
"""When a caller whose tenant has too many calls in hand should try again."""

MAX_STREAMS = 16
"""Streams that a process has open at most; each holds a thread."""

MAX_STREAMS_OF_TENANT = 8
MAX_UNPROVEN_STREAMS = 4

_SHARE_OF_UNPROVEN = 4
_CALL_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Arrival:
    """A call as its headers announce it, and the place that it holds.

    `bearer` is None when no key can be read from them. `tenant` is whose place it is; None for a call that has not
    proven its key.
    """

    __slots__ = ("bearer", "call_id", "pool", "tenant")

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self.bearer, self.call_id = _read(metadata)
        self.tenant: TenantId | None = None
        self.pool: CountedPool | None = None

    def leave(self) -> None:
        """Give the place back; only the first time counts. One thread at a time may call this."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.count(self.tenant, -1)


class CountedPool(ThreadPoolExecutor):
    """A thread pool that knows how many calls it holds, running and waiting, and whose they are.

    `here` is where the call that a thread runs is found, as its attribute `arrival`.
    """

    def __init__(self, threads: int, here: threading.local) -> None:
        super().__init__(max_workers=threads, thread_name_prefix="call", initializer=_wait_when_woken)
        self._here = here
        self._next: Arrival | None = None
        self._lock = threading.Lock()
        self._held = 0
        self._held_by: dict[TenantId | None, int] = {}

    @property
    def held(self) -> int:
        """How many calls have been put and have not left."""
        return self._held

    def held_by(self, tenant: TenantId | None) -> int:
        """Return how many of them are the tenant's, or, for None, unproven."""
        return self._held_by.get(tenant, 0)

    def expect(self, arrival: Arrival) -> None:
        """Let the call that is put next be `arrival`; whoever calls this must be the one that puts it."""
        self._next = arrival

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Put the expected call; it holds its place until it leaves it, at the latest when `fn` has returned."""
        arrival, self._next = self._next, None
        if arrival is None:
            raise RuntimeError("A call was put that nobody has admitted.")
        arrival.pool = self
        self.count(arrival.tenant, 1)
        try:
            return super().submit(self._run, arrival, fn, *args, **kwargs)
        except BaseException:
            arrival.leave()
            raise

    def count(self, tenant: TenantId | None, more: int) -> None:
        """Count `more` calls, or fewer, of `tenant`."""
        with self._lock:
            self._held += more
            left = self._held_by.get(tenant, 0) + more
            if left:
                self._held_by[tenant] = left
            else:
                # Tenants come and go; those without a call in hand leave nothing behind.
                del self._held_by[tenant]

    def _run(self, arrival: Arrival, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._here.arrival = arrival
        try:
            return fn(*args, **kwargs)
        finally:
            # A call that was cancelled while it waited never reaches its handler, which leaves otherwise.
            arrival.leave()


class Admission:
    """Admits calls to three pools: those that have proven their key, the others, and streams of either kind.

    `threads` are those of the first pool; the second has a quarter as many, beside them. `max_calls` is how many calls
    may be held in all. `standing` gives the number of calls that a bearer's tenant may have in hand in all `processes`
    of the server together, or None when it is not proven; it must not block.
    """

    def __init__(self, threads: int, max_calls: int, processes: int, standing: Callable[[Bearer], int | None]) -> None:
        self._here = threading.local()
        self.proven = CountedPool(threads, self._here)
        self.unproven = CountedPool(max(1, threads // _SHARE_OF_UNPROVEN), self._here)
        self.streams = CountedPool(MAX_STREAMS, self._here)
        self._max_calls = max_calls
        self._max_unproven = max(1, max_calls // _SHARE_OF_UNPROVEN)
        self._processes = processes
        self._standing = standing

    @property
    def held(self) -> int:
        """How many calls are in hand, running and waiting."""
        return self.proven.held + self.unproven.held + self.streams.held

    def admit(self, arrival: Arrival, *, stream: bool = False) -> CountedPool:
        """Return the pool to which the call must be put next; raise QuotaExceeded or Overloaded."""
        limit = None if arrival.bearer is None else self._standing(arrival.bearer)
        if arrival.bearer is None or limit is None:
            pool = self.unproven
            if pool.held + self.streams.held_by(None) >= self._max_unproven:
                raise _overloaded()
        else:
            pool = self.proven
            arrival.tenant = arrival.bearer.tenant
            share = -(-limit // self._processes)
            if pool.held_by(arrival.tenant) + self.streams.held_by(arrival.tenant) >= share:
                require("calls_in_flight", limit, limit + 1, retry_after=RETRY_AFTER_SECONDS)
        self.require_room()
        if stream:
            pool = self.streams
            most = MAX_UNPROVEN_STREAMS if arrival.tenant is None else MAX_STREAMS_OF_TENANT
            if pool.held >= MAX_STREAMS or pool.held_by(arrival.tenant) >= most:
                raise Overloaded("As many streams are open as there may be; close one, or try again later.")
        pool.expect(arrival)
        return pool

    def require_room(self) -> None:
        """Raise Overloaded when as many calls are in hand as there may be."""
        if self.held >= self._max_calls:
            raise _overloaded()

    def here(self) -> Arrival:
        """Return the call that this thread runs."""
        arrival: Arrival = self._here.arrival
        return arrival

    def shutdown(self) -> None:
        """Wait until all threads are idle, and end them."""
        for pool in (self.proven, self.unproven, self.streams):
            pool.shutdown(wait=True, cancel_futures=True)


def _overloaded() -> Overloaded:
    return Overloaded("The server has as many calls in hand as it can serve; try again in a moment.")


def _wait_when_woken() -> None:
    """Keep this thread from interrupting the one that wakes it: that one holds Python's lock, so it would have to wait.

    Each call is woken three times; not to interrupt saves a tenth of a busy core.
    """
    with suppress(OSError):  # It is only a hint, and a sandbox may forbid it.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _read(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[Bearer | None, str]:
    """Return the caller's key, if one can be read, and the call id it proposes, if any."""
    found = ""
    call_id = ""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            if found:
                # Which of two keys counts must not depend on who put them in which order.
                return None, call_id
            found = value
        elif key == "x-call-id" and isinstance(value, str) and _CALL_ID.fullmatch(value):
            call_id = value
    scheme, _, text = found.partition(" ")
    if scheme.lower() != "bearer":
        return None, call_id
    try:
        return parse_bearer(text.strip()), call_id
    except Unauthenticated:
        return None, call_id
