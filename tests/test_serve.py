"""The server as a process with its own database: its start, its end, every way to kill it, and what it leaves."""

import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from substrate.rpc.client import CallFailed, Client
from tests.processes import (
    CERTIFICATE,
    COMMAND,
    KEY,
    SECONDS,
    client,
    environment,
    is_running,
    keys,
    open_folder,
    own_cluster,
    postgres_pid,
    run,
    serving,
)
from tests.skills import refused, skill_md
from tests.store.chain import events, faults

CONFIG = """\
skills:
  team/hello:
    description: Greets.
    body: {body}
agents:
  greeter: {{skills: ["team/*"]}}
"""
INVOKE = {"agent": "doc-manager", "name": "doc/query"}


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder / "data"


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody signals."""
    give_up = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < give_up


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_first_start_says_how_to_go_on_and_the_commands_work_as_printed(data_dir: Path) -> None:
    with serving("--data-dir", str(data_dir), "--log-level", "debug") as server:
        assert server.greeting[0] == f"Serving on {server.address}: 13 skills, 3 agents, 3 bundles."
        assert str(data_dir / "keys.json") in server.greeting[1]
        assert (data_dir / "keys.json").stat().st_mode & 0o777 == 0o600
        listed, invoked, explained = (run(*shlex.split(line)) for line in server.greeting[3:])
        assert [done.returncode for done in (listed, invoked, explained)] == [0, 0, 0]
        assert len(listed.stdout.splitlines()) == 10
        assert invoked.stdout.startswith("# ")
        assert "bundle:document-agent@" in explained.stdout
        second = run(*COMMAND, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert f"is in use by process {server.pid}; stop it, or choose another data folder." in second.stderr
        assert "Traceback" not in second.stderr
        database = postgres_pid(data_dir)
        assert server.stop() == 0
        assert not is_running(database)
    lines = [json.loads(line) for line in server.lines]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    resolved = [line for line in lines if line["event"] == "skill.resolved"]
    assert {line["verb"] for line in resolved} >= {"list", "invoke", "explain"}
    assert {line["winner"]["layer"] for line in resolved} == {"BUNDLE"}
    assert lines[-1]["event"] == "server.stopped"


def test_a_later_start_keeps_the_keys_and_makes_new_ones_where_the_file_is_gone(data_dir: Path) -> None:
    with serving("--data-dir", str(data_dir)) as server:
        first = keys(data_dir)
        assert server.stop(signal.SIGINT) == 0
    with serving("--data-dir", str(data_dir), "--tls-certificate", CERTIFICATE, "--tls-key", KEY) as server:
        assert keys(data_dir) == first
        assert json.loads((data_dir / "keys.json").read_text())["address"] == server.address
        assert server.greeting[3].endswith(f" --root-certificates {CERTIFICATE}")
        assert run(*shlex.split(server.greeting[3])).returncode == 0
        (data_dir / "keys.json").unlink()
        assert server.stop() == 0
    with serving("--data-dir", str(data_dir)) as server:
        assert not set(keys(data_dir).values()) & set(first.values())
        with client(server, data_dir, "operator") as operator:
            operator.call("TenantService.ListTenants")
        with Client(server.address, first["operator"]) as lost:
            assert refused(lost, "TenantService.ListTenants").reason == "UNAUTHENTICATED"
        assert server.stop() == 0
    (data_dir / "keys.json").write_text('{"address"')
    damaged = run(*COMMAND, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0")
    assert damaged.returncode == 1
    assert f"error: {data_dir}/keys.json is damaged; remove it" in damaged.stderr


def test_a_killed_server_and_a_killed_database_lose_nothing(data_dir: Path) -> None:
    with serving("--data-dir", str(data_dir)) as server:
        with client(server, data_dir, "author") as author:
            source = skill_md("query", body="Our own.\n")
            author.call("SkillDefService.CreateSkillDef", name="doc/query", source=source)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL

    with serving("--data-dir", str(data_dir)) as server:
        with client(server, data_dir, "runtime") as runtime:
            assert runtime.call("SkillService.InvokeSkill", **INVOKE).origin == "tenant:v1"
        database = postgres_pid(data_dir)
        assert faults(own_cluster(data_dir), "default") == []
        os.kill(database, signal.SIGKILL)
        assert server.ended() == 1
        said = next(line for line in map(json.loads, server.lines) if line["event"] == "postgres.ended")
        assert said["level"] == "error"
        assert "start the server again" in said["hint"]

    with serving("--data-dir", str(data_dir)) as server:
        with client(server, data_dir, "runtime") as runtime:
            assert runtime.call("SkillService.InvokeSkill", **INVOKE).body == "Our own.\n"
        assert faults(own_cluster(data_dir), "default") == []
        assert [event["verb"] for event in events(own_cluster(data_dir), "default")][2:] == [
            "create",
            "invoke",
            "invoke",
        ]
        assert server.stop() == 0


def test_a_call_in_progress_is_finished_before_the_server_goes(data_dir: Path) -> None:
    answers: list[Any] = []
    with serving("--data-dir", str(data_dir)) as server:
        cluster = own_cluster(data_dir)
        database = postgres_pid(data_dir)
        with psycopg.connect(cluster.owner_url) as holder, client(server, data_dir, "author") as author:
            holder.execute("SELECT 1 FROM tenants WHERE tenant_id = 'default' FOR UPDATE")

            def create() -> None:
                fields = {"name": "team/late", "source": skill_md("late")}
                answers.append(author.call("SkillDefService.CreateSkillDef", **fields))

            call = threading.Thread(target=create)
            call.start()
            waiting = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"
            with psycopg.connect(cluster.owner_url, autocommit=True) as watcher:
                until(lambda: watcher.execute(waiting).fetchone() == (True,))
            server.send(signal.SIGTERM)
            until(lambda: not listens(server.address))
            with Client(server.address, keys(data_dir)["author"]) as other, pytest.raises(CallFailed) as gone:
                other.call("SkillDefService.ListSkillDefs")
            # A client in one process may share a connection with another; there the server cancels what is new.
            assert gone.value.code in ("UNAVAILABLE", "CANCELLED")
            assert is_running(server.pid)
            holder.commit()
            call.join(SECONDS)
        assert server.ended() == 0
    assert answers[0].winner.origin == "tenant:v1"
    assert not is_running(database)


def test_a_reload_takes_good_changes_and_refuses_bad_ones_whole(data_dir: Path) -> None:
    data_dir.mkdir()
    config = data_dir / "substrate.yaml"
    config.write_text(CONFIG.format(body="Say hello."))
    with serving("--data-dir", str(data_dir), "--config", str(config), "--log-level", "debug") as server:
        assert server.greeting[0].endswith(": 1 skills, 1 agents, 0 bundles.")
        assert server.greeting[4].partition(" skill invoke ")[2].startswith("team/hello --agent greeter ")
        with client(server, data_dir, "runtime") as runtime:

            def greeting() -> tuple[str, str]:
                answer = runtime.call("SkillService.InvokeSkill", agent="greeter", name="team/hello")
                return answer.body, answer.state.static_digest

            first = greeting()
            assert first[0] == "Say hello."
            config.write_text(CONFIG.format(body="Say good day."))
            server.send(signal.SIGHUP)
            assert server.logged("reload.done")["level"] == "info"
            second = greeting()
            assert second[0] == "Say good day."
            assert second[1] != first[1]

            config.write_text(CONFIG.format(body="Say nothing.") + "colour: red\nbundles: [./none]\n")
            server.send(signal.SIGHUP)
            refusal = server.logged("reload.refused")
            assert refusal["level"] == "error"
            assert refusal["kept"] == second[1]
            assert [problem.partition(": ")[0] for problem in refusal["problems"]] == [f"{config}:7", f"{config}:8"]
            assert greeting() == second

            config.unlink()
            server.send(signal.SIGHUP)
            assert "No such file" in server.logged("reload.refused")["problems"][0]
            assert greeting() == second
        assert server.stop() == 0
    resolved = [json.loads(line) for line in server.lines if '"skill.resolved"' in line]
    assert [line["winner"]["origin"] for line in resolved] == ["inline:substrate.yaml#skills.team/hello"] * 4


def test_calls_are_answered_when_the_log_cannot_be_written(data_dir: Path) -> None:
    command = [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir)]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(command, cwd="/", env=environment(), stdout=subprocess.PIPE, stderr=full) as popen,  # noqa: S603 - our own program.
    ):
        assert popen.stdout is not None
        greeting = popen.stdout.readline().decode()
        try:
            address = greeting.removeprefix("Serving on ").rpartition(": ")[0]
            with Client(address, keys(data_dir)["runtime"], timeout=SECONDS) as runtime:
                assert runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query").body
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(SECONDS) == 0
        finally:
            popen.kill()
