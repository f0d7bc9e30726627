import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from substrate.settings import Settings, default_data_dir


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SUBSTRATE_")]:
        monkeypatch.delenv(name)


def test_the_environment_sets_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBSTRATE_THREADS", "8")
    monkeypatch.setenv("SUBSTRATE_INSECURE", "true")
    monkeypatch.setenv("SUBSTRATE_CONFIG", "/etc/substrate.yaml")
    monkeypatch.setenv("SUBSTRATE_DRAIN_SECONDS", "2.5")
    monkeypatch.setenv("THREADS", "9")
    settings = Settings(drain_seconds=1)
    assert (settings.threads, settings.insecure, settings.config) == (8, True, Path("/etc/substrate.yaml"))
    assert settings.drain_seconds == 1


def test_the_defaults_serve_on_loopback_with_an_own_database_and_strict_audit() -> None:
    settings = Settings()
    assert (settings.listen, settings.insecure, settings.database_url) == ("127.0.0.1:50051", False, None)
    assert (settings.audit_mode, settings.config, settings.tls_key) == ("strict", None, None)


def test_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBSTRATE_KEY", "sub_a.b_geheim")
    settings = Settings()
    assert "geheim" not in repr(settings)
    assert settings.key is not None
    assert settings.key.get_secret_value() == "sub_a.b_geheim"


def test_every_value_out_of_its_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "threads": "257",
        "max_calls": "0",
        "drain_seconds": "601",
        "probe_seconds": "nan",
        "metrics_port": "-1",
        "listen": ":",
        "audit_mode": "STRICT",
        "log_format": "xml",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(f"SUBSTRATE_{name.upper()}", value)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert sorted(str(problem["loc"][0]) for problem in refused.value.errors()) == sorted(wrong)
    with pytest.raises(ValidationError):
        Settings(colour="red")  # type: ignore[call-arg]


def test_the_data_folder_is_the_systems_for_root_and_the_accounts_own_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/skill-substrate")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_data_dir() == Path("/home/ada/.local/state/skill-substrate")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_data_dir() == Path("/state/skill-substrate")
