"""The tenant source: rows as layers, all of one moment, and nothing corrupt ever passed over or handed out."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from substrate.domain.candidates import Candidate, LayerKind, Outcome, Standing
from substrate.domain.catalog import Catalog, StaticCatalog
from substrate.domain.errors import SkillQuarantined
from substrate.domain.identity import Role
from substrate.domain.names import AgentName, SkillName, TenantId, parse_skill_ref
from substrate.sources.static import load_static
from substrate.sources.tenant import TenantSource, TenantState, read_layers, read_state
from substrate.store.session import Database
from tests.servers import Cluster, TestTenant
from tests.skills import add_version, changed, skill_md
from tests.store.owner import change, value

NAME = SkillName("doc/query")
DRAFT, ACTIVE, RETIRED = Standing.DRAFT, Standing.ACTIVE, Standing.RETIRED


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    database = Database(cluster.login_url)
    yield database
    database.close()


@pytest.fixture
def source(database: Database) -> TenantSource:
    return TenantSource(database)


@pytest.fixture(scope="module")
def static() -> StaticCatalog:
    return load_static(None).catalog


def _create(tenant: TestTenant, name: str = NAME, body: str = "Own.\n", **fields: object) -> None:
    source = skill_md(name.rpartition("/")[2], body)
    tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source, **fields)


def _load(source: TenantSource, tenant: TestTenant) -> TenantState:
    return source.load(TenantId(tenant.name), None)


def _own(state: TenantState, name: str = NAME) -> Candidate:
    return state.layers[1].candidates[SkillName(name)]


def _spoil(cluster: Cluster, tenant: TestTenant, statement: str, *parameters: str) -> None:
    """Change one row behind the server's back."""
    assert change(cluster, statement, tenant.name, *parameters) == 1


def test_a_tenant_that_does_not_exist_has_no_revision_and_nothing_else(source: TenantSource) -> None:
    state = source.load(TenantId("nobody"), None)
    assert (state.revision, state.layers, dict(state.agents), dict(state.keys)) == (None, (), {}, {})
    assert state.incarnation


