"""The usage of `serve`, `migrate` and `bootstrap`; what they do is tested with processes."""

import pytest

from substrate.settings import CLIENT_SETTINGS, Settings
from tests.cli.commands import CommandLine


def test_every_setting_of_a_server_is_an_option_with_its_description(command: CommandLine) -> None:
    said = " ".join(command.ok("serve", "--help").text.split())
    for name, setting in Settings.model_fields.items():
        assert (f"--{name.replace('_', '-')}" in said) is (name not in CLIENT_SETTINGS)
        assert name in CLIENT_SETTINGS or (setting.description or "?").split(";")[0] in said.replace("- ", "-")
    assert "--threads THREADS Threads that handle calls. [default: 32]" in said
    assert "--audit-mode strict|best_effort" in said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--listen", "50051"),
        ("--listen", "127.0.0.1:port"),
        ("--threads", "0"),
        ("--threads", "many"),
        ("--drain-seconds", "-1"),
        ("--metrics-port", "65536"),
        ("--audit-mode", "lax"),
        ("--log-level", "loud"),
        ("--database-url", "mysql://user:geheim@host/db"),
    ],
)
def test_values_that_no_setting_takes(command: CommandLine, option: str, value: str) -> None:
    said = command.misused("serve", option, value)
    assert f"The settings cannot be used: {option.removeprefix('--').replace('-', '_')}: " in said
    assert "geheim" not in said


def test_wrong_usage(command: CommandLine) -> None:
    assert "No such option" in command.misused("serve", "--nonsense")
    for name in ("migrate", "bootstrap"):
        assert "Pass --database-url or set SUBSTRATE_DATABASE_URL." in command.misused(name)
    assert "cannot be read" in command.misused("migrate", "--login-password-file", "/nonexistent")
