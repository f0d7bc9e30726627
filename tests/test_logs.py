"""The form of log lines, and what none of them may hold."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from io import FileIO

from tests.processes import SECONDS, environment, run

PROGRAM = """
import logging, sys, threading
import structlog
from substrate import logs

def fail(secret):
    raise ValueError("wrong: " + secret)

logs.configure("info", sys.argv[1])
log = structlog.get_logger("ours")
log.debug("too small")
structlog.contextvars.bind_contextvars(call_id="c-1")
log.info("said", name="doc/query", path=logs)
logging.getLogger("library").warning("warned of %s", 7)
structlog.contextvars.unbind_contextvars("call_id")
try:
    fail("gehe" + "im")
except ValueError:
    log.exception("failed")
    logging.getLogger("library").exception("failed too: %s", sys.exc_info()[1])
thread = threading.Thread(target=fail, args=["gehe" + "im"])
thread.start()
thread.join()
"""


def test_json_lines_hold_our_own_and_the_libraries_words_and_no_texts_of_exceptions() -> None:
    done = run(sys.executable, "-c", PROGRAM, "json")
    assert (done.returncode, done.stdout) == (0, "")
    said, warned, failed, failed_too, ended = map(json.loads, done.stderr.splitlines())
    assert (said["event"], said["level"], said["name"], said["call_id"]) == ("said", "info", "doc/query", "c-1")
    assert (warned["event"], warned["level"], warned["call_id"]) == ("warned of 7", "warning", "c-1")
    for line, event in ((failed, "failed"), (failed_too, "failed too: %s"), (ended, "thread.failed")):
        assert (line["event"], line["exception"][0]["exc_type"]) == (event, "ValueError")
        frames = line["exception"][0]["frames"]
        assert frames[-1]["name"] == "fail"
        assert all(frame["filename"] and frame["lineno"] for frame in frames)
    assert "call_id" not in failed
    assert "geheim" not in done.stderr


def test_console_lines_are_plain_where_no_terminal_reads_them() -> None:
    done = run(sys.executable, "-c", PROGRAM, "console")
    assert 'File "<string>", line 7, in fail\nValueError\n' in done.stderr
    assert re.search(r"said +call_id=c-1 name=doc/query", done.stderr)
    assert "\x1b" not in done.stderr
    assert "geheim" not in done.stderr
    assert run(sys.executable, "-c", PROGRAM, "auto").stderr.startswith('{"')


def test_a_terminal_gets_lines_for_people_with_colours() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            command = [sys.executable, "-c", PROGRAM, "auto"]
            done = subprocess.run(  # noqa: S603 - our own program.
                command, cwd="/", env=environment() | {"TERM": "xterm"}, stderr=theirs, timeout=SECONDS, check=False
            )
        finally:
            os.close(theirs)
        said = read_all(screen)
    assert done.returncode == 0
    assert "\x1b[" in said
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert re.search(r"\[info +\] said +call_id=c-1 name=doc/query", plain)
    assert "geheim" not in plain


def read_all(screen: FileIO) -> str:
    """Return what was written to a terminal whose other side is closed."""
    parts = []
    with contextlib.suppress(OSError):  # Linux says so at the end.
        while part := screen.read(65536):
            parts.append(part)
    return b"".join(parts).decode()
