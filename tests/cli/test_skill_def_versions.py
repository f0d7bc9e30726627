"""Versions on the command line: forked, compared, labelled, tried before they take effect, and rolled back."""

import os
from pathlib import Path

import pytest

from tests.cli.commands import CommandLine
from tests.servers import Cluster, TestTenant
from tests.skills import skill_md
from tests.store.owner import change

NAME = "doc/query"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A skill's folder, with a file beside its SKILL.md."""
    skill = tmp_path / "query"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(skill_md("query", "Ours.\n", header="allowed-tools: ReadChunk\n"))
    (skill / "scripts" / "run.py").write_text("print()\n")
    return skill


def test_a_bundled_skill_is_forked_compared_promoted_and_rolled_back(
    author: CommandLine, runtime: CommandLine, folder: Path
) -> None:
    forked = author.ok("skilldef", "fork", NAME, "--from", "bundle")
    assert forked.text.startswith("Forked doc/query v1 from bundle:document-agent@")
    assert author.ok("skilldef", "diff", NAME, "@bundle", "@v1").text == "They do not differ.\n"
    author.ok("skilldef", "fork", NAME, str(folder))
    diff = author.ok("skilldef", "diff", NAME, "bundle", "v2").text.splitlines()
    assert 'allowed-tools: ["ReadDocument","ListChunks","ReadChunk","SearchChunks"] -> ["ReadChunk"]' in diff
    assert "file scripts/run.py differs" in diff
    assert "+Ours." in diff
    rehearsed = author.ok("skilldef", "promote", NAME, "2", "--dry-run").text.splitlines()
    assert rehearsed[0] == "Not done; it would be: Promoted doc/query v2."
    assert rehearsed[1] == "doc/query would stand for tenant:v2."
    assert rehearsed[2].startswith("It stands for bundle:document-agent@")
    assert rehearsed[3] == "Agents changing to another content: doc-manager."
    assert "Ours." not in runtime.ok("skill", "invoke", NAME, "--agent", "doc-manager").text
    author.ok("skilldef", "promote", NAME, "2")
    assert runtime.ok("skill", "invoke", NAME, "--agent", "doc-manager").text == "Ours.\n"
    author.ok("skilldef", "promote", NAME, "1")
    rows = author.ok("skilldef", "versions", NAME).rows
    assert [row[0] for row in rows] == ["2", "1"]
    assert rows[1][1:3] == ["in", "effect"]


def test_a_version_is_tried_on_one_agent_by_a_label(author: CommandLine, runtime: CommandLine, folder: Path) -> None:
    author.ok("skilldef", "fork", NAME, str(folder))
    assert author.ok("skilldef", "label", NAME, "staging", "1").text == "staging of doc/query points at v1.\n"
    author.ok("agent", "put", "tester", "-", "--pin", f"{NAME}=staging", stdin="skills: [doc/*]\n")
    assert runtime.ok("skill", "invoke", NAME, "--agent", "tester").text == "Ours.\n"
    assert "pinned as 'staging'" in author.ok("audit", "explain", NAME, "--agent", "tester").text
    assert "staging (v1)" in author.ok("skilldef", "get", NAME).text
    removed = author.ok("skilldef", "label", NAME, "staging", "0")
    assert removed.text == "staging of doc/query is taken away.\nAgents losing it: tester.\n"
    runtime.refused("VERSION_NOT_FOUND", "skill", "invoke", NAME, "--agent", "tester")
    author.ok("skilldef", "label", NAME, "staging", "1")
    assert "is taken away" in author.ok("skilldef", "label", NAME, "staging", "--remove").text
    for wrong in ((), ("1", "--remove")):
        misused = author.misused("skilldef", "label", NAME, "staging", *wrong)
        assert "Give one of VERSION and --remove." in misused


def test_a_digest_is_verified_by_the_exit_code(author: CommandLine, folder: Path) -> None:
    digest = author.ok("skilldef", "fork", NAME, str(folder), "--promote", "--json").json["version"]["content_sha256"]
    assert "Versions with it: v1." in author.ok("skilldef", "verify", NAME, digest).text
    wrong = author("skilldef", "verify", NAME, "0" * 64)
    assert (wrong.code, wrong.text.startswith("It is not the digest")) == (1, True)


def test_an_archive_goes_out_and_in(author: CommandLine, folder: Path, tmp_path: Path) -> None:
    author.ok("skilldef", "create", "team/query", str(folder))
    archive = tmp_path / "query.zip"
    assert (
        "Exported team/query from tenant:v1" in author.ok("skilldef", "export", "team/query", "-o", str(archive)).text
    )
    rows = author.ok("skilldef", "import", str(archive), "--dry-run").rows
    assert rows[0][:4] == ["team/query", "v1", "there", "already"]
    author.ok("skilldef", "fork", "team/query", "-", "--promote", stdin=skill_md("query", "Newer.\n"))
    rows = author.ok("skilldef", "import", str(archive)).rows
    assert rows[0][:2] == ["team/query", "v1"]


