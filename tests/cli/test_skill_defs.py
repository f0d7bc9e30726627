from pathlib import Path

import pytest

from tests.cli.commands import CommandLine
from tests.skills import skill_md

REVIEW = skill_md("chunk-review", body="# House rules\n\nReview $ARGUMENTS.\n", header="allowed-tools: ReadChunk\n")


@pytest.fixture
def review(tmp_path: Path) -> str:
    path = tmp_path / "SKILL.md"
    path.write_text(REVIEW)
    return str(path)


def invoked(runtime: CommandLine, name: str = "doc/chunk-review") -> str:
    return runtime.ok("skill", "invoke", name, "--agent", "doc-manager").err.splitlines()[0]


def test_a_skill_def_shadows_a_bundled_skill_until_it_is_retired(
    author: CommandLine, runtime: CommandLine, review: str
) -> None:
    created = author.ok("skilldef", "create", "doc/chunk-review", review)
    verdict, winner, shadow, concerned = created.text.splitlines()
    assert verdict == "Created doc/chunk-review v1."
    assert winner == "doc/chunk-review now stands for tenant:v1."
    assert shadow.startswith("It shadows bundle:document-agent@")
    assert concerned == "Agents changing to another content: doc-manager."
    assert invoked(runtime).startswith("doc/chunk-review from tenant:v1, ")

    retired = author.ok("skilldef", "retire", "doc/chunk-review")
    assert retired.text.startswith("Retired doc/chunk-review.\ndoc/chunk-review now stands for bundle:document-agent@")
    assert invoked(runtime).startswith("doc/chunk-review from bundle:document-agent@")
    assert author.ok("skilldef", "list").rows == []
    assert author.ok("skilldef", "list", "--retired").rows[0][:2] == ["doc/chunk-review", "retired"]

    back = author.ok("skilldef", "unretire", "doc/chunk-review")
    assert back.text.startswith("Brought back doc/chunk-review.\ndoc/chunk-review now stands for tenant:v1.\n")
    assert invoked(runtime).startswith("doc/chunk-review from tenant:v1, ")


def test_a_draft_is_in_effect_once_promoted(author: CommandLine, runtime: CommandLine) -> None:
    created = author.ok("skilldef", "create", "doc/draft", "-", "--no-promote", stdin=skill_md("draft"))
    assert created.text == "Created doc/draft v1 as a draft.\ndoc/draft now stands for nothing.\n"
    assert author.ok("skilldef", "list").rows[0][:4] == ["doc/draft", "draft", "-", "1"]
    runtime.refused("SKILL_NOT_FOUND", "skill", "invoke", "doc/draft", "--agent", "doc-manager")
    promoted = author.ok("skilldef", "promote", "doc/draft", "1")
    assert promoted.text == (
        "Promoted doc/draft v1.\ndoc/draft now stands for tenant:v1.\nAgents gaining it: doc-manager.\n"
    )
    assert invoked(runtime, "doc/draft").startswith("doc/draft from tenant:v1, ")
    author.refused("VERSION_NOT_FOUND", "skilldef", "promote", "doc/draft", "2")


def test_a_disabled_name_stands_for_nothing_until_it_is_enabled(author: CommandLine, runtime: CommandLine) -> None:
    disabled = author.ok("skilldef", "disable", "doc/query", "--reason", "It leaks.")
    assert disabled.text == ("Disabled doc/query.\ndoc/query now stands for nothing.\nAgents losing it: doc-manager.\n")
    runtime.refused("SKILL_NOT_FOUND", "skill", "invoke", "doc/query", "--agent", "doc-manager")
    assert "(It leaks.)" in author.ok("audit", "explain", "doc/query", "--agent", "doc-manager").text
    enabled = author.ok("skilldef", "enable", "doc/query")
    assert enabled.text.startswith("Enabled doc/query.\ndoc/query now stands for bundle:document-agent@")
    assert invoked(runtime, "doc/query").startswith("doc/query from bundle:")


