"""Several server processes on one port: they agree, they are replaced, and they end with their parent."""

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from substrate.rpc.client import Client
from tests.metrics import CALLS, method, scraped, total
from tests.processes import SECONDS, Serving, client, keys, open_folder, serving
from tests.rpc.headers import HeadersOnly
from tests.rpc.test_server import until
from tests.rpc.wire import typed

CONFIG = """bundles: ["shipped:document-agent"]
skills:
  doc/own:
    description: {description}
    body: Do it.
"""
ENOUGH_CONNECTIONS = 60
"""The kernel gives each connection to either worker; that one of two gets none of these is not to be expected."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "substrate.yaml"
    path.write_text(CONFIG.format(description="First."))
    return path


def start(data_dir: Path, config: Path, *options: str) -> list[str]:
    listen = f"127.0.0.1:{free_port()}"
    return ["--listen", listen, "--workers", "2", "--data-dir", str(data_dir), "--config", str(config), *options]


def seen(server: Serving, data_dir: Path) -> dict[str, set[str]]:
    """Return the description of `doc/own` that each worker gives, over a connection of its own for every call."""
    with Client(server.address, keys(data_dir)["author"], timeout=SECONDS) as author:
        found: dict[str, set[str]] = {}
        for _ in range(ENOUGH_CONNECTIONS):
            with Client(server.address, keys(data_dir)["runtime"], timeout=SECONDS) as runtime:
                page = runtime.call("SkillService.ListSkills", agent="doc-manager", pattern="doc/own")
            event = author.call("AuditService.QueryAuditEvents", decision_id=page.decision_id).events[0]
            found.setdefault(event.server, set()).add(page.skills[0].description)
            if len(found) > 1:
                break
    return found


def wait_for_the_end_of(pids: list[int]) -> None:
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([process], [], [], SECONDS)[0], f"{pid} is still there"
        finally:
            os.close(process)


def workers_of(server: Serving, count: int = 2) -> list[int]:
    return [server.logged("worker.ready")["pid"] for _ in range(count)]


def test_all_workers_switch_to_new_files_together_or_not_at_all(data_dir: Path, config: Path) -> None:
    with serving(*start(data_dir, config)) as server:
        workers_of(server)
        assert list(seen(server, data_dir).values()) == [{"First."}, {"First."}]

        config.write_text(CONFIG.format(description="Second."))
        server.send(signal.SIGHUP)
        assert server.logged("reload.done")["workers"] == 2
        assert list(seen(server, data_dir).values()) == [{"Second."}, {"Second."}]

        config.write_text(CONFIG.format(description="Third.") + "nonsense: 1\n")
        server.send(signal.SIGHUP)
        assert "nonsense" in str(server.logged("reload.refused")["problems"])
        assert list(seen(server, data_dir).values()) == [{"Second."}, {"Second."}]
        assert server.stop() == 0


def test_a_lost_worker_is_replaced_and_the_others_serve_meanwhile(data_dir: Path, config: Path) -> None:
    with serving(*start(data_dir, config)) as server:
        lost, kept = workers_of(server)
        os.kill(lost, signal.SIGKILL)
        assert server.logged("worker.ended")["pid"] == lost
        (new,) = workers_of(server, 1)
        assert new not in (lost, kept)
        assert {name.rpartition("/")[2] for name in seen(server, data_dir)} == {str(kept), str(new)}
        assert server.stop() == 0
        wait_for_the_end_of([kept, new])


def test_a_quota_of_calls_is_shared_by_the_workers_in_equal_parts(data_dir: Path, config: Path) -> None:
    with serving(*start(data_dir, config)) as server, ExitStack() as stack:
        workers_of(server)
        with client(server, data_dir, "operator") as operator:
            operator.call("TenantService.SetQuotas", tenant="default", quotas={"calls_in_flight": 4})
        # Each worker has the quota in memory now.
        assert len(seen(server, data_dir)) == 2
        key = keys(data_dir)["runtime"]
        connections = [stack.enter_context(HeadersOnly.to(server.address)) for _ in range(ENOUGH_CONNECTIONS)]
        begun = [connection.begin(key) for connection in connections for _ in range(2)]
        until(lambda: sum(call.done() for call in begun) >= len(begun) - 4)
        # Refused on every connection: both workers have all the calls in hand that they may have.
        for connection in connections:
            assert connection.refused(key).metadata["quota"] == "calls_in_flight"
        refused = [typed(call.exception()) for call in begun if call.done()]
        assert {failure.reason for failure in refused} == {"QUOTA_EXCEEDED"}
        assert len(refused) == len(begun) - 4


def test_workers_end_with_a_parent_that_is_killed(data_dir: Path, config: Path) -> None:
    with serving(*start(data_dir, config)) as server:
        workers = workers_of(server)
        server.send(signal.SIGKILL)
        wait_for_the_end_of(workers)


def test_metrics_are_those_of_all_workers_together(data_dir: Path, config: Path) -> None:
    port = free_port()
    with serving(*start(data_dir, config, "--metrics-port", str(port))) as server:
        workers = workers_of(server)
        assert len(seen(server, data_dir)) == 2
        found = scraped(port)
        calls = {"rpc_method": method("AuditService.QueryAuditEvents"), "rpc_response_status_code": "OK"}
        answered = total(found, CALLS, **calls)
        assert answered >= 2
        assert total(found, CALLS, rpc_method=method("SkillService.ListSkills")) == answered
        assert total(found, "substrate_snapshot_loads_total", result="ok") == 2
        assert total(found, "substrate_snapshots") == 2
        # Each of the calls has left an event, and each worker has said from which files it serves.
        assert total(found, "substrate_audit_batch_events_sum") >= 2 * answered
        assert total(found, "substrate_audit_healthy") == 1
        assert total(found, "substrate_static_skills") == 10
        assert not [sample for sample in found if "pid" in sample.labels]

        # What a worker has counted stays when it is lost; what it was, such as healthy or not, does not.
        os.kill(workers[0], signal.SIGKILL)
        (new,) = workers_of(server, 1)
        found = scraped(port)
        assert total(found, CALLS, **calls) == answered
        assert total(found, "substrate_snapshots") == 1
        assert total(found, "substrate_audit_healthy") == 1
        assert new not in workers
        assert server.stop() == 0


def test_workers_need_a_port_that_nobody_has(data_dir: Path, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--workers", "2", "--data-dir", str(data_dir), "--config", str(config)]
        for listen, said in ((f"127.0.0.1:{port}", "in use"), ("127.0.0.1:0", "port to share")):
            with pytest.raises(AssertionError, match=said), serving("--listen", listen, *options):
                pass


def test_reloads_close_together_end_with_the_newest_files(data_dir: Path, config: Path) -> None:
    with serving(*start(data_dir, config)) as server:
        workers_of(server)
        for number in range(5):
            config.write_text(CONFIG.format(description=f"Number {number}."))
            server.send(signal.SIGHUP)
        while list(seen(server, data_dir).values()) != [{"Number 4."}, {"Number 4."}]:
            server.logged("reload.done")
        assert server.stop() == 0


def test_a_worker_lost_while_the_files_are_bad_does_not_take_the_others_along(data_dir: Path, config: Path) -> None:
    good = config.read_text()
    with serving(*start(data_dir, config)) as server:
        lost, kept = workers_of(server)
        config.write_text(good + "nonsense: 1\n")
        os.kill(lost, signal.SIGKILL)
        assert server.logged("worker.ended")["pid"] == lost
        # The replacement cannot read the files, and is tried again.
        assert server.logged("worker.ended")["pid"] not in (lost, kept)
        assert list(seen(server, data_dir).values()) == [{"First."}]
        config.write_text(good)
        (new,) = workers_of(server, 1)
        assert {name.rpartition("/")[2] for name in seen(server, data_dir)} == {str(kept), str(new)}
        assert server.stop() == 0
