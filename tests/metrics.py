"""What servers have counted: one of the same process, or any over HTTP."""

import urllib.request
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.servers import RunningServer

CALLS = "rpc_server_call_duration_seconds_count"


def counted(server: RunningServer, name: str, **labels: str) -> float:
    """Return the sum of the samples called `name` that have `labels`, whatever else they have."""
    return total(samples(server), name, **labels)


def samples(server: RunningServer) -> Iterator[Sample]:
    """Return every sample of a server of this process."""
    return _of(server.app.metrics.registry.collect())


def scraped(port: int) -> list[Sample]:
    """Return every sample that is served on `port`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return list(_of(text_string_to_metric_families(answer.read().decode())))


def total(found: Iterable[Sample], name: str, **labels: str) -> float:
    """Return the sum of the samples called `name` that have `labels`, whatever else they have."""
    return sum(sample.value for sample in found if sample.name == name and labels.items() <= sample.labels.items())


def method(name: str) -> str:
    """Return the label of a method such as ``SkillService.ListSkills``."""
    return "substrate.api.v1." + name.replace(".", "/")


def _of(families: Iterable[Metric]) -> Iterator[Sample]:
    return (sample for family in families for sample in family.samples)
