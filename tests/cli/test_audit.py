from datetime import UTC, datetime, timedelta

from tests.cli.commands import CommandLine
from tests.servers import TestTenant


def invoke(runtime: CommandLine, name: str) -> None:
    runtime("skill", "invoke", name, "--agent", "doc-manager")


def test_query_finds_events_by_what_they_are_about(author: CommandLine, runtime: CommandLine) -> None:
    for name in ("doc/query", "writing/linkedin-post", "doc/absent"):
        invoke(runtime, name)
    printed = author.ok("audit", "query", "--verb", "invoke")
    headers = ["TIME", "VERB", "AGENT", "NAME", "OUTCOME", "REASON", "ACTOR", "ID"]
    assert printed.text.splitlines()[0].split() == headers
    assert [row[1:6] for row in printed.rows] == [
        ["invoke", "doc-manager", "doc/absent", "refused", "SKILL_NOT_FOUND"],
        ["invoke", "doc-manager", "writing/linkedin-post", "refused", "SKILL_NOT_PERMITTED"],
        ["invoke", "doc-manager", "doc/query", "allowed", "-"],
    ]

    def names(*conditions: str) -> list[str]:
        return [row[3] for row in author.ok("audit", "query", "--verb", "invoke", *conditions).rows]

    assert names("--oldest-first") == ["doc/query", "writing/linkedin-post", "doc/absent"]
    assert names("--outcome", "allowed") == ["doc/query"]
    assert names("--pattern", "writing/*") == ["writing/linkedin-post"]
    assert names("--agent", "writer") == []
    assert names("--denied-only") == names("--reason", "SKILL_NOT_PERMITTED") == ["writing/linkedin-post"]
    assert names("--layer", "bundle") == ["doc/query"]
    assert names("--layer", "tenant") == names("--version", "1") == names("--shadowed-only") == []
    assert names("--arguments", "chunk 7") == []
    actor = printed.rows[0][6]
    assert len(names("--actor", actor)) == 3
    assert names("--actor", actor.replace("runtime", "author")) == []
    assert len(names("--since", "1h")) == 3
    assert names("--until", "1h") == []
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert len(names("--until", ahead)) == 3


def test_query_shows_a_limited_number_and_says_so(author: CommandLine, runtime: CommandLine) -> None:
    for _ in range(3):
        invoke(runtime, "doc/query")
    short = author.ok("audit", "query", "--verb", "invoke", "--limit", "2")
    assert len(short.rows) == 2
    assert short.err == "There may be more than the 2 that are shown; --limit 0 shows all.\n"
    whole = author.ok("audit", "query", "--verb", "invoke", "--limit", "0", "--json").json
    assert [event["name"] for event in whole["events"]] == ["doc/query"] * 3
    assert "next_page_token" not in whole


def test_query_for_another_tenant_is_for_operators(
    author: CommandLine, runtime: CommandLine, operator: CommandLine, tenant: TestTenant
) -> None:
    invoke(runtime, "doc/query")
    rows = operator.ok("audit", "query", "--tenant", tenant.name, "--verb", "invoke").rows
    assert [row[3] for row in rows] == ["doc/query"]
    author.refused("TENANT_NOT_FOUND", "audit", "query", "--tenant", "platform")
    of_all = operator.ok("audit", "query", "--tenant", "all", "--verb", "invoke", "--limit", "1000")
    assert of_all.text.split()[:3] == ["TIME", "TENANT", "VERB"]
    assert [row[1:5] for row in of_all.rows if row[1] == tenant.name] == [
        [tenant.name, "invoke", "doc-manager", "doc/query"]
    ]


def test_explain_lays_a_decision_out(author: CommandLine) -> None:
    printed = author.ok("audit", "explain", "doc/query", "--agent", "doc-manager")
    assert "bundle:document-agent@" in printed.text
    assert "->   0  doc/*  decides: allowed" in printed.text
    refused = author.ok("audit", "explain", "writing/linkedin-post", "--agent", "doc-manager", "--json").json
    assert (refused["would_succeed"], refused["reason"]) == (False, "SKILL_NOT_PERMITTED")
    author.refused("AGENT_NOT_FOUND", "audit", "explain", "doc/query", "--agent", "nobody")
    author.refused("INVALID_NAME", "audit", "explain", "../etc")


def test_wrong_usage(author: CommandLine) -> None:
    assert "--outcome" in author.misused("audit", "query", "--outcome", "maybe")
    for moment in ("yesterday", "5", "99999999999d"):
        assert f"'{moment}' is neither a distance" in author.misused("audit", "query", "--since", moment)
    assert "--limit" in author.misused("audit", "query", "--limit", "-1")