def test_a_version_in_effect_that_is_corrupt_does_not_stand_in_the_way_of_a_sound_one(
    author: CommandLine, operator: CommandLine, runtime: CommandLine, tenant: TestTenant, cluster: Cluster, folder: Path
) -> None:
    author.ok("skilldef", "create", NAME, str(folder))
    author.ok("skilldef", "fork", NAME, "-", "--promote", stdin=skill_md("query", "Newer.\n"))
    spoil = "UPDATE skill_def_versions SET body = 'Else.' WHERE tenant_id = %s AND version = 2"
    assert change(cluster, spoil, tenant.name) == 1
    change(cluster, "UPDATE tenants SET catalog_revision = catalog_revision + 1 WHERE tenant_id = %s", tenant.name)
    runtime.refused("SKILL_QUARANTINED", "skill", "invoke", NAME, "--agent", "doc-manager")
    # Whoever may promote it may: an operator, who names the tenant, and an author.
    operator.ok("skilldef", "promote", NAME, "1", "--tenant", tenant.name, "--dry-run")
    author.ok("skilldef", "promote", NAME, "1")
    assert runtime.ok("skill", "invoke", NAME, "--agent", "doc-manager").text == "Ours.\n"


def test_operators_read_and_promote_in_the_tenant_that_they_name(
    author: CommandLine, operator: CommandLine, tenant: TestTenant, folder: Path
) -> None:
    author.ok("skilldef", "fork", NAME, str(folder))
    within = ("--tenant", tenant.name)
    assert "sha256" in operator.ok("skilldef", "get", NAME, *within).text
    assert operator.ok("skilldef", "versions", NAME, *within).rows[0][0] == "1"
    assert "+Ours." in operator.ok("skilldef", "diff", NAME, "bundle", "v1", *within).text
    promoted = operator.ok("skilldef", "promote", NAME, "1", *within)
    assert promoted.text.startswith("Promoted doc/query v1.\ndoc/query now stands for tenant:v1.\n")
    assert "by platform/" in author.ok("skilldef", "get", NAME).text
    author.refused("ROLE_REQUIRED", "skilldef", "get", NAME, *within)
    operator.refused("TENANT_NOT_FOUND", "skilldef", "promote", NAME, "1", "--tenant", "nobody")


def test_a_rehearsal_of_every_change_changes_nothing(author: CommandLine, folder: Path, tmp_path: Path) -> None:
    author.ok("skilldef", "create", NAME, str(folder))
    archive = tmp_path / "query.zip"
    author.ok("skilldef", "export", NAME, "--from", "bundle", "-o", str(archive))
    before = author.ok("catalog", "list", "--json").json["entries"]
    for command in (
        ("create", "team/query", str(folder)),
        ("fork", NAME, "--from", "bundle", "--promote"),
        ("promote", NAME, "1"),
        ("retire", NAME),
        ("unretire", NAME),
        ("disable", NAME),
        ("enable", NAME),
    ):
        assert author.ok("skilldef", *command, "--dry-run").text.startswith("Not done; it would be: ")
    assert author.ok("skilldef", "label", NAME, "staging", "1", "--dry-run").text.startswith("Would be: ")
    assert "would" in author.ok("skilldef", "import", str(archive), "--dry-run").text
    assert author.ok("catalog", "list", "--json").json["entries"] == before
    assert author.ok("skilldef", "get", NAME, "--json").json["skill_def"]["labels"] == []


def test_only_plain_files_of_a_folder_are_sent_and_no_more_than_a_skill_may_have(
    author: CommandLine, folder: Path
) -> None:
    fifo = folder / "scripts" / "fifo"
    os.mkfifo(fifo)
    assert "is not a regular file" in author.misused("skilldef", "create", "team/query", str(folder))
    fifo.unlink()
    outside = folder / "outside"
    outside.symlink_to(folder.parent, target_is_directory=True)
    assert "is a symbolic link" in author.misused("skilldef", "create", "team/query", str(folder))
    outside.unlink()
    for number in range(512):
        (folder / f"f{number}").write_text("")
    assert "512 files" in author.misused("skilldef", "create", "team/query", str(folder))
    (folder / "f0").unlink()
    created = author.ok("skilldef", "create", "team/query", str(folder), "--json").json
    assert len(created["version"]["files"]) == 512


def test_a_name_that_is_none_is_refused_as_a_name(author: CommandLine) -> None:
    for command in (("retire", "doc/query@v1"), ("promote", "doc/*", "1"), ("disable", "Doc")):
        refused = author("skilldef", *command)
        assert refused.code == 1
        assert "name" in refused.err
        assert "pattern" not in refused.err


def test_an_etag_that_is_given_is_sent(author: CommandLine, folder: Path) -> None:
    author.ok("skilldef", "fork", NAME, str(folder))
    for command in (("promote", NAME, "1"), ("retire", NAME), ("disable", NAME), ("label", NAME, "x", "1")):
        author.refused("ETAG_MISMATCH", "skilldef", *command, "--etag", "r0")
