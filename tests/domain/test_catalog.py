from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.candidates import Candidate, CandidateState, Layer, LayerKind, Outcome, Resolution, Standing
from substrate.domain.catalog import Catalog, NameMode, NameModes, StaticCatalog
from substrate.domain.names import SkillRef, parse_skill_name, parse_skill_ref
from substrate.domain.patterns import parse_pattern

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases" / "resolution.yaml").read_text(encoding="utf-8"))

Case = dict[str, Any]

LOCKED: Case = {"name_modes": [{"pattern": "doc/*", "mode": "locked"}]}
REACHABLE = (CandidateState.WON, CandidateState.SHADOWED)


def layer(kind: LayerKind, origin: str, candidates: Sequence[Candidate]) -> Layer:
    return Layer(kind, origin, {candidate.name: candidate for candidate in candidates})


def name_in(file: Any) -> str:
    """A file of a bundle is its name, or a mapping that says that it is invalid."""
    return str(file if isinstance(file, str) else file["name"])


def bundle_layer(origin: str, files: Sequence[Any]) -> Layer:
    return layer(
        LayerKind.BUNDLE,
        origin,
        [
            Candidate(
                parse_skill_name(name_in(file)),
                LayerKind.BUNDLE,
                origin,
                Standing.ACTIVE if isinstance(file, str) else Standing.QUARANTINED,
            )
            for file in files
        ],
    )


def skill_def(name: str, data: Case) -> Candidate:
    if data["promoted"] is None:
        return Candidate(parse_skill_name(name), LayerKind.TENANT, "tenant", Standing.DRAFT)
    standing = Standing.RETIRED if data.get("retired") else Standing.ACTIVE
    if data.get("corrupt"):
        standing = Standing.QUARANTINED
    origin = f"tenant:v{data['promoted']}"
    return Candidate(parse_skill_name(name), LayerKind.TENANT, origin, standing, version=data["promoted"])


def static_of(case: Case) -> StaticCatalog:
    inline = [Candidate(parse_skill_name(name), LayerKind.INLINE, "inline") for name in case.get("inline", ())]
    bundles = [
        bundle_layer(f"bundle:{name}", files) for bundle in case.get("bundles", ()) for name, files in bundle.items()
    ]
    modes = [(parse_pattern(line["pattern"]), NameMode(line["mode"])) for line in case.get("name_modes", ())]
    return StaticCatalog((layer(LayerKind.INLINE, "inline", inline), *bundles), NameModes(modes))


def catalog_of(case: Case, static: StaticCatalog | None = None, tenant: str = "tenant") -> Catalog:
    tombstones = [
        Candidate(parse_skill_name(name), LayerKind.TENANT, "tenant", Standing.DISABLED)
        for name in case.get("disabled", ())
    ]
    skill_defs = [skill_def(name, data) for name, data in case.get(tenant, {}).items()]
    own = (
        layer(LayerKind.TENANT, "tenant:disabled", tombstones),
        layer(LayerKind.TENANT, "tenant", skill_defs),
    )
    return Catalog(own, static_of(case) if static is None else static)


def pinned_by(case: Case, ref: SkillRef) -> Candidate | None:
    """The version that a reference asks for, when it is another than the active one; later ones were never promoted."""
    data = case.get("tenant", {}).get(ref.name)
    version = ref.qualifier.version if ref.qualifier else None
    if data is None or version is None or version not in data["versions"] or version == data["promoted"]:
        return None
    once_promoted = data["promoted"] is not None and version < data["promoted"]
    standing = Standing.ACTIVE if once_promoted else Standing.DRAFT
    return Candidate(ref.name, LayerKind.TENANT, f"tenant:v{version}", standing, version=version)


def resolved(case: Case, text: str) -> Resolution:
    ref = parse_skill_ref(text)
    return catalog_of(case).resolve(ref, pinned_by(case, ref))


def source(candidate: Candidate | None) -> str | None:
    """Name a candidate's source by what it is, not by the text of its origin, which must say the same."""
    if candidate is None:
        return None
    names = {
        LayerKind.BUNDLE: candidate.origin,
        LayerKind.INLINE: "inline",
        LayerKind.TENANT: "tenant" if candidate.version is None else f"tenant:v{candidate.version}",
    }
    assert candidate.origin == names[candidate.kind]
    return names[candidate.kind]


def states(resolution: Resolution) -> list[tuple[str | None, str]]:
    return [(source(ruling.candidate), ruling.state.value) for ruling in resolution.rulings]


