import os
import shutil
import socket
from pathlib import Path

import pytest

from substrate.domain.candidates import Candidate, LayerKind, Standing
from substrate.domain.errors import InvalidConfig, SkillChanged, SkillFileNotFound
from substrate.domain.names import SkillName
from substrate.sources.bundles import Bundle, load_bundle, read_body, read_file
from substrate.sources.disk import MAX_FILE_BYTES
from tests.sources.bundle_files import skill_md, write_bundle, write_skill


def candidate(bundle: Bundle, name: str) -> Candidate:
    return bundle.layer.candidates[SkillName(name)]


def refused(root: Path) -> dict[str, str]:
    """Load a bundle that must be refused; return its problems by place below `root`."""
    with pytest.raises(InvalidConfig) as caught:
        load_bundle(root)
    for violation in caught.value.violations:
        assert f"{violation.field}: {violation.description}" in caught.value.message
    return {v.field.removeprefix(f"{root}/"): v.description for v in caught.value.violations}


def fatal(bundle: Bundle) -> dict[str, str]:
    return {str(p.place).removeprefix(f"{bundle.root}/"): p.message for p in bundle.problems if p.fatal}


def test_folders_name_the_skills_and_the_order_is_by_name(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "writing/post", "doc/query", "doc-old", "doc/chunk/review", "a")
    bundle = load_bundle(root, positional_base=1)

    assert (bundle.name, bundle.version, bundle.description, bundle.root) == ("core", "1.10", "A bundle.", root)
    assert list(bundle.layer.candidates) == ["a", "doc-old", "doc/chunk/review", "doc/query", "writing/post"]
    assert (bundle.layer.kind, bundle.layer.origin) == (LayerKind.BUNDLE, "bundle:core@1.10")
    assert bundle.problems == ()
    found = candidate(bundle, "doc/chunk/review")
    assert found.origin == "bundle:core@1.10/skills/doc/chunk/review/SKILL.md"
    assert found.header is not None
    assert (found.header.name, found.header.description) == ("review", "Does doc/chunk/review.")
    assert (found.standing, found.positional_base, found.body) == (Standing.ACTIVE, 1, None)
    assert found.folder == str(root / "skills/doc/chunk/review")


def test_a_relative_root_gives_absolute_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path / "b", "one")
    monkeypatch.chdir(tmp_path)
    found = candidate(load_bundle(Path("b")), "one")
    monkeypatch.chdir("/")
    assert read_body(found) == "Do it.\n"


def test_a_skill_folder_is_not_searched_further_and_its_other_files_are_resources(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "doc/query", "doc/query/inner")
    (root / "skills/doc/query/references").mkdir()
    (root / "skills/doc/query/references/table.csv").write_bytes(b"a,b\r\n\x00")
    (root / "skills/README.md").write_text("Not a skill.")
    bundle = load_bundle(root)

    assert list(bundle.layer.candidates) == ["doc/query"]
    found = candidate(bundle, "doc/query")
    assert [(file.path, file.size) for file in found.files] == [
        ("inner/SKILL.md", len(skill_md("inner").replace("inner.", "doc/query/inner."))),
        ("references/table.csv", 6),
    ]
    assert read_file(found, "references/table.csv") == b"a,b\r\n\x00"
    for path in (
        "SKILL.md",
        "references",
        "references/../references/table.csv",
        "../../bundle.yaml",
        "/etc/passwd",
        "",
    ):
        with pytest.raises(SkillFileNotFound):
            read_file(found, path)


