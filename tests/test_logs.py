import json
import sys

from tests.processes import run

PROGRAM = """
import logging, sys
import structlog
from substrate import logs

def fail(secret):
    raise ValueError("wrong")

logs.configure("info", sys.argv[1])
log = structlog.get_logger("ours")
log.debug("too small")
log.info("said", name="doc/query", path=logs)
logging.getLogger("library").warning("warned of %s", 7)
try:
    fail("gehe" + "im")
except ValueError:
    log.exception("failed")
    logging.getLogger("library").exception("failed too")
"""


def test_json_lines_hold_our_own_and_the_libraries_words_and_no_local_variables() -> None:
    done = run(sys.executable, "-c", PROGRAM, "json")
    assert (done.returncode, done.stdout) == (0, "")
    said, warned, failed, failed_too = map(json.loads, done.stderr.splitlines())
    assert (said["event"], said["level"], said["name"]) == ("said", "info", "doc/query")
    assert (warned["event"], warned["level"]) == ("warned of 7", "warning")
    for line in (failed, failed_too):
        assert line["exception"][0]["exc_type"] == "ValueError"
        assert [frame["name"] for frame in line["exception"][0]["frames"]] == ["<module>", "fail"]
    assert "geheim" not in done.stderr


def test_console_lines_are_plain_where_no_terminal_reads_them() -> None:
    done = run(sys.executable, "-c", PROGRAM, "console")
    assert "ValueError: wrong" in done.stderr
    assert "\x1b" not in done.stderr
    assert "geheim" not in done.stderr
    assert run(sys.executable, "-c", PROGRAM, "auto").stderr.startswith('{"')