@pytest.mark.parametrize("case", CASES["resolutions"], ids=lambda case: case["case"])
def test_resolution_case(case: Case) -> None:
    resolution = resolved(case, case["resolve"])
    assert source(resolution.winner) == case["winner"]
    assert (resolution.outcome is Outcome.RESOLVED) is (case["winner"] is not None)
    assert str(resolution.ref) == case["resolve"]
    if "candidates" in case:
        assert states(resolution) == [(line["from"], line["state"]) for line in case["candidates"]]
    if "error" in case:
        assert case["error"] == f"SKILL_{resolution.outcome.value}"


@pytest.mark.parametrize("case", [case for case in CASES["resolutions"] if "other_tenant" in case])
def test_tenants_share_the_static_layers_and_nothing_else(case: Case) -> None:
    static = static_of(case)
    here, there = catalog_of(case, static), catalog_of(case, static, "other_tenant")
    for name in case["other_tenant"]:
        assert source(there.resolve(parse_skill_ref(name)).winner) == "tenant:v1"
        assert source(here.resolve(parse_skill_ref(name)).winner) in (None, "bundle:core")
    assert set(there.names()) - set(here.names()) == {"doc/theirs"}


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ({}, Outcome.ABSENT),
        ({"tenant": {"doc/x": {"promoted": None}}}, Outcome.DRAFT),
        ({"tenant": {"doc/x": {"promoted": 1, "retired": True}}}, Outcome.RETIRED),
        ({"tenant": {"doc/x": {"promoted": 1, "corrupt": True}}}, Outcome.QUARANTINED),
        ({"tenant": {"doc/x": {"promoted": 1, "corrupt": True}}, "disabled": ["doc/x"]}, Outcome.DISABLED),
        ({"disabled": ["doc/x"]}, Outcome.DISABLED),
        ({"bundles": [{"core": [{"name": "doc/x", "invalid": True}]}]}, Outcome.QUARANTINED),
        (
            {
                "tenant": {"doc/x": {"promoted": 1}},
                "disabled": ["doc/x"],
                "name_modes": [{"pattern": "*", "mode": "locked"}],
            },
            Outcome.LOCKED,
        ),
    ],
)
def test_how_a_resolution_without_a_winner_ended(case: Case, outcome: Outcome) -> None:
    resolution = resolved(case, "doc/x")
    assert resolution.winner is None
    assert resolution.outcome is outcome


def test_a_disabled_name_shows_what_it_hides() -> None:
    case = {
        "bundles": [{"core": ["doc/x"]}],
        "inline": ["doc/x"],
        "tenant": {"doc/x": {"promoted": 3}},
        "disabled": ["doc/x"],
    }
    assert states(resolved(case, "doc/x")) == [
        ("tenant", "DISABLED"),
        ("tenant:v3", "SHADOWED"),
        ("inline", "SHADOWED"),
        ("bundle:core", "SHADOWED"),
    ]


def test_a_lock_suppresses_a_tombstone_too() -> None:
    case = {"bundles": [{"core": ["doc/x"]}], "disabled": ["doc/x"]}
    assert states(resolved(case | LOCKED, "doc/x")) == [("tenant", "SUPPRESSED_BY_LOCK"), ("bundle:core", "WON")]


@pytest.mark.parametrize("mode", ["open", "review"])
def test_only_a_lock_suppresses(mode: str) -> None:
    case = {
        "bundles": [{"core": ["doc/x"]}],
        "tenant": {"doc/x": {"promoted": 1}},
        "name_modes": [{"pattern": "doc/*", "mode": mode}, {"pattern": "*", "mode": "locked"}],
    }
    assert states(resolved(case, "doc/x")) == [("tenant:v1", "WON"), ("bundle:core", "SHADOWED")]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("pay/refund", NameMode.LOCKED),
        ("pay/none", NameMode.LOCKED),
        ("doc/x", NameMode.REVIEW),
        ("doc/y", NameMode.OPEN),
        ("seo", NameMode.OPEN),
    ],
)
@pytest.mark.parametrize("own", [[], ["pay/refund", "doc/x", "seo"]], ids=["static names", "the tenant's too"])
def test_the_first_pattern_that_matches_gives_the_mode(name: str, mode: NameMode, own: list[str]) -> None:
    case = {
        "bundles": [{"core": ["pay/refund", "doc/x", "seo"]}],
        "tenant": {name: {"versions": [1], "promoted": 1} for name in own},
        "name_modes": [
            {"pattern": "doc/y", "mode": "open"},
            {"pattern": "doc/**", "mode": "review"},
            {"pattern": "pay/**", "mode": "locked"},
        ],
    }
    assert catalog_of(case).mode_of(parse_skill_name(name)) is mode