def test_get_shows_facts_or_the_source_as_it_can_be_created_again(author: CommandLine, review: str) -> None:
    author.ok("skilldef", "create", "doc/chunk-review", review, "--positional-base", "1")
    facts = dict(line.split(": ", 1) for line in author.ok("skilldef", "get", "doc/chunk-review").text.splitlines())
    assert {label: value.strip() for label, value in facts.items()}.items() >= {
        "name": "doc/chunk-review",
        "state": "in effect",
        "active version": "1",
        "tools": "ReadChunk",
        "positional base": "1",
    }.items()
    source = author.ok("skilldef", "get", "doc/chunk-review", "--source")
    assert source.err.startswith("doc/chunk-review v1, sha256 ")
    author.ok("skilldef", "create", "team/chunk-review", "-", "--positional-base", "1", stdin=source.out)
    digests = {
        author.ok("skilldef", "get", name, "--json").json["version"]["content_sha256"]
        for name in ("doc/chunk-review", "team/chunk-review")
    }
    assert len(digests) == 1
    author.refused("SKILL_DEF_NOT_FOUND", "skilldef", "get", "doc/absent")


def test_list_shows_every_state_and_keeps_long_names_whole(author: CommandLine) -> None:
    long = "/".join(["a" * 60] * 4)
    for name in (long, "doc/one", "ops/two"):
        author.ok("skilldef", "create", name, "-", stdin=skill_md(name.rpartition("/")[2]))
    author.ok("skilldef", "disable", "ops/two")
    rows = author.ok("skilldef", "list").rows
    assert [(row[0], row[1]) for row in rows] == [(long, "in"), ("doc/one", "in"), ("ops/two", "disabled")]
    assert [row[0] for row in author.ok("skilldef", "list", "--pattern", "doc/*").rows] == ["doc/one"]
    answer = author.ok("skilldef", "list", "--json").json
    assert [entry["name"] for entry in answer["skill_defs"]] == [long, "doc/one", "ops/two"]


def test_a_stale_etag_is_refused(author: CommandLine) -> None:
    made = author.ok("skilldef", "create", "doc/one", "-", "--json", stdin=skill_md("one")).json
    etag = made["skill_def"]["etag"]
    author.ok("skilldef", "disable", "doc/one", "--etag", etag)
    refused = author.refused("ETAG_MISMATCH", "skilldef", "enable", "doc/one", "--etag", etag)
    assert refused.fact("code") == "ABORTED"


def test_an_author_can_act_as_an_agent_and_is_bound_by_its_allowlist(author: CommandLine) -> None:
    create = ("skilldef", "create", "writing/post", "-", "--agent")
    author.refused("SKILL_NOT_PERMITTED", *create, "doc-manager", stdin=skill_md("post"))
    author.ok(*create, "writer", stdin=skill_md("post"))


def test_every_problem_of_a_refused_file_gets_a_line(author: CommandLine) -> None:
    refused = author.refused(
        "INVALID_SKILL", "skilldef", "create", "doc/one", "-", stdin="---\nname: One\nallowed-tools: {a: b}\n---\n"
    )
    first, *rest = refused.err.splitlines()
    problems = [line for line in rest if line.startswith("  - source")]
    assert first == f"error: The input has {len(problems)} problems."
    assert len(problems) >= 4
    assert refused.fact("code") == "INVALID_ARGUMENT"
    author.refused("INVALID_SKILL", "skilldef", "create", "doc/one", "-")


def test_a_skill_def_is_created_once(author: CommandLine, review: str) -> None:
    author.ok("skilldef", "create", "doc/chunk-review", review)
    author.refused("SKILL_DEF_EXISTS", "skilldef", "create", "doc/chunk-review", review)


def test_a_runtime_key_authors_nothing(runtime: CommandLine, review: str) -> None:
    runtime.refused("ROLE_REQUIRED", "skilldef", "create", "doc/chunk-review", review)


def test_wrong_usage(author: CommandLine, tmp_path: Path) -> None:
    latin = tmp_path / "latin"
    latin.write_bytes(b"---\nname: caf\xe9\n---\n")
    assert "cannot be read: No such file" in author.misused("skilldef", "create", "doc/one", str(tmp_path / "none"))
    assert "holds no SKILL.md" in author.misused("skilldef", "create", "doc/one", str(tmp_path))
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert "is a symbolic link" in author.misused("skilldef", "create", "doc/one", str(tmp_path))
    assert "is not UTF-8 text" in author.misused("skilldef", "create", "doc/one", str(latin))
    assert "is not UTF-8 text" in author.misused("skilldef", "create", "doc/one", "-", stdin=b"\xff")
    assert "'first' is not a valid integer" in author.misused("skilldef", "promote", "doc/one", "first")
    assert "Missing argument 'PATH'" in author.misused("skilldef", "create", "doc/one")
