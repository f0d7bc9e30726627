"""Snapshots: one tenant's merged catalog, agents and keys at one catalog revision, kept until it is known to be old.

A snapshot is immutable. What is derived from it (an agent's visible skills, a page of a list) may be kept inside it,
under a key that names every input, and goes with it. Loads are single-flight: calls that need a snapshot as new as
their own arrival share a load that began after it. No lock is held while the database works.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar, cast

import structlog

from substrate.domain.agents import Agent
from substrate.domain.audit import KeptInput
from substrate.domain.catalog import Catalog
from substrate.domain.errors import AgentNotFound, DeadlineExceeded
from substrate.domain.identity import Bearer
from substrate.domain.inputs import agent_input
from substrate.domain.names import AgentName, TenantId
from substrate.domain.tokens import CatalogToken
from substrate.sources.static import StaticState
from substrate.sources.tenant import TenantSource, TenantState

MAX_SNAPSHOTS = 10_000
MAX_UNKNOWN_TENANTS = 1_000
_MAX_DERIVED = 64
_MAX_ADMITTED = 256

T = TypeVar("T")

_log = structlog.get_logger("substrate.snapshots")


class Watch(Protocol):
    """Who is told how snapshots come and go."""

    def snapshot_loaded(self, seconds: float, *, ok: bool) -> None:
        """Note that reading a snapshot took so long, and whether it was had."""

    def snapshot_outdated(self, age_seconds: float) -> None:
        """Note how old a snapshot had become when it was dropped since the tenant's state had moved on."""

    def snapshots_kept(self, count: int) -> None:
        """Note how many snapshots are kept."""


class _Nobody:
    """Is told and does not listen."""

    def snapshot_loaded(self, seconds: float, *, ok: bool) -> None: ...

    def snapshot_outdated(self, age_seconds: float) -> None: ...

    def snapshots_kept(self, count: int) -> None: ...


