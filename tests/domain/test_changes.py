"""Changes that are supposed, the menu of those that would lead to another answer, and what they are called."""

from dataclasses import replace

import pytest

from substrate.domain.candidates import Candidate, LayerKind, Standing, Versions
from substrate.domain.catalog import NameMode, NameModes, StaticCatalog
from substrate.domain.changes import Change, ChangeKind, apply, apply_all
from substrate.domain.errors import InvalidInput
from substrate.domain.flips import MAX_FLIPS, flips
from substrate.domain.patterns import parse_pattern
from substrate.domain.question import Question, answer
from tests.domain.test_question import ASKED, NAME, agent, bundled, version

KNOWN = Versions({(NAME, 1): version(1), (NAME, 2): version(2, Standing.DRAFT)})
OWN = replace(ASKED, static=bundled(), skill_def=version(1), versions=KNOWN)


def kinds(question: Question) -> list[ChangeKind]:
    return [flip.change.kind for flip in flips(question)]


def test_a_version_that_is_promoted_is_no_draft_any_more() -> None:
    promoted = apply(OWN, Change(ChangeKind.PROMOTE, version=2))
    assert promoted.skill_def == version(2)
    assert promoted.versions.candidates[NAME, 2].standing is Standing.ACTIVE
    assert OWN.versions.candidates[NAME, 2].standing is Standing.DRAFT


def test_a_retired_skill_def_stays_retired_when_a_version_is_promoted() -> None:
    changes = [Change(ChangeKind.RETIRE), Change(ChangeKind.PROMOTE, version=2)]
    question = apply_all(OWN, changes)
    assert question.skill_def is not None
    assert (question.skill_def.version, question.skill_def.standing) == (2, Standing.RETIRED)
    assert apply(question, Change(ChangeKind.UNRETIRE)).skill_def == version(2)


def test_a_skill_def_without_a_version_in_effect_is_a_draft_again() -> None:
    draft = Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DRAFT)
    retired = apply(replace(ASKED, skill_def=draft), Change(ChangeKind.RETIRE))
    assert retired.skill_def == replace(draft, standing=Standing.RETIRED)
    assert apply(retired, Change(ChangeKind.UNRETIRE)).skill_def == draft


def test_what_is_quarantined_stays_so_until_another_version_is_promoted() -> None:
    corrupt = replace(OWN, skill_def=version(1, Standing.QUARANTINED))
    assert apply(corrupt, Change(ChangeKind.RETIRE)).skill_def == corrupt.skill_def
    assert apply(corrupt, Change(ChangeKind.PROMOTE, version=2)).skill_def == version(2)
    retired = replace(corrupt, retired=True)
    promoted = apply(retired, Change(ChangeKind.PROMOTE, version=2)).skill_def
    assert promoted == version(2, Standing.RETIRED)


def test_what_is_so_already_stays_as_it_is() -> None:
    locked = apply(OWN, Change(ChangeKind.LOCK))
    assert locked.mode is NameMode.LOCKED
    assert apply(locked, Change(ChangeKind.LOCK)) == locked
    reviewed = replace(OWN, static=StaticCatalog((), NameModes([(parse_pattern("doc/*"), NameMode.REVIEW)])))
    assert apply(reviewed, Change(ChangeKind.UNLOCK)) == reviewed
    tombstone = Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DISABLED, problem="It leaks.")
    disabled = replace(OWN, tombstone=tombstone)
    assert apply(disabled, Change(ChangeKind.DISABLE)).tombstone == tombstone
    assert apply(OWN, Change(ChangeKind.ENABLE)) == OWN


