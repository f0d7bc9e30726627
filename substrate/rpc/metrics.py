"""Counters and times of one process, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """What the process counts; `registry` holds it all."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = Counter("substrate_calls", "Calls finished.", ["method", "code"], registry=self.registry)
        self._seconds = Histogram(
            "substrate_call_seconds",
            "Time from a call's arrival to its answer.",
            ["method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        # Looking a label's child up takes as long as counting does, and there are few.
        self._known: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._lost = Counter(
            "substrate_audit_lost_events",
            "Audit events dropped of calls answered without them.",
            ["cause"],
            registry=self.registry,
        )
        self._queue_depth = Gauge(
            "substrate_audit_queue_depth",
            "Calls waiting to be settled.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._commit_seconds = Histogram(
            "substrate_audit_commit_seconds",
            "Time that a batch of audit events took.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._batch_events = Histogram(
            "substrate_audit_batch_events",
            "Events in a batch.",
            buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self._healthy = Gauge(
            "substrate_audit_healthy",
            "Whether audit events can be written.",
            registry=self.registry,
            multiprocess_mode="livemin",
        )
        self._skills = Gauge(
            "substrate_static_skills",
            "Skills in bundles and inline.",
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )

    def finished(self, method: str, code: str, seconds: float) -> None:
        """Count a call of `method` that ended with `code` after `seconds`."""
        key = (method, code)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (self._calls.labels(*key), self._seconds.labels(method))
        calls, times = known
        calls.inc()
        times.observe(seconds)

    def lost(self, events: int, cause: str) -> None:
        """Count audit events that were dropped, and why."""
        self._lost.labels(cause).inc(events)

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
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # The library types all but this.
    _serve(port, registry)


def _serve(port: int, registry: CollectorRegistry) -> None:
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise OSError(f"The metrics cannot be served on port {port}: {error.strerror}.") from error