def test_one_bad_file_is_quarantined_with_its_line_and_the_rest_load(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "doc/good")
    write_skill(root, "doc/bad", "---\nname: bad\ndescription: x\nuser-invocable: perhaps\n---\nBody.\n")
    write_skill(root, "doc/empty", "")
    (write_skill(root, "doc/latin") / "SKILL.md").write_bytes(b"---\nname: latin\ndescription: \xe9\n---\nBody.\n")
    bundle = load_bundle(root)

    assert {name: c.standing for name, c in bundle.layer.candidates.items()} == {
        "doc/bad": Standing.QUARANTINED,
        "doc/empty": Standing.QUARANTINED,
        "doc/good": Standing.ACTIVE,
        "doc/latin": Standing.QUARANTINED,
    }
    bad = candidate(bundle, "doc/bad")
    assert (bad.header, bad.content_sha256, bad.file_sha256) == (None, "", "")
    assert bad.problem == "skills/doc/bad/SKILL.md:4: user-invocable: must be true or false."
    assert fatal(bundle)["skills/doc/bad/SKILL.md:4"] == "user-invocable: must be true or false."
    assert set(fatal(bundle)) >= {"skills/doc/latin/SKILL.md:3", "skills/doc/empty/SKILL.md"}


def test_a_repair_is_reported_and_the_skill_is_served(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b")
    write_skill(root, "doc/query", "---\nname: other\ndescription: Reads: all of it\n---\nBody.\n")
    bundle = load_bundle(root)

    header = candidate(bundle, "doc/query").header
    assert header is not None
    assert (header.name, header.description) == ("query", "Reads: all of it")
    assert [(p.place, p.fatal) for p in bundle.problems] == [
        (f"{root}/skills/doc/query/SKILL.md:2", False),
        (f"{root}/skills/doc/query/SKILL.md:3", False),
    ]


def test_folders_that_give_no_valid_name_are_reported_and_not_served(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "good", "Upper/x", "doc/my skill", "1/2/3/4/5/6/7/8/9", "b\u0430d", "tab\there")
    (root / "skills/SKILL.md").write_text(skill_md("top"))
    (root / "skills/lower").mkdir()
    (root / "skills/lower/skill.md").write_text(skill_md("lower"))
    (root / "skills").joinpath(os.fsdecode(b"raw-\xff")).mkdir()
    (root / "skills").joinpath(os.fsdecode(b"raw-\xff"), "SKILL.md").write_text(skill_md("raw"))
    bundle = load_bundle(root)

    assert list(bundle.layer.candidates) == ["good"]
    messages = "\n".join(f"{place}: {message}" for place, message in fatal(bundle).items())
    assert len(fatal(bundle)) == 8
    for part in (
        "Upper",
        "my skill",
        "segments",
        "\\u0430",
        "'skills/tab\\there/SKILL.md'",
        "lower/skill.md",
        "\\udcff",
    ):
        assert part in messages
    assert "skills/SKILL.md" in fatal(bundle)
    messages.encode()


def test_symbolic_links_below_the_root_are_never_followed(tmp_path: Path) -> None:
    outside = write_bundle(tmp_path / "outside", "doc/secret")
    (tmp_path / "outside/note.txt").write_text("secret")
    root = write_bundle(tmp_path / "b", "good", "linked-file", "linked-folder", "linked-text")
    (root / "skills/group").symlink_to(outside / "skills/doc", target_is_directory=True)
    (root / "skills/linked-file/note.txt").symlink_to(outside / "note.txt")
    (root / "skills/linked-folder/more").symlink_to(outside, target_is_directory=True)
    (root / "skills/linked-text/SKILL.md").unlink()
    (root / "skills/linked-text/SKILL.md").symlink_to(outside / "skills/doc/secret/SKILL.md")
    bundle = load_bundle(root)

    standings = {name: c.standing for name, c in bundle.layer.candidates.items()}
    assert standings == {
        "good": Standing.ACTIVE,
        "linked-file": Standing.QUARANTINED,
        "linked-folder": Standing.QUARANTINED,
        "linked-text": Standing.QUARANTINED,
    }
    assert sorted(fatal(bundle)) == [
        "skills/group",
        "skills/linked-file/note.txt",
        "skills/linked-folder/more",
        "skills/linked-text/SKILL.md",
    ]
    assert all("symbolic link" in message for message in fatal(bundle).values())


def test_links_in_place_of_the_manifest_or_the_skills_folder_are_refused(tmp_path: Path) -> None:
    outside = write_bundle(tmp_path / "outside", "doc/secret")
    root = write_bundle(tmp_path / "b")
    (root / "skills").rmdir()
    (root / "skills").symlink_to(outside / "skills", target_is_directory=True)
    bundle = load_bundle(root)
    assert not bundle.layer.candidates
    assert "symbolic link" in fatal(bundle)["skills"]

    (root / "bundle.yaml").unlink()
    (root / "bundle.yaml").symlink_to(outside / "bundle.yaml")
    assert "symbolic link" in refused(root)["bundle.yaml"]


def test_the_root_may_be_a_link_and_stays_what_it_was_when_loaded(tmp_path: Path) -> None:
    write_bundle(tmp_path / "v1", "one")
    write_skill(write_bundle(tmp_path / "v2"), "one", skill_md("one", "New.\n"))
    link = tmp_path / "current"
    link.symlink_to("v1")
    found = candidate(load_bundle(link), "one")
    link.unlink()
    link.symlink_to("v2")
    assert read_body(found) == "Do it.\n"
    assert read_body(candidate(load_bundle(link), "one")) == "New.\n"


def test_special_files_quarantine_without_waiting_for_them(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "good", "pipe", "text-pipe", "text-folder", "sock")
    os.mkfifo(root / "skills/pipe/data")
    (root / "skills/text-pipe/SKILL.md").unlink()
    os.mkfifo(root / "skills/text-pipe/SKILL.md")
    (root / "skills/text-folder/SKILL.md").unlink()
    (root / "skills/text-folder/SKILL.md").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "skills/sock/s"))
        bundle = load_bundle(root)

    active = [name for name, c in bundle.layer.candidates.items() if c.standing is Standing.ACTIVE]
    assert active == ["good"]
    assert sorted(fatal(bundle)) == [
        "skills/pipe/data",
        "skills/sock/s",
        "skills/text-folder/SKILL.md",
        "skills/text-pipe/SKILL.md",
    ]


