"""Canaries: marked secrets go in wherever there is a way in, and none comes out in what the server says of its calls.

Two servers run as they do in production, one on somebody else's database and one on its own, with the debug log on.
What they wrote is then searched: log, metrics, files, and every row but those that are there to hold what was planted.
"""

import json
import secrets
import socket
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from sqlalchemy.engine import make_url

from substrate.rpc.client import CallFailed, Client
from tests.processes import COMMAND, Serving, keys, open_folder, own_cluster, run, serving
from tests.rpc.foreign import archive
from tests.rpc.rich import write_resource
from tests.rpc.wire import METHODS, bearer, path_of
from tests.servers import Cluster
from tests.skills import changed, skill_md
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
TELLTALE = """
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused: %', NEW.body; END $$;
CREATE TRIGGER telltale BEFORE INSERT ON skill_def_versions FOR EACH ROW EXECUTE FUNCTION tell()
"""
RUN = {"agent": "helper"}
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
def _external(cluster: Cluster, config: Path, options: list[str]) -> Iterator[Site]:
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
def _embedded(_: Cluster, config: Path, options: list[str]) -> Iterator[Site]:
    del config
    with (
        open_folder() as data_dir,
        serving(*options, "--data-dir", str(data_dir), "--log-format", "console") as server,
    ):
        owner_url = own_cluster(data_dir).owner_url
        yield Site(server, keys(data_dir)["operator"], owner_url, data_dir, owns_database=True)


def _config(folder: Path) -> Path:
    root = write_bundle(folder / "core", name="core")
    write_skill(root, "doc/bundled", skill_md("bundled", f"{CANARIES['bundled']} $ARGUMENTS\n"))
    write_resource(root, "doc/bundled", "guide.md", CANARIES["file"].encode())
    config = folder / "substrate.yaml"
    config.write_text(CONFIG)
    return config


def _author(site: Site, author: str) -> None:
    """Write all that an author can write, well and badly."""
    source = skill_md("skill", f"{CANARIES['body']} $ARGUMENTS\n", header=f"metadata: {{x: {CANARIES['header']}}}\n")
    files = {"files": [{"path": "guide.md", "content": CANARIES["file"].encode()}]}
    with Client(site.server.address, author) as client:
        client.call(
            "SkillDefService.CreateSkillDef",
            name="own/skill",
            source=source,
            files=files,
            request_id=str(uuid.uuid4()),
        )
        changed(client, "SkillDefService.ForkSkillDef", name="own/skill", source=f"{source}More.\n", promote=True)
        changed(client, "SkillDefService.SetLabel", name="own/skill", label="staging", version=1)
        changed(
            client,
            "AgentService.PutAgent",
            agent={"name": "own", "skills": ["own/*"], "definition_json": json.dumps({"p": CANARIES["definition"]})},
            request_id=str(uuid.uuid4()),
        )
        assert (
            CANARIES["body"]
            in client.call("SkillDefService.GetSkillDef", name="own/skill", include_source=True).version.source
        )
        assert client.call("SkillDefService.ExportSkill", name="own/skill").archive
        assert client.call("SkillDefService.DiffSkillDefs", name="own/skill", **{"from": "v1", "to": "v2"})
        client.call("SkillDefService.ImportSkills", archive=archive("imported/skill"))
    broken = (
        source.replace("description", "descriptino"),
        source.replace("name: skill", f"name: {CANARIES['body']}: x"),
        f"---\n{CANARIES['body']}",
        CANARIES["body"],
        source + "\0",
        source + "\u202e",
        source + "x" * 200_000,
    )
    for number, text in enumerate(broken):
        site.call(author, "SkillDefService.CreateSkillDef", name=f"own/broken-{number}", source=text)
    site.call(author, "SkillDefService.CreateSkillDef", name="own/skill", source=source)
    site.call(author, "SkillDefService.ForkSkillDef", name="own/skill", source=source, etag="stale")
    bad_files = {"files": [{"path": "../up", "content": CANARIES["file"].encode()}]}
    site.call(author, "SkillDefService.CreateSkillDef", name="own/files", source=source, files=bad_files)
    site.call(author, "SkillDefService.ImportSkills", archive=f"PK{CANARIES['file']}".encode())
    for definition in (f"{{{CANARIES['definition']}", json.dumps({"skill_def_scopes": CANARIES["definition"]})):
        site.call(author, "AgentService.PutAgent", agent={"name": "bad", "definition_json": definition})


