"""Marked secrets, servers that they are put into, and a search of all that those servers write."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psycopg
from sqlalchemy.engine import make_url

from substrate.rpc.client import CallFailed, Client
from tests.processes import COMMAND, Serving, keys, open_folder, own_cluster, run, serving
from tests.rpc.rich import write_resource
from tests.rpc.wire import METHODS, path_of
from tests.servers import Cluster
from tests.skills import skill_md
from tests.sources.bundle_files import write_bundle, write_skill
from tests.store.owner import empty_database

KINDS = (
    "password",
    "secret",
    "bearer",
    "header",
    "body",
    "bundled",
    "inline",
    "file",
    "arguments",
    "definition",
    "bytes",
)
CANARIES: Mapping[str, str] = {kind: f"canary-{kind}-{secrets.token_hex(8)}" for kind in KINDS}

HELD: Mapping[str, set[str]] = {
    "skill_def_versions": {"body", "header"},
    "skill_files": {"file"},
    "agents": {"definition"},
    "requests": {"definition"},
}
"""What each table is there to hold; nothing else may hold a canary."""

CONFIG = f"""
bundles: [core]
skills:
  doc/inline:
    description: Inline.
    body: "{CANARIES["inline"]} $ARGUMENTS"
agents:
  helper:
    description: Helps.
    skills: ["doc/*", "own/*"]
    definition: {{"prompt": "{CANARIES["definition"]}"}}
"""
EXTRA = (("x-extra", CANARIES["header"]), ("x-call-id", f"{CANARIES['header']} is no id"))


@dataclass
class Site:
    """A server and where what it writes is found."""

    server: Serving
    operator: str
    owner_url: str
    data_dir: Path
    owns_database: bool
    said: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def issue(self, role: str, tenant: str = "acme", method: str = "IssueKey", **more: object) -> str:
        """Return a new key, whose secret is then a canary too."""
        fields = more or {"role": f"ROLE_{role.upper()}"}
        with Client(self.server.address, self.operator) as operator:
            answer = operator.call(f"TenantService.{method}", tenant=tenant, **fields)
        self.secrets.append(answer.secret.rpartition(".")[2].partition("_")[2])
        return str(answer.secret)

    def call(self, key: str, method: str, **fields: object) -> Any:
        """Return the answer to a call, or the failure, which is kept as something that was said."""
        with Client(self.server.address, key) as client:
            with_more: Any = client
            with_more._metadata += EXTRA
            try:
                if METHODS[method].server_streaming:
                    return list(client.stream(method, timeout=1, **fields))
                return client.call(method, **fields)
            except CallFailed as failed:
                self.said.append(repr((failed.message, failed.metadata, failed.violations)))
                return failed

    def send(self, channel: grpc.Channel, method: str, payload: bytes, *metadata: tuple[str, str]) -> None:
        """Send any bytes with any metadata, and keep what is said about that."""
        streams = METHODS[method].server_streaming
        begin: Any = channel.unary_stream if streams else channel.unary_unary
        try:
            # A tail that is admitted goes on until its time is up.
            answered = begin(path_of(method))(payload, metadata=(*metadata, *EXTRA), timeout=1 if streams else 10)
            _ = list(answered) if streams else answered
        except grpc.RpcError as error:
            failed: Any = error
            self.said.append(repr((failed.details(), failed.trailing_metadata())))


@contextmanager
def external(cluster: Cluster, config: Path, options: list[str]) -> Iterator[Site]:
    password = config.with_name("password")
    password.write_text(CANARIES["password"])
    with empty_database(cluster.owner_url) as owner_url, open_folder() as data_dir:
        url = make_url(owner_url).set(username="canary_server", password=CANARIES["password"])
        login_url = url.render_as_string(hide_password=False)
        role = ("--login-role", "canary_server", "--login-password-file", str(password))
        migrated = run(*COMMAND, "migrate", "--database-url", owner_url, *role)
        assert migrated.returncode == 0, migrated.stderr
        operator = run(*COMMAND, "bootstrap", "--database-url", login_url).stdout.strip()
        options = [*options, "--database-url", login_url, "--data-dir", str(data_dir)]
        with serving(*options, "--log-format", "json") as server:
            yield Site(server, operator, owner_url, data_dir, owns_database=False)


@contextmanager
def embedded(_: Cluster, config: Path, options: list[str]) -> Iterator[Site]:
    del config
    with (
        open_folder() as data_dir,
        serving(*options, "--data-dir", str(data_dir), "--log-format", "console") as server,
    ):
        owner_url = own_cluster(data_dir).owner_url
        yield Site(server, keys(data_dir)["operator"], owner_url, data_dir, owns_database=True)


def write_config(folder: Path) -> Path:
    root = write_bundle(folder / "core", name="core")
    write_skill(root, "doc/bundled", skill_md("bundled", f"{CANARIES['bundled']} $ARGUMENTS\n"))
    write_resource(root, "doc/bundled", "guide.md", CANARIES["file"].encode())
    config = folder / "substrate.yaml"
    config.write_text(CONFIG)
    return config


def rows_of(owner_url: str) -> dict[str, bytes]:
    """Return every row of every table as text, by table; partitions are read through their parents."""
    with psycopg.connect(owner_url) as owner:
        tables = owner.execute(
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
            " AND relnamespace = 'public'::regnamespace"
        ).fetchall()
        found = {}
        for (table,) in tables:
            rows = owner.execute(psycopg.sql.SQL("SELECT t::text FROM {} AS t").format(psycopg.sql.Identifier(table)))
            found[table] = "\n".join(row[0] for row in rows).encode()
    return found


def files_of(data_dir: Path) -> dict[str, bytes]:
    """Return every file that is not the database's own, nor the one that is there to hold the first keys."""
    return {
        str(path): path.read_bytes()
        for path in data_dir.rglob("*")
        if path.is_file() and path.name != "keys.json" and "postgres" not in path.relative_to(data_dir).parts[:1]
    }


def leaks(places: Mapping[str, bytes], canaries: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return every place with the kind of canary that it holds and is not there to hold; binary columns come as hex."""
    return [
        (place, kind)
        for place, text in places.items()
        for kind, canary in canaries.items()
        if (canary.encode() in text or canary.encode().hex().encode() in text) and kind not in HELD.get(place, ())
    ]
