"""What the proofs have in common."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import structlog

from substrate.sources.static import load_static
from tests.processes import serving
from tests.servers import Cluster, running_server


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log next to nothing: thousands of calls would make a line each, and what mutants meet long traces."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def processes(cluster: Cluster) -> Iterator[list[str]]:
    """The addresses of three servers on the session's database, each a process of its own."""
    options = ("--database-url", cluster.login_url, "--log-level", "warning")
    with ExitStack() as stack:
        yield [stack.enter_context(serving(*options)).address for _ in range(3)]


@pytest.fixture
def mutants(cluster: Cluster) -> Iterator[list[str]]:
    """The addresses of three servers in this process, for a test to break."""
    static = load_static(None)
    with ExitStack() as stack:
        yield [stack.enter_context(running_server(cluster, static=static)).address for _ in range(3)]