def _run(site: Site, runtime: str) -> None:
    """Use skills as runtimes do, well and badly; the canaries must have gone through."""
    arguments = CANARIES["arguments"]
    for name, kind in (("doc/bundled", "bundled"), ("doc/inline", "inline"), ("own/skill", "body")):
        answer = site.call(runtime, "SkillService.InvokeSkill", **RUN, name=name, arguments=arguments)
        assert CANARIES[kind] in answer.body
        assert arguments in answer.body
    read = site.call(runtime, "SkillService.ReadSkillFile", **RUN, name="doc/bundled", path="guide.md")
    assert read.content == CANARIES["file"].encode()
    assert site.call(runtime, "SkillService.ReadSkillFile", **RUN, name="own/skill@v1", path="guide.md").content
    given = {"name": "own/skill", "arguments": arguments}
    tool = site.call(runtime, "SkillService.CallSkillTool", **RUN, input_json=json.dumps(given))
    assert CANARIES["body"] in tool.text
    site.call(runtime, "SkillService.PrepareRun", **RUN)
    site.call(runtime, "SkillService.ListSkills", **RUN)
    invoke = {**RUN, "arguments": arguments}
    for bad in (
        {"name": "writing/denied"},
        {"name": "doc/absent"},
        {"name": "doc/inline", "expected_digest": "0" * 64},
        {"name": "doc/inline", "skill_dir": f"{arguments}\n"},
        {"name": "doc/inline", "agent": "nobody"},
        {"name": "No"},
        {"name": "doc/inline@v9"},
    ):
        assert isinstance(site.call(runtime, "SkillService.InvokeSkill", **{**invoke, **bad}), CallFailed)
    for text in (
        f'{{"name":"{arguments}',
        f'"{arguments}"',
        json.dumps({**given, "name": "doc/absent"}),
        json.dumps({**given, "name": 1}),
    ):
        failed = site.call(runtime, "SkillService.CallSkillTool", **RUN, input_json=text)
        site.said.append(str(failed))


def _everything(site: Site, runtime: str, author: str) -> None:
    """Send every method empty and malformed messages, with keys of every kind."""
    wrong = f"sub_acme.{author.partition('.')[2].partition('_')[0]}_{CANARIES['secret']:x<43}"
    others = (
        f"Bearer {wrong}",
        f"Basic {CANARIES['bearer']}",
        f"Bearer {CANARIES['bearer']}",
        f"Bearer sub_acme.{CANARIES['bearer']}",
    )
    with grpc.insecure_channel(site.server.address) as channel:
        for method in METHODS:
            for key in (runtime, author, site.operator):
                site.send(channel, method, b"", *bearer(key))
                site.send(channel, method, b"\xff" + CANARIES["bytes"].encode(), *bearer(key))
                site.send(channel, method, b"\x0a\x80\x01" + CANARIES["bytes"].encode() + b"\xff" * 128, *bearer(key))
            site.send(channel, method, b"")
            for other in others:
                site.send(channel, method, CANARIES["bytes"].encode(), ("authorization", other))
        site.send(channel, method, b"", *bearer(runtime), *bearer(wrong))
        unknown: Any = channel.unary_unary(f"/substrate.api.v1.SkillService/{CANARIES['bytes']}")
        with pytest.raises(grpc.RpcError):
            unknown(b"", metadata=EXTRA, timeout=10)