FULL: Case = {
    "bundles": [{"team": ["doc/x"]}, {"core": ["doc/x"]}],
    "inline": ["doc/x"],
    "tenant": {"doc/x": {"versions": [1, 2, 3], "promoted": 2}},
}
BROKEN: Case = {"bundles": [{"core": [{"name": "doc/x", "invalid": True}]}]}
HALF_BROKEN: Case = {"bundles": [*BROKEN["bundles"], {"team": ["doc/x"]}]}


def standing(**data: Any) -> Case:
    return {"tenant": {"doc/x": {"versions": [1, 2, 3], "promoted": 2, **data}}}


@pytest.mark.parametrize(
    ("case", "suffix", "outcome", "winner"),
    [
        (FULL, "bundle", "RESOLVED", "bundle:team"),
        (FULL, "inline", "RESOLVED", "inline"),
        (FULL, "v1", "RESOLVED", "tenant:v1"),
        (FULL, "v2", "RESOLVED", "tenant:v2"),
        (FULL, "v3", "DRAFT", None),
        (FULL, "v4", "ABSENT", None),
        (standing(), "bundle", "ABSENT", None),
        (standing(), "inline", "ABSENT", None),
        ({}, "bundle", "ABSENT", None),
        ({}, "v1", "ABSENT", None),
        ({"inline": ["doc/x"]}, "v1", "ABSENT", None),
        ({"inline": ["doc/x"]}, "inline", "RESOLVED", "inline"),
        (HALF_BROKEN, "bundle", "RESOLVED", "bundle:team"),
        (BROKEN, "bundle", "QUARANTINED", None),
        (BROKEN | {"inline": ["doc/x"]}, "bundle", "QUARANTINED", None),
        (BROKEN | {"inline": ["doc/x"]}, "inline", "RESOLVED", "inline"),
        (FULL | standing(promoted=None), "v1", "DRAFT", None),
        (FULL | standing(promoted=None), "bundle", "RESOLVED", "bundle:team"),
        (FULL | standing(retired=True), "v1", "RETIRED", None),
        (FULL | standing(retired=True), "v2", "RETIRED", None),
        (FULL | standing(retired=True), "inline", "RESOLVED", "inline"),
        (FULL | standing(retired=True), "bundle", "RESOLVED", "bundle:team"),
        (FULL | standing(corrupt=True), "v1", "QUARANTINED", None),
        (FULL | standing(corrupt=True), "v2", "QUARANTINED", None),
        (FULL | standing(corrupt=True), "inline", "QUARANTINED", None),
        (FULL | standing(corrupt=True), "bundle", "QUARANTINED", None),
        (FULL | {"disabled": ["doc/x"]}, "v1", "DISABLED", None),
        (FULL | {"disabled": ["doc/x"]}, "v2", "DISABLED", None),
        (FULL | {"disabled": ["doc/x"]}, "inline", "DISABLED", None),
        (FULL | {"disabled": ["doc/x"]}, "bundle", "DISABLED", None),
        (FULL | LOCKED, "v1", "LOCKED", None),
        (FULL | LOCKED, "v2", "LOCKED", None),
        (FULL | LOCKED, "inline", "RESOLVED", "inline"),
        (FULL | LOCKED, "bundle", "RESOLVED", "bundle:team"),
        (FULL | LOCKED | {"disabled": ["doc/x"]}, "v2", "LOCKED", None),
        (FULL | LOCKED | {"disabled": ["doc/x"]}, "bundle", "RESOLVED", "bundle:team"),
        (LOCKED | {"disabled": ["doc/x"]}, "bundle", "ABSENT", None),
        (BROKEN | LOCKED | {"disabled": ["doc/x"]}, "bundle", "QUARANTINED", None),
        (FULL | LOCKED | standing(corrupt=True), "v1", "LOCKED", None),
        (FULL | LOCKED | standing(corrupt=True), "bundle", "RESOLVED", "bundle:team"),
    ],
)
def test_what_a_qualifier_reaches(case: Case, suffix: str, outcome: str, winner: str | None) -> None:
    resolution = resolved(case, f"doc/x@{suffix}")
    assert resolution.outcome is Outcome(outcome)
    assert source(resolution.winner) == winner
    assert str(resolution.ref) == f"doc/x@{suffix}"


