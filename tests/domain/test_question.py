"""A question answered: the gate first, then the layers, then whether this caller may, and the cause in one word."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import Candidate, Layer, LayerKind, Standing, Versions
from substrate.domain.catalog import NameMode, NameModes, StaticCatalog
from substrate.domain.eligibility import CallerKind
from substrate.domain.names import SkillName, TenantId, parse_skill_ref
from substrate.domain.patterns import parse_pattern
from substrate.domain.question import Cause, Question, answer, of_one_name
from substrate.domain.skillheader import SkillHeader

NAME = SkillName("doc/a")
HEADER = SkillHeader("a", "Does it.")


def version(number: int, standing: Standing = Standing.ACTIVE, header: SkillHeader = HEADER) -> Candidate:
    return Candidate(NAME, LayerKind.TENANT, f"tenant:v{number}", standing, header, f"{number}" * 64, number)


def bundled(header: SkillHeader = HEADER) -> StaticCatalog:
    origin = "bundle:core@1/skills/doc/a/SKILL.md"
    candidate = Candidate(NAME, LayerKind.BUNDLE, origin, header=header, content_sha256="b" * 64)
    return StaticCatalog((Layer(LayerKind.BUNDLE, "bundle:core", {NAME: candidate}),))


def agent(*skills: str, tools: list[str] | None = None, pins: Mapping[str, str] | None = None) -> Agent:
    data = {"skills": list(skills), "pins": pins or {}} | ({} if tools is None else {"tools": tools})
    return parse_agent("tester", data, LayerKind.TENANT, "tenant:r1")


ASKED = Question(TenantId("acme"), parse_skill_ref("doc/a"), agent("doc/*"))
LOCKED = NameModes([(parse_pattern("doc/*"), NameMode.LOCKED)])
NARROW = replace(HEADER, allowed_tools=("Bash",), paths=("src/**",), disable_model_invocation=True)

CASES = [
    (replace(ASKED, static=bundled()), "bundle:core@1/skills/doc/a/SKILL.md", "", None),
    (replace(ASKED, static=bundled(), skill_def=version(1)), "tenant:v1", "", None),
    (replace(ASKED, agent=None, skill_def=version(1)), "tenant:v1", "", None),
    (replace(ASKED, agent=agent("own/*"), skill_def=version(1)), "tenant:v1", "SKILL_NOT_PERMITTED", Cause.UNLISTED),
    (replace(ASKED, agent=agent("-doc/a"), skill_def=version(1)), "tenant:v1", "SKILL_NOT_PERMITTED", Cause.DENIED),
    (ASKED, None, "SKILL_NOT_FOUND", Cause.ABSENT),
    (replace(ASKED, skill_def=version(1, Standing.DRAFT)), None, "SKILL_NOT_FOUND", Cause.DRAFT),
    (replace(ASKED, skill_def=version(1, Standing.RETIRED)), None, "SKILL_NOT_FOUND", Cause.RETIRED),
    (replace(ASKED, skill_def=version(1, Standing.QUARANTINED)), None, "SKILL_QUARANTINED", Cause.QUARANTINED),
    (
        replace(ASKED, static=StaticCatalog((), LOCKED), skill_def=version(1)),
        None,
        "SKILL_NOT_FOUND",
        Cause.LOCKED,
    ),
    (
        replace(ASKED, tombstone=Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DISABLED), static=bundled()),
        None,
        "SKILL_NOT_FOUND",
        Cause.DISABLED,
    ),
    (
        replace(ASKED, agent=agent(tools=["Read"]), skill_def=version(1, header=NARROW)),
        "tenant:v1",
        "TOOLS_EXCEED_AGENT",
        Cause.TOOLS_EXCEED,
    ),
    (
        replace(ASKED, skill_def=version(1, header=NARROW)),
        "tenant:v1",
        "INVOCATION_NOT_ALLOWED",
        Cause.CALLER_EXCLUDED,
    ),
    (
        replace(ASKED, skill_def=version(1, header=NARROW), caller_kind=CallerKind.USER, touched_paths=("docs/a",)),
        "tenant:v1",
        "SKILL_INELIGIBLE",
        Cause.INELIGIBLE,
    ),
    (
        replace(ASKED, skill_def=version(1, header=NARROW), caller_kind=CallerKind.USER, touched_paths=("src/a",)),
        "tenant:v1",
        "",
        None,
    ),
    (replace(ASKED, suspended="Unpaid.", skill_def=version(1)), "tenant:v1", "TENANT_SUSPENDED", None),
]


@pytest.mark.parametrize(("question", "origin", "reason", "cause"), CASES)
def test_the_answer_has_winner_reason_and_cause(
    question: Question, origin: str | None, reason: str, cause: Cause | None
) -> None:
    told = answer(question)
    winner = told.resolution.winner
    assert (winner.origin if winner else None) == origin
    assert (told.reason, told.cause) == (reason, cause)
    assert (told.served is None) is (reason != "")


def test_every_cause_is_among_the_cases() -> None:
    assert {case[3] for case in CASES} == {None, *Cause}


def test_versions_are_reached_by_reference_and_pin_and_drafts_where_they_may_be() -> None:
    known = Versions({(NAME, 2): version(2, Standing.DRAFT)}, {NAME: {"staging": 2}})
    question = replace(ASKED, skill_def=version(1), versions=known)
    draft = replace(question, ref=parse_skill_ref("doc/a@v2"))
    assert answer(draft).reason == "VERSION_NOT_FOUND"
    assert answer(replace(draft, drafts=True)).reason == ""
    pinned = replace(question, agent=agent("doc/*", pins={NAME: "staging"}))
    found = answer(pinned).resolution
    assert (found.pin, found.winner and found.winner.version) == ("staging", 2)
    assert answer(replace(draft, agent=pinned.agent)).reason == ""
    lost = answer(replace(question, agent=agent("doc/*", pins={NAME: "nowhere"})))
    assert (lost.reason, lost.cause) == ("VERSION_NOT_FOUND", Cause.ABSENT)


def test_one_name_of_a_static_state_is_decided_as_in_the_whole() -> None:
    other = SkillName("doc/b")
    whole = bundled()
    more = {**whole.layers[0].candidates, other: Candidate(other, LayerKind.BUNDLE, "bundle:core")}
    large = StaticCatalog((replace(whole.layers[0], candidates=more), Layer(LayerKind.BUNDLE, "bundle:two", {})))
    assert of_one_name(large, NAME).layers == whole.layers
    assert answer(replace(ASKED, static=of_one_name(large, NAME))) == answer(replace(ASKED, static=large))
