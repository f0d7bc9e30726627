"""``substrate audit explain``: now, supposed and recorded, as text and as JSON."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.commands import CommandLine
from tests.servers import TestTenant
from tests.skills import add_version, skill_md

NAME = "doc/chunk-review"
BUNDLED = "bundle:document-agent@"


@pytest.fixture
def owned(tenant: TestTenant) -> str:
    """A skill of the tenant's own before a bundled one, with a draft."""
    source = skill_md("chunk-review", "Ours.\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name=NAME, source=source)
    add_version(tenant.author, NAME, skill_md("chunk-review", "Two.\n"))
    return NAME


def first(command: CommandLine, *arguments: str) -> str:
    """Return the verdict."""
    lines = command.ok("audit", "explain", *arguments).text.splitlines()
    return lines[1] if lines[0].startswith("Supposing: ") else lines[0]


def test_the_whole_question_is_answered_by_one_command(author: CommandLine, tenant: TestTenant, owned: str) -> None:
    text = author.ok("audit", "explain", owned, "--agent", "doc-manager").text
    version = tenant.author.call("SkillDefService.GetSkillDef", name=owned).version
    assert f"'{owned}' gives agent 'doc-manager' tenant:v1" in text
    assert f"Written by {version.created_by} at " in text
    assert f"Approved (promoted) by {version.promoted_by} at " in text
    assert f"substrate skilldef retire {owned}" in text
    assert "Ours." not in text
    # The command that it offers undoes it.
    author.ok("skilldef", "retire", owned)
    assert BUNDLED in first(author, owned, "--agent", "doc-manager")


@pytest.mark.parametrize(
    ("supposed", "expected"),
    [
        (["--suppose", "retire"], BUNDLED),
        (["--suppose", "retire", "--suppose", "unretire"], "tenant:v1"),
        (["--suppose", "promote=2"], "tenant:v2"),
        (["--suppose", "promote=v2"], "tenant:v2"),
        (["--suppose", "disable"], "the tenant has disabled the name"),
        (["--suppose", "lock"], BUNDLED),
        (["--suppose", "lock", "--suppose", "unlock"], "tenant:v1"),
        (["--suppose", "qualify=bundle"], BUNDLED),
        (["--suppose", "qualify=@bundle"], BUNDLED),
        (["--suppose", "deny=doc/*"], "entry 0 '-doc/*' of its allowlist denies it"),
        (["--suppose", "deny=**@1"], "entry 0 'doc/*' of its allowlist allows it"),
        (["--suppose", "deny=doc/chunk-review@1"], "entry 1 '-doc/chunk-review' of its allowlist denies it"),
        (["--skills", "own/*"], "no entry of its allowlist matches"),
        (["--skills", "doc/*", "--skills", "-doc/chunk-*"], "entry 1 '-doc/chunk-*' of its allowlist denies it"),
        (["--skills", "own/*", "--suppose", "allow=doc/**"], "entry 0 'doc/**' of its allowlist allows it"),
    ],
)
def test_what_is_supposed_is_answered(author: CommandLine, owned: str, supposed: list[str], expected: str) -> None:
    printed = author.ok("audit", "explain", owned, "--agent", "doc-manager", *supposed).text
    assert printed.startswith("Supposing: ")
    assert expected in printed.splitlines()[1]


def test_a_proposed_allowlist_is_read_from_a_file(author: CommandLine, owned: str, tmp_path: Path) -> None:
    file = tmp_path / "skills.txt"
    file.write_text("own/*\n\n-doc/*\n")
    asked = ("audit", "explain", owned, "--agent", "doc-manager", "--skills-file")
    assert "entry 1 '-doc/*'" in author.ok(*asked, str(file)).text.splitlines()[1]
    assert "entry 0 'doc/**'" in author.ok(*asked, "-", stdin="doc/**\n").text.splitlines()[1]


def test_a_recorded_call_is_explained_by_its_id(
    author: CommandLine, operator: CommandLine, runtime: CommandLine, owned: str
) -> None:
    made = runtime.ok("skill", "invoke", owned, "--agent", "doc-manager", "--json").json
    author.ok("skilldef", "retire", owned)
    for command in (author, operator):
        text = command.ok("audit", "explain", "--recorded", made["decision_id"]).text
        assert text.startswith(f"Event {made['decision_id']}: 'invoke' by runtime:")
        assert "Made again from the inputs that were kept, the decision is the one that was recorded." in text
        assert "  - tenant:v1 is retired now; it was in effect." in text
    answer = author.ok("audit", "explain", "--recorded", made["decision_id"], "--json").json
    assert (answer["replays"], answer["recorded"]["id"]) == (True, made["decision_id"])
    author.refused("AUDIT_EVENT_NOT_FOUND", "audit", "explain", "--recorded", f"{made['decision_id'][:-4]}0000")


def test_caller_paths_and_tenant_are_sent(author: CommandLine, operator: CommandLine, tenant: TestTenant) -> None:
    source = skill_md("mine", header="disable-model-invocation: true\npaths: ['src/**']\n")
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=source)
    asked = ("audit", "explain", "own/mine", "--json")
    assert author.ok(*asked).json["cause"] == "CAUSE_CALLER_EXCLUDED"
    assert author.ok(*asked, "--caller", "user").json["cause"] == "CAUSE_INELIGIBLE"
    found = operator.ok(*asked, "--tenant", tenant.name, "--caller", "user", "--path", "x", "--path", "src/a").json
    assert found["would_succeed"]


