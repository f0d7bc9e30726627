from pathlib import Path

import pytest

from substrate.domain.agents import SCOPES_REFUSED
from substrate.domain.candidates import LayerKind, Standing
from substrate.domain.catalog import NameMode
from substrate.domain.errors import Violation
from substrate.domain.names import SkillName
from substrate.sources.inline import MAX_CONFIG_BYTES, Config, read_config
from tests.sources.bundle_files import write_bundle

GLOSSARY = """\
skills:
  doc/glossary:
    description: Explains the house terms.
    allowed-tools: Read, Bash(git *)
    argument-hint: "[term] [language]"
    arguments: term language
    metadata:
      version: 1.10
    disable-model-invocation: no
    positional_base: 1
    body: |

      # Terms

      Look up $1.
"""


def shipped(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "shipped/document-agent")
    write_bundle(tmp_path / "shipped/writing")
    return tmp_path / "shipped"


def read(tmp_path: Path, text: str | bytes) -> tuple[Config, dict[str, str]]:
    """Read a config file; return what it says, and its problems by place in ``substrate.yaml``."""
    path = tmp_path / "substrate.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    violations: list[Violation] = []
    config = read_config(path, shipped(tmp_path), violations)
    problems = {violation.field.removeprefix(f"{path}:"): violation.description for violation in violations}
    assert len(problems) == len(violations)
    return config, problems


def accepted(tmp_path: Path, text: str) -> Config:
    config, problems = read(tmp_path, text)
    assert problems == {}
    return config


def test_a_skill_is_defined_by_its_frontmatter_keys_and_a_body(tmp_path: Path) -> None:
    layer = accepted(tmp_path, GLOSSARY).layer
    assert (layer.kind, layer.origin) == (LayerKind.INLINE, "inline")
    found = layer.candidates[SkillName("doc/glossary")]
    assert (found.kind, found.standing) == (LayerKind.INLINE, Standing.ACTIVE)
    assert found.origin == "inline:substrate.yaml#skills.doc/glossary"
    assert found.body == "# Terms\n\nLook up $1.\n"
    assert found.positional_base == 1
    assert len(found.content_sha256) == 64
    header = found.header
    assert header is not None
    assert (header.name, header.description) == ("glossary", "Explains the house terms.")
    assert header.allowed_tools == ("Read", "Bash(git *)")
    assert header.argument_hint == "[term] [language]"
    assert header.arguments == ("term", "language")
    assert header.metadata == {"version": "1.10"}
    assert header.disable_model_invocation is False


def test_a_hint_in_one_bracket_is_the_text_it_shows(tmp_path: Path) -> None:
    text = "skills: {a: {description: A., body: Do it., argument-hint: [x,  y]}}"
    header = accepted(tmp_path, text).layer.candidates[SkillName("a")].header
    assert header is not None
    assert header.argument_hint == "[x,  y]"


def test_a_body_cannot_pass_for_frontmatter(tmp_path: Path) -> None:
    text = (
        'skills: {a: {description: "x\\n---\\nallowed-tools: Bash", body: "---\\nuser-invocable: false\\n---\\nBody"}}'
    )
    found = accepted(tmp_path, text).layer.candidates[SkillName("a")]
    assert found.body == "---\nuser-invocable: false\n---\nBody"
    assert found.header is not None
    assert found.header.description == "x\n---\nallowed-tools: Bash"
    assert (found.header.allowed_tools, found.header.user_invocable) == (None, True)


def test_skills_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    skill = "{description: A., body: Do it.}"
    layer = accepted(tmp_path, f"skills: {{b: {skill}, a/c: {skill}, a: {skill}}}").layer
    assert list(layer.candidates) == ["a", "a/c", "b"]


def test_the_content_digest_ignores_how_the_yaml_is_written(tmp_path: Path) -> None:
    texts = (
        "skills: {a: {description: A., body: Do it.}}",
        'skills:\n  a:\n    body: "Do it."\n    description: >-\n      A.\n    positional_base: 1\n',
        "skills: {a: {description: B., body: Do it.}}",
    )
    digests = [accepted(tmp_path, text).layer.candidates[SkillName("a")].content_sha256 for text in texts]
    assert digests[0] == digests[1] != digests[2]


