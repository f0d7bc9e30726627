"""What an agent's pins make of a name, over every standing that the tenant's SkillDef can have."""

import pytest

from substrate.domain.candidates import Candidate, CandidateState, Layer, LayerKind, Outcome, Standing, Versions
from substrate.domain.catalog import Catalog, NameMode, NameModes, StaticCatalog
from substrate.domain.names import SkillName, SkillRef, parse_skill_ref
from substrate.domain.patterns import parse_pattern

NAME = SkillName("doc/skill")
BUNDLED = Candidate(NAME, LayerKind.BUNDLE, "bundle:core@1", content_sha256="b")


def version(number: int, standing: Standing = Standing.ACTIVE) -> Candidate:
    return Candidate(NAME, LayerKind.TENANT, f"tenant:v{number}", standing, version=number, content_sha256=str(number))


def catalog(
    own: Candidate | None,
    *versions: Candidate,
    labels: dict[str, int] | None = None,
    mode: NameMode = NameMode.OPEN,
    tombstone: bool = False,
) -> Catalog:
    disabled = Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DISABLED)
    layers = [
        Layer(LayerKind.TENANT, "tenant:disabled", {NAME: disabled} if tombstone else {}),
        Layer(LayerKind.TENANT, "tenant", {NAME: own} if own else {}),
    ]
    below = StaticCatalog(
        (Layer(LayerKind.BUNDLE, "bundle:core@1", {NAME: BUNDLED}),), NameModes([(parse_pattern("doc/*"), mode)])
    )
    pinned = {(NAME, candidate.version or 0): candidate for candidate in versions}
    return Catalog(layers, below, Versions(pinned, {NAME: labels or {}}))


DRAFT = Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DRAFT)


@pytest.mark.parametrize("pin", ["v2", "staging"])
@pytest.mark.parametrize(
    ("own", "of_version", "mode", "above", "outcome"),
    [
        (version(1), Standing.ACTIVE, NameMode.OPEN, None, Outcome.RESOLVED),
        (version(1), Standing.DRAFT, NameMode.OPEN, None, Outcome.RESOLVED),
        (DRAFT, Standing.DRAFT, NameMode.OPEN, None, Outcome.RESOLVED),
        (version(1), Standing.ACTIVE, NameMode.REVIEW, None, Outcome.RESOLVED),
        (version(1), Standing.DRAFT, NameMode.REVIEW, None, Outcome.DRAFT),
        (DRAFT, Standing.DRAFT, NameMode.REVIEW, None, Outcome.DRAFT),
        (version(1), Standing.QUARANTINED, NameMode.OPEN, None, Outcome.QUARANTINED),
        (version(1, Standing.RETIRED), Standing.ACTIVE, NameMode.OPEN, None, Outcome.RETIRED),
        (version(1, Standing.RETIRED), Standing.DRAFT, NameMode.OPEN, None, Outcome.RETIRED),
        (version(1, Standing.QUARANTINED), Standing.ACTIVE, NameMode.OPEN, None, Outcome.QUARANTINED),
        (version(1), Standing.ACTIVE, NameMode.OPEN, Standing.DISABLED, Outcome.DISABLED),
        (DRAFT, Standing.DRAFT, NameMode.OPEN, Standing.DISABLED, Outcome.DISABLED),
        (version(1), Standing.ACTIVE, NameMode.LOCKED, None, Outcome.LOCKED),
    ],
)
def test_a_pin_reaches_a_version_or_nothing(
    own: Candidate, of_version: Standing, mode: NameMode, above: Standing | None, outcome: Outcome, pin: str
) -> None:
    pinned = version(2, of_version)
    view = catalog(own, pinned, labels={"staging": 2}, mode=mode, tombstone=above is Standing.DISABLED)
    found = view.resolve_for(NAME, {NAME: pin})
    assert (found.outcome, found.pin, found.ref) == (outcome, pin, SkillRef(NAME))
    assert found.winner == (pinned if outcome is Outcome.RESOLVED else None)


def test_a_pin_to_the_active_version_picks_that() -> None:
    active = version(3)
    found = catalog(active).resolve_for(NAME, {NAME: "v3"})
    assert (found.winner, found.pin) == (active, "v3")


@pytest.mark.parametrize("own", [None, version(1), DRAFT])
@pytest.mark.parametrize("pin", ["v9", "nowhere"])
def test_a_pin_to_nothing_never_falls_back(own: Candidate | None, pin: str) -> None:
    found = catalog(own).resolve_for(NAME, {NAME: pin})
    assert (found.outcome, found.winner, found.pin) == (Outcome.ABSENT, None, pin)


def test_a_tombstone_says_so_also_when_the_label_is_gone() -> None:
    assert catalog(version(1), tombstone=True).resolve_for(NAME, {NAME: "nowhere"}).outcome is Outcome.DISABLED


def test_other_names_are_not_pinned() -> None:
    view = catalog(version(1))
    assert view.resolve_for(NAME, {SkillName("doc/other"): "v9"}) == view.resolve(SkillRef(NAME))


def test_a_draft_is_shown_as_what_it_is() -> None:
    draft = version(2, Standing.DRAFT)
    found = catalog(version(1), draft).resolve_for(NAME, {NAME: "v2"})
    assert [(r.candidate.origin, r.state) for r in found.rulings] == [
        ("tenant:v1", CandidateState.WON),
        ("bundle:core@1", CandidateState.SHADOWED),
        ("tenant:v2", CandidateState.DRAFT),
    ]


def test_which_reference_a_pin_lets_reach_a_draft() -> None:
    view = catalog(version(1), version(2, Standing.DRAFT), labels={"staging": 2})
    for pin in ("v2", "staging"):
        assert view.pins_to(parse_skill_ref(f"{NAME}@v2"), {NAME: pin})
        assert not view.pins_to(parse_skill_ref(f"{NAME}@v1"), {NAME: pin})
        assert not view.pins_to(parse_skill_ref(f"{NAME}@bundle"), {NAME: pin})
    assert not view.pins_to(parse_skill_ref(f"{NAME}@v2"), {})
