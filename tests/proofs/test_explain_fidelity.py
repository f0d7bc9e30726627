"""Proof: an explanation is true. It names what a call gets, a record replays to itself, each change it offers works.

The full proof looks at 5,000 worlds: ``EXPLAIN_EXAMPLES=5000 pytest tests/proofs/test_explain_fidelity.py``.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from substrate.domain import flips as menu
from substrate.domain import replay
from substrate.domain.agents import Agent
from substrate.domain.candidates import Resolution
from substrate.domain.changes import Change, ChangeKind, apply
from substrate.domain.eligibility import CallerKind, reached
from substrate.domain.explain import explain
from substrate.domain.explain_text import text_of
from substrate.domain.flips import flips
from substrate.domain.question import Question, answer
from substrate.domain.replay import made_again
from substrate.services import skills
from tests.proofs.one_name import World, called, worlds

EXAMPLES = int(os.environ.get("EXPLAIN_EXAMPLES", "300"))

each_world = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def faults(world: World) -> list[str]:
    """Return everything in which an explanation of the world is not true."""
    got, question = called(world), world.question
    told = answer(question)
    found = []
    reason = got.refusal.reason if got.refusal else ""
    if (told.reason, told.served) != (reason, got.served):
        found.append(f"explained as {told.reason or told.served}, and the call got {reason or got.served}")
    if told.decision != got.trace.decision:
        found.append(f"the allowlist is said to decide {told.decision}, and decided {got.trace.decision}")
    if got.trace.resolution is not None and told.resolution != got.trace.resolution:
        found.append("the candidates are not those that were looked at")
    if (told.cause is None) is not (reason == ""):
        found.append(f"{reason or 'a success'} has the cause {told.cause}")
    offered = flips(question, told)
    for flip in offered:
        after = called(world.after(flip.change))
        if after.served == got.served:
            found.append(f"{flip.change} changes nothing")
        if (flip.answer.reason, flip.answer.served) != (after.refusal.reason if after.refusal else "", after.served):
            found.append(f"{flip.change} is said to lead to {flip.answer.reason or flip.answer.served}, and does not")
        if answer(apply(question, flip.change)).served == told.served:
            found.append(f"{flip.change} does not flip when applied to the question")
    text = text_of(explain(question, told, state="now", flips=offered))
    found += [f"the text says nothing of {flip.text}" for flip in offered if flip.text not in text]
    return found


def replay_faults(world: World) -> list[str]:
    """Return what keeps the call's event from being decided again as it was, from kept texts alone."""
    got = called(world)
    kept = replace(got.kept, stored=world.present.stored())
    _, again, found = made_again(got.event, kept)
    if again.reason != (got.refusal.reason if got.refusal else ""):
        found.append(f"made again it ends as {again.reason or 'allowed'}")
    if got.admitted is not None and again.served != got.served:
        found.append(f"made again it gives {again.served}")
    return found


@each_world
@given(world=worlds())
def test_an_explanation_is_what_a_call_gets_and_each_change_that_it_offers_flips_it(world: World) -> None:
    assert faults(world) == []


@each_world
@given(world=worlds())
def test_a_recorded_decision_made_again_from_what_was_kept_is_the_same(world: World) -> None:
    assert replay_faults(world) == []


def test_the_worlds_are_of_every_kind() -> None:
    """Every way to end comes about, and every change of the menu is offered."""
    ends: Counter[str] = Counter()
    offered: Counter[ChangeKind] = Counter()

    @settings(each_world, max_examples=300, phases=[Phase.generate])
    @given(world=worlds())
    def look(world: World) -> None:
        got = called(world)
        ends[got.refusal.reason if got.refusal else "OK"] += 1
        offered.update(flip.change.kind for flip in flips(world.question))

    look()
    assert set(ends) == {
        *("OK", "SKILL_NOT_PERMITTED", "SKILL_NOT_FOUND", "VERSION_NOT_FOUND", "SKILL_QUARANTINED"),
        *("TOOLS_EXCEED_AGENT", "INVOCATION_NOT_ALLOWED", "SKILL_INELIGIBLE"),
    }
    assert set(offered) == set(ChangeKind)


def _without_tools(resolution: Resolution, _agent: Agent | None, kind: CallerKind, touched: Sequence[str]) -> Any:
    return reached(resolution, None, kind, touched)


def _disabling(question: Question, change: Change, place: str = "changes[0]") -> Question:
    disables = change.kind is ChangeKind.RETIRE
    return apply(question, Change(ChangeKind.DISABLE) if disables else change, place)


@pytest.mark.parametrize(
    ("module", "name", "mutant", "look"),
    [
        (skills, "reached", _without_tools, faults),
        (menu, "apply", _disabling, faults),
        (replay, "_labels", lambda *_: {}, replay_faults),
        (replay, "_parts", lambda own: (None, own[0] if own else None, None), replay_faults),
    ],
    ids=["calls disregard tools", "a change is another one", "labels are forgotten", "tombstones are forgotten"],
)
def test_an_explanation_that_is_not_true_is_found(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, mutant: Any, look: Callable[[World], list[str]]
) -> None:
    monkeypatch.setattr(module, name, mutant)
    generating = settings(max_examples=2000, deadline=None, phases=[Phase.generate], derandomize=True, database=None)
    find(worlds(), lambda world: bool(look(world)), settings=generating)
