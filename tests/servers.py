"""Real servers for tests: PostgreSQL once a session, gRPC servers on free ports, tenants with keys of their own."""

import itertools
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from substrate.bootstrap import App, SystemClock, assemble
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.rpc.client import Client
from substrate.rpc.server import Listener
from substrate.services.keys import new_key
from substrate.settings import Settings
from substrate.sources.static import StaticState, load_static
from substrate.store import tenants
from substrate.store.embedded import EmbeddedPostgres
from substrate.store.migrate import LOGIN_ROLE, migrate
from substrate.store.session import Database

_numbers = itertools.count(1)

open_clients: list[Client] = []
"""Every client that has been made and not been forgotten; each holds a connection."""


@dataclass(frozen=True)
class Cluster:
    """A PostgreSQL server; `owner_url` and `login_url` are of its migrated database."""

    postgres: EmbeddedPostgres
    owner_url: str
    login_url: str


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Run a PostgreSQL of its own, below a short folder that an unprivileged account can reach."""
    with tempfile.TemporaryDirectory(prefix="substrate-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(Path(folder), settings={"fsync": "off"}) as postgres:
            migrate(postgres.owner_url)
            yield Cluster(postgres, postgres.owner_url, postgres.url(LOGIN_ROLE, "substrate"))


@dataclass
class TestTenant:
    """A tenant made for one test, with clients of each role on one server."""

    __test__ = False

    name: str
    author: Client
    runtime: Client
    server: "RunningServer"

    def bound(self, role: Role, agent: str) -> Client:
        """Return a client with a new key that is bound to `agent`."""
        return self.server.client(self.server.key(self.name, role, agent))


@dataclass
class RunningServer:
    """A server on a socket; `address` is host:port."""

    app: App
    database: Database
    address: str
    stack: ExitStack
    operator_key: str = field(default="")

    def client(self, key: str, timeout: float = 10.0) -> Client:
        """Return a client with `key`, closed with the server."""
        client = self.stack.enter_context(Client(self.address, key, timeout=timeout))
        open_clients.append(client)
        return client

    def key(self, tenant: str, role: Role, agent: str = "") -> str:
        """Issue a key straight in the database and return its text."""
        with self.database.operator() as connection:
            owner = TenantId(tenant)
            if tenants.revision(connection, owner) is None:
                tenants.create(connection, owner, tenant, SystemClock().now())
            tenants.bump(connection, owner)
            key, text = new_key(owner, role, SystemClock().now(), agent=agent)
            tenants.add_key(connection, key, "test")
        return text

    def tenant(self, name: str | None = None) -> TestTenant:
        """Make a tenant with an author's and a runtime's key."""
        made = name or f"t{next(_numbers)}-{uuid.uuid4().hex[:12]}"
        author, runtime = (self.client(self.key(made, role)) for role in (Role.AUTHOR, Role.RUNTIME))
        return TestTenant(made, author, runtime, self)

    def operator(self) -> Client:
        """Return a client with an operator's key."""
        return self.client(self.key(PLATFORM_TENANT, Role.OPERATOR))


@contextmanager
def running_server(
    cluster: Cluster,
    config: Path | None = None,
    static: StaticState | None = None,
    *,
    port: int = 0,
    **settings: object,
) -> Iterator[RunningServer]:
    """Serve on `port` of loopback, or a free one: `static` if given, else what `config` or the shipped bundles hold."""
    with ExitStack() as stack:
        # Not the folder of a server that may run on this machine.
        settings.setdefault("data_dir", Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="substrate-"))))
        app = assemble(
            Settings(config=config, **settings),  # type: ignore[arg-type]  # Pydantic checks the types.
            cluster.login_url,
            static or load_static(config),
        )
        stack.callback(app.close, 5.0)
        port = app.server.start(Listener(f"127.0.0.1:{port}"))
        yield RunningServer(app, app.database, f"127.0.0.1:{port}", stack)
