"""The server as a process on a database that someone else runs, and all the ways in which a start is refused."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from substrate.rpc.client import Client
from tests.metrics import CALLS, method, scraped, total
from tests.processes import CERTIFICATE, COMMAND, KEY, run, serving
from tests.servers import Cluster
from tests.store.owner import empty_database


@dataclass(frozen=True)
class Prepared:
    """A migrated database of its own, with an operator's key."""

    owner_url: str
    login_url: str
    operator_key: str


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> Iterator[Prepared]:
    with empty_database(cluster.owner_url) as owner_url:
        migrated = run(*COMMAND, "migrate", "--database-url", owner_url)
        assert (migrated.stdout, migrated.returncode) == ("The database is ready; serve as substrate_server.\n", 0)
        login_url = make_url(owner_url).set(username="substrate_server").render_as_string(hide_password=False)
        first = run(*COMMAND, "bootstrap", "--database-url", login_url)
        assert (first.returncode, first.stderr) == (0, "The operator key; it cannot be shown again.\n")
        yield Prepared(owner_url, login_url, first.stdout.removesuffix("\n"))


def refusal(*options: str) -> str:
    """Return what `serve` says when it will not serve; it must say so in a few words and end with exit code 1."""
    done = run(*COMMAND, "serve", "--listen", "127.0.0.1:0", *options)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("error: "))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that someone listens on."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port: int = holder.getsockname()[1]
        yield port


def test_a_database_is_migrated_bootstrapped_once_and_served(prepared: Prepared) -> None:
    again = run(*COMMAND, "bootstrap", "--database-url", prepared.login_url)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error: There is a live operator key already")
    assert run(*COMMAND, "migrate", "--database-url", prepared.owner_url, "--json").returncode == 0

    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics_port = free.getsockname()[1]
    with serving("--database-url", prepared.login_url, "--metrics-port", str(metrics_port)) as server:
        assert server.greeting == [f"Serving on {server.address}: 13 skills, 3 agents, 3 bundles."]
        with Client(server.address, prepared.operator_key) as operator:
            operator.call("TenantService.CreateTenant", tenant="acme")
            secret = operator.call("TenantService.IssueKey", tenant="acme", role="ROLE_RUNTIME").secret
        listed = run(*COMMAND, "skill", "list", "--agent", "writer", "--address", server.address, "--key", secret)
        assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == [
            "writing/linkedin-post",
            "writing/style-check",
        ]
        found = scraped(metrics_port)
        calls = {"rpc_method": method("SkillService.ListSkills"), "rpc_response_status_code": "OK"}
        assert total(found, CALLS, **calls) == 1
        assert total(found, "substrate_static_skills") == 13
        assert server.stop() == 0


def test_a_certificate_makes_calls_private(prepared: Prepared) -> None:
    tls = ("--tls-certificate", CERTIFICATE, "--tls-key", KEY)
    with serving("--database-url", prepared.login_url, "--listen", "0.0.0.0:0", *tls) as server:
        port = server.address.rpartition(":")[2]
        list_tenants = (*COMMAND, "tenant", "list", "--address", f"127.0.0.1:{port}", "--key", prepared.operator_key)
        trusted = run(*list_tenants, "--root-certificates", CERTIFICATE)
        assert trusted.returncode == 0, trusted.stderr
        assert "platform" in trusted.stdout
        assert run(*list_tenants).returncode == 1
        assert server.stop() == 0


def test_a_role_that_row_level_security_does_not_bind_is_refused(prepared: Prepared) -> None:
    assert "postgres is a superuser or has BYPASSRLS" in refusal("--database-url", prepared.owner_url)
    bootstrapped = run(*COMMAND, "bootstrap", "--database-url", prepared.owner_url)
    assert (bootstrapped.returncode, bootstrapped.stdout) == (1, "")
    assert "postgres is a superuser" in bootstrapped.stderr
    assert "Traceback" not in bootstrapped.stderr


def test_a_database_that_is_not_there_or_not_migrated_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    nowhere = f"postgresql://substrate_server@/substrate?host={tmp_path}"
    assert "The database cannot be used" in refusal("--database-url", nowhere)
    migrated = run(*COMMAND, "migrate", "--database-url", nowhere)
    assert (migrated.returncode, migrated.stderr[:47]) == (1, "error: The database could not be migrated: conn")
    with empty_database(cluster.owner_url) as empty:
        url = make_url(empty).set(username="substrate_server").render_as_string(hide_password=False)
        assert "The database has schema none" in refusal("--database-url", url)
        bootstrapped = run(*COMMAND, "bootstrap", "--database-url", url)
        assert "run `substrate migrate` with the owner's URL" in bootstrapped.stderr
        assert "Traceback" not in bootstrapped.stderr


def test_a_port_that_is_taken_is_refused(prepared: Prepared, taken: int) -> None:
    said = refusal("--database-url", prepared.login_url, "--listen", f"127.0.0.1:{taken}")
    assert said == f"error: The server cannot listen on 127.0.0.1:{taken}: is the port taken?"
    said = refusal("--database-url", prepared.login_url, "--metrics-port", str(taken))
    assert said == f"error: The metrics cannot be served on port {taken}: Address already in use."


def test_an_address_that_others_reach_needs_tls_or_a_word(prepared: Prepared) -> None:
    url = ("--database-url", prepared.login_url)
    said = refusal(*url, "--listen", "0.0.0.0:0")
    assert "keys would travel in the clear" in said
    assert "--insecure" in said
    with serving(*url, "--listen", "0.0.0.0:0", "--insecure") as server:
        assert server.address.startswith("0.0.0.0:")
        assert server.stop() == 0


def test_tls_files_that_are_none_are_refused(prepared: Prepared, tmp_path: Path) -> None:
    url = ("--database-url", prepared.login_url)
    assert "both the TLS certificate and the TLS key" in refusal(*url, "--tls-key", KEY)
    missing = str(tmp_path / "none.pem")
    assert missing in refusal(*url, "--tls-key", KEY, "--tls-certificate", missing)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    assert "a TLS file wrong?" in refusal(*url, "--tls-key", KEY, "--tls-certificate", str(garbage))


def test_a_bad_config_is_refused_with_every_problem(tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    config.write_text("colour: red\nagents: {lost: {skill_def_scopes: }}\n")
    done = run(*COMMAND, "serve", "--config", str(config), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    first, *problems = done.stderr.splitlines()
    assert first == "error: The input has 2 problems."
    assert [problem.partition(": ")[0] for problem in problems] == [f"  - {config}:1", f"  - {config}:2"]
    assert not (tmp_path / "data").exists()
