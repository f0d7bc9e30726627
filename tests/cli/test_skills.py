from pathlib import Path

from substrate.sources.static import shipped_bundles
from tests.cli.commands import CommandLine
from tests.servers import TestTenant
from tests.skills import skill_md

REVIEW = shipped_bundles() / "document-agent/skills/doc/chunk-review"
DOC_SKILLS = sorted(folder.name for folder in REVIEW.parent.iterdir())


def test_list_prints_one_line_for_each_skill_that_the_agent_may_invoke(runtime: CommandLine) -> None:
    printed = runtime.ok("skill", "list", "--agent", "doc-manager")
    assert printed.text.splitlines()[0].split() == ["NAME", "ARGUMENTS", "DESCRIPTION"]
    assert [row[0] for row in printed.rows] == [f"doc/{name}" for name in DOC_SKILLS]
    assert printed.err == ""


def test_list_as_json_is_the_whole_answer_without_a_page_token(runtime: CommandLine) -> None:
    answer = runtime.ok("skill", "list", "--agent", "doc-manager", "--json", "--pattern", "doc/chunk-*").json
    assert [entry["name"] for entry in answer["skills"]] == [f"doc/{n}" for n in DOC_SKILLS if n.startswith("chunk-")]
    assert {"decision_id", "state"} <= answer.keys()
    assert "next_page_token" not in answer


def test_list_follows_the_agent_and_the_caller(runtime: CommandLine, author: CommandLine) -> None:
    author.ok(
        "skilldef", "create", "ops/by-hand", "-", stdin=skill_md("by-hand", header="disable-model-invocation: true\n")
    )
    author.ok("skilldef", "create", "ops/python", "-", stdin=skill_md("python", header="paths: ['src/**']\n"))
    author.ok("agent", "put", "ops", "-", stdin="skills: ['ops/*']\n")

    def listed(*options: str) -> list[str]:
        return [row[0] for row in runtime.ok("skill", "list", "--agent", "ops", *options).rows]

    assert listed() == []
    assert listed("--caller", "user") == ["ops/by-hand"]
    assert listed("--touched-path", "README.md", "--touched-path", "src/a.py") == ["ops/python"]


def test_invoke_prints_the_body_byte_for_byte_and_says_on_stderr_where_it_is_from(
    runtime: CommandLine, tenant: TestTenant
) -> None:
    printed = runtime.ok("skill", "invoke", "doc/chunk-review", "--agent", "doc-manager", "--arguments", "handbook c-7")
    same = tenant.runtime.call(
        "SkillService.InvokeSkill", agent="doc-manager", name="doc/chunk-review", arguments="handbook c-7"
    )
    assert printed.out == same.body.encode()
    assert b"To review: handbook c-7\n" in printed.out
    origin, tools, file = printed.err.splitlines()
    assert origin == f"doc/chunk-review from {same.origin}, sha256 {same.content_sha256}"
    assert tools == "tools: ReadDocument, ListChunks, ReadChunk, SearchChunks, WriteChunk, Read"
    assert file.startswith("file: references/review-checklist.md (")


def test_invoke_adds_no_line_break_to_what_is_piped(author: CommandLine, runtime: CommandLine) -> None:
    author.ok("skilldef", "create", "ops/cut", "-", stdin=skill_md("cut", body="In ${SKILL_DIR}: ünended"))
    author.ok("agent", "put", "ops", "-", stdin="skills: ['ops/*']\n")
    printed = runtime.ok("skill", "invoke", "ops/cut", "--agent", "ops", "--skill-dir", "/tools/cut")
    assert printed.text == "In /tools/cut: ünended"


def test_invoke_as_json(runtime: CommandLine) -> None:
    answer = runtime.ok("skill", "invoke", "doc/query@bundle", "--agent", "doc-manager", "--json").json
    assert (answer["name"], answer["layer"]) == ("doc/query", "LAYER_BUNDLE")


