"""An explanation laid out: every entry with what it did, what differs from the loser, and the text for people."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from substrate.domain.candidates import Candidate, LayerKind, SkillFile, Standing
from substrate.domain.explain import Deed, Difference, Explanation, Provenance, body_amount, differences_of, explain
from substrate.domain.explain_text import text_of
from substrate.domain.flips import flips
from substrate.domain.question import Question, answer
from substrate.domain.skillheader import SkillHeader
from tests.domain.test_changes import OWN
from tests.domain.test_question import ASKED, NAME, agent, version

AT = datetime(2026, 11, 30, 16, 2, tzinfo=timezone(timedelta(hours=2)))


def told(question: Question, **more: Provenance) -> Explanation:
    decided = answer(question)
    return explain(question, decided, state="now", provenance=more, flips=flips(question, decided))


@pytest.mark.parametrize(
    ("skills", "effects"),
    [
        (["own/*", "doc/*"], ["does not match", "decides: allowed"]),
        (["-doc/*", "doc/a"], ["decides: denied", "matches, but entry 0 has denied before"]),
        (["doc/*", "doc/a"], ["decides: allowed", "matches, but entry 0 matched before"]),
        (
            ["doc/a", "-doc/*"],
            ["decides: allowed", "matches, but is broader than entry 0, so it is no exception to it"],
        ),
        (["doc/*", "-doc/a"], ["matches first and allows, but a later exception denies", "decides: denied"]),
        (
            ["doc/*", "-doc/a", "-doc/?"],
            [
                "matches first and allows, but a later exception denies",
                "decides: denied",
                "matches, but entry 1 has decided before",
            ],
        ),
    ],
)
def test_every_entry_says_what_it_did(skills: list[str], effects: list[str]) -> None:
    found = told(replace(OWN, agent=agent(*skills)))
    assert [trial.effect for trial in found.trials] == effects
    assert [trial.entry for trial in found.trials] == skills
    assert sum(trial.decided for trial in found.trials) == 1
    for trial in found.trials:
        assert f"{trial.index}  {trial.entry}  {trial.effect}" in text_of(found)


def test_the_verdict_comes_first_and_then_who_is_behind_it() -> None:
    found = told(OWN, v1=Provenance(Deed("ada", AT, "event-1"), Deed("bob", AT)))
    lines = text_of(found).splitlines()
    assert lines[0].startswith("'doc/a' gives agent 'tester' tenant:v1 (the tenant's SkillDef), which shadows bundle:")
    assert lines[0].endswith("; entry 0 'doc/*' of its allowlist allows it.")
    assert lines[1] == "Why this one: a tenant's SkillDef comes before inline configuration, and that before bundles."
    assert lines[2:4] == [
        "Written by ada at 2026-11-30T14:02:00Z, event event-1.",
        "Approved (promoted) by bob at 2026-11-30T14:02:00Z.",
    ]
    assert "      substrate skilldef retire doc/a" in lines


def test_a_name_that_stands_for_nothing_says_by_whom() -> None:
    tombstone = Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DISABLED, problem="It\nState read: leaks.")
    found = told(replace(OWN, tombstone=tombstone), disabled=Provenance(Deed("ada", AT)))
    lines = text_of(found).splitlines()
    assert lines[0] == "'doc/a' does not resolve for agent 'tester': the tenant has disabled the name."
    assert lines[1] == "Disabled by ada at 2026-11-30T14:02:00Z."
    # A reason of several lines cannot pass for lines of ours.
    assert [line for line in lines if line.startswith("State read: ")] == ["State read: now"]


def test_what_is_passed_over_and_what_cannot_be_invoked_is_told() -> None:
    retired = replace(OWN, skill_def=version(1, Standing.RETIRED), retired=True)
    assert "what the tenant has is passed over (RETIRED)" in text_of(told(retired))
    needy = replace(OWN, agent=agent(tools=[]), skill_def=version(1, header=SkillHeader("a", "x", ("Bash",))))
    assert "It cannot be invoked as things are: The skill 'doc/a' needs tools" in text_of(told(needy))
    assert text_of(told(ASKED)).splitlines()[0].endswith("no layer has it.")
    assert "  none" in text_of(told(ASKED)).splitlines()


def test_what_differs_is_told_field_by_field_and_bodies_by_amount() -> None:
    winner = replace(
        version(1, header=SkillHeader("a", "Ours.", ("Read",), when_to_use="Often.")),
        files=(SkillFile("x", 1, "1"), SkillFile("y", 1, "2")),
        positional_base=1,
    )
    loser = replace(version(2, header=SkillHeader("a", "Theirs.")), files=(SkillFile("x", 1, "3"),))
    assert differences_of(winner, loser) == [
        Difference("allowed-tools", '["Read"]', "none"),
        Difference("description", '"Ours."', '"Theirs."'),
        Difference("when_to_use", '"Often."', "none"),
        Difference("positional-base", "1", "0"),
        Difference("files", "2 files, 2 added, removed or changed", "1 file"),
    ]
    assert body_amount("a\nb\nc\n", "a\nx\n") == Difference("body", "3 lines, +2 -1 lines", "2 lines")
    assert body_amount("- a\n++ b", "") == Difference("body", "2 lines, +2 -0 lines", "0 lines")
    assert body_amount("same", "same") is None


def test_times_are_told_in_utc() -> None:
    assert "at 2026-11-30T14:02:00Z" in text_of(told(OWN, v1=Provenance(Deed("ada", AT.astimezone(UTC)))))
