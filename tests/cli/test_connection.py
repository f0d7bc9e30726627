import json
import socket
from pathlib import Path

import pytest

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from tests.cli.commands import CommandLine
from tests.servers import TestTenant

LIST = ("skill", "list", "--agent", "doc-manager")


@pytest.fixture
def data_dir(tenant: TestTenant, tmp_path: Path) -> Path:
    """What a server with its own database leaves for the commands beside it."""
    owners = {Role.RUNTIME: tenant.name, Role.AUTHOR: tenant.name, Role.OPERATOR: str(PLATFORM_TENANT)}
    keys = {role.value: tenant.server.key(owner, role) for role, owner in owners.items()}
    left = {"tenant": tenant.name, "keys": keys, "address": tenant.server.address}
    (tmp_path / "keys.json").write_text(json.dumps(left))
    return tmp_path


def test_the_local_servers_keys_are_found_and_each_command_takes_the_right_one(
    command: CommandLine, data_dir: Path, tenant: TestTenant
) -> None:
    local = command.with_options("--data-dir", str(data_dir))
    assert len(local.ok(*LIST).rows) == 9
    assert local.ok("skilldef", "list").rows == []
    assert tenant.name in local.ok("tenant", "list").text
    local.ok("audit", "explain", "doc/query")
    local.ok("audit", "query", "--tenant", tenant.name)


def test_the_environment_says_where_to_look(
    command: CommandLine, data_dir: Path, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBSTRATE_DATA_DIR", str(data_dir))
    command.ok(*LIST)
    monkeypatch.setenv("SUBSTRATE_DATA_DIR", str(data_dir / "none"))
    assert "There is no key to call with" in command.misused(*LIST)
    monkeypatch.setenv("SUBSTRATE_ADDRESS", tenant.server.address)
    monkeypatch.setenv("SUBSTRATE_KEY", tenant.server.key(tenant.name, Role.RUNTIME))
    command.ok(*LIST)
    command.refused("UNAUTHENTICATED", *LIST, "--key", "sub_x.y_z")


@pytest.mark.parametrize(
    "address",
    ["example.com:50051", "10.0.0.1:50051", "127.0.0.1.example.com:1", "localhost", "dns:127.0.0.1:1", "[::2]:50051"],
)
def test_the_local_servers_keys_are_not_sent_to_another_address(
    command: CommandLine, data_dir: Path, address: str
) -> None:
    said = command.misused(*LIST, "--data-dir", str(data_dir), "--address", address)
    assert f"are for the local server alone. Pass --key for {address}." in said


def test_the_local_servers_keys_serve_another_port_of_this_machine(
    command: CommandLine, data_dir: Path, tenant: TestTenant
) -> None:
    port = tenant.server.address.rpartition(":")[2]
    command.ok(*LIST, "--data-dir", str(data_dir), "--address", f"localhost:{port}")
    left = json.loads((data_dir / "keys.json").read_text()) | {"address": "127.0.0.1:1"}
    (data_dir / "keys.json").write_text(json.dumps(left))
    command.ok(*LIST, "--data-dir", str(data_dir), "--address", tenant.server.address)


def test_a_key_given_goes_to_the_local_servers_address(
    command: CommandLine, data_dir: Path, tenant: TestTenant
) -> None:
    command.ok(*LIST, "--data-dir", str(data_dir), "--key", tenant.server.key(tenant.name, Role.RUNTIME))


def test_a_keys_file_that_is_none_is_said_to_be(command: CommandLine, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    local = command.with_options("--data-dir", str(tmp_path))
    assert f"leaves its keys in {keys}" in local.misused(*LIST)
    keys.write_text('{"address": 5')
    assert f"{keys} is not what `substrate serve` writes" in local.misused(*LIST)
    keys.write_text('{"address": "127.0.0.1:1", "keys": {"author": "sub_a.b_c"}}')
    assert f"{keys} holds no key for the role runtime" in local.misused(*LIST)
    keys.unlink()
    keys.mkdir()
    assert f"{keys} cannot be read (Is a directory)" in local.misused(*LIST)


def test_a_server_that_is_not_there_or_does_not_answer(command: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = ("--address", address, "--key", "sub_a.b_c", "--timeout", "0.3")
        late = command(*LIST, *options)
        assert (late.code, late.fact("code")) == (1, "DEADLINE_EXCEEDED")
        assert f"error: {address} did not answer within 0.3 s." in late.err
    absent = command(*LIST, *options)
    assert (absent.code, absent.fact("code")) == (1, "UNAVAILABLE")
    assert f"error: No server can be reached at {address}: " in absent.err


def test_a_key_that_cannot_be_sent_is_not_shown(command: CommandLine, tenant: TestTenant) -> None:
    said = command.misused(*LIST, "--address", tenant.server.address, "--key", "geheim\n")
    assert "The key holds characters that no key has" in said
    assert "geheim" not in said


def test_settings_that_cannot_be_used_are_all_named(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBSTRATE_THREADS", "many")
    monkeypatch.setenv("SUBSTRATE_LISTEN", "50051")
    said = command.misused(*LIST)
    assert "threads: " in said
    assert "listen: " in said
