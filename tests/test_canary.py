"""Canaries: marked secrets go in wherever there is a way in, and none comes out in what the server says of its calls.

Two servers run as they do in production, one on somebody else's database and one on its own, with the debug log on.
What they wrote is then searched: log, metrics, files, and every row but those that are there to hold what was planted.
"""

import json
import socket
import urllib.request
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from sqlalchemy.engine import make_url

from substrate.rpc.client import CallFailed, Client
from tests.canaries import CANARIES, EXTRA, HELD, Site, embedded, external, files_of, leaks, rows_of, write_config
from tests.processes import COMMAND, run
from tests.rpc.foreign import archive
from tests.rpc.wire import METHODS, bearer
from tests.servers import Cluster
from tests.skills import changed, skill_md

TELLTALE = """
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused: %', NEW.body; END $$;
CREATE TRIGGER telltale BEFORE INSERT ON skill_def_versions FOR EACH ROW EXECUTE FUNCTION tell()
"""
RUN = {"agent": "helper"}


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


@pytest.mark.parametrize("site_of", [external, embedded])
def test_no_canary_comes_out(cluster: Cluster, tmp_path: Path, site_of: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = write_config(tmp_path)
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
        rows = rows_of(site.owner_url)
        if not site.owns_database:
            _lose_database(cluster, site.owner_url)
            assert site.call(runtime, "SkillService.InvokeSkill", **RUN, name="doc/inline").code == "UNAVAILABLE"
        code = site.server.stop()
        files = files_of(site.data_dir)
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
