"""The audit log on the command line: followed live, shown event by event, and exported."""

import hashlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from tests.cli.commands import CommandLine
from tests.processes import COMMAND, environment
from tests.servers import Cluster, RunningServer, TestTenant, running_server
from tests.skills import refused

INVOKE = "SkillService.InvokeSkill"
QUERY = "AuditService.QueryAuditEvents"
FIELDS = {"tenant", "sequence", "previous_hash", "hash", "event"}


def invoke(tenant: TestTenant, name: str = "doc/query") -> str:
    """Return the id of the event of a call that may be refused."""
    if name == "doc/query":
        return str(tenant.runtime.call(INVOKE, agent="doc-manager", name=name).decision_id)
    return refused(tenant.runtime, INVOKE, agent="doc-manager", name=name).decision_id


class Following:
    """A command that follows the audit, and what it prints."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.out: IO[str] = process.stdout
        self.err: IO[str] = process.stderr
        # A test that waits for a line that never comes must end.
        self._watchdog = threading.Timer(60, process.kill)
        self._watchdog.start()

    def lines(self, count: int) -> list[str]:
        """Return the next `count` lines."""
        found = [self.out.readline() for _ in range(count)]
        assert all(found), self.err.read()
        return [line.rstrip("\n") for line in found]

    def interrupt(self) -> int:
        """Press Ctrl-C; return the exit code. There must be nothing more to read."""
        self._process.send_signal(signal.SIGINT)
        assert self.out.read() == ""
        return self._process.wait()

    def end(self) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()


@contextmanager
def following(server: RunningServer, key: str, *arguments: str) -> Iterator[Following]:
    command = [*COMMAND, "audit", "tail", "--address", server.address, "--key", key, *arguments]
    with subprocess.Popen(  # noqa: S603 - our own program.
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        running = Following(process)
        try:
            yield running
        finally:
            running.end()


def test_tail_prints_calls_as_they_are_made_until_interrupted(tenant: TestTenant) -> None:
    first = invoke(tenant)
    key = tenant.server.key(tenant.name, Role.AUTHOR)
    with following(tenant.server, key, "--verb", "invoke", "--since", "1h") as tail:
        header, row = tail.lines(2)
        assert header.split() == ["TIME", "VERB", "AGENT", "NAME", "OUTCOME", "REASON", "ACTOR", "ID"]
        assert row.split()[1:6] == ["invoke", "doc-manager", "doc/query", "allowed", "-"]
        assert row.split()[-1] == first
        made = [invoke(tenant, "doc/absent"), invoke(tenant)]
        rows = tail.lines(2)
        assert [row.split()[-1] for row in rows] == made
        assert rows[0].split()[4:6] == ["refused", "SKILL_NOT_FOUND"]
        # Columns stand where they stood.
        assert [row.index("doc-manager") for row in rows] == [header.index("AGENT")] * 2
        assert "\x1b" not in "".join(rows)
        assert tail.interrupt() == 0


def test_tail_as_json_is_an_event_a_line(tenant: TestTenant) -> None:
    key = tenant.server.key(tenant.name, Role.AUTHOR)
    made = [invoke(tenant)]
    with following(tenant.server, key, "--json", "--verb", "invoke", "--since", "1h") as tail:
        made += [invoke(tenant)]
        events = [json.loads(line) for line in tail.lines(2)]
        assert [event["id"] for event in events] == made
        assert [json.loads(event["event_json"])["id"] for event in events] == made
        assert tail.interrupt() == 0


def test_tail_goes_on_after_the_server_was_away_without_loss_or_repetition(cluster: Cluster) -> None:
    with running_server(cluster) as server:
        tenant = server.tenant()
        key = server.key(tenant.name, Role.AUTHOR)
        made = [invoke(tenant)]
        port = int(server.address.rpartition(":")[2])
        tail_of = following(server, key, "--json", "--verb", "invoke", "--since", "1h")
        tail = tail_of.__enter__()
        assert [json.loads(line)["id"] for line in tail.lines(1)] == made
    try:
        with running_server(cluster, port=port) as server:
            tenant = TestTenant(
                tenant.name, tenant.author, server.client(server.key(tenant.name, Role.RUNTIME)), server
            )
            made = [invoke(tenant) for _ in range(3)]
            assert [json.loads(line)["id"] for line in tail.lines(3)] == made
            made = [invoke(tenant)]
            assert [json.loads(line)["id"] for line in tail.lines(1)] == made
            assert tail.interrupt() == 0
            assert "Trying again." in tail.err.read()
    finally:
        tail_of.__exit__(None, None, None)


def test_a_tail_that_may_not_begin_is_refused(author: CommandLine, runtime: CommandLine) -> None:
    runtime.refused("ROLE_REQUIRED", "audit", "tail")
    author.refused("TENANT_NOT_FOUND", "audit", "tail", "--tenant", "platform")


def test_a_key_that_is_revoked_ends_the_tail(tenant: TestTenant) -> None:
    key = tenant.server.key(tenant.name, Role.AUTHOR)
    with following(tenant.server, key, "--verb", "invoke", "--since", "1h") as tail:
        invoke(tenant)
        tail.lines(2)
        key_id = key.split(".")[1].split("_")[0]
        tenant.server.operator().call("TenantService.RevokeKey", tenant=tenant.name, key_id=key_id)
        assert "UNAUTHENTICATED" in tail.err.read()


def test_show_tells_all_that_is_recorded(author: CommandLine, runtime: CommandLine, tenant: TestTenant) -> None:
    arguments = ("--agent", "doc-manager", "--arguments", "chunk 7")
    made = runtime.ok("skill", "invoke", "doc/chunk-review", "--json", *arguments).json["decision_id"]
    shown = author.ok("audit", "show", made)
    facts = dict(line.split(":", 1) for line in shown.text.partition("\n\n")[0].splitlines())
    facts = {label: value.strip() for label, value in facts.items()}
    assert facts["id"] == made
    assert facts["tenant"] == tenant.name
    assert facts["verb"] == "invoke"
    assert facts["outcome"] == "allowed"
    assert facts["decision"] == "allowed by entry 0: doc/* (allow_rule)"
    assert facts["winner"].startswith("bundle:document-agent@")
    assert len(facts["arguments HMAC"]) == 64
    assert "chunk 7" not in shown.text
    assert "CANDIDATE" in shown.text
    event = author.ok("audit", "show", made, "--json").json["event"]
    assert (event["id"], event["sequence"]) == (made, int(facts["sequence"]))
    denied = refused(tenant.runtime, INVOKE, agent="doc-manager", name="writing/linkedin-post").decision_id
    assert "denied" in author.ok("audit", "show", denied).text
    author.refused("AUDIT_EVENT_NOT_FOUND", "audit", "show", made[:-4] + "0000")
    author.refused("INVALID_ARGUMENT", "audit", "show", "7")


def test_operators_show_an_event_of_any_tenant(operator: CommandLine, tenant: TestTenant) -> None:
    made = invoke(tenant)
    for named in ((), ("--tenant", tenant.name), ("--tenant", "all")):
        assert operator.ok("audit", "show", made, "--json", *named).json["event"]["tenant"] == tenant.name


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def follows(lines: list[dict[str, object]]) -> bool:
    """Whether the lines are a whole chain, by the letter of its description."""
    previous = bytes(32)
    for place, line in enumerate(lines, start=1):
        text = str(line["event"])
        digest = hashlib.sha256(previous + place.to_bytes(8, "big") + text.encode()).digest()
        if (line["sequence"], line["previous_hash"], line["hash"]) != (place, previous.hex(), digest.hex()):
            return False
        previous = digest
    return True


def test_export_is_the_whole_chain(author: CommandLine, tenant: TestTenant, tmp_path: Path) -> None:
    made = [invoke(tenant), invoke(tenant, "doc/absent")]
    lines = lines_of(author.ok("audit", "export").text)
    assert [json.loads(str(line["event"]))["id"] for line in lines] == made
    assert {frozenset(line) for line in lines} == {frozenset(FIELDS)}
    assert {line["tenant"] for line in lines} == {tenant.name}
    assert follows(lines)
    file = tmp_path / "audit.jsonl"
    done = author.ok("audit", "export", "--output", str(file))
    assert done.out == b""
    # The first export was an event as well.
    assert done.err == f"3 events are in {file}.\n"
    assert lines_of(file.read_text())[:2] == lines
    assert [path.name for path in tmp_path.iterdir()] == ["audit.jsonl"]


def test_an_export_that_cannot_be_written_or_made_leaves_no_file(
    author: CommandLine, runtime: CommandLine, tmp_path: Path
) -> None:
    printed = author("audit", "export", "--output", str(tmp_path / "no" / "audit.jsonl"))
    assert printed.code == 1
    assert "cannot be written" in printed.err
    runtime.refused("ROLE_REQUIRED", "audit", "export", "--output", str(tmp_path / "audit.jsonl"))
    assert not (tmp_path / "audit.jsonl").exists()


def test_operators_export_every_chain_whole(operator: CommandLine, tenant: TestTenant, server: RunningServer) -> None:
    other = server.tenant()
    for each in (tenant, other, tenant):
        invoke(each)
    lines = lines_of(operator.ok("audit", "export", "--tenant", "all").text)
    chains: dict[str, list[dict[str, object]]] = {}
    for line in lines:
        chains.setdefault(str(line["tenant"]), []).append(line)
    assert {tenant.name, other.name, PLATFORM_TENANT} <= chains.keys()
    assert [name for name in (tenant.name, other.name, PLATFORM_TENANT) if not follows(chains[name])] == []
    one = lines_of(operator.ok("audit", "export", "--tenant", tenant.name).text)
    assert one == chains[tenant.name]


def test_a_reader_of_an_export_that_goes_away_is_no_error_of_ours(tenant: TestTenant) -> None:
    invoke(tenant)
    key = tenant.server.key(tenant.name, Role.AUTHOR)
    reading, writing = os.pipe()
    os.close(reading)
    command = [*COMMAND, "audit", "export", "--address", tenant.server.address, "--key", key]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, env=environment()) as process:  # noqa: S603 - our own program.
        os.close(writing)
        _, err = process.communicate()
    assert (err, process.returncode) == (b"", 1)


@pytest.mark.parametrize("name", ["query", "tail"])
def test_conditions_that_are_none_are_refused(author: CommandLine, name: str) -> None:
    assert "--layer" in author.misused("audit", name, "--layer", "roof")
    assert "--version" in author.misused("audit", name, "--version", "0")
    assert "--since" in author.misused("audit", name, "--since", "yesterday")