@pytest.mark.parametrize("of_pin", [s for s in Standing if s is not Standing.ACTIVE])
def test_a_pinned_version_obeys_its_own_standing(of_pin: Standing) -> None:
    ref = parse_skill_ref("doc/x@v1")
    pinned = Candidate(ref.name, LayerKind.TENANT, "tenant:v1", of_pin, version=1)
    resolution = catalog_of(FULL).resolve(ref, pinned)
    assert resolution.winner is None
    assert resolution.outcome.value == of_pin.value
    assert (pinned, CandidateState(of_pin.value)) in [(r.candidate, r.state) for r in resolution.rulings]


def test_a_pinned_version_stands_beside_the_candidates_of_its_name() -> None:
    bare = resolved(FULL, "doc/x")
    qualified = resolved(FULL, "doc/x@v1")
    assert states(bare) == [
        ("tenant:v2", "WON"),
        ("inline", "SHADOWED"),
        ("bundle:team", "SHADOWED"),
        ("bundle:core", "SHADOWED"),
    ]
    assert sorted(states(qualified)) == sorted([*states(bare), ("tenant:v1", "SHADOWED")])


# Any state of any layer, over a few names that the modes tell apart, in the shape of the cases above.

NAMES = ["a/b/c", "doc/a", "doc/b", "seo"]
ASKED = [*NAMES, "nobody/knows"]
MATCHES = {"*": set(NAMES), "doc/*": {"doc/a", "doc/b"}, "doc/b": {"doc/b"}, "**/c": {"a/b/c"}, "none/**": set[str]()}

NAME = st.sampled_from(NAMES)
FILE = st.one_of(NAME, st.fixed_dictionaries({"name": NAME, "invalid": st.just(value=True)}))
SKILL_DEF = st.sampled_from(
    [
        {"versions": [1, 2, 3], "promoted": 2},
        {"versions": [1, 2, 3], "promoted": 2, "retired": True},
        {"versions": [1, 2, 3], "promoted": 2, "corrupt": True},
        {"versions": [1], "promoted": None},
    ]
)
WORLD = st.fixed_dictionaries(
    {
        "disabled": st.lists(NAME, unique=True, max_size=2),
        "tenant": st.dictionaries(NAME, SKILL_DEF),
        "inline": st.lists(NAME, unique=True),
        "bundles": st.lists(st.lists(FILE, unique_by=name_in, max_size=4), max_size=3).map(
            lambda bundles: [{str(index): files} for index, files in enumerate(bundles)]
        ),
        "name_modes": st.lists(
            st.fixed_dictionaries(
                {"pattern": st.sampled_from(sorted(MATCHES)), "mode": st.sampled_from(["open", "review", "locked"])}
            ),
            max_size=3,
        ),
    }
)


def is_locked(world: Case, name: str) -> bool:
    return next((line["mode"] for line in world["name_modes"] if name in MATCHES[line["pattern"]]), "open") == "locked"


def is_barred(world: Case, name: str) -> bool:
    return name in world["disabled"] or "corrupt" in world["tenant"].get(name, {})


def naive_winner(world: Case, name: str) -> str | None:
    """The merge once more, told source by source."""
    if not is_locked(world, name):
        if is_barred(world, name):
            return None
        own = world["tenant"].get(name)
        if own and own["promoted"] and "retired" not in own:
            return "tenant:v2"
    if name in world["inline"]:
        return "inline"
    return next((f"bundle:{label}" for bundle in world["bundles"] for label in bundle if name in bundle[label]), None)


def naive_speakers(world: Case, name: str) -> list[str]:
    """Every source that says something about a name, from high to low."""
    tombstone = ["tenant"] if name in world["disabled"] else []
    own = world["tenant"].get(name)
    mine = [] if own is None else ["tenant:v2" if own["promoted"] else "tenant"]
    inline = ["inline"] if name in world["inline"] else []
    bundles = [f"bundle:{key}" for bundle in world["bundles"] for key in bundle if name in map(name_in, bundle[key])]
    return [*tombstone, *mine, *inline, *bundles]


