import io
import os
import pty
import re
import subprocess

import pytest

from substrate.cli import output
from substrate.domain.identity import Role
from tests.cli.commands import CommandLine
from tests.processes import COMMAND, environment
from tests.servers import TestTenant
from tests.skills import refused, skill_md


def on_a_terminal(columns: int, *arguments: str, styled: bool = False) -> str:
    """Run a command with its stdout on a terminal of this width, and return what the terminal got."""
    ours, theirs = pty.openpty()
    terminal = {"COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(  # noqa: S603 - our own program.
        [*COMMAND, *arguments], stdout=theirs, stderr=subprocess.PIPE, env=environment() | terminal
    ) as process:
        os.close(theirs)
        got = b""
        try:
            while part := os.read(ours, 65536):
                got += part
        except OSError:  # This is how a terminal says that nobody is left to write to it.
            pass
        os.close(ours)
        _, err = process.communicate()
    assert process.returncode == 0, err
    text = got.decode().replace("\r\n", "\n")
    return text if styled else re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_gets_prose_folded_and_names_whole(tenant: TestTenant) -> None:
    long = "/".join(["ops", "x" * 60, "y" * 20])
    text = skill_md("y" * 20, description="One two three four five six seven eight nine ten. " * 4)
    tenant.author.call("SkillDefService.CreateSkillDef", name=long, source=text)
    key = tenant.server.key(tenant.name, Role.RUNTIME)
    tenant.author.call("AgentService.PutAgent", agent={"name": "ops", "skills": ["ops/**"]})
    shown = on_a_terminal(70, "skill", "list", "--agent", "ops", "--address", tenant.server.address, "--key", key)
    header, first, *rest = shown.splitlines()
    assert header.split() == ["NAME", "ARGUMENTS", "DESCRIPTION"]
    assert first.startswith(f"{long}  ")
    assert len(rest) > 3
    assert all(line.startswith(" " * len(long)) for line in rest)


def test_how_calls_ended_is_coloured_on_a_terminal(tenant: TestTenant) -> None:
    tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="doc-manager", name="refused")
    key = tenant.server.key(tenant.name, Role.AUTHOR)
    options = ["--verb", "invoke", "--address", tenant.server.address, "--key", key]
    shown = on_a_terminal(80, "audit", "query", *options, styled=True)
    assert "\x1b[32mallowed" in shown
    # The word is coloured in its column alone.
    assert shown.count("\x1b[31mrefused") == 1


def test_a_reader_that_goes_away_is_no_error_of_ours(tenant: TestTenant) -> None:
    key = tenant.server.key(tenant.name, Role.RUNTIME)
    options = ["--agent", "doc-manager", "--address", tenant.server.address, "--key", key]
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(  # noqa: S603 - our own program.
        [*COMMAND, "skill", "list", *options], stdout=writing, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        _, err = process.communicate()
    assert err == b""
    assert process.returncode == 1


def test_a_table_for_pipes_has_one_line_a_row_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    wide = "漢字" * 40
    text = output.table(("NAME", "TEXT"), [("a" * 300, "one\ntwo\tthree"), (wide, "x")])
    header, first, second = text.splitlines()
    assert first == "a" * 300 + "  one two three"
    assert second == wide + " " * 140 + "  x"
    assert header == "NAME" + " " * 298 + "TEXT"
    assert output.table(("NAME",), []) == "NAME\n"


def test_nothing_that_is_shown_can_steer_a_terminal() -> None:
    assert output.printable("a\x1b[31mb\u202ec\u0085d") == "a\\x1b[31mb\\u202ec\\x85d"
    assert output.lines("one\n\x07two\n") == "one\n\\x07two\n"
    assert output.details([("label", "a\nb"), ("empty", ""), ("nothing", None), ("zero", 0)]) == (
        "label:  a b\nzero:   0\n"
    )
    assert output.table(("A",), [("\x1b]0;x\x07",)]) == "A\n\\x1b]0;x\\x07\n"


def test_words_and_moments() -> None:
    assert output.word("LAYER_BUNDLE", "LAYER") == "bundle"
    assert output.word("LAYER_UNSPECIFIED", "LAYER") == ""
    assert output.moment("2026-01-31T08:09:10.123456Z") == "2026-01-31T08:09:10Z"
    assert output.moment(None) == ""


def test_a_refusal_shows_message_facts_and_violations() -> None:
    def shown(refusal: output.Refusal) -> list[str]:
        file = io.StringIO()
        refusal.show(file)
        return file.getvalue().splitlines()

    facts = [("code", "INVALID_ARGUMENT"), ("empty", "")]
    assert shown(output.Refusal("Bad \x1b[0m.", facts)) == ["error: Bad \\x1b[0m.", "  code: INVALID_ARGUMENT"]
    one = [("name", "It is bad.")]
    two = [*one, ("file:3", "So is this.")]
    assert shown(output.Refusal("It is bad.", (), one)) == ["error: It is bad.", "  - name: It is bad."]
    listed = ["  - name: It is bad.", "  - file:3: So is this."]
    assert shown(output.Refusal("It is bad. So is this.", (), two)) == ["error: The input has 2 problems.", *listed]
    placed = "name: It is bad.\nfile:3: So is this."
    assert shown(output.Refusal(placed, (), two)) == ["error: The input has 2 problems.", *listed]
    assert shown(output.Refusal("Something else.", (), two)) == ["error: Something else.", *listed]


def test_the_program_tells_its_commands_and_version(command: CommandLine) -> None:
    assert re.fullmatch(r"substrate \d+\.\d+\.\d+\n", command.ok("--version").text)
    assert "serve" in command.ok("-h").text
    assert "No such option" in command.misused("--nonsense")
