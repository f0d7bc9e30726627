"""The skills that come with the product: what they are called, that they are sound, and that they work together."""

import re
from collections.abc import Iterator

import pytest

from substrate.domain.arguments import substitute
from substrate.domain.candidates import Candidate
from substrate.domain.names import AgentName
from substrate.domain.skillmd import content_sha256, parse_strict
from substrate.sources.bundles import read_file
from substrate.sources.static import SHIPPED, StaticState, load_static, read_body, shipped_bundles

NAMES = {
    "document-agent": [
        "doc/chunk-add",
        "doc/chunk-delete",
        "doc/chunk-move",
        "doc/chunk-review",
        "doc/chunk-update",
        "doc/document-export",
        "doc/document-import",
        "doc/document-summarize",
        "doc/query",
    ],
    "writing": ["writing/adversarial-review", "writing/linkedin-post", "writing/style-check"],
    "marketing": ["marketing/analyze-competitors"],
}
ALL_NAMES = [name for names in NAMES.values() for name in names]


@pytest.fixture(scope="module")
def shipped() -> StaticState:
    return load_static(None)


def skills(shipped: StaticState) -> Iterator[Candidate]:
    for bundle in shipped.bundles:
        yield from bundle.layer.candidates.values()


def test_the_bundles_hold_exactly_these_skills_and_nothing_is_wrong_with_them(shipped: StaticState) -> None:
    assert {bundle.name: list(bundle.layer.candidates) for bundle in shipped.bundles} == NAMES
    assert tuple(NAMES) == SHIPPED
    assert sorted(path.parent.name for path in shipped_bundles().glob("*/bundle.yaml")) == sorted(NAMES)
    assert shipped.problems == ()
    assert all(resolution.winner for resolution in shipped.catalog.resolutions.values())


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_skill_is_what_the_strict_rules_for_authors_accept(shipped: StaticState, name: str) -> None:
    skill = next(skill for skill in skills(shipped) if skill.name == name)
    text = (shipped_bundles().parent / skill.folder / "SKILL.md").read_bytes()
    parsed = parse_strict(text, name=name.rpartition("/")[2])
    assert parsed.diagnostics == ()
    files = [(file.path, file.sha256) for file in skill.files]
    assert content_sha256(parsed.header, parsed.body, files) == skill.content_sha256
    assert parsed.header.allowed_tools
    assert parsed.header.argument_hint
    assert parsed.header.extra == {}


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_skill_is_an_instruction_with_an_example_and_edge_cases(shipped: StaticState, name: str) -> None:
    body = read_body(next(skill for skill in skills(shipped) if skill.name == name))
    assert {"## Worked example", "## Edge cases", "## Stop when"} <= set(body.splitlines())
    mentioned = re.findall(rf"(?<![\w/.])(?:doc|{'|'.join(NAMES)})/[a-z-]+", body)
    assert set(mentioned) <= set(ALL_NAMES)


def test_agents_reach_skills_whose_tools_they_have(shipped: StaticState) -> None:
    reached = {}
    for agent in shipped.agents.values():
        assert agent.allowlist.warnings == ()
        admitted = [skill for skill in skills(shipped) if agent.allowlist.decide(skill.name).allowed]
        for skill in admitted:
            assert skill.header is not None
            assert agent.lacks(skill.header.allowed_tools or ()) == [], (agent.name, skill.name)
        reached[agent.name] = [skill.name for skill in admitted]
    assert reached == {
        "doc-manager": NAMES["document-agent"],
        "writer": ["writing/linkedin-post", "writing/style-check"],
        "marketer": ["writing/linkedin-post", *NAMES["marketing"]],
    }
    assert shipped.agents[AgentName("doc-manager")].allowlist.texts() == ["doc/*"]


def test_reference_files_are_what_their_skills_say_and_none_is_forgotten(shipped: StaticState) -> None:
    with_files = []
    for skill in skills(shipped):
        assert set(re.findall(r"references/[\w.-]+", read_body(skill))) == {file.path for file in skill.files}
        with_files += [skill.name for file in skill.files if read_file(skill, file.path).decode().startswith("# ")]
    assert with_files == ["doc/chunk-review", "writing/style-check", "marketing/analyze-competitors"]


@pytest.mark.parametrize("raw", ["", "handbook", "handbook c-7 before 'c 9' and more"])
@pytest.mark.parametrize("name", ALL_NAMES)
def test_arguments_find_their_places_and_escapes_go(shipped: StaticState, name: str, raw: str) -> None:
    skill = next(skill for skill in skills(shipped) if skill.name == name)
    header = skill.header
    assert header is not None
    text = substitute(
        read_body(skill), raw, declared=header.arguments, hint=header.argument_hint, skill_dir=f"skill://{name}"
    )
    assert "\\$" not in text
    assert "$ARGUMENTS" not in text
    assert "\nARGUMENTS: " not in text
    placeholders = re.findall(r"`\$\w+`", text)
    assert placeholders == ([] if raw or "$0" not in read_body(skill) else ["`$0`"])