def reordered(world: Case) -> Case:
    """The same world with every layer filled in the opposite order; bundles and modes keep their rank."""
    return {
        **world,
        "disabled": world["disabled"][::-1],
        "tenant": dict(reversed(world["tenant"].items())),
        "inline": world["inline"][::-1],
        "bundles": [{key: files[::-1] for key, files in bundle.items()} for bundle in world["bundles"]],
    }


@settings(max_examples=250, deadline=None)
@given(WORLD)
def test_the_merge_agrees_with_a_naive_one(world: Case) -> None:
    catalog = catalog_of(world)
    names = catalog.names()
    assert names == sorted(name for name in NAMES if naive_speakers(world, name))
    assert [name for name in names if catalog.resolve(SkillRef(name)).winner] == [
        name for name in NAMES if naive_winner(world, name)
    ]
    for name in map(parse_skill_name, ASKED):
        resolution = catalog.resolve(SkillRef(name))
        assert source(resolution.winner) == naive_winner(world, name)
        assert [source(ruling.candidate) for ruling in resolution.rulings] == naive_speakers(world, name)


@settings(max_examples=250, deadline=None)
@given(WORLD)
def test_every_candidate_has_its_state_and_at_most_one_wins(world: Case) -> None:
    catalog = catalog_of(world)
    for name in map(parse_skill_name, ASKED):
        resolution = catalog.resolve(SkillRef(name))
        won = [ruling.candidate for ruling in resolution.rulings if ruling.state is CandidateState.WON]
        assert won == ([resolution.winner] if resolution.outcome is Outcome.RESOLVED else [])
        assert (resolution.winner is None) is (resolution.outcome is not Outcome.RESOLVED)
        assert (resolution.outcome is Outcome.ABSENT) is (not resolution.rulings)
        for ruling in resolution.rulings:
            if ruling.candidate.kind is LayerKind.TENANT and is_locked(world, name):
                assert ruling.state is CandidateState.SUPPRESSED_BY_LOCK
            elif ruling.candidate.standing is Standing.ACTIVE:
                assert ruling.state in REACHABLE
            else:
                assert ruling.state.value == ruling.candidate.standing.value


@settings(max_examples=200, deadline=None)
@given(WORLD)
def test_the_order_within_a_layer_makes_no_difference(world: Case) -> None:
    catalog, other = catalog_of(world), catalog_of(reordered(world))
    assert catalog.names() == other.names()
    assert catalog.skill_defs() == other.skill_defs()
    for name in ASKED:
        assert catalog.resolve(parse_skill_ref(name)) == other.resolve(parse_skill_ref(name))


@settings(max_examples=250, deadline=None)
@given(WORLD, st.sampled_from(["bundle", "inline", "v1", "v2", "v3"]), st.none() | st.sampled_from(Standing))
def test_a_qualifier_never_gets_past_what_bars_it(world: Case, suffix: str, of_pin: Standing | None) -> None:
    catalog = catalog_of(world)
    for name in ASKED:
        ref = parse_skill_ref(f"{name}@{suffix}")
        version = ref.qualifier.version if ref.qualifier else None
        pinned = None
        if of_pin and version:
            pinned = Candidate(ref.name, LayerKind.TENANT, f"tenant:v{version}", of_pin, version=version)
        resolution = catalog.resolve(ref, pinned)
        winner = resolution.winner
        assert (winner is None) is (resolution.outcome is not Outcome.RESOLVED)
        if winner is None:
            continue
        assert winner.standing is Standing.ACTIVE
        assert winner.version == version
        assert winner.kind is {"bundle": LayerKind.BUNDLE, "inline": LayerKind.INLINE}.get(suffix, LayerKind.TENANT)
        assert [ruling.state in REACHABLE for ruling in resolution.rulings if ruling.candidate is winner] == [True]
        assert is_locked(world, name) or not is_barred(world, name)
        if winner.kind is LayerKind.TENANT:
            assert not is_locked(world, name)
            assert world["tenant"][name] == {"versions": [1, 2, 3], "promoted": 2}


@settings(max_examples=100, deadline=None)
@given(WORLD)
def test_skill_defs_are_told_without_their_tombstones(world: Case) -> None:
    catalog = catalog_of(world)
    found = {name: catalog.skill_def(parse_skill_name(name)) for name in ASKED}
    assert catalog.skill_defs() == [found[name] for name in NAMES if found[name]]
    assert found == {
        name: skill_def(name, world["tenant"][name]) if name in world["tenant"] else None for name in ASKED
    }