def test_what_a_skill_may_carry_is_limited(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "many", "most", "large", "largest", "heavy", "heaviest", "deep", "deepest")
    skills = root / "skills"
    for index in range(512):
        (skills / "most" / str(index)).write_bytes(b"")
        (skills / "many" / str(index)).write_bytes(b"")
    (skills / "many/one-more").write_bytes(b"")
    (skills / "largest/data").write_bytes(bytes(MAX_FILE_BYTES))
    (skills / "large/data").write_bytes(bytes(MAX_FILE_BYTES + 1))
    for index in range(16):
        (skills / f"heaviest/{index}").write_bytes(bytes(MAX_FILE_BYTES))
        (skills / f"heavy/{index}").write_bytes(bytes(MAX_FILE_BYTES))
    (skills / "heavy/one-more").write_bytes(b"1")
    inner = "/".join(["x" * 127] * 4)
    (skills / "deepest" / inner).parent.mkdir(parents=True)
    (skills / "deepest" / inner).write_bytes(b"")
    (skills / "deep" / f"{inner}/y").parent.mkdir(parents=True)
    (skills / "deep" / f"{inner}/yy").write_bytes(b"")
    bundle = load_bundle(root)

    active = [name for name, c in bundle.layer.candidates.items() if c.standing is Standing.ACTIVE]
    assert active == ["deepest", "heaviest", "largest", "most"]
    assert [len(candidate(bundle, name).files) for name in active] == [1, 16, 1, 512]
    assert "512 files" in fatal(bundle)["skills/many"]
    assert "16,777,216 bytes" in fatal(bundle)["skills/heavy"]
    assert "1,048,576 bytes" in fatal(bundle)["skills/large/data"]
    assert "512 characters" in fatal(bundle)[f"skills/deep/{inner}/yy"]
    assert "512 files" in candidate(bundle, "many").problem


def test_what_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b")
    (root / "skills").rmdir()
    (root / "skills").write_text("no folder")
    bundle = load_bundle(root)
    assert not bundle.layer.candidates
    assert fatal(bundle) == {"skills": "cannot be read: Not a directory."}


