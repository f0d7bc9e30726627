"""Fixtures that every test may use."""

import os
from collections.abc import Generator, Iterator

import pytest
import structlog
from hypothesis import settings

# PostgreSQL is started by a fork, and gRPC's hooks on forks abort the child when its threads are busy. The child runs
# another program at once and needs none of them. gRPC looks at this when it is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from substrate import logs
from tests import processes
from tests.secrecy import leaks, secrets_in
from tests.servers import Cluster, RunningServer, TestTenant, open_clients, running_cluster, running_server

# The suite gives the same verdict on the same code; HYPOTHESIS_PROFILE=default looks further, with other examples.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test during which a server in this process logged a secret."""
    report = yield
    if report.when != "teardown":
        # The last report holds the output of all phases.
        return report
    found = sorted({secret for _, text in report.sections for secret in secrets_in(text)})
    if found and report.outcome == "passed":
        report.outcome = "failed"
        report.longrepr = f"The test's output holds {', '.join(found)}."
    return report


@pytest.fixture(scope="session", autouse=True)
def _readable_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail, at the end, when a server or a command that was run as a process logged a secret."""
    folder = tmp_path_factory.mktemp("logs")
    processes.log_folder.append(folder)
    yield
    processes.log_folder.clear()
    assert leaks(folder.iterdir()) == []


@pytest.fixture(autouse=True)
def _lines() -> None:
    """Let servers in this process log as they do in production; a test may want it otherwise."""
    structlog.configure(processors=logs.for_people(colors=False))


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    """Close the connections that a test makes for itself, or a session of them would exhaust the open files."""
    before = len(open_clients)
    yield
    for client in open_clients[before:]:
        client.close()
    del open_clients[before:]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One migrated PostgreSQL for the session; tests keep apart by making tenants of their own."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def server(cluster: Cluster) -> Iterator[RunningServer]:
    """One server with the shipped bundles for the session."""
    with running_server(cluster) as server:
        yield server


@pytest.fixture
def tenant(server: RunningServer) -> TestTenant:
    """A new tenant on the session's server."""
    return server.tenant()