def _break(site: Site, runtime: str, author: str) -> None:
    """Let statements fail: of a change, by an error that quotes what was to be stored, and of the audit."""
    broken = "ADD CONSTRAINT broken CHECK (false) NOT VALID"
    with psycopg.connect(site.owner_url, autocommit=True) as owner:
        # The server's own database would log what a trigger says.
        owner.execute(f"ALTER TABLE skill_def_versions {broken}" if site.owns_database else TELLTALE)
        source = skill_md("internal", CANARIES["body"])
        failed = site.call(author, "SkillDefService.CreateSkillDef", name="own/internal", source=source)
        assert failed.reason == "INTERNAL"
        owner.execute(f"ALTER TABLE audit_events {broken}")
        failed = site.call(
            runtime, "SkillService.InvokeSkill", **RUN, name="doc/inline", arguments=CANARIES["arguments"]
        )
        assert failed.reason == "AUDIT_UNAVAILABLE"
        owner.execute("ALTER TABLE audit_events DROP CONSTRAINT broken")


def _rows(owner_url: str) -> dict[str, bytes]:
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


def _files(data_dir: Path) -> dict[str, bytes]:
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


@pytest.mark.parametrize("site_of", [_external, _embedded])
def test_no_canary_comes_out(cluster: Cluster, tmp_path: Path, site_of: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = _config(tmp_path)
    options = ["--config", str(config), "--log-level", "debug", "--metrics-port", str(port)]
    with ExitStack() as stack:
        site = stack.enter_context(site_of(cluster, config, options))
        with Client(site.server.address, site.operator) as operator:
            operator.call("TenantService.CreateTenant", tenant="acme")
        author, runtime = site.issue("author"), site.issue("runtime")
        site.issue("runtime", method="RotateKey", key_id=runtime.partition(".")[2].partition("_")[0])
        _author(site, author)
        _run(site, runtime)
        _everything(site, runtime, author)
        _break(site, runtime, author)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read()
        rows = _rows(site.owner_url)
        if not site.owns_database:
            _lose_database(cluster, site.owner_url)
            assert site.call(runtime, "SkillService.InvokeSkill", **RUN, name="doc/inline").code == "UNAVAILABLE"
        code = site.server.stop()
        files = _files(site.data_dir)
    canaries = {**CANARIES, **{f"issued {number}": secret for number, secret in enumerate(site.secrets)}}
    log = "\n".join([*site.server.greeting, *site.server.lines]).encode()
    places = {"log": log, "metrics": metrics, "answers": "\n".join(site.said).encode(), **files, **rows}
    assert code == 0
    assert leaks(places, canaries) == []
    _require_used(site, places)
    for kind, canary in canaries.items():
        # The search finds what is there, in each place and of each kind.
        assert leaks({**places, "planted": f"before {canary} behind".encode()}, canaries) == [("planted", kind)]


def _require_used(site: Site, places: Mapping[str, bytes]) -> None:
    """Fail unless the places hold what they are searched for: lines, rows and counts of just these calls."""
    for event in (b"skill.resolved", b"snapshot.loaded", b"call.failed", b"audit."):
        assert event in places["log"]
    assert b"own/skill" in places["log"]
    assert b'rpc_response_status_code="INTERNAL"' in places["metrics"]
    assert b"own/skill" in places["audit_events"]
    assert len(site.said) > len(METHODS)
    assert any(place.endswith("audit-checkpoints.jsonl") and text for place, text in places.items())
    for table, kinds in HELD.items():
        for kind in kinds:
            canary = CANARIES[kind].encode()
            assert canary in places[table] or canary.hex().encode() in places[table]


def _lose_database(cluster: Cluster, url: str) -> None:
    name = make_url(url).database
    with psycopg.connect(cluster.owner_url, autocommit=True) as owner:
        owner.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://canary_server:{}@127.0.0.1:1/substrate",
        "postgresql://canary_server:{}@127.0.0.1:port/substrate",
        "postgresql://canary_server:{}@[::1/substrate",
        "postgresql://canary_server@127.0.0.1:1/substrate?passwort={}",
        "canary_server:{}@127.0.0.1",
    ],
)
def test_a_database_url_that_is_of_no_use_is_not_repeated(url: str) -> None:
    given = ("--database-url", url.format(CANARIES["password"]))
    for command in (("serve", "--listen", "127.0.0.1:0"), ("migrate",)):
        done = run(*COMMAND, *command, *given)
        assert done.returncode in (1, 2)
        assert done.stderr
        assert CANARIES["password"] not in done.stdout + done.stderr
