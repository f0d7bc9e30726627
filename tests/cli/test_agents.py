import json
from pathlib import Path

import pytest

from tests.cli.commands import CommandLine

EDITOR = """
description: Edits.
tools: [Read, "Bash(git *)"]
skills:
  - "doc/*"
  - "-doc/chunk-delete"
definition:
  model: {tier: strong}
"""


@pytest.fixture
def editor(tmp_path: Path) -> str:
    path = tmp_path / "editor.yaml"
    path.write_text(EDITOR)
    return str(path)


def facts(text: str) -> dict[str, str]:
    return {label: value.strip() for label, _, value in (line.partition(":") for line in text.splitlines())}


def test_put_from_yaml_and_get(author: CommandLine, editor: str) -> None:
    put = author.ok("agent", "put", "editor", editor)
    assert put.text.startswith("Put agent editor.\n")
    assert put.err == ""
    shown = facts(author.ok("agent", "get", "editor").text)
    assert (
        shown.items()
        >= {
            "description": "Edits.",
            "skills": "doc/*, -doc/chunk-delete",
            "tools": "Read, Bash(git *)",
            "layer": "tenant",
        }.items()
    )


def test_the_source_that_get_prints_is_what_put_takes(author: CommandLine, editor: str) -> None:
    author.ok("agent", "put", "editor", editor)
    source = author.ok("agent", "get", "editor", "--source")
    assert json.loads(source.out) == {
        "description": "Edits.",
        "tools": ["Read", "Bash(git *)"],
        "skills": ["doc/*", "-doc/chunk-delete"],
        "definition": {"model": {"tier": "strong"}},
    }
    author.ok("agent", "put", "second", "-", stdin=source.out)
    digests = {facts(author.ok("agent", "get", name).text)["sha256"] for name in ("editor", "second")}
    assert len(digests) == 1


def test_json_keeps_the_types_of_a_definition(author: CommandLine) -> None:
    author.ok("agent", "put", "typed", "-", stdin='{"definition": {"temperature": 0.5, "on": true}}')
    shown = author.ok("agent", "get", "typed", "--json").json["agent"]
    assert json.loads(shown["definition_json"]) == {"temperature": 0.5, "on": True}
    assert "tools" not in shown
    assert facts(author.ok("agent", "get", "typed").text)["tools"] == "all"


def test_list_shows_every_layer(author: CommandLine, editor: str) -> None:
    author.ok("agent", "put", "editor", editor)
    rows = author.ok("agent", "list").rows
    assert [row[:2] for row in rows] == [
        ["doc-manager", "bundle"],
        ["editor", "tenant"],
        ["marketer", "bundle"],
        ["writer", "bundle"],
    ]
    assert len(author.ok("agent", "list", "--json").json["agents"]) == 4


def test_put_with_a_stale_etag_is_refused(author: CommandLine, editor: str) -> None:
    etag = author.ok("agent", "put", "editor", editor, "--json").json["agent"]["etag"]
    author.ok("agent", "put", "editor", "-", "--etag", etag, stdin="description: Changed.\n")
    author.refused("ETAG_MISMATCH", "agent", "put", "editor", editor, "--etag", etag)
    author.refused("INVALID_ARGUMENT", "agent", "put", "editor", editor, "--etag", "")
    assert facts(author.ok("agent", "get", "editor").text)["description"] == "Changed."


def test_put_without_an_etag_replaces_what_is_there(author: CommandLine, editor: str) -> None:
    # Also a bundle's agent of the name, which has no etag.
    for name in ("editor", "doc-manager"):
        author.ok("agent", "put", name, editor)
        author.ok("agent", "put", name, "-", stdin="description: Changed.\n")
        assert facts(author.ok("agent", "get", name).text)["description"] == "Changed."
    assert "replaced" in author.ok("agent", "put", "--help").text
    author.refused("INVALID_NAME", "agent", "delete", "Not/a/Slug")


