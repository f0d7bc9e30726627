"""What a server of the same process has counted."""

from tests.servers import RunningServer


def counted(server: RunningServer, name: str, **labels: str) -> float:
    """Return the sum of the samples called `name` that have `labels`, whatever else they have."""
    return sum(
        sample.value
        for family in server.app.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
