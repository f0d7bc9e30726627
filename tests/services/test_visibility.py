"""What is listed can be invoked, and nothing else, whatever the catalog, the agent and the caller are."""

from collections.abc import Sequence

from hypothesis import event, given, settings
from hypothesis import strategies as st

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.candidates import Candidate, Layer, LayerKind, Standing
from substrate.domain.catalog import Catalog, NameMode, NameModes, StaticCatalog
from substrate.domain.eligibility import CallerKind, barrier_of_caller, barrier_of_tools, tools_of, unresolved, visible
from substrate.domain.errors import SkillNotPermitted, SubstrateError
from substrate.domain.names import SkillName, SkillRef, parse_skill_name
from substrate.domain.patterns import parse_pattern
from substrate.domain.skillheader import SkillHeader

NAMES = [parse_skill_name(name) for name in ("a", "doc/a", "doc/b", "doc/b/c", "pay/a")]
PATTERNS = ["*", "**", "doc/*", "doc/**", "doc/?", "*/a", "pay/a", "a", "x/*"]
ENTRIES = [sign + pattern for sign in ("", "+", "-") for pattern in PATTERNS]
TOOLS = ["Read", "Write", "Bash", "Bash(git *)"]
GLOBS = ["src/**", "*.md", "docs/*", "*"]
PATHS = ["src/a/b.py", "README.md", "docs/x", "docs/x/y"]

headers = st.builds(
    SkillHeader,
    name=st.just("a"),
    description=st.just("Does it."),
    allowed_tools=st.none() | st.lists(st.sampled_from(TOOLS), max_size=2).map(tuple),
    disable_model_invocation=st.booleans(),
    user_invocable=st.booleans(),
    paths=st.lists(st.sampled_from(GLOBS), max_size=2).map(tuple),
)


def layers(kind: LayerKind, origin: str, standings: Sequence[Standing]) -> st.SearchStrategy[Layer]:
    """Some of the names, each with a candidate that has a header unless there is nothing to show of it."""

    def candidate(name: SkillName, standing: Standing, header: SkillHeader) -> Candidate:
        shown = None if standing in (Standing.DISABLED, Standing.DRAFT, Standing.QUARANTINED) else header
        return Candidate(name, kind, origin, standing, shown)

    chosen = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(standings), headers))
    return chosen.map(lambda found: Layer(kind, origin, {name: candidate(name, *what) for name, what in found.items()}))


tenants = st.tuples(
    layers(LayerKind.TENANT, "tenant:disabled", [Standing.DISABLED]),
    layers(
        LayerKind.TENANT,
        "tenant",
        [Standing.ACTIVE, Standing.ACTIVE, Standing.DRAFT, Standing.RETIRED, Standing.QUARANTINED],
    ),
)
statics = st.builds(
    StaticCatalog,
    st.tuples(
        layers(LayerKind.INLINE, "inline", [Standing.ACTIVE]),
        layers(LayerKind.BUNDLE, "bundle:one", [Standing.ACTIVE, Standing.QUARANTINED]),
        layers(LayerKind.BUNDLE, "bundle:two", [Standing.ACTIVE, Standing.QUARANTINED]),
    ),
    st.lists(st.tuples(st.sampled_from(PATTERNS).map(parse_pattern), st.sampled_from(NameMode)), max_size=2).map(
        NameModes
    ),
)
catalogs = st.builds(Catalog, tenants, statics)
agents = st.builds(
    lambda skills, tools: parse_agent(
        "tester", {"skills": skills} | ({} if tools is None else {"tools": tools}), LayerKind.TENANT, "tenant"
    ),
    st.lists(st.sampled_from(ENTRIES), max_size=4),
    st.none() | st.lists(st.sampled_from(TOOLS), max_size=3),
)
kinds = st.sampled_from(CallerKind)
touched = st.lists(st.sampled_from(PATHS), max_size=2)


def listed(catalog: Catalog, agent: Agent, kind: CallerKind, paths: Sequence[str]) -> list[SkillName]:
    return [v.name for v in visible(catalog, agent) if barrier_of_caller(v.winner, kind, paths) is None]