def test_a_state_holds_layers_agents_and_keys_of_one_revision(
    cluster: Cluster, source: TenantSource, tenant: TestTenant
) -> None:
    _create(tenant)
    _create(tenant, "own/draft", promote=False)
    _create(tenant, "own/gone")
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="own/gone")
    changed(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/chunk-add", disabled=True, reason="Why not.")
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper", "skills": ["doc/*"]})
    state = _load(source, tenant)
    assert state.revision == value(cluster, "SELECT catalog_revision FROM tenants WHERE tenant_id = %s", tenant.name)
    tombstones, own = state.layers
    assert {name: (c.standing, c.problem) for name, c in tombstones.candidates.items()} == {
        "doc/chunk-add": (Standing.DISABLED, "Why not.")
    }
    assert {name: (c.standing, c.version) for name, c in own.candidates.items()} == {
        "doc/query": (ACTIVE, 1),
        "own/draft": (DRAFT, None),
        "own/gone": (RETIRED, 1),
    }
    assert all(c.kind is LayerKind.TENANT for layer in state.layers for c in layer.candidates.values())
    # Bodies stay where they are until they are invoked.
    assert all(c.body is None for layer in state.layers for c in layer.candidates.values())
    agent = state.agents[AgentName("helper")]
    assert agent is not None
    assert (agent.allowlist.texts(), agent.kind) == (["doc/*"], LayerKind.TENANT)
    assert sorted(key.role.value for key in state.keys.values()) == ["author", "runtime"]
    assert all(key.key_id == key_id and key.tenant == tenant.name for key_id, key in state.keys.items())


def test_a_state_is_of_one_moment_whatever_is_committed_meanwhile(
    database: Database, source: TenantSource, tenant: TestTenant
) -> None:
    _create(tenant)
    before = _load(source, tenant)
    with database.tenant(TenantId(tenant.name), snapshot=True) as connection:
        first = read_state(connection, TenantId(tenant.name))
        changed(tenant.author, "SkillDefService.RetireSkillDef", name=NAME)
        tenant.author.call("AgentService.PutAgent", agent={"name": "new"})
        tenant.server.key(tenant.name, Role.AUTHOR)
        second = read_state(connection, TenantId(tenant.name))
    assert first == second == before
    assert _load(source, tenant) != before


def test_the_layers_of_one_name_are_those_of_all_names_narrowed(database: Database, tenant: TestTenant) -> None:
    for name in (NAME, "own/other"):
        _create(tenant, name)
        changed(tenant.author, "SkillDefService.SetSkillDisabled", name=name, disabled=True)
    with database.tenant(TenantId(tenant.name)) as connection:
        narrowed = read_layers(connection, TenantId(tenant.name), NAME)
        whole = read_layers(connection, TenantId(tenant.name))
    for one, every in zip(narrowed, whole, strict=True):
        assert dict(one.candidates) == {NAME: every.candidates[NAME]}


SPOILT = {
    "another body": "UPDATE skill_def_versions SET body = body || '.' WHERE tenant_id = %s",
    "no body": "UPDATE skill_def_versions SET body = '' WHERE tenant_id = %s",
    "another digest": "UPDATE skill_def_versions SET content_sha256 = repeat('0', 64) WHERE tenant_id = %s",
    "a list for a header": "UPDATE skill_def_versions SET header = '[]' WHERE tenant_id = %s",
    "null for a header": "UPDATE skill_def_versions SET header = 'null' WHERE tenant_id = %s",
    "an empty header": "UPDATE skill_def_versions SET header = '{}' WHERE tenant_id = %s",
    "another description": "UPDATE skill_def_versions"
    ' SET header = (header::jsonb || \'{"description": "Else."}\')::json WHERE tenant_id = %s',
    "a key of the wrong type": "UPDATE skill_def_versions"
    " SET header = (header::jsonb || '{\"description\": 7}')::json WHERE tenant_id = %s",
    "no such version": "UPDATE skill_defs SET active_version = 7 WHERE tenant_id = %s",
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_corrupt_row_is_an_error_for_its_name_and_never_falls_through(
    cluster: Cluster, source: TenantSource, static: StaticCatalog, tenant: TestTenant, what: str
) -> None:
    _create(tenant)
    _spoil(cluster, tenant, SPOILT[what])
    _create(tenant, "own/sound")
    state = _load(source, tenant)
    candidate = _own(state)
    assert candidate.standing is Standing.QUARANTINED
    assert candidate.problem
    assert candidate.header is None
    catalog = Catalog(state.layers, static)
    resolution = catalog.resolve(parse_skill_ref(NAME))
    assert (resolution.outcome, resolution.winner) == (Outcome.QUARANTINED, None)
    for qualifier in ("bundle", "v1"):
        assert catalog.resolve(parse_skill_ref(f"{NAME}@{qualifier}")).winner is None
    assert _own(state, "own/sound").standing is ACTIVE


def test_a_corrupt_agent_is_kept_as_one_that_cannot_be_read(
    cluster: Cluster, source: TenantSource, tenant: TestTenant
) -> None:
    for name in ("good", "bad"):
        tenant.author.call("AgentService.PutAgent", agent={"name": name})
    _spoil(cluster, tenant, "UPDATE agents SET skills = '{-}' WHERE tenant_id = %s AND name = 'bad'")
    agents = _load(source, tenant).agents
    assert agents[AgentName("bad")] is None
    assert agents[AgentName("good")] is not None


def test_a_version_other_than_the_active_one_is_read_when_it_is_asked_for(
    cluster: Cluster, source: TenantSource, static: StaticCatalog, tenant: TestTenant
) -> None:
    _create(tenant)
    add_version(tenant.author, NAME, skill_md("query", "Second.\n"))
    add_version(tenant.author, NAME, skill_md("query", "Third.\n"))
    changed(tenant.author, "SkillDefService.PromoteSkillDef", name=NAME, version=2)
    catalog = Catalog(_load(source, tenant).layers, static)

    def resolved(reference: str) -> tuple[Outcome, str]:
        found = source.resolve(catalog, TenantId(tenant.name), parse_skill_ref(reference), None)
        return found.outcome, found.winner.origin if found.winner else ""

    assert resolved(NAME) == resolved(f"{NAME}@v2") == (Outcome.RESOLVED, "tenant:v2")
    assert resolved(f"{NAME}@v1") == (Outcome.RESOLVED, "tenant:v1")
    assert resolved(f"{NAME}@v3") == (Outcome.DRAFT, "")
    assert resolved(f"{NAME}@v4") == (Outcome.ABSENT, "")
    assert resolved("own/nothing@v1") == (Outcome.ABSENT, "")
    _spoil(cluster, tenant, "UPDATE skill_def_versions SET body = '' WHERE tenant_id = %s AND version = 1")
    assert resolved(f"{NAME}@v1") == (Outcome.QUARANTINED, "")


def test_a_version_of_another_tenant_is_never_read(
    source: TenantSource, static: StaticCatalog, tenant: TestTenant
) -> None:
    _create(tenant)
    state = _load(source, tenant)
    catalog = Catalog(state.layers, static)
    stranger = TenantId(tenant.server.tenant().name)
    assert source.resolve(catalog, stranger, parse_skill_ref(f"{NAME}@v9"), None).winner is None
    with pytest.raises(SkillQuarantined):
        source.body(stranger, _own(state), None)


def test_a_body_is_the_one_that_was_decided_on_or_none(
    cluster: Cluster, source: TenantSource, tenant: TestTenant
) -> None:
    _create(tenant)
    candidate = _own(_load(source, tenant))
    tenant_id = TenantId(tenant.name)
    assert source.body(tenant_id, candidate, None) == "Own.\n"
    replaced = replace(candidate, content_sha256="0" * 64)
    for wrong in (replaced, replace(replaced, version=9)):
        with pytest.raises(SkillQuarantined) as refused:
            source.body(tenant_id, wrong, None)
        assert refused.value.metadata == {"name": NAME}
    _spoil(cluster, tenant, "UPDATE skill_def_versions SET body = 'Spoilt.' WHERE tenant_id = %s")
    # What was kept is still what the digest says; whoever has not got it is refused.
    assert source.body(tenant_id, candidate, None) == "Own.\n"
    with pytest.raises(SkillQuarantined):
        TenantSource(source._database).body(tenant_id, candidate, None)


def test_bodies_are_kept_within_their_budget_and_the_longest_unused_go_first(
    cluster: Cluster, database: Database, tenant: TestTenant
) -> None:
    source = TenantSource(database, body_budget=250)
    tenant_id = TenantId(tenant.name)
    for name in ("a", "b", "c", "big"):
        _create(tenant, name, "x" * (99 if name != "big" else 251) + "\n")
    state = _load(source, tenant)

    def kept(name: str) -> bool:
        """Whether the body can still be had when its row cannot."""
        spoil = "UPDATE skill_def_versions SET body = body || '.' WHERE tenant_id = %s AND name = %s"
        _spoil(cluster, tenant, spoil, name)
        try:
            source.body(tenant_id, _own(state, name), None)
        except SkillQuarantined:
            return False
        return True

    for name in ("a", "b", "a", "c"):
        assert source.body(tenant_id, _own(state, name), None) == "x" * 99 + "\n"
    assert [kept(name) for name in ("a", "b", "c")] == [True, False, True]
    assert len(source.body(tenant_id, _own(state, "big"), None)) == 252
    assert kept("big") is False
    assert source._held == sum(len(body) for body in source._bodies.values()) <= 250


def test_the_same_body_under_two_tenants_is_kept_apart(source: TenantSource, tenant: TestTenant) -> None:
    other = tenant.server.tenant()
    for each in (tenant, other):
        _create(each)
        assert source.body(TenantId(each.name), _own(_load(source, each)), None) == "Own.\n"
    assert {owner for owner, _, _ in source._bodies} == {tenant.name, other.name}


def test_layers_stand_above_the_static_ones(source: TenantSource, static: StaticCatalog, tenant: TestTenant) -> None:
    _create(tenant)
    layers = _load(source, tenant).layers
    assert [layer.kind for layer in layers] == [LayerKind.TENANT, LayerKind.TENANT]
    resolution = Catalog(layers, static).resolve(parse_skill_ref(NAME))
    assert [ruling.candidate.kind for ruling in resolution.rulings] == [LayerKind.TENANT, LayerKind.BUNDLE]
