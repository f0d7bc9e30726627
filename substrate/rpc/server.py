"""The gRPC server: a thread pool, an interceptor, health, reflection, and an orderly end."""

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from substrate.api.v1 import agents_pb2, audit_pb2, skill_defs_pb2, skills_pb2, tenants_pb2
from substrate.api.v1.agents_pb2_grpc import add_AgentServiceServicer_to_server
from substrate.api.v1.audit_pb2_grpc import add_AuditServiceServicer_to_server
from substrate.api.v1.skill_defs_pb2_grpc import add_SkillDefServiceServicer_to_server
from substrate.api.v1.skills_pb2_grpc import add_SkillServiceServicer_to_server
from substrate.api.v1.tenants_pb2_grpc import add_TenantServiceServicer_to_server
from substrate.rpc.admission import Admission
from substrate.rpc.agents import AgentServicer
from substrate.rpc.audit import AuditServicer
from substrate.rpc.interceptors import MAX_ANSWER_BYTES, Aside, Calls
from substrate.rpc.skill_defs import SkillDefServicer
from substrate.rpc.skills import SkillServicer
from substrate.rpc.tenants import TenantServicer
from substrate.services.call import Call, Clock

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_METADATA_BYTES = 16 * 1024


class UnsafeListenerError(Exception):
    """An address that others can reach, without TLS and without being told that this is meant."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where to serve: `address` as host:port; `certificate` and `key` are PEM, both or neither.

    With `client_ca` (PEM), which needs both, clients must show a certificate that it has signed.
    """

    address: str
    certificate: bytes | None = None
    key: bytes | None = None
    insecure: bool = False
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class Servicers:
    """What the server offers."""

    skills: SkillServicer
    skill_defs: SkillDefServicer
    agents: AgentServicer
    tenants: TenantServicer
    audit: AuditServicer


class Server:
    """One server on one port; `admission` is its own."""

    def __init__(
        self,
        servicers: Servicers,
        *,
        admission: Admission,
        clock: Clock,
        authenticate: Callable[[Call], None],
        keyless: Callable[[], None],
        finished: Callable[[str, str, float], None],
        share_port: bool = False,
    ) -> None:
        self._admission = admission
        self._serves = False
        self._is_healthy = True
        self._aside = Aside()
        # A pool given here would be shared by all servers of the process, and gone with the first that stops.
        self._health = health.HealthServicer(experimental_non_blocking=True)
        calls = Calls(self._admission, self._aside, clock, authenticate, keyless, finished)
        self._streams = calls.streams
        self._server = grpc.server(
            self._admission.proven,
            interceptors=[calls],
            options=[
                # A second server on the port of a first must fail, not take a share of its calls, unless that is meant.
                ("grpc.so_reuseport", int(share_port)),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                # A client that vanished without a word would hold its stream's thread for as long as TCP hopes.
                ("grpc.keepalive_time_ms", 60_000),
            ],
        )
        add_SkillServiceServicer_to_server(servicers.skills, self._server)
        add_SkillDefServiceServicer_to_server(servicers.skill_defs, self._server)
        add_AgentServiceServicer_to_server(servicers.agents, self._server)
        add_TenantServiceServicer_to_server(servicers.tenants, self._server)
        add_AuditServiceServicer_to_server(servicers.audit, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._services = [
            file.DESCRIPTOR.services_by_name[name].full_name
            for file, name in (
                (skills_pb2, "SkillService"),
                (skill_defs_pb2, "SkillDefService"),
                (agents_pb2, "AgentService"),
                (tenants_pb2, "TenantService"),
                (audit_pb2, "AuditService"),
            )
        ]
        reflection.enable_server_reflection(
            [*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    @property
    def held(self) -> int:
        """How many calls are in hand, running and waiting."""
        return self._admission.held

    def start(self, listener: Listener) -> int:
        """Begin to serve and return the port.

        Raises UnsafeListenerError for an address off loopback without TLS, OSError when the port cannot be had.
        """
        require_safe(listener)
        if listener.client_ca == b"":
            # gRPC would ask clients for certificates and hold them against nothing.
            raise OSError(f"The server cannot listen on {listener.address}: the file of clients' authorities is empty.")
        try:
            if listener.certificate is not None and listener.key is not None:
                credentials = grpc.ssl_server_credentials(
                    [(listener.key, listener.certificate)],
                    root_certificates=listener.client_ca,
                    require_client_auth=listener.client_ca is not None,
                )
                port = self._server.add_secure_port(listener.address, credentials)
            else:
                port = self._server.add_insecure_port(listener.address)
        except RuntimeError as error:
            hint = "is the port taken?" if listener.certificate is None else "is the port taken, or a TLS file wrong?"
            raise OSError(f"The server cannot listen on {listener.address}: {hint}") from error
        self._server.start()
        self._serves = True
        self.set_healthy(healthy=self._is_healthy)
        return port

    def set_healthy(self, *, healthy: bool) -> None:
        """Report the server and each of its services as serving or not, once it serves."""
        self._is_healthy = healthy
        if not self._serves:
            return
        status = health_pb2.HealthCheckResponse.SERVING if healthy else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *self._services):
            self._health.set(service, status)

    def stop(self, drain_seconds: float, probe_seconds: float = 0.0) -> None:
        """Turn unhealthy, wait a probe period, take no more calls, end streams, and let other calls finish."""
        self._health.enter_graceful_shutdown()
        if probe_seconds:
            threading.Event().wait(probe_seconds)
        stopped = self._server.stop(drain_seconds)
        self._streams.end()
        stopped.wait()

    def join(self) -> None:
        """Wait until no thread works for a call any more; `stop` ends the calls, but not the threads."""
        self._admission.shutdown()
        self._aside.shutdown()


def require_safe(listener: Listener) -> None:
    """Raise UnsafeListenerError for an address off loopback without TLS, unless it says that this is meant."""
    host = listener.address.rpartition(":")[0]
    if listener.certificate is None and not listener.insecure and not _is_loopback(host):
        raise UnsafeListenerError(
            f"{listener.address} can be reached from elsewhere, and keys would travel in the clear: configure TLS, "
            "or say --insecure if something in front of the server encrypts."
        )


def _is_loopback(host: str) -> bool:
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