def test_pins_come_from_the_file_and_the_options(author: CommandLine) -> None:
    pinned = "pins: {own/a: v1, own/b: v2}\n"
    options = ("--pin", "own/b=staging", "--pin", "own/c=v3")
    shown = author.ok("agent", "put", "pinned", "-", *options, stdin=pinned)
    assert facts(shown.text)["pins"] == "own/a=v1, own/b=staging, own/c=v3"
    source = author.ok("agent", "get", "pinned", "--source").out
    assert json.loads(source)["pins"] == {"own/a": "v1", "own/b": "staging", "own/c": "v3"}
    author.ok("agent", "put", "second", "-", stdin=source)
    assert author.ok("agent", "get", "second", "--source").out == source
    # The definition is put whole, its pins included.
    author.ok("agent", "put", "pinned", "-", stdin="{}")
    assert "pins" not in facts(author.ok("agent", "get", "pinned").text)
    bad = author("agent", "put", "pinned", "-", "--pin", "own/a=bundle", "--pin", "A=v1", stdin="pins: {b: v0}\n")
    assert (bad.code, bad.out) == (1, b"")
    assert all(f"pins[{name}]" in bad.err for name in ("own/a", "A", "b"))
    assert "is no pin such as doc/query=v3" in author.misused("agent", "put", "x", "-", "--pin", "own/a", stdin="{}")
    for data in ('{"pins": []}', "pins: own/a\n", "[]"):
        assert author("agent", "put", "pinned", "-", "--pin", "own/a=v1", stdin=data).code == 1


def test_delete(author: CommandLine, editor: str) -> None:
    author.ok("agent", "put", "editor", editor)
    assert author.ok("agent", "delete", "editor").text == "Deleted agent editor. There is no agent editor any more.\n"
    author.refused("AGENT_NOT_FOUND", "agent", "get", "editor")
    author.refused("AGENT_NOT_FOUND", "agent", "delete", "editor")
    author.refused("AGENT_NOT_FOUND", "agent", "delete", "doc-manager")
    etag = author.ok("agent", "put", "doc-manager", editor, "--json").json["agent"]["etag"]
    author.ok("agent", "put", "doc-manager", editor)
    author.refused("ETAG_MISMATCH", "agent", "delete", "doc-manager", "--etag", etag)
    deleted = author.ok("agent", "delete", "doc-manager")
    assert deleted.text == "Deleted agent doc-manager. doc-manager now stands for bundle:document-agent@1.0.0.\n"


def test_put_warns_of_entries_that_can_never_take_effect(author: CommandLine) -> None:
    put = author.ok("agent", "put", "narrow", "-", stdin="skills: ['doc/*', 'doc/query']\n")
    assert put.err.startswith("warning: entry 1 doc/query: ")


def test_bad_agents_are_refused_with_every_problem_before_anything_is_sent(author: CommandLine) -> None:
    scopes = author("agent", "put", "editor", "-", stdin="skill_def_scopes:\n")
    assert (scopes.code, scopes.out) == (1, b"")
    assert "move its patterns into the agent's `skills`" in scopes.err
    assert "delete the field" in scopes.err
    bad = author("agent", "put", "editor", "-", stdin="skills: ['Doc/*', ok, 'a//b']\ncolour: red\n")
    assert bad.code == 1
    assert all(part in bad.err for part in ("colour", "skills[0]", "skills[2]"))
    twice = author("agent", "put", "editor", "-", stdin='{"skills": [], "skills": ["doc/*"]}')
    assert twice.err == "error: The file with the agent cannot be read: an object has the same key twice.\n"
    assert author("agent", "put", "editor", "-", stdin="a: [").code == 1
    assert author("agent", "put", "editor", "-", stdin="[" * 100_000).code == 1


