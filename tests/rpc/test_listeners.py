"""Where a server may listen: on loopback, elsewhere only when that is meant, and never on another's port."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from substrate.bootstrap import App, assemble
from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from substrate.rpc.server import Listener, UnsafeListenerError
from substrate.settings import Settings
from substrate.sources.static import load_static
from tests.processes import CERTIFICATE, CLIENT_CA, CLIENT_CERTIFICATE, CLIENT_KEY, COMMAND, KEY, run, serving
from tests.servers import Cluster, RunningServer, TestTenant


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    """A server that does not listen yet."""
    app = assemble(Settings(), cluster.login_url, load_static(None))
    yield app
    app.close()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", ":0", "example.org:0"])
def test_an_address_that_others_can_reach_needs_tls(app: App, address: str) -> None:
    with pytest.raises(UnsafeListenerError, match="--insecure"):
        app.server.start(Listener(address))


@pytest.mark.parametrize(
    "listener", [Listener("0.0.0.0:0", insecure=True), Listener("localhost:0"), Listener("127.0.0.1:0")]
)
def test_loopback_and_what_is_meant_to_be_open_are_served(app: App, listener: Listener) -> None:
    port = app.server.start(listener)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING


def test_a_port_that_is_taken_is_an_error(server: RunningServer, app: App) -> None:
    with pytest.raises(OSError, match="port taken"):
        app.server.start(Listener(server.address))
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "{}:{}".format(*other.getsockname())
        with pytest.raises(OSError, match=address):
            app.server.start(Listener(address))


def _pem(path: str) -> bytes:
    return Path(path).read_bytes()


def _skills(address: str, key: str, identity: tuple[bytes, bytes] | None) -> int:
    with Client(address, key, timeout=20, root_certificates=_pem(CERTIFICATE), identity=identity) as client:
        total: int = client.call("SkillService.ListSkills", agent="doc-manager").total_size
    return total


def test_clients_must_show_a_certificate_of_the_authority_that_is_set(app: App, tenant: TestTenant) -> None:
    listener = Listener("127.0.0.1:0", _pem(CERTIFICATE), _pem(KEY), client_ca=_pem(CLIENT_CA))
    address = f"localhost:{app.server.start(listener)}"
    key = tenant.server.key(tenant.name, Role.RUNTIME)
    known = (_pem(CLIENT_CERTIFICATE), _pem(CLIENT_KEY))
    assert _skills(address, key, known) == 9
    # The server's own certificate is good, but none that the authority has signed.
    stranger = (_pem(CERTIFICATE), _pem(KEY))
    for identity in (None, stranger):
        with pytest.raises(CallFailed) as refused:
            _skills(address, key, identity)
        assert (refused.value.code, refused.value.reason) == ("UNAVAILABLE", "")
    # A certificate takes no key's place.
    with pytest.raises(CallFailed) as refused:
        _skills(address, key[:-1] + "?", known)
    assert refused.value.reason == "UNAUTHENTICATED"


def test_without_an_authority_any_client_may_connect(app: App, tenant: TestTenant) -> None:
    port = app.server.start(Listener("127.0.0.1:0", _pem(CERTIFICATE), _pem(KEY)))
    key = tenant.server.key(tenant.name, Role.RUNTIME)
    for identity in (None, (_pem(CLIENT_CERTIFICATE), _pem(CLIENT_KEY))):
        assert _skills(f"localhost:{port}", key, identity) == 9


@pytest.mark.parametrize(("authority", "problem"), [(b"", "is empty"), (b"no certificate", "a TLS file wrong?")])
def test_an_authority_that_is_none_is_refused(app: App, authority: bytes, problem: str) -> None:
    listener = Listener("127.0.0.1:0", _pem(CERTIFICATE), _pem(KEY), client_ca=authority)
    with pytest.raises(OSError, match=re.escape(problem)):
        app.server.start(listener)


def test_an_authority_for_clients_needs_a_certificate_of_the_server(tmp_path: Path) -> None:
    done = run(*COMMAND, "serve", "--tls-client-ca", CLIENT_CA, "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Set the TLS certificate and key too")
    assert not (tmp_path / "data").exists()


def test_a_server_and_commands_with_certificates(cluster: Cluster, tenant: TestTenant) -> None:
    tls = ("--tls-certificate", CERTIFICATE, "--tls-key", KEY, "--tls-client-ca", CLIENT_CA)
    with serving("--database-url", cluster.login_url, *tls) as server:
        key = tenant.server.key(tenant.name, Role.RUNTIME)
        target = ("--address", server.address, "--key", key, "--root-certificates", CERTIFICATE)
        listing = (*COMMAND, "skill", "list", "--agent", "doc-manager", *target)
        known = ("--client-certificate", CLIENT_CERTIFICATE, "--client-key", CLIENT_KEY)
        shown = run(*listing, *known)
        assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 10), shown.stderr
        assert "No server can be reached" in run(*listing).stderr
        assert "Pass both --client-certificate and --client-key" in run(*listing, *known[:2]).stderr
        assert server.stop() == 0


def test_a_client_shows_its_certificate_over_tls_alone() -> None:
    with pytest.raises(ValueError, match="TLS"):
        Client("localhost:1", "key", identity=(b"certificate", b"key"))
