"""Which agents can do what with a skill: the same as lists and invocations say, tenant by tenant."""

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.services import who_can
from tests.rpc.rich import AGENTS, EVERY_NAME, rich_server, rich_tenant
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.skills import changed, refused, skill_md
from tests.store import owner

WHO_CAN = "AuditService.WhoCan"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A database of this module's own: questions about all tenants are put to it."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rich(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with rich_server(cluster, tmp_path_factory.mktemp("rich")) as server:
        yield server


@pytest.fixture(scope="module")
def used(rich: RunningServer) -> TestTenant:
    """A tenant with skills of every kind, and agents of its own, one in place of a configured one."""
    tenant = rich_tenant(rich)
    for agent in (
        {"name": "pinned", "pins": {"doc/own": "v1", "doc/draft": "v1", "doc/shadowed": "v7"}},
        {"name": "docs", "skills": ["doc/own"]},
        {"name": "writer", "skills": ["doc/*", "-doc/old", "code/*"], "tools": {"names": ["Read"]}},
    ):
        tenant.author.call("AgentService.PutAgent", agent=agent)
    return tenant


def rows(client: Any, **fields: object) -> Mapping[str, Any]:
    """Return the rows of a tenant by agent, read page by page."""
    pages = list(client.pages(WHO_CAN, page_size=3, **fields))
    found = [row for page in pages for row in page.agents]
    assert [row.agent for row in found] == sorted({row.agent for row in found})
    return {row.agent: row for row in found}


@pytest.mark.parametrize("name", EVERY_NAME)
def test_it_agrees_with_what_every_agent_lists_and_invokes(used: TestTenant, name: str) -> None:
    told = rows(used.author, name=name)
    assert set(told) == {*AGENTS, "pinned", "writer"}
    for agent, row in told.items():
        listed = used.runtime.call("SkillService.ListSkills", agent=agent, pattern=name).skills
        assert row.can_list is bool(listed)
        assert row.can_invoke is not bool(row.reason)
        (tested,) = used.author.call("AgentService.TestAllowlist", agent=agent, names=[name]).decisions
        assert row.decision == tested.decision
        if row.can_invoke:
            assert used.runtime.call("SkillService.InvokeSkill", agent=agent, name=name).name == name
        else:
            assert refused(used.runtime, "SkillService.InvokeSkill", agent=agent, name=name).reason == row.reason
        assert row.tenant == used.name
        assert row.text


def test_a_denied_and_an_unlisted_agent_come_with_the_entry(used: TestTenant) -> None:
    told = rows(used.author, name="doc/plain")
    assert (told["docs-but"].decision.index, told["docs-but"].decision.entry) == (1, "-doc/p*")
    assert told["docs-but"].text == "Its allowlist does not admit the name: entry 1 '-doc/p*' denies it."
    assert told["docs"].origin.startswith("tenant:r")
    assert told["docs"].text == "Its allowlist does not admit the name: no entry matches."
    assert told["everything"].text == (
        "It can list and invoke it; its allowlist is empty, which allows everything."
        " It cannot author it, since no author's key is bound to it."
    )
    assert told["nothing"].reason == told["docs"].reason == "SKILL_NOT_PERMITTED"


def test_authoring_takes_a_live_author_key_that_is_bound_to_the_agent(rich: RunningServer) -> None:
    tenant, operator = rich.tenant(), rich.operator()

    def authors(name: str = "own/x") -> list[str]:
        return [agent for agent, row in rows(tenant.author, name=name).items() if row.can_author]

    assert authors() == []
    tenant.bound(Role.RUNTIME, "reader")
    made = operator.call("TenantService.IssueKey", tenant=tenant.name, role="ROLE_AUTHOR", agent="reader").key
    tenant.bound(Role.AUTHOR, "docs")
    assert authors() == ["reader"]
    assert authors("doc/x") == ["docs", "reader"]
    assert rows(tenant.author, name="doc/x")["docs"].text == (
        "It can author it; entry 0 'doc/*' allows it. It cannot invoke it: There is no skill 'doc/x'."
    )
    bound = tenant.bound(Role.AUTHOR, "docs")
    assert bound.call("SkillDefService.CreateSkillDef", name="doc/x", source=skill_md("x")).version.version == 1
    operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=made.key_id)
    assert authors("doc/x") == ["docs"]