def test_test_allowlist_takes_entries_that_begin_with_a_minus(author: CommandLine) -> None:
    tried = author.ok(
        *("agent", "test-allowlist", "-e", "doc/*", "-e", "-doc/chunk-delete", "--entry", "-ops/*"),
        *("-n", "doc/query", "-n", "doc/chunk-delete", "--name", "ops/a"),
    )
    assert tried.rows == [
        ["doc/query", "allowed", "ALLOW_RULE", "0:", "doc/*"],
        ["doc/chunk-delete", "denied", "DENY_RULE", "1:", "-doc/chunk-delete"],
        ["ops/a", "denied", "DENY_RULE", "2:", "-ops/*"],
    ]


def test_test_allowlist_of_an_agent_or_a_file(author: CommandLine, editor: str) -> None:
    by_agent = author.ok("agent", "test-allowlist", "--agent", "writer", "-n", "writing/adversarial-review")
    assert by_agent.rows == [["writing/adversarial-review", "denied", "DENY_RULE", "1:", "-writing/adversarial-*"]]
    by_file = author.ok("agent", "test-allowlist", "--file", editor, "-n", "other", "--json").json
    assert [(d["decision"]["allowed"], d["decision"]["reason"]) for d in by_file["decisions"]] == [
        (False, "ALLOWLIST_REASON_UNLISTED")
    ]


def test_test_allowlist_shows_what_a_proposal_would_change(author: CommandLine, editor: str) -> None:
    by_entries = author.ok("agent", "test-allowlist", "--agent", "doc-manager", "-e", "doc/query", "-e", "writing/*")
    answer = author.ok(
        *("agent", "test-allowlist", "--agent", "doc-manager", "-e", "doc/query", "-e", "writing/*", "--json")
    ).json
    lost, gained = answer["lost"], answer["gained"]
    assert lost
    assert all(name.startswith("doc/") for name in lost)
    assert gained
    assert all(name.startswith("writing/") for name in gained)
    first, header, *changes = by_entries.text.splitlines()
    assert first == f"The agent doc-manager would gain {len(gained)} and lose {len(lost)}."
    assert header.split() == ["CHANGE", "NAME"]
    assert [line.split() for line in changes] == [
        *(["gains", name] for name in gained),
        *(["loses", name] for name in lost),
    ]
    assert f"It admits {answer['admitted_count']} of the skills in the catalog." in by_entries.err
    by_file = author.ok("agent", "test-allowlist", "--agent", "doc-manager", "--file", editor, "-n", "doc/query")
    table, _, changes_of_file = by_file.text.partition("\n\n")
    assert table.splitlines()[1].split()[:2] == ["doc/query", "allowed"]
    assert "gain 0 and lose" in changes_of_file.splitlines()[0]
    same = author.ok("agent", "test-allowlist", "--agent", "doc-manager", "-e", "doc/*")
    assert same.text == "The agent doc-manager would gain and lose nothing.\n"


def test_test_allowlist_says_what_is_odd(author: CommandLine) -> None:
    tried = author.ok("agent", "test-allowlist", "-e", "-*", "-e", "doc/*", "-n", "doc/query")
    assert "warning: entry 1 doc/*: " in tried.err
    assert "The allowlist denies every name: its agent is offered no tool." in tried.err
    refused = author.refused("INVALID_ALLOWLIST", "agent", "test-allowlist", "-e", "A", "-e", "ok", "-e", " ")
    assert len([line for line in refused.err.splitlines() if line.startswith("  - skills[")]) == 2


def test_wrong_usage(author: CommandLine, editor: str) -> None:
    advice = "Give --entry or --file, or --agent, or --agent with one of them."
    assert advice in author.misused("agent", "test-allowlist", "-e", "doc/*", "--file", editor)
    assert advice in author.misused("agent", "test-allowlist", "-n", "doc/query")
    empty = ("agent", "test-allowlist", "--agent", "writer", "--file", "-")
    assert "there is nothing to compare" in author.misused(*empty)
