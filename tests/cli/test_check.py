from pathlib import Path

from tests.cli.commands import CommandLine
from tests.sources.bundle_files import write_bundle, write_skill

BAD_CONFIG = """\
bundles: [shipped:nothing]
skills:
  doc/own:
    description: Own.
    bodi: text
agents:
  lost:
    skill_def_scopes: []
  odd:
    skills: ["Doc/*", "doc/ok"]
name_modes:
  - {pattern: "doc/*", mode: shut}
colour: red
"""


def test_the_shipped_bundles_are_clean(command: CommandLine) -> None:
    checked = command.ok("check")
    assert (checked.text, checked.err) == ("13 skills, 3 agents; 0 problems, 0 remarks.\n", "")
    assert command.ok("check", "--json").json == {"findings": [], "skills": 13, "agents": 3}


def test_a_bad_file_of_a_folder_is_quarantined_and_the_rest_is_looked_at(command: CommandLine, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "core", "ops/good")
    write_skill(bundle, "ops/bad", "---\nname: bad\ndescription: Bad.\nallowed-tools: {a: b}\n---\nBody.\n")
    write_skill(bundle, "ops/other", "---\nname: another\ndescription: Other.\n---\nBody.\n")
    checked = command("check", str(bundle))
    quarantined, noted, summary = checked.text.splitlines()
    assert (checked.code, checked.err) == (1, "")
    assert quarantined.startswith(f"quarantined: {bundle}/skills/ops/bad/SKILL.md:4: allowed-tools: ")
    assert noted.startswith(f"noted: {bundle}/skills/ops/other/SKILL.md:2: name: ")
    assert summary == "2 skills, 0 agents; 1 problems, 1 remarks."
    as_json = command("check", str(bundle), "--json")
    assert as_json.code == 1
    assert [finding["kind"] for finding in as_json.json["findings"]] == ["quarantined", "noted"]


def test_remarks_alone_are_no_failure(command: CommandLine, tmp_path: Path) -> None:
    agents = "agents:\n  ops: {skills: [ops/*, ops/good, ops/g*]}\n"
    checked = command.ok("check", str(write_bundle(tmp_path / "core", "ops/good", agents=agents)))
    first, second, summary = checked.text.splitlines()
    assert first.startswith("warning: bundle:core@1.10: agents.ops.skills[1]: 'ops/good' ")
    assert second.startswith("warning: bundle:core@1.10: agents.ops.skills[2]: 'ops/g*' ")
    assert summary == "1 skills, 1 agents; 0 problems, 2 remarks."


def test_a_bad_config_is_refused_with_every_problem_and_its_place(command: CommandLine, tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    config.write_text(BAD_CONFIG)
    checked = command("check", "--config", str(config))
    assert checked.code == 1
    *refused, summary = checked.text.splitlines()
    places = [line.removeprefix(f"refused: {config}:").partition(": ")[::2] for line in refused]
    assert sorted((int(line), text.partition(": ")[0]) for line, text in places) == [
        (1, "bundles[0]"),
        (3, "skills.doc/own.body"),
        (5, "skills.doc/own.bodi"),
        (8, "agents.lost.skill_def_scopes"),
        (10, "agents.odd.skills[0]"),
        (12, "name_modes[0].mode"),
        (13, "colour"),
    ]
    assert "move its patterns into the agent's `skills` allowlist, or delete the field" in checked.text
    assert summary == "0 skills, 0 agents; 7 problems, 0 remarks."


def test_folders_that_are_no_bundles_or_are_called_the_same(command: CommandLine, tmp_path: Path) -> None:
    nothing = command("check", str(tmp_path / "a"), str(tmp_path / "b"))
    assert nothing.code == 1
    assert [line.partition("/bundle.yaml: ")[0] for line in nothing.text.splitlines()[:-1]] == [
        f"refused: {tmp_path}/{name}" for name in "ab"
    ]
    same = [str(write_bundle(tmp_path / name, "ops/good")) for name in ("c", "d")]
    assert f"The bundles in {same[0]} and {same[1]} are both called core." in command("check", *same).text


def test_wrong_usage(command: CommandLine, tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    config.write_text("")
    assert "not both" in command.misused("check", str(tmp_path), "--config", str(config))
    assert "is a file" in command.misused("check", str(config))
