"""The suite's own watch over what it writes: it finds what it looks for, also when the tests run in parallel."""

import subprocess
import sys
from pathlib import Path

from tests.processes import SECONDS, environment
from tests.secrecy import BUNDLED_BODY, secrets_in
from tests.skills import DEFAULT_BODY

REPOSITORY = Path(__file__).parents[1]
KEY = f"sub_acme.abc_{'x' * 43}"
LEAKING = f"""
from tests.processes import keep

def test_prints(): print("before {KEY} behind")
def test_logs(): keep("1", "before {DEFAULT_BODY.strip()}")
def test_says_nothing(): print("Nothing to hide.")
"""


def test_keys_and_bodies_are_found() -> None:
    assert secrets_in(f'{{"key": "{KEY}"}}') == ["a key"]
    assert len(secrets_in(f"{DEFAULT_BODY} {BUNDLED_BODY}")) == 2
    assert secrets_in("sub_acme.abc_short own/skill Does it.") == []


def test_a_run_of_several_processes_that_leaves_secrets_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAKING)
    options = ("-q", "-n", "2", "-c", "pyproject.toml", "--rootdir", str(REPOSITORY), f"--basetemp={tmp_path / 'base'}")
    done = subprocess.run(  # noqa: S603 - our own tests.
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, str(tmp_path)],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=5 * SECONDS,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 passed, 2 errors" in done.stdout
    assert "The test's output holds a key." in done.stdout
    assert "1.log holds the body 'Do it.'" in done.stdout
