import pytest

from tests.cli.commands import CommandLine
from tests.servers import Cluster, TestTenant
from tests.skills import changed, skill_md
from tests.store.owner import value


@pytest.fixture(autouse=True)
def _own(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper", "skills": ["doc/*", "-doc/query"]})
    tenant.author.call("AgentService.PutAgent", agent={"name": "mine", "skills": ["own/*"]})


def cells(text: str, start: str) -> list[str]:
    return next(line for line in text.splitlines() if line.split()[:1] == [start]).split()


def test_who_can_shows_every_agent_with_the_deciding_entry(
    author: CommandLine, operator: CommandLine, tenant: TestTenant
) -> None:
    printed = author.ok("audit", "who-can", "doc/query")
    assert printed.text.splitlines()[0].split() == ["TENANT", "AGENT", "CAN", "BY", "REASON", "WHY"]
    found = {row[1]: row for row in printed.rows}
    assert found["doc-manager"][:5] == [tenant.name, "doc-manager", "list,invoke", "0:doc/*", "-"]
    assert found["helper"][2:5] == ["-", "1:-doc/query", "SKILL_NOT_PERMITTED"]
    assert found["mine"][2:5] == ["-", "unlisted", "SKILL_NOT_PERMITTED"]
    assert "Its allowlist does not admit the name: entry 1 '-doc/query' denies it.\n" in printed.text
    one = operator.ok("audit", "who-can", "doc/query", "--tenant", tenant.name)
    assert one.out == printed.out
    for conditions in ((), ("--tenant", "all")):
        short = operator.ok("audit", "who-can", "doc/query", *conditions, "--limit", "2")
        assert len(short.rows) == 2
        assert short.err == "There may be more than the 2 that are shown; --limit 0 shows all.\n"
    told = author.ok("audit", "who-can", "doc/query", "--json").json
    assert {row["agent"] for row in told["agents"]} == set(found)
    author.refused("INVALID_NAME", "audit", "who-can", "../etc")


def test_history_tells_who_changed_what(author: CommandLine, operator: CommandLine, tenant: TestTenant) -> None:
    nothing = author.ok("audit", "history", "own/x")
    assert nothing.out == b""
    assert nothing.err == (
        "Nothing has changed what the name stands for in that time; `audit explain` says what that is.\n"
    )
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/x", source=skill_md("x"))
    changed(tenant.author, "SkillDefService.SetSkillDisabled", name="own/x", disabled=True, reason="Why\x1b[31m.")
    printed = author.ok("audit", "history", "own/x")
    assert printed.text.splitlines()[0].split() == ["TIME", "VERB", "EVENT", "WHAT"]
    assert [row[1] for row in printed.rows] == ["disable", "create"]
    assert "created v1: from then on it stood for tenant:v1, before for nothing (no layer has it)." in printed.text
    assert "\x1b" not in printed.text
    assert operator.ok("audit", "history", "own/x", "--tenant", tenant.name, "--since", "1h").out == printed.out
    assert author.ok("audit", "history", "own/x", "--since", "2100-01-01").rows == []
    assert len(author.ok("audit", "history", "own/x", "--json").json["changes"]) == 2
    assert [row[1] for row in author.ok("audit", "history", "own/x", "--limit", "1").rows] == ["disable"]


def test_usage_counts_and_names_what_was_not_used(
    author: CommandLine, runtime: CommandLine, operator: CommandLine, tenant: TestTenant
) -> None:
    for name in ("doc/query", "doc/query", "writing/linkedin-post"):
        runtime("skill", "invoke", name, "--agent", "doc-manager")
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/idle", source=skill_md("idle"))
    printed = author.ok("audit", "usage")
    first = ["NAME", "LAYER", "VERSION", "AGENT", "OUTCOME", "REASON", "COUNT", "LAST"]
    assert printed.text.splitlines()[0].split() == first
    assert cells(printed.text, "doc/query")[:-1] == ["doc/query", "bundle", "-", "doc-manager", "allowed", "-", "2"]
    denied = ["writing/linkedin-post", "-", "-", "doc-manager", "refused", "SKILL_NOT_PERMITTED", "1"]
    assert cells(printed.text, "writing/linkedin-post")[:-1] == denied
    never = printed.text.partition("NEVER INVOKED WITH SUCCESS\n")[2].split()
    assert "own/idle" in never
    assert "writing/linkedin-post" in never
    assert "doc/query" not in never
    assert printed.err.startswith("From 2")
    narrowed = author.ok("audit", "usage", "--pattern", "doc/query", "--agent", "doc-manager", "--since", "1d")
    assert [row[0] for row in narrowed.rows] == ["doc/query"]
    assert operator.ok("audit", "usage", "--tenant", tenant.name).text == printed.text
    assert [row["count"] for row in author.ok("audit", "usage", "--json").json["rows"]] == [2, 1]
    author.refused("INVALID_ARGUMENT", "audit", "usage", "--since", "1h", "--until", "2h")
    assert "--since" in author.misused("audit", "usage", "--since", "yesterday")


def test_usage_shows_forks_that_a_bundle_has_left_behind(
    cluster: Cluster, author: CommandLine, tenant: TestTenant
) -> None:
    forked = tenant.author.call("SkillDefService.ForkSkillDef", name="doc/query", **{"from": "bundle"})
    changed(tenant.author, "SkillDefService.PromoteSkillDef", name="doc/query", version=1)
    assert "DRIFTED" not in author.ok("audit", "usage").text
    # As if it had been forked from an older bundle.
    older = "UPDATE skill_def_versions SET lineage = jsonb_set(lineage::jsonb, '{content_sha256}', %s)"
    where = " WHERE tenant_id = %s RETURNING lineage ->> 'origin'"
    origin = value(cluster, older + where, f'"{"0" * 64}"', tenant.name)
    assert forked.version.version == 1
    tail = author.ok("audit", "usage").text.partition("DRIFTED FORK")[2]
    row = tail.splitlines()[1].split()
    assert row[:4] == ["doc/query", "1", origin, "0" * 12]
    assert row[4] == origin