def refusal(
    catalog: Catalog, agent: Agent, name: SkillName, kind: CallerKind, paths: Sequence[str]
) -> SubstrateError | None:
    """Take one name through gate, resolution and eligibility; return what refuses it."""
    if not agent.allowlist.decide(name).allowed:
        return SkillNotPermitted("")
    resolution = catalog.resolve(SkillRef(name))
    if resolution.winner is None:
        return unresolved(resolution)
    return barrier_of_tools(resolution.ref.name, tools_of(resolution.winner), agent) or barrier_of_caller(
        resolution.winner, kind, paths
    )


@settings(max_examples=250, deadline=None)
@given(catalog=catalogs, agent=agents, kind=kinds, paths=touched)
def test_the_list_is_the_set_of_names_that_can_be_invoked(
    catalog: Catalog, agent: Agent, kind: CallerKind, paths: list[str]
) -> None:
    names = listed(catalog, agent, kind, paths)
    refusals = {name: refusal(catalog, agent, name, kind, paths) for name in NAMES}
    for reason in {error.reason for error in refusals.values() if error}:
        event(reason)
    assert names == sorted(name for name, error in refusals.items() if error is None)


@settings(max_examples=150, deadline=None)
@given(catalog=catalogs, agent=agents, kind=kinds, paths=touched, more=st.sampled_from(PATHS))
def test_a_path_more_hides_nothing_and_an_entry_that_denies_shows_nothing(
    catalog: Catalog, agent: Agent, kind: CallerKind, paths: list[str], more: str
) -> None:
    names = set(listed(catalog, agent, kind, paths))
    assert names <= set(listed(catalog, agent, kind, [*paths, more]))
    for pattern in PATTERNS:
        entries = [f"-{pattern}", *agent.allowlist.texts()]
        data = {"skills": entries} | ({} if agent.tools is None else {"tools": list(agent.tools)})
        tighter = parse_agent("tester", data, LayerKind.TENANT, "tenant")
        kept = set(listed(catalog, tighter, kind, paths))
        assert kept <= names
        assert not any(0 in tighter.allowlist.matching(name) for name in kept)


@settings(max_examples=150, deadline=None)
@given(own=tenants, static=statics, agent=agents, kind=kinds, paths=touched)
def test_the_rules_told_plainly_give_the_same_list(
    own: tuple[Layer, Layer], static: StaticCatalog, agent: Agent, kind: CallerKind, paths: list[str]
) -> None:
    tombstones, definitions = own
    expected = []
    for name in sorted(NAMES):
        serving = None
        locked = static.modes.mode_of(name) is NameMode.LOCKED
        mine = None if locked else definitions.candidates.get(name)
        hidden = not locked and name in tombstones.candidates
        if mine is not None and mine.standing is Standing.ACTIVE:
            serving = mine
        elif mine is None or mine.standing is not Standing.QUARANTINED:
            below = (layer.candidates.get(name) for layer in static.layers)
            serving = next((c for c in below if c is not None and c.standing is Standing.ACTIVE), None)
        if hidden or serving is None or serving.header is None or not agent.allowlist.decide(name).allowed:
            continue
        has = agent.tools
        wants = serving.header.allowed_tools or ()
        able = has is None or all(tool in has or tool.partition("(")[0] in has for tool in wants)
        asked = (
            not serving.header.disable_model_invocation if kind is CallerKind.MODEL else serving.header.user_invocable
        )
        here = not serving.header.paths or any(matches(g, p) for g in serving.header.paths for p in paths)
        if able and asked and here:
            expected.append(name)
    assert listed(Catalog(own, static), agent, kind, paths) == expected


def matches(glob: str, path: str) -> bool:
    """Say for the few globs of this file what they match."""
    match glob:
        case "*":
            return True
        case "src/**":
            return path.startswith("src/")
        case "*.md":
            return "/" not in path and path.endswith(".md")
        case _:
            return path.startswith("docs/") and path.count("/") == 1