def test_wrong_usage(author: CommandLine, tmp_path: Path) -> None:
    explain = ("audit", "explain")
    assert "Give NAME, or --recorded ID" in author.misused(*explain)
    assert "Give NAME, or --recorded ID" in author.misused(*explain, NAME, "--recorded", "x")
    for change in ("retired", "promote", "promote=x", "qualify=", "allow=", "deny=x@y", "lock=1"):
        assert "is no change that can be supposed" in author.misused(*explain, NAME, "--suppose", change)
    file = tmp_path / "skills"
    file.write_text("x\n")
    both = author.misused(*explain, NAME, "--skills", "x", "--skills-file", str(file))
    assert "not both" in both
    author.refused("INVALID_ARGUMENT", *explain, NAME, "--agent", "doc-manager", "--suppose", "promote=7")
    author.refused("INVALID_ALLOWLIST", *explain, NAME, "--agent", "doc-manager", "--skills", "Doc")


def test_what_happened_at_a_time_is_explained_without_knowing_its_event(
    author: CommandLine, tenant: TestTenant, owned: str
) -> None:
    answer = tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name=owned)
    moment = datetime.now(UTC)
    author.ok("skilldef", "retire", owned)
    tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name=owned)
    asked = ("audit", "explain", owned, "--agent", "doc-manager", "--at")
    text = author.ok(*asked, moment.isoformat()).text
    assert text.startswith(f"Event {answer.decision_id}: 'invoke' by runtime:")
    assert f"'{owned}' gives agent 'doc-manager' tenant:v1" in text
    assert "Made again from the inputs that were kept, the decision is the one that was recorded." in text
    assert "tenant:v1 is retired now" in text
    # And how things are now is undone from here.
    assert f"substrate skilldef unretire {owned}" in text.partition("What would change the answer now")[2]
    # A minute stands for all of it.
    assert BUNDLED in author.ok(*asked, f"{datetime.now(UTC):%Y-%m-%dT%H:%M}").text.splitlines()[1]
    nothing = author(*asked, (moment - timedelta(days=1)).isoformat())
    assert (nothing.code, "is recorded until" in nothing.err) == (1, True)


def test_a_time_needs_a_name_and_an_agent(author: CommandLine) -> None:
    assert "--agent with --at" in author.misused("audit", "explain", NAME, "--at", "14:02")
    assert author.misused("audit", "explain", "--recorded", "x", "--at", "14:02")
    assert "neither a distance" in author.misused("audit", "explain", NAME, "--agent", "doc-manager", "--at", "25:02")