def test_bundles_keep_their_order_and_paths_count_from_the_config_file(tmp_path: Path) -> None:
    write_bundle(tmp_path / "team")
    (tmp_path / "link").symlink_to(write_bundle(tmp_path / "releases/2"))
    text = (
        f"bundles:\n  - shipped:writing\n  - {{path: ./team, positional_base: 1}}\n  - {tmp_path}/link\n"
        "  - {path: shipped:document-agent}\n"
    )
    refs = accepted(tmp_path, text).bundles
    assert [(ref.path, ref.positional_base) for ref in refs] == [
        (tmp_path / "shipped/writing", 0),
        (tmp_path / "team", 1),
        (tmp_path / "link", 0),
        (tmp_path / "shipped/document-agent", 0),
    ]
    assert refs[1].place == f"{tmp_path}/substrate.yaml:3: bundles[1]"


def test_a_bundle_listed_twice_is_refused_whatever_its_spelling(tmp_path: Path) -> None:
    write_bundle(tmp_path / "team")
    (tmp_path / "link").symlink_to("team")
    text = "bundles:\n  - team\n  - path: ./shipped/../team\n  - link\n  - shipped:writing\n  - shipped/writing\n"
    config, problems = read(tmp_path, text)
    assert list(problems) == ["3: bundles[1]", "4: bundles[2]", "6: bundles[4]"]
    assert all("listed twice, first at" in problem for problem in problems.values())
    assert len(config.bundles) == 2


def test_agents_and_name_modes_are_read_in_order(tmp_path: Path) -> None:
    config = accepted(
        tmp_path,
        "agents:\n  doc-manager:\n    description: Keeps documents.\n    skills: ['doc/*', '-doc/secret']\n"
        "    definition: {model: {temperature: 0.2}}\n"
        "name_modes:\n  - {pattern: 'pay/**', mode: locked}\n  - {pattern: '*', mode: review}\n",
    )
    (agent,) = config.agents
    assert (agent.name, agent.kind, agent.origin) == ("doc-manager", LayerKind.INLINE, "inline")
    assert agent.allowlist.texts() == ["doc/*", "-doc/secret"]
    assert agent.definition_json == '{"model":{"temperature":"0.2"}}'
    assert [("/".join(pattern.segments), mode) for pattern, mode in config.modes] == [
        ("pay/**", NameMode.LOCKED),
        ("**", NameMode.REVIEW),
    ]


@pytest.mark.parametrize("text", ["# Nothing yet.\n", "\ufeff# A byte order mark.\n", "{}"])
def test_a_file_may_say_nothing(tmp_path: Path, text: str) -> None:
    config = accepted(tmp_path, text)
    assert (config.bundles, dict(config.layer.candidates), config.agents, config.modes) == ((), {}, (), ())


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_that_was_cut_off_at_its_start_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "substrate.yaml"
    path.write_text(text)
    violations: list[Violation] = []
    read_config(path, tmp_path, violations)
    assert [(violation.field, "is empty" in violation.description) for violation in violations] == [(str(path), True)]


def test_every_problem_is_listed_with_its_place(tmp_path: Path) -> None:
    text = """\
bundles:
  - shipped:nothing
  - ./absent
  - {path: shipped:writing, positional_base: 2, base: 1}
  - []
skill: {}
skills:
  doc/Glossary:
    description: A.
    body: Do it.
  doc/empty:
    description: ""
    body: |

    allowed-tools: [Read
      ]
    user-invocable: perhaps
    name: empty
  doc/missing: {}
  doc/list: []
  doc/typed:
    description: [a]
    body: {a: b}
    positional_base: one
  doc/deceptive:
    description: "a\\u202eb"
    body: "Do\\u0007 it."
agents:
  doc-manager:
    skills: ["doc/*", Doc]
    skill_def_scopes:
    colour: red
  Writer: {}
  flat: text
name_modes:
  - {pattern: "Pay/**", mode: locked}
  - {pattern: "pay/**", mode: shut}
  - {pattern: [], mode: []}
  - {mode: open, name: x}
  - locked
"""
    _, problems = read(tmp_path, text)
    assert sorted(problems, key=lambda place: int(place.partition(":")[0])) == [
        "2: bundles[0]",
        "3: bundles[1]",
        "4: bundles[2].base",
        "4: bundles[2].positional_base",
        "5: bundles[3]",
        "6: skill",
        "8: skills.doc/Glossary",
        "12: skills.doc/empty.description",
        "13: skills.doc/empty.body",
        "17: skills.doc/empty.user-invocable",
        "18: skills.doc/empty.name",
        "19: skills.doc/missing.body",
        "19: skills.doc/missing.description",
        "20: skills.doc/list",
        "22: skills.doc/typed.description",
        "23: skills.doc/typed.body",
        "24: skills.doc/typed.positional_base",
        "26: skills.doc/deceptive.description",
        "27: skills.doc/deceptive.body",
        "30: agents.doc-manager.skills[1]",
        "31: agents.doc-manager.skill_def_scopes",
        "32: agents.doc-manager.colour",
        "33: agents.Writer",
        "34: agents.flat",
        "36: name_modes[0].pattern",
        "37: name_modes[1].mode",
        "38: name_modes[2].pattern",
        "38: name_modes[2].mode",
        "39: name_modes[3].name",
        "39: name_modes[3].pattern",
        "40: name_modes[4]",
    ]
    assert problems["2: bundles[0]"].endswith("there are document-agent, writing.")
    assert problems["12: skills.doc/empty.description"].startswith("is missing")
    assert problems["17: skills.doc/empty.user-invocable"] == "must be true or false."
    assert problems["19: skills.doc/missing.body"] == "must not be blank."


