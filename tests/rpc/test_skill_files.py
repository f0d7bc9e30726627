"""ReadSkillFile: the files that travel with a skill, byte for byte, and nothing else on the disk."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rpc.rich import BINARY, rich_server, rich_tenant
from tests.servers import Cluster, TestTenant
from tests.skills import refused

READ = "SkillService.ReadSkillFile"
GUIDE = b"# Guide\n\n<skill>$ARGUMENTS</skill>\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rich")


@pytest.fixture(scope="module")
def rich(cluster: Cluster, folder: Path) -> Iterator[TestTenant]:
    with rich_server(cluster, folder) as server:
        yield rich_tenant(server)


@pytest.mark.parametrize(
    ("path", "content", "media_type", "is_text"),
    [
        ("references/guide.md", GUIDE, "text/markdown", True),
        ("data/all.bin", BINARY, "application/octet-stream", False),
        ("empty", b"", "application/octet-stream", True),
    ],
)
def test_a_file_is_read_exactly_as_it_was_loaded(
    rich: TestTenant, path: str, content: bytes, media_type: str, *, is_text: bool
) -> None:
    read = rich.runtime.call(READ, agent="docs", name="doc/files", path=path)
    assert (read.path, read.content, read.size, read.is_text) == (path, content, len(content), is_text)
    assert (read.sha256, read.media_type) == (hashlib.sha256(content).hexdigest(), media_type)
    invoked = rich.runtime.call("SkillService.InvokeSkill", agent="docs", name="doc/files")
    assert read.content_sha256 == invoked.content_sha256
    (listed,) = [file for file in invoked.files if file.path == path]
    assert (listed.size, listed.sha256, listed.media_type) == (read.size, read.sha256, media_type)


def test_every_file_can_be_read_also_those_that_are_not_listed(rich: TestTenant) -> None:
    invoked = rich.runtime.call("SkillService.InvokeSkill", agent="docs", name="doc/many")
    paths = [f"f{number:02}.txt" for number in range(60)]
    assert [file.path for file in invoked.files] == paths[:50]
    assert invoked.files_omitted == 10
    for number, path in enumerate(paths):
        assert rich.runtime.call(READ, agent="docs", name="doc/many", path=path).content == b"%d" % number


def test_files_of_another_candidate_are_reached_by_its_qualifier(rich: TestTenant) -> None:
    asked = {"agent": "docs", "name": "doc/files@bundle", "path": "empty"}
    assert rich.runtime.call(READ, **asked).size == 0


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "//x",
        "..",
        "../plain/SKILL.md",
        "../../../bundle.yaml",
        "references/../../plain/SKILL.md",
        "references/..",
        "a/../../../../../../etc/passwd",
        "empty\0",
        "\u202eempty",
        "a" * 513,
    ],
)
def test_a_path_that_leaves_the_skill_or_is_none_is_refused(rich: TestTenant, path: str) -> None:
    failed = refused(rich.runtime, READ, agent="docs", name="doc/files", path=path)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert [field for field, _ in failed.violations] == ["path"]


@pytest.mark.parametrize(
    "path",
    [
        "SKILL.md",
        "references",
        "references/",
        "./empty",
        "references//guide.md",
        "EMPTY",
        "empty/",
        "references\\guide.md",
        "...",
        "~/x",
        "a" * 512,
    ],
)
def test_a_path_that_the_skill_has_no_file_at_is_not_found(rich: TestTenant, path: str) -> None:
    failed = refused(rich.runtime, READ, agent="docs", name="doc/files", path=path)
    assert (failed.code, failed.reason) == ("NOT_FOUND", "SKILL_FILE_NOT_FOUND")
    assert failed.metadata["name"] == "doc/files"
    assert failed.metadata["path"].isascii()


@pytest.mark.parametrize(
    ("agent", "name", "reason"),
    [
        ("not-docs", "doc/files", "SKILL_NOT_PERMITTED"),
        ("nothing", "doc/files", "SKILL_NOT_PERMITTED"),
        ("docs", "doc/missing", "SKILL_NOT_FOUND"),
        ("docs", "doc/off", "SKILL_NOT_FOUND"),
        ("docs", "doc/broken", "SKILL_QUARANTINED"),
        ("handless", "code/write", "TOOLS_EXCEED_AGENT"),
        ("everything", "code/lint", "SKILL_INELIGIBLE"),
        ("everything", "call/user", "INVOCATION_NOT_ALLOWED"),
        ("docs", "doc/own@v9", "VERSION_NOT_FOUND"),
        ("docs", "doc/own", "SKILL_FILE_NOT_FOUND"),
        ("docs", "doc/inline", "SKILL_FILE_NOT_FOUND"),
    ],
)
def test_a_file_is_read_under_the_same_conditions_as_its_skill(
    rich: TestTenant, agent: str, name: str, reason: str
) -> None:
    for path in ("references/guide.md", "no-such-file"):
        failed = refused(rich.runtime, READ, agent=agent, name=name, path=path)
        assert failed.reason == reason
        (event,) = rich.author.call("AuditService.QueryAuditEvents", decision_id=failed.decision_id).events
        assert (event.verb, event.reason, event.requested_name) == ("read_file", reason, name)


def test_a_file_that_changes_on_disk_is_refused(rich: TestTenant, folder: Path) -> None:
    path = folder / "core" / "skills" / "doc" / "files" / "references" / "guide.md"
    asked = {"agent": "docs", "name": "doc/files", "path": "references/guide.md"}
    elsewhere = folder / "secret.txt"
    elsewhere.write_bytes(GUIDE)
    try:
        path.write_bytes(GUIDE.lower())
        assert refused(rich.runtime, READ, **asked).reason == "SKILL_CHANGED"
        path.unlink()
        failed = refused(rich.runtime, READ, **asked)
        assert (failed.code, failed.reason) == ("ABORTED", "SKILL_CHANGED")
        # The link leads to the very same bytes, but out of the folder.
        path.symlink_to(elsewhere)
        assert refused(rich.runtime, READ, **asked).reason == "SKILL_CHANGED"
        assert rich.runtime.call(READ, agent="docs", name="doc/files", path="data/all.bin").content == BINARY
    finally:
        path.unlink()
        path.write_bytes(GUIDE)
    assert rich.runtime.call(READ, **asked).content == GUIDE
