"""Where a server may listen: on loopback, elsewhere only when that is meant, and never on another's port."""

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from substrate.bootstrap import App, assemble
from substrate.rpc.server import Listener, UnsafeListenerError
from substrate.settings import Settings
from substrate.sources.static import load_static
from tests.servers import Cluster, RunningServer


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