def test_a_resource_folder_that_cannot_be_listed_quarantines(tmp_path: Path) -> None:
    # The path is longer than the system takes, which stops even a user whom file modes do not.
    folder = write_bundle(tmp_path.joinpath(*["x" * 100] * 37), "doc/query") / "skills/doc/query"
    descriptor = os.open(folder, os.O_RDONLY)
    for depth in range(1, 5):
        os.mkdir("/".join(["y" * 100] * depth), dir_fd=descriptor)
    os.close(descriptor)
    bundle = load_bundle(folder.parents[2])
    assert set(fatal(bundle).values()) == {"cannot be read: File name too long."}
    assert candidate(bundle, "doc/query").standing is Standing.QUARANTINED
    shutil.rmtree(tmp_path / ("x" * 100))


def test_a_text_that_is_too_large_or_a_path_that_does_not_print_quarantines(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "raw")
    write_skill(root, "huge", skill_md("huge", "x" * MAX_FILE_BYTES))
    (root / "skills/raw").joinpath(os.fsdecode(b"\xff\n")).write_bytes(b"")
    bundle = load_bundle(root)
    assert [c.standing for c in bundle.layer.candidates.values()] == [Standing.QUARANTINED] * 2
    "".join(p.place + p.message for p in bundle.problems).encode()


def test_a_skill_still_lists_when_its_file_is_gone_but_gives_no_body(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "gone", "replaced", "folder")
    bundle = load_bundle(root)
    (root / "skills/gone/SKILL.md").unlink()
    (root / "skills/replaced/SKILL.md").unlink()
    (root / "skills/replaced/SKILL.md").mkdir()
    shutil.rmtree(root / "skills/folder")

    for name in ("gone", "replaced", "folder"):
        found = candidate(bundle, name)
        assert found.header is not None
        assert found.header.description == f"Does {name}."
        with pytest.raises(SkillChanged, match=r"SKILL\.md") as caught:
            read_body(found)
        assert caught.value.metadata == {"name": name}


def test_an_edit_is_a_change_until_the_next_load(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "doc/query")
    resource = root / "skills/doc/query/data.txt"
    resource.write_text("old")
    before = candidate(load_bundle(root), "doc/query")
    text = root / "skills/doc/query/SKILL.md"
    text.write_text(skill_md("doc/query", "Do it better.\n"))
    resource.write_text("new")

    with pytest.raises(SkillChanged):
        read_body(before)
    with pytest.raises(SkillChanged):
        read_file(before, "data.txt")
    after = candidate(load_bundle(root), "doc/query")
    assert read_body(after) == "Do it better.\n"
    assert read_file(after, "data.txt") == b"new"
    assert before.content_sha256 != after.content_sha256


def test_a_link_put_in_place_after_the_load_gives_nothing(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "doc/query")
    (root / "skills/doc/query/data.txt").write_text("data")
    found = candidate(load_bundle(root), "doc/query")
    # Even a link to the very bytes that were loaded is not followed.
    for path in ("SKILL.md", "data.txt"):
        file = root / "skills/doc/query" / path
        file.rename(tmp_path / path)
        file.symlink_to(tmp_path / path)
    with pytest.raises(SkillChanged, match="symbolic link"):
        read_body(found)
    with pytest.raises(SkillChanged, match="symbolic link"):
        read_file(found, "data.txt")

    other = write_bundle(tmp_path / "other")
    write_skill(other, "query", skill_md("query", "Secret.\n"))
    shutil.rmtree(root / "skills/doc")
    (root / "skills/doc").symlink_to(other / "skills", target_is_directory=True)
    with pytest.raises(SkillChanged, match="has changed"):
        read_body(found)


