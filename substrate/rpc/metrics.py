"""Counters and times of one process, for Prometheus.

No label holds what a caller chooses: methods are those that are served, and tenants, agents and skills are none.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

OTHER_METHOD = "_OTHER"
"""What a method that is not served is called, whatever its name."""

# OpenTelemetry's boundaries for calls, and finer ones below them, where an invocation is.
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_BATCH_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_AGE_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0)


class Metrics:
    """What the process counts; `registry` holds it all."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # The name and the labels are OpenTelemetry's, as it spells them for Prometheus.
        self._calls = Histogram(
            "rpc_server_call_duration_seconds",
            "Time from a call's arrival to its answer.",
            ["rpc_system_name", "rpc_method", "rpc_response_status_code"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        # Looking a label's child up takes as long as counting does, and there are few.
        self._known_calls: dict[tuple[str, str], Histogram] = {}
        self._resolutions = Counter(
            "substrate_resolutions",
            "Decisions on single names, by how they ended and the layer of the winner.",
            ["outcome", "layer"],
            registry=self.registry,
        )
        self._known_resolutions: dict[tuple[str, str], Counter] = {}
        loads = Counter(
            "substrate_snapshot_loads",
            "Snapshots read from the database, by result.",
            ["result"],
            registry=self.registry,
        )
        self._loads_by = {ok: loads.labels("ok" if ok else "failed") for ok in (True, False)}
        self._load_seconds = Histogram(
            "substrate_snapshot_load_seconds",
            "Time that reading a snapshot took.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._age_seconds = Histogram(
            "substrate_snapshot_age_seconds",
            "Age of a snapshot when it was dropped since the tenant's state had moved on.",
            buckets=_AGE_BUCKETS,
            registry=self.registry,
        )
        self._snapshots = self._gauge("substrate_snapshots", "Snapshots kept.", "livesum")
        self._lost = Counter(
            "substrate_audit_lost_events",
            "Audit events dropped of calls answered without them.",
            ["cause"],
            registry=self.registry,
        )
        for cause in ("queue_full", "write_failed", "outcome_unknown", "busy"):
            # There from the start, so that a rule sees the first loss as a rise.
            self._lost.labels(cause)
        self._refused = Counter(
            "substrate_audit_refused",
            "Calls refused since their audit event could not be written.",
            registry=self.registry,
        )
        self._queue_depth = self._gauge("substrate_audit_queue_depth", "Calls waiting to be settled.", "livesum")
        self._commit_seconds = Histogram(
            "substrate_audit_commit_seconds",
            "Time that a batch of audit events took.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._batch_events = Histogram(
            "substrate_audit_batch_events", "Events in a batch.", buckets=_BATCH_BUCKETS, registry=self.registry
        )
        self._healthy = self._gauge("substrate_audit_healthy", "Whether audit events can be written.", "livemin")
        self._skills = self._gauge("substrate_static_skills", "Skills in bundles and inline.", "livemostrecent")

    def _gauge(self, name: str, what: str, merged: Literal["livesum", "livemin", "livemostrecent"]) -> Gauge:
        """Return a gauge; `merged` says what the workers' values are together, those that have ended left out."""
        return Gauge(name, what, registry=self.registry, multiprocess_mode=merged)

    def finished(self, method: str, code: str, seconds: float) -> None:
        """Count a call of `method`, such as ``/package.Service/Method``, that ended with `code` after `seconds`.

        `method` must be one that is served, or OTHER_METHOD.
        """
        key = (method, code)
        known = self._known_calls.get(key)
        if known is None:
            known = self._known_calls[key] = self._calls.labels("grpc", method.removeprefix("/"), code)
        known.observe(seconds)

    def resolved(self, outcome: str, layer: str) -> None:
        """Count a decision on one name, with the layer of the winner, or an empty one."""
        key = (outcome, layer)
        known = self._known_resolutions.get(key)
        if known is None:
            known = self._known_resolutions[key] = self._resolutions.labels(*key)
        known.inc()

    def snapshot_loaded(self, seconds: float, *, ok: bool) -> None:
        """Note that reading a snapshot took so long, and whether it was had."""
        self._loads_by[ok].inc()
        self._load_seconds.observe(seconds)

    def snapshot_outdated(self, age_seconds: float) -> None:
        """Note how old a snapshot had become when it was dropped since the tenant's state had moved on."""
        self._age_seconds.observe(age_seconds)

    def snapshots_kept(self, count: int) -> None:
        """Note how many snapshots are kept."""
        self._snapshots.set(count)

    def lost(self, events: int, cause: str) -> None:
        """Count audit events that were dropped, and why."""
        self._lost.labels(cause).inc(events)

    def audit_refused(self, calls: int) -> None:
        """Count calls refused since their event could not be written."""
        self._refused.inc(calls)

    def audit_queue(self, depth: int) -> None:
        """Note how many calls wait to be settled."""
        self._queue_depth.set(depth)

    def audit_committed(self, seconds: float, events: int) -> None:
        """Note that a batch of so many events took so long."""
        self._commit_seconds.observe(seconds)
        self._batch_events.observe(events)

    def audit_healthy(self, healthy: bool) -> None:  # noqa: FBT001 - it is the whole message.
        """Note whether audit events can be written."""
        self._healthy.set(healthy)

    def static_skills(self, count: int) -> None:
        """Note how many static skills there are."""
        self._skills.set(count)

    def serve(self, port: int) -> None:
        """Serve the metrics over HTTP on loopback; raise OSError when the port cannot be had."""
        _serve(port, self.registry)


def serve_merged(port: int, folder: str) -> None:
    """Serve what all workers count, each of which keeps its counts in `folder`; raise OSError as `Metrics.serve`."""
    registry = CollectorRegistry()
    registry.register(_Workers(folder))
    _serve(port, registry)


class _Workers(MultiProcessCollector):
    """What all workers count; those that have ended have no queue, no snapshots and no health any more."""

    def __init__(self, folder: str) -> None:
        super().__init__(None, path=folder)  # type: ignore[no-untyped-call]  # The library types all but this.
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        for file in Path(self._folder).glob("gauge_live*.db"):
            pid = int(file.stem.rpartition("_")[2])
            if not _is_running(pid):
                mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]
        return super().collect()  # type: ignore[no-any-return, no-untyped-call]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _serve(port: int, registry: CollectorRegistry) -> None:
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise OSError(f"The metrics cannot be served on port {port}: {error.strerror}.") from error
