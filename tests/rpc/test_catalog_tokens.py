"""The catalog token: what a caller knew, held against what is so now, on every runtime call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from substrate.domain.names import TenantId
from substrate.domain.tokens import CatalogToken, read_catalog_token
from tests.servers import Cluster, TestTenant, running_server
from tests.skills import refused, skill_md

RUNTIME_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("SkillService.PrepareRun", {}),
    ("SkillService.ListSkills", {}),
    ("SkillService.InvokeSkill", {"name": "doc/query"}),
    ("SkillService.ReadSkillFile", {"name": "doc/chunk-review", "path": "references/review-checklist.md"}),
    ("SkillService.CallSkillTool", {"input_json": '{"op":"list"}'}),
]
each_call = pytest.mark.parametrize(("method", "fields"), RUNTIME_CALLS)


def token_of(tenant: TestTenant) -> str:
    return str(tenant.runtime.call("SkillService.PrepareRun", agent="doc-manager").state.catalog_token)


@each_call
def test_an_answer_says_whether_the_catalog_has_changed_since_the_token(
    tenant: TestTenant, method: str, fields: dict[str, Any]
) -> None:
    asked = {"agent": "doc-manager", **fields}
    assert not tenant.runtime.call(method, **asked).catalog_changed
    old = token_of(tenant)
    unchanged = tenant.runtime.call(method, catalog_token=old, **asked)
    assert (unchanged.catalog_changed, unchanged.state.catalog_token) == (False, old)
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/one", source=skill_md("one"))
    changed = tenant.runtime.call(method, catalog_token=old, **asked)
    assert changed.catalog_changed
    assert changed.state.catalog_revision == unchanged.state.catalog_revision + 1
    assert not tenant.runtime.call(method, catalog_token=changed.state.catalog_token, **asked).catalog_changed


def test_the_token_of_a_change_assures_an_answer_that_knows_of_it_on_any_server(
    cluster: Cluster, tenant: TestTenant
) -> None:
    with running_server(cluster) as second:
        elsewhere = second.tenant(tenant.name)
        agent = {"name": "all"}
        token = tenant.author.call("AgentService.PutAgent", agent=agent).state.catalog_token
        for number in range(5):
            elsewhere.runtime.call("SkillService.ListSkills", agent="all", catalog_token=token)
            name = f"own/n{number}"
            source = skill_md(f"n{number}")
            token = tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source).state.catalog_token
            answer = elsewhere.runtime.call("SkillService.ListSkills", agent="all", catalog_token=token, pattern=name)
            assert [entry.name for entry in answer.skills] == [name]
            assert not answer.catalog_changed


UNKNOWN: dict[str, Callable[[CatalogToken], CatalogToken]] = {
    "the future": lambda token: replace(token, revision=token.revision + 1),
    "the far future": lambda token: replace(token, revision=2**80),
    "another database": lambda token: replace(token, incarnation="00000000-0000-0000-0000-000000000000"),
    "another tenant": lambda token: replace(token, tenant=TenantId("platform")),
}


@pytest.mark.parametrize("spoil", UNKNOWN.values(), ids=UNKNOWN)
@each_call
def test_a_token_that_this_database_cannot_have_given_this_tenant_is_refused(
    tenant: TestTenant, method: str, fields: dict[str, Any], spoil: Callable[[CatalogToken], CatalogToken]
) -> None:
    spoilt = str(spoil(read_catalog_token(token_of(tenant))))
    failed = refused(tenant.runtime, method, agent="doc-manager", catalog_token=spoilt, **fields)
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "REVISION_UNKNOWN")


def test_another_tenants_own_token_is_refused(tenant: TestTenant) -> None:
    other = token_of(tenant.server.tenant())
    failed = refused(tenant.runtime, "SkillService.ListSkills", agent="doc-manager", catalog_token=other)
    assert failed.reason == "REVISION_UNKNOWN"


@pytest.mark.parametrize(
    "token", ["x", "AAAA", "=", "not base64!", "W10", "WzEsMiwzLDRd", "e30", "bnVsbA", "\u00fc", "A" * 10_000]
)
@each_call
def test_a_malformed_token_is_refused(tenant: TestTenant, method: str, fields: dict[str, Any], token: str) -> None:
    failed = refused(tenant.runtime, method, agent="doc-manager", catalog_token=token, **fields)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")
    assert [field for field, _ in failed.violations] == ["catalog_token"]


def test_a_token_is_short_enough_for_its_field(tenant: TestTenant) -> None:
    longest = tenant.server.tenant("t" * 40)
    assert len(token_of(longest)) <= 256