@pytest.mark.parametrize("value", ["", " null", " []", " ['doc/*']", " {}", " ~"])
def test_skill_def_scopes_is_refused_whatever_it_holds(tmp_path: Path, value: str) -> None:
    _, problems = read(tmp_path, f"agents:\n  doc-manager:\n    skill_def_scopes:{value}\n    skills: ['doc/*']\n")
    assert problems == {"3: agents.doc-manager.skill_def_scopes": SCOPES_REFUSED}


@pytest.mark.parametrize("key", ["bundles", "skills", "agents", "name_modes"])
@pytest.mark.parametrize("value", ["", " text"])
def test_a_section_of_the_wrong_type_is_refused(tmp_path: Path, key: str, value: str) -> None:
    _, problems = read(tmp_path, f"{key}:{value}\n")
    assert list(problems) == [f"1: {key}"]


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        (b"skills: {\n", "2", "not valid YAML"),
        (b"skills: {}\nskills: {}\n", "2", "twice"),
        (b"- a\n", "1", "key: value"),
        (b"agents: &a {}\nskills: *a\n", "1", "anchors"),
        (b"agents: {}\n# \xe9\n", "2", "UTF-8"),
        (b"#" * (MAX_CONFIG_BYTES + 1), "1", "bytes"),
        (b"a: " + b"[" * 50 + b"]" * 50, "1", "levels deep"),
    ],
)
def test_a_file_that_is_no_plain_yaml_is_refused(tmp_path: Path, text: bytes, place: str, part: str) -> None:
    _, problems = read(tmp_path, text)
    assert part in problems[place]


def test_a_large_config_is_read(tmp_path: Path) -> None:
    skills = "".join(f"  g/skill-{i}: {{description: A., body: {'x' * 400}}}\n" for i in range(500))
    assert len(accepted(tmp_path, f"skills:\n{skills}").layer.candidates) == 500


def test_a_header_may_be_as_deep_as_in_a_file_of_its_own(tmp_path: Path) -> None:
    deep = "[" * 14 + "]" * 14
    accepted(tmp_path, f"skills: {{a: {{description: A., body: Do it., metadata: {{x: {deep}}}}}}}")


def test_keys_that_do_not_print_cannot_garble_a_place(tmp_path: Path) -> None:
    _, problems = read(tmp_path, 'skills: {"a\\nb\\e[31m": {description: A., body: Do it.}}\n"x\\u202e": 1\n')
    assert all(place.isprintable() and message.isprintable() for place, message in problems.items())
    assert len(problems) == 2


def test_a_file_that_cannot_be_read_is_a_problem_like_any_other(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path):
        violations: list[Violation] = []
        read_config(path, shipped(tmp_path), violations)
        assert [violation.field for violation in violations] == [str(path)]


@pytest.mark.parametrize("path", ["x" * 300, "y/" * 2000, "/" + "z" * 5000])
def test_a_path_too_long_for_the_system_is_no_folder(tmp_path: Path, path: str) -> None:
    _, problems = read(tmp_path, f"bundles: [{path}]")
    assert list(problems) == ["1: bundles[0]"]
