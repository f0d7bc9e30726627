from tests.cli.commands import CommandLine
from tests.skills import skill_md


def test_list_shows_every_candidate_of_every_name_with_its_state(author: CommandLine) -> None:
    author.ok("skilldef", "create", "doc/query", "-", stdin=skill_md("query"))
    author.ok("skilldef", "disable", "doc/chunk-add")
    printed = author.ok("catalog", "list", "--pattern", "doc/*")
    assert printed.text.splitlines()[0].split() == ["NAME", "STATE", "LAYER", "MODE", "ORIGIN", "PROBLEM"]
    states = [(row[0], row[1], row[2]) for row in printed.rows]
    assert [state for state in states if state[0] == "doc/query"] == [
        ("doc/query", "won", "tenant"),
        ("doc/query", "shadowed", "bundle"),
    ]
    assert ("doc/chunk-add", "disabled", "tenant") in states
    assert {row[0].partition("/")[0] for row in printed.rows} == {"doc"}


def test_list_for_an_agent_holds_what_its_allowlist_permits(author: CommandLine) -> None:
    entries = author.ok("catalog", "list", "--agent", "writer", "--json").json["entries"]
    assert [entry["name"] for entry in entries] == ["writing/linkedin-post", "writing/style-check"]
    assert all(entry["winner"]["layer"] == "LAYER_BUNDLE" for entry in entries)


def test_a_runtime_key_sees_no_layers(runtime: CommandLine) -> None:
    runtime.refused("ROLE_REQUIRED", "catalog", "list")