def test_a_refusal_prints_code_reason_and_the_decision_that_the_audit_log_has(
    runtime: CommandLine, author: CommandLine
) -> None:
    refused = runtime.refused(
        "SKILL_NOT_PERMITTED", "skill", "invoke", "writing/linkedin-post", "--agent", "doc-manager"
    )
    assert refused.err.startswith("error: The agent 'doc-manager' may not use the skill 'writing/linkedin-post'.\n")
    assert (refused.fact("code"), refused.fact("decision")) == ("PERMISSION_DENIED", "UNLISTED")
    found = author.ok("audit", "query", "--decision-id", refused.fact("decision_id"), "--json").json
    assert [(event["verb"], event["reason"]) for event in found["events"]] == [("invoke", "SKILL_NOT_PERMITTED")]


def test_what_else_an_invocation_is_refused_for(runtime: CommandLine) -> None:
    invoke = ("skill", "invoke", "--agent", "doc-manager")
    runtime.refused("SKILL_NOT_FOUND", *invoke, "doc/absent")
    runtime.refused("SKILL_CHANGED", *invoke, "doc/query", "--expected-digest", "0" * 64)
    runtime.refused("INVALID_NAME", *invoke, "Doc/Query")
    runtime.refused("AGENT_NOT_FOUND", "skill", "invoke", "doc/query", "--agent", "nobody")


def test_file_prints_a_file_byte_for_byte(runtime: CommandLine) -> None:
    path = "references/review-checklist.md"
    printed = runtime.ok("skill", "file", "doc/chunk-review", path, "--agent", "doc-manager")
    assert printed.out == (REVIEW / path).read_bytes()
    assert printed.err.startswith(f"{path}, text/markdown, sha256 ")
    absent = ("skill", "file", "doc/chunk-review", "references/absent.md", "--agent", "doc-manager")
    runtime.refused("SKILL_FILE_NOT_FOUND", *absent)


def test_prepare_prints_the_tool_and_the_note(runtime: CommandLine) -> None:
    printed = runtime.ok("skill", "prepare", "--agent", "doc-manager")
    assert printed.text.startswith("TOOL Skill\n")
    assert "\nNOTE\n" in printed.text
    assert "doc/chunk-review" in printed.text
    short = runtime.ok("skill", "prepare", "--agent", "doc-manager", "--budget", "200")
    assert short.err.startswith("left out of the note: ")
    assert "doc/query" in short.err


def test_prepare_for_an_agent_without_skills(runtime: CommandLine, author: CommandLine) -> None:
    author.ok("agent", "put", "mute", "-", stdin="skills: ['-*']\n")
    printed = runtime.ok("skill", "prepare", "--agent", "mute")
    assert printed.text == "No tool: the agent's allowlist denies everything.\n"


def test_tool_prints_what_a_model_would_get_and_fails_when_that_is_an_error(runtime: CommandLine) -> None:
    given = '{"op": "invoke", "name": "doc/query", "arguments": "who signs?"}'
    printed = runtime.ok("skill", "tool", given, "--agent", "doc-manager")
    assert printed.text.startswith('<skill name="doc/query" ')
    assert "Question: who signs?" in printed.text
    failed = runtime("skill", "tool", '{"name": "writing/linkedin-post"}', "--agent", "doc-manager")
    assert failed.code == 1
    assert "SKILL_NOT_PERMITTED" in failed.text
    assert failed.err == "is_error, reason SKILL_NOT_PERMITTED\n"


def test_wrong_usage(runtime: CommandLine, tmp_path: Path) -> None:
    assert "Missing argument 'NAME'" in runtime.misused("skill", "invoke", "--agent", "doc-manager")
    assert "--caller" in runtime.misused("skill", "list", "--agent", "doc-manager", "--caller", "robot")
    assert "No such command" in runtime.misused("skill", "run")
    assert "--timeout" in runtime.misused("skill", "list", "--timeout", "0")
    assert "--root-certificates" in runtime.misused("skill", "list", "--root-certificates", str(tmp_path / "none"))
    assert "A value cannot be sent" in runtime.misused(
        "skill", "prepare", "--agent", "doc-manager", "--budget", "9" * 20
    )