@pytest.mark.parametrize(
    ("question", "change", "field"),
    [
        (OWN, Change(ChangeKind.PROMOTE, version=3), "version"),
        (OWN, Change(ChangeKind.ADD_ENTRY, entry="Doc/*"), "entry"),
        (OWN, Change(ChangeKind.ADD_ENTRY, entry="doc/a", index=2), "index"),
        (OWN, Change(ChangeKind.SET_ALLOWLIST, entries=("doc/*", " ")), "entries[1]"),
        (OWN, Change(ChangeKind.QUALIFY), "qualifier"),
        (OWN, Change(ChangeKind.QUALIFY, qualifier="v0"), "qualifier"),
        (replace(OWN, agent=None), Change(ChangeKind.SET_ALLOWLIST), "kind"),
        (ASKED, Change(ChangeKind.RETIRE), "kind"),
        (ASKED, Change(ChangeKind.UNRETIRE), "kind"),
        (ASKED, Change(ChangeKind.PROMOTE, version=1), "kind"),
    ],
)
def test_what_cannot_be_applied_names_its_field(question: Question, change: Change, field: str) -> None:
    with pytest.raises(InvalidInput) as failed:
        apply(question, change, "changes[4]")
    assert [violation.field for violation in failed.value.violations] == [f"changes[4].{field}"]


def test_the_menu_of_a_skill_that_is_served() -> None:
    told = flips(OWN)
    assert [(flip.change.kind, flip.answer.reason) for flip in told] == [
        (ChangeKind.ADD_ENTRY, "SKILL_NOT_PERMITTED"),
        (ChangeKind.RETIRE, ""),
        (ChangeKind.PROMOTE, ""),
        (ChangeKind.DISABLE, "SKILL_NOT_FOUND"),
        (ChangeKind.QUALIFY, ""),
        (ChangeKind.LOCK, ""),
    ]
    commands = {flip.change.kind: flip.command for flip in told}
    assert commands[ChangeKind.RETIRE] == "substrate skilldef retire doc/a"
    assert commands[ChangeKind.PROMOTE] == "substrate skilldef promote doc/a 2"
    assert commands[ChangeKind.QUALIFY] == "substrate skill invoke doc/a@bundle --agent tester"
    assert "name_modes" in told[-1].text


@pytest.mark.parametrize(
    ("skills", "entries"),
    [
        (["own/*"], ["own/*", "doc/a"]),
        (["-doc/*", "own/*"], ["doc/a", "-doc/*", "own/*"]),
        (["doc/*", "-doc/*"], ["doc/a", "doc/*", "-doc/*"]),
        # An exact deny cannot be overruled by an allow.
        (["doc/*", "-doc/a"], ["doc/*"]),
        (["-doc/a", "own/*"], ["own/*", "doc/a"]),
        (["-doc/a", "doc/**", "-doc/a"], ["doc/**"]),
    ],
)
def test_an_entry_is_put_where_it_takes_effect(skills: list[str], entries: list[str]) -> None:
    denied = replace(OWN, agent=agent(*skills))
    (flip,) = flips(denied)
    after = apply(denied, flip.change)
    assert after.agent is not None
    assert after.agent.allowlist.texts() == entries
    assert flip.answer == answer(after)
    assert flip.answer.refusal is None


def test_an_allow_in_a_list_that_only_denies_is_marked_as_what_it_is() -> None:
    (flip,) = flips(replace(OWN, agent=agent("-doc/*")))
    assert "every name that no entry matches is denied from then on" in flip.text


def test_what_changes_nothing_is_not_offered() -> None:
    assert kinds(replace(OWN, suspended="")) == []
    assert ChangeKind.RETIRE not in kinds(replace(ASKED, static=bundled()))
    assert kinds(ASKED) == []
    # Beneath a lock the tenant has no say.
    locked = apply(OWN, Change(ChangeKind.LOCK))
    assert kinds(locked) == [ChangeKind.ADD_ENTRY, ChangeKind.UNLOCK]


def test_there_are_never_many() -> None:
    versions = Versions({(NAME, number): version(number) for number in range(1, 60)})
    told = flips(replace(OWN, versions=versions))
    assert len(told) <= MAX_FLIPS
    assert len({flip.change for flip in told}) == len(told)
