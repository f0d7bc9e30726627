import shutil
from pathlib import Path

import pytest

from substrate.domain.catalog import Catalog, NameMode
from substrate.domain.errors import InvalidConfig, SkillChanged
from substrate.domain.names import AgentName, SkillName, SkillRef
from substrate.sources.static import SHIPPED, StaticState, load_static, read_body, shipped_bundles
from tests.sources.bundle_files import skill_md, write_bundle, write_skill

AGENTS = "agents:\n  reader: {description: From NAME.}\n  NAME: {}\n"


def agents(name: str) -> str:
    return AGENTS.replace("NAME", name)


def config(folder: Path, text: str) -> Path:
    path = folder / "substrate.yaml"
    path.write_text(text)
    return path


def winner(state: StaticState, name: str) -> str:
    found = Catalog((), state.catalog).resolve(SkillRef(SkillName(name))).winner
    assert found is not None
    return found.origin


def body(state: StaticState, name: str) -> str:
    found = Catalog((), state.catalog).resolve(SkillRef(SkillName(name))).winner
    assert found is not None
    return read_body(found)


def refused(path: Path) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load_static(path)
    return [violation.field.removeprefix(f"{path.parent}/") for violation in caught.value.violations]


def test_inline_comes_before_bundles_and_bundles_in_the_order_of_the_config(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b1", "doc/query", "doc/one", name="zulu", agents=agents("zulu"))
    write_bundle(tmp_path / "b2", "doc/query", "doc/one", "doc/two", name="alpha", agents=agents("alpha"))
    text = (
        "bundles: [b1, b2]\nskills: {doc/query: {description: Inline., body: Inline body.}}\n"
        "agents: {alpha: {description: Inline.}}\nname_modes: [{pattern: 'pay/*', mode: locked}]\n"
    )
    state = load_static(config(tmp_path, text))

    assert [layer.origin for layer in state.catalog.layers] == ["inline", "bundle:zulu@1.10", "bundle:alpha@1.10"]
    assert winner(state, "doc/query") == "inline:substrate.yaml#skills.doc/query"
    assert winner(state, "doc/one") == "bundle:zulu@1.10/skills/doc/one/SKILL.md"
    assert winner(state, "doc/two") == "bundle:alpha@1.10/skills/doc/two/SKILL.md"
    assert body(state, "doc/query") == "Inline body."
    assert body(state, "doc/two") == "Do it.\n"
    assert state.catalog.modes.mode_of(SkillName("pay/out")) is NameMode.LOCKED
    assert {name: agent.description for name, agent in state.agents.items()} == {
        "alpha": "Inline.",
        "reader": "From zulu.",
        "zulu": "",
    }
    assert [bundle.name for bundle in state.bundles] == ["zulu", "alpha"]

    turned = load_static(config(tmp_path, "bundles: [b2, b1]\n"))
    assert winner(turned, "doc/one") == "bundle:alpha@1.10/skills/doc/one/SKILL.md"
    assert turned.agents[AgentName("reader")].description == "From alpha."


def test_without_a_config_file_the_shipped_bundles_are_served() -> None:
    state = load_static(None)
    assert [bundle.name for bundle in state.bundles] == list(SHIPPED)
    assert state.problems == ()
    assert {"doc-manager", "writer", "marketer"} == set(state.agents)
    for name in state.catalog.resolutions:
        assert body(state, name)


def test_a_config_may_name_shipped_bundles(tmp_path: Path) -> None:
    state = load_static(config(tmp_path, "bundles: [shipped:writing]"))
    assert [bundle.root for bundle in state.bundles] == [shipped_bundles() / "writing"]


def test_all_problems_of_the_config_and_of_all_bundles_are_told_at_once(tmp_path: Path) -> None:
    write_bundle(tmp_path / "good")
    write_bundle(tmp_path / "bad")
    (tmp_path / "bad/bundle.yaml").write_text("name: Bad\nversion: 1\ndescription: Bad.\n")
    (tmp_path / "empty").mkdir()
    write_bundle(tmp_path / "same")
    path = config(tmp_path, "bundles: [good, bad, empty, same, absent]\nskills: {X: {description: A., body: B.}}\n")
    assert refused(path) == [
        "substrate.yaml:2: skills.X",
        "substrate.yaml:1: bundles[4]",
        "bad/bundle.yaml:1: name",
        "empty/bundle.yaml",
        "substrate.yaml:1: bundles[3]",
    ]


def test_a_bad_skill_stops_nothing_and_is_a_problem_of_the_state(tmp_path: Path) -> None:
    write_skill(write_bundle(tmp_path / "b1", "good"), "bad", "---\n")
    write_skill(write_bundle(tmp_path / "b2", name="other"), "bad", "---\n")
    state = load_static(config(tmp_path, "bundles: [b1, b2]"))
    assert winner(state, "good")
    assert [problem.place for problem in state.problems if problem.fatal] == [
        f"{tmp_path}/b1/skills/bad/SKILL.md:1",
        f"{tmp_path}/b2/skills/bad/SKILL.md:1",
    ]


def test_the_digest_does_not_depend_on_the_place_on_disk_or_the_spelling(tmp_path: Path) -> None:
    text = (
        "bundles: [b]\nskills: {a: {description: A., body: B.}}\nagents: {x: {}, y: {}}\n"
        "name_modes: [{pattern: '*', mode: open}]\n"
    )
    other = (
        "name_modes: [{pattern: '**', mode: open}]\nbundles: [{path: ./b}]\nagents: {y: {}, x: {}}\n"
        "skills:\n  a:\n    body: 'B.'\n    description: A.\n"
    )
    digests = []
    for folder, spelling in (("one", text), ("two", other)):
        root = write_bundle(tmp_path / folder / "b", "doc/query", "bad")
        (root / "skills/bad/SKILL.md").write_text("")
        digests.append(load_static(config(tmp_path / folder, spelling)).digest)
    assert digests[0] == digests[1]
    assert len(bytes.fromhex(digests[0])) == 32


CONFIG = """\
bundles: [b1, b2]
skills: {inline: {description: A., body: B.}}
agents: {x: {description: X., tools: [Read], skills: ["doc/*"]}}
name_modes: [{pattern: "pay/*", mode: locked}]
"""
CHANGES = [
    ("bundles: [b1, b2]", "bundles: [b2, b1]"),
    ("bundles: [b1, b2]", "bundles: [{path: b1, positional_base: 1}, b2]"),
    ("bundles: [b1, b2]", "bundles: [b1]"),
    ("description: A.", "description: AA."),
    ("body: B.", "body: BB."),
    ("body: B.", "body: B., positional_base: 1"),
    ("{inline:", "{inlined:"),
    ("description: X.", "description: XX."),
    ("tools: [Read]", "tools: [Read, Skill]"),
    ('["doc/*"]', '["doc/*", -doc/x]'),
    ("agents: {x:", "agents: {y:"),
    ('"pay/*"', '"pay/**"'),
    ("mode: locked", "mode: review"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=[new for _, new in CHANGES])
def test_the_digest_follows_every_change_of_the_config(tmp_path: Path, old: str, new: str) -> None:
    write_bundle(tmp_path / "b1", "doc/query", name="one")
    write_bundle(tmp_path / "b2", "doc/query", "doc/two", name="two")
    before = load_static(config(tmp_path, CONFIG)).digest
    assert old in CONFIG
    assert load_static(config(tmp_path, CONFIG.replace(old, new))).digest != before
    assert load_static(config(tmp_path, CONFIG)).digest == before


def test_the_digest_follows_every_change_of_a_bundle(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "doc/query", agents="agents: {x: {tools: []}}\n")
    path = config(tmp_path, "bundles: [b]")
    text = root / "skills/doc/query/SKILL.md"
    digests = [load_static(path).digest]

    def changed() -> bool:
        digests.append(load_static(path).digest)
        return digests[-1] not in digests[:-1]

    text.write_text(skill_md("doc/query", "Do more.\n"))
    assert changed()
    (root / "skills/doc/query/data.txt").write_text("data")
    assert changed()
    text.write_text("")
    assert changed()
    text.write_text("---\nuser-invocable: perhaps\n---\nBody.\n")
    assert changed()
    (root / "skills/doc/query").rename(root / "skills/doc/ask")
    assert changed()
    shutil.rmtree(root / "skills/doc")
    assert changed()
    manifest = (root / "bundle.yaml").read_text()
    (root / "bundle.yaml").write_text(manifest.replace("tools: []", "tools: [Read]"))
    assert changed()
    write_skill(root, "doc/query")
    assert changed()
    (root / "bundle.yaml").write_text(manifest.replace("version: 1.10", "version: 1.11"))
    assert changed()
    (root / "bundle.yaml").write_text(manifest)
    shutil.rmtree(root / "skills/doc")
    write_skill(root, "doc/query")
    assert load_static(path).digest == digests[0]


def test_an_edited_body_is_a_change_until_the_next_load(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b", "doc/query")
    path = config(tmp_path, "bundles: [b]")
    before = load_static(path)
    write_skill(root, "doc/query", skill_md("doc/query", "Do more.\n"))
    with pytest.raises(SkillChanged):
        body(before, "doc/query")
    after = load_static(path)
    assert body(after, "doc/query") == "Do more.\n"
    assert before.digest != after.digest


def test_no_body_of_a_bundle_stays_in_memory(tmp_path: Path) -> None:
    root = write_bundle(tmp_path / "b")
    write_skill(root, "doc/query", skill_md("doc/query", "A body to forget.\n"))
    assert "to forget" not in repr(load_static(config(tmp_path, "bundles: [b]")))