def test_nobody_authors_a_locked_name(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "substrate.yaml"
    config.write_text(
        "agents: {any: {}}\nskills: {doc/y: {description: Y., body: Y.}}\n"
        "name_modes: [{pattern: 'doc/*', mode: locked}]\n"
    )
    with running_server(cluster, config) as server:
        tenant = server.tenant()
        tenant.bound(Role.AUTHOR, "any")
        absent, locked, free = (rows(tenant.author, name=name)["any"] for name in ("doc/x", "doc/y", "own/x"))
    assert (absent.can_author, locked.can_author, free.can_author) == (False, False, True)
    assert absent.text == "There is no skill 'doc/x'; its allowlist is empty, which allows everything."
    assert locked.text.endswith(" It cannot author it, since it is locked.")


def test_it_reads_the_tenant_as_it_is_now(used: TestTenant) -> None:
    name = f"own/{secrets.token_hex(4)}"
    assert not rows(used.author, name=name)["everything"].can_list
    used.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md(name[4:]))
    assert rows(used.author, name=name)["everything"].can_list
    changed(used.author, "SkillDefService.SetSkillDisabled", name=name, disabled=True)
    assert not rows(used.author, name=name)["everything"].can_list


def test_an_agent_that_cannot_be_read_can_do_nothing(cluster: Cluster, rich: RunningServer) -> None:
    tenant = rich.tenant()
    tenant.author.call("AgentService.PutAgent", agent={"name": "docs"})
    spoilt = "UPDATE agents SET skills = '{Bad/*}' WHERE tenant_id = %s"
    assert owner.change(cluster, spoilt, tenant.name) == 1
    row = rows(rich.operator(), name="doc/plain", tenant=tenant.name)["docs"]
    assert (row.can_list, row.can_invoke, row.can_author, row.reason) == (False, False, False, "AGENT_NOT_FOUND")
    assert not row.HasField("decision")


def test_the_agents_of_a_suspended_tenant_can_do_nothing(rich: RunningServer) -> None:
    tenant, operator = rich.tenant(), rich.operator()
    tenant.bound(Role.AUTHOR, "everything")
    operator.call("TenantService.SetTenantSuspended", tenant=tenant.name, suspended=True, reason="Unpaid.")
    told = rows(operator, name="doc/plain", tenant=tenant.name)
    assert {(r.can_list, r.can_invoke, r.can_author, r.reason) for r in told.values()} == {
        (False, False, False, "TENANT_SUSPENDED")
    }
    assert told["everything"].text.startswith("The tenant is suspended: Unpaid.; none of its agents")


def test_an_operator_is_told_of_all_tenants_and_an_author_of_its_own(
    rich: RunningServer, used: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = rich.tenant()
    other.author.call("AgentService.PutAgent", agent={"name": "theirs", "skills": ["doc/plain"]})
    operator = rich.operator()

    def everything(size: int) -> list[tuple[str, str, bool]]:
        pages = operator.pages(WHO_CAN, name="doc/plain", page_size=size)
        return [(row.tenant, row.agent, row.can_invoke) for page in pages for row in page.agents]

    whole = everything(1000)
    assert len({row[:2] for row in whole}) == len(whole)
    assert {row for row in whole if row[0] == used.name} == {
        (used.name, agent, row.can_invoke) for agent, row in rows(used.author, name="doc/plain").items()
    }
    assert (other.name, "theirs", True) in whole
    assert "platform" not in {row[0] for row in whole}
    assert everything(7) == whole
    # Few tenants are read for a page, whatever it holds then.
    monkeypatch.setattr(who_can, "MAX_TENANTS_READ", 3)
    first = operator.call(WHO_CAN, name="doc/plain")
    assert len({row.tenant for row in first.agents}) == 3
    assert first.next_page_token
    assert everything(1000) == whole
    assert everything(5) == whole


def test_who_may_ask(rich: RunningServer, used: TestTenant) -> None:
    other = rich.tenant()
    assert refused(used.author, WHO_CAN, name="doc/plain", tenant=other.name).reason == "TENANT_NOT_FOUND"
    assert refused(rich.operator(), WHO_CAN, name="doc/plain", tenant="nowhere").reason == "TENANT_NOT_FOUND"
    for client in (used.runtime, used.bound(Role.AUTHOR, "docs")):
        assert refused(client, WHO_CAN, name="doc/own").reason == "ROLE_REQUIRED"
    token = used.author.call(WHO_CAN, name="doc/plain", page_size=1).next_page_token
    assert refused(used.author, WHO_CAN, name="doc/own", page_token=token).reason == "INVALID_PAGE_TOKEN"
    assert refused(used.author, WHO_CAN, name="doc/plain@v1").reason == "INVALID_NAME"


def test_asking_about_all_tenants_loads_none_of_them_whole(rich: RunningServer) -> None:
    operator, quiet = rich.operator(), rich.tenant()
    operator.call(WHO_CAN, name="doc/plain")
    assert quiet.name not in rich.app.snapshots._known
