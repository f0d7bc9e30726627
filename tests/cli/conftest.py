"""Commands on the session's server, one fixture for each role of a new tenant's keys."""

import os
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from tests.cli.commands import CommandLine
from tests.servers import TestTenant


@pytest.fixture
def command(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """The command line without a server or key, and without what the environment may say of them."""
    for name in [name for name in os.environ if name.startswith("SUBSTRATE_")]:
        monkeypatch.delenv(name)
    # The server runs in this process too, and what it logs is not what the command prints.
    with capture_logs():
        yield CommandLine(capsysbinary, monkeypatch)


def _with_key(command: CommandLine, tenant: TestTenant, owner: str, role: Role) -> CommandLine:
    key = tenant.server.key(owner, role)
    return command.with_options("--address", tenant.server.address, "--key", key)


@pytest.fixture
def author(command: CommandLine, tenant: TestTenant) -> CommandLine:
    return _with_key(command, tenant, tenant.name, Role.AUTHOR)


@pytest.fixture
def runtime(command: CommandLine, tenant: TestTenant) -> CommandLine:
    return _with_key(command, tenant, tenant.name, Role.RUNTIME)


@pytest.fixture
def operator(command: CommandLine, tenant: TestTenant) -> CommandLine:
    return _with_key(command, tenant, PLATFORM_TENANT, Role.OPERATOR)