class Snapshot:
    """One tenant's state over the static state.

    `began` is when its load began and `confirmed` when it was last known to be current, in `time.monotonic()` seconds.
    """

    __slots__ = ("_admitted", "_derived", "began", "catalog", "confirmed", "state", "static", "token")

    def __init__(self, state: TenantState, static: StaticState, began: float) -> None:
        self.state = state
        self.static = static
        self.began = self.confirmed = began
        self.catalog = Catalog(state.layers, static.catalog, state.versions)
        self.token = CatalogToken(state.incarnation, state.tenant, state.revision or 0, static.digest)
        self._derived: dict[Hashable, object] = {}
        self._admitted: dict[Hashable, object] = {}

    def confirm(self, at: float) -> None:
        """Note that the state was current at `at`, or later."""
        self.confirmed = max(self.confirmed, at)

    def agent(self, name: AgentName) -> Agent:
        """Return the agent that stands for `name`: the tenant's own, else inline, else a bundle's.

        Raises AgentNotFound; also when the tenant's own row is corrupt, since another agent's allowlist must not stand
        in for it.
        """
        if name in self.state.agents:
            own = self.state.agents[name]
            if own is None:
                raise AgentNotFound(f"The stored definition of agent '{name}' is corrupt; put it again.", agent=name)
            return own
        found = self.static.agents.get(name)
        if found is None:
            raise AgentNotFound(f"There is no agent '{name}'.", agent=name)
        return found

    def kept(self, agent: Agent) -> KeptInput:
        """Return what the audit keeps of one of the snapshot's agents."""
        return self.admit(("kept", agent.name), lambda: agent_input(agent))

    def agents(self) -> list[Agent]:
        """Return every agent that can be named, by name."""
        own = {name: agent for name, agent in self.state.agents.items() if agent is not None}
        shadowed = {name: agent for name, agent in self.static.agents.items() if name not in self.state.agents}
        return [agent for _, agent in sorted({**shadowed, **own}.items())]

    def derive(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gives, kept under `key`, which must name every input beside the snapshot itself."""
        return _kept(self._derived, _MAX_DERIVED, key, make)

    def admit(self, key: Hashable, make: Callable[[], T]) -> T:
        """As `derive`, for what is small and derived for single skills, so that it does not displace whole lists."""
        return _kept(self._admitted, _MAX_ADMITTED, key, make)


def _kept(kept: dict[Hashable, object], limit: int, key: Hashable, make: Callable[[], T]) -> T:
    known = kept.get(key)
    if known is None:
        known = make()
        if len(kept) >= limit:
            kept.clear()
        kept[key] = known
    return cast("T", known)


@dataclass(slots=True)
class _Flight:
    began: float
    result: "Future[Snapshot]"


class Snapshots:
    """The snapshots of one process, least recently used ones dropped, over the current static state.

    `watch` is told of loads and of what is kept.
    """

    def __init__(self, source: TenantSource, static: StaticState, watch: Watch | None = None) -> None:
        self._source = source
        self._static = static
        self._watch = watch or _Nobody()
        self._lock = threading.Lock()
        self._known: OrderedDict[TenantId, Snapshot] = OrderedDict()
        # Apart from the others, which made-up names could else displace.
        self._unknown: OrderedDict[TenantId, Snapshot] = OrderedDict()
        self._flights: dict[TenantId, _Flight] = {}
        # The keys and quotas of those that were forgotten, until they are loaded again.
        self._written: OrderedDict[TenantId, TenantState] = OrderedDict()

    @property
    def static(self) -> StaticState:
        """The static state that new snapshots stand on."""
        return self._static

    def replace_static(self, static: StaticState) -> None:
        """Let every later call see `static`; calls in progress finish on what they began with."""
        self._static = static

    def current(self, tenant: TenantId, deadline: float | None) -> Snapshot:
        """Return the snapshot at hand, which may be old, or load one."""
        with self._lock:
            known = self._known.get(tenant)
            if known is None and tenant in self._unknown:
                return self._unknown[tenant]
            if known is not None:
                self._known.move_to_end(tenant)
                if known.static is not self._static:
                    confirmed = known.confirmed
                    known = self._known[tenant] = Snapshot(known.state, self._static, known.began)
                    known.confirm(confirmed)
                return known
        # Any load will do, one that is under way included: whoever decides on it has its revision checked.
        return self.load(tenant, 0.0, deadline)

    def load(self, tenant: TenantId, after: float, deadline: float | None) -> Snapshot:
        """Return a snapshot whose load began no earlier than `after`.

        Raises StoreUnavailable, or DeadlineExceeded when `deadline` passes first.
        """
        while True:
            with self._lock:
                known = self._known.get(tenant)
                if known is not None and known.began >= after and known.static is self._static:
                    return known
                flight = self._flights.get(tenant)
                leads = flight is None
                if flight is None:
                    flight = self._flights[tenant] = _Flight(time.monotonic(), Future())
            found = self._fly(tenant, flight, deadline) if leads else self._follow(flight, deadline)
            if found is not None and flight.began >= after:
                return found

    def standing(self, bearer: Bearer, now: datetime) -> int | None:
        """Return how many calls the tenant of `bearer` may have in hand, if what is in memory proves the key at `now`.

        Neither loads nor waits: where there is nothing in memory, nothing is proven. The answer may be of an older
        state; it says whom a call counts against, and nothing about what the caller may do.
        """
        # Without the lock: each look is one step, and a tenant moves from one to the other without a gap.
        known = self._known.get(bearer.tenant)
        state = self._written.get(bearer.tenant) if known is None else known.state
        key = None if state is None else state.keys.get(bearer.key_id)
        if state is None or key is None or not key.admits(bearer.secret, now):
            return None
        return state.quotas.calls_in_flight

    def forget(self, tenant: TenantId) -> None:
        """Drop the snapshot of a tenant that was just written to, so that the next call need not find it stale."""
        with self._lock:
            known = self._known.get(tenant)
            if known is not None:
                state = known.state
                self._written[tenant] = TenantState(
                    tenant, state.incarnation, state.revision, keys=state.keys, quotas=state.quotas
                )
                if len(self._written) > MAX_SNAPSHOTS:
                    self._written.popitem(last=False)
                del self._known[tenant]
            self._unknown.pop(tenant, None)
        if known is not None:
            self._watch.snapshot_outdated(time.monotonic() - known.began)
            self._watch.snapshots_kept(len(self._known) + len(self._unknown))

    def _fly(self, tenant: TenantId, flight: _Flight, deadline: float | None) -> Snapshot:
        try:
            found = Snapshot(self._source.load(tenant, deadline), self._static, flight.began)
        except BaseException as error:
            with self._lock:
                del self._flights[tenant]
            flight.result.set_exception(error)
            self._watch.snapshot_loaded(time.monotonic() - flight.began, ok=False)
            raise
        with self._lock:
            del self._flights[tenant]
            outdated = self._known.get(tenant)
            exists = found.state.revision is not None
            (self._unknown if exists else self._known).pop(tenant, None)
            kept, limit = (self._known, MAX_SNAPSHOTS) if exists else (self._unknown, MAX_UNKNOWN_TENANTS)
            kept[tenant] = found
            kept.move_to_end(tenant)
            if len(kept) > limit:
                kept.popitem(last=False)
            self._written.pop(tenant, None)
        flight.result.set_result(found)
        seconds = time.monotonic() - flight.began
        self._watch.snapshot_loaded(seconds, ok=True)
        self._watch.snapshots_kept(len(self._known) + len(self._unknown))
        if outdated is not None:
            self._watch.snapshot_outdated(seconds + flight.began - outdated.began)
        _log.debug("snapshot.loaded", tenant=tenant, revision=found.state.revision, ms=round(seconds * 1000, 3))
        return found

    def _follow(self, flight: _Flight, deadline: float | None) -> Snapshot | None:
        """Wait for another call's load; None when that call ran out of its own time, which is not ours."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return flight.result.result(timeout=left)
        except FutureTimeoutError:
            raise DeadlineExceeded("The deadline passed while the catalog was loaded.") from None
        except DeadlineExceeded:
            return None