def test_the_content_digest_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    first = write_bundle(tmp_path / "b1", "doc/query")
    second = write_bundle(tmp_path / "b2", name="other")
    text = skill_md("doc/query", frontmatter="# a comment\n").replace("\n", "\r\n")
    (write_skill(second, "doc/query") / "SKILL.md").write_bytes(text.encode())
    digests = [candidate(load_bundle(root), "doc/query").content_sha256 for root in (first, second)]
    assert digests[0] == digests[1]
    for path in ("a.txt", "b.txt"):
        (second / "skills/doc/query" / path).write_text("same bytes")
        digests.append(candidate(load_bundle(second), "doc/query").content_sha256)
    (second / "skills/doc/query/a.txt").unlink()
    digests.append(candidate(load_bundle(second), "doc/query").content_sha256)
    assert len(set(digests)) == 4


def test_a_bundle_may_define_agents(tmp_path: Path) -> None:
    agents = (
        "agents:\n  doc-manager:\n    description: Keeps documents.\n    tools: []\n    skills: ['doc/*']\n  free: {}\n"
    )
    bundle = load_bundle(write_bundle(tmp_path / "b", agents=agents))
    assert [(agent.name, agent.kind, agent.origin) for agent in bundle.agents] == [
        ("doc-manager", LayerKind.BUNDLE, "bundle:core@1.10"),
        ("free", LayerKind.BUNDLE, "bundle:core@1.10"),
    ]
    assert [agent.tools for agent in bundle.agents] == [(), None]
    assert bundle.agents[0].allowlist.texts() == ["doc/*"]


def test_a_bundle_of_agents_alone_needs_no_skills_folder(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", agents="agents: {free: {}}\n")
    (root / "skills").rmdir()
    bundle = load_bundle(root)
    assert [problem.fatal for problem in bundle.problems] == [False]


def test_every_problem_of_a_manifest_is_listed_with_its_place(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b")
    (root / "bundle.yaml").write_text(
        "name: Core\nversion: 1/2\nlicence: MIT\nagents:\n  doc-manager:\n    skills: ['doc/*', 'Doc/*', '']\n"
        "    skill_def_scopes:\n    tools: Read\n  Bad: {}\n  flat: text\n"
    )
    problems = refused(root)
    assert list(problems) == [
        "bundle.yaml:3: licence",
        "bundle.yaml:1: description",
        "bundle.yaml:1: name",
        "bundle.yaml:2: version",
        "bundle.yaml:7: agents.doc-manager.skill_def_scopes",
        "bundle.yaml:8: agents.doc-manager.tools",
        "bundle.yaml:6: agents.doc-manager.skills[1]",
        "bundle.yaml:6: agents.doc-manager.skills[2]",
        "bundle.yaml:9: agents.Bad",
        "bundle.yaml:10: agents.flat",
    ]
    assert problems["bundle.yaml:1: description"] == "is missing."
    assert "delete the field" in problems["bundle.yaml:7: agents.doc-manager.skill_def_scopes"]


@pytest.mark.parametrize(
    ("content", "place", "part"),
    [
        (b"", "bundle.yaml:1: name", "is missing"),
        (b"- a\n", "bundle.yaml:1", "key: value"),
        (b"name: x\nname: y\n", "bundle.yaml:2", "twice"),
        (b"name: x\nversion: [1]\ndescription: ''\n", "bundle.yaml:2: version", "must be text"),
        (b"name: x\nversion: 1\ndescription: \xff\n", "bundle.yaml:3", "UTF-8"),
        (b"name: x\nversion: &v 1\ndescription: *v\n", "bundle.yaml:2", "anchors"),
        (b"name: x\nversion: 1\ndescription: d\nagents: []\n", "bundle.yaml:4: agents", "mapping"),
        (b"#" * (MAX_FILE_BYTES + 1), "bundle.yaml", "bytes"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(tmp_path: Path, content: bytes, place: str, part: str) -> None:
    root = write_bundle(tmp_path / "b")
    (root / "bundle.yaml").write_bytes(content)
    assert part in refused(root)[place]


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path)["bundle.yaml"]
    assert "No such file" in refused(tmp_path / "absent")["bundle.yaml"]
