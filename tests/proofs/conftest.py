"""What the proofs have in common."""

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import structlog

from substrate.services import audit_writer
from substrate.sources.static import load_static
from tests import processes as started
from tests.servers import Cluster, running_server

_PATIENCE = 30.0
_SERVE = f"""
from substrate.cli import main
from substrate.services import audit_writer
audit_writer.REFUSE_AFTER = {_PATIENCE}
main()
"""
"""The `substrate` command of a server that waits for the audit as long as a busy machine needs."""


@pytest.fixture(autouse=True)
def _patient_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait for the audit as long as a busy machine needs, and log next to nothing of thousands of calls."""
    monkeypatch.setattr(audit_writer, "REFUSE_AFTER", _PATIENCE)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def processes(cluster: Cluster) -> Iterator[list[str]]:
    """The addresses of three servers on the session's database, each a process of its own."""
    options = ("--database-url", cluster.login_url, "--log-level", "warning")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(started, "COMMAND", (sys.executable, "-c", _SERVE))
            servers = [stack.enter_context(started.serving(*options)) for _ in range(3)]
        yield [server.address for server in servers]


@pytest.fixture
def mutants(cluster: Cluster) -> Iterator[list[str]]:
    """The addresses of three servers in this process, for a test to break."""
    static = load_static(None)
    with ExitStack() as stack:
        yield [stack.enter_context(running_server(cluster, static=static)).address for _ in range(3)]
