"""Values that look harmless and are not: refused by name, at their limits, and without a trace."""

import base64
import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from substrate.domain.identity import Role
from substrate.domain.tokens import page_token, read_catalog_token
from substrate.rpc import interceptors
from substrate.rpc.client import CallFailed, Client
from tests.rpc.wire import bearer, path_of
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store import owner

BAD_NAMES = {
    "empty": "",
    "dots": "..",
    "up": "../x",
    "up inside": "doc/../x",
    "here": "./doc",
    "absolute": "/doc/x",
    "trailing slash": "doc/x/",
    "two slashes": "doc//x",
    "backslash": "doc\\x",
    "upper case": "Doc/x",
    "cyrillic o": "d\u043ec/x",
    "full width": "\uff44oc/x",
    "dotless i": "wr\u0131ting/x",
    "combining": "doc/x\u0301",
    "zero width": "doc/\u200bx",
    "right to left": "doc/\u202ex",
    "soft hyphen": "doc/a\u00adb",
    "line feed": "doc/x\n",
    "nul": "doc/x\0",
    "blank": "doc/ x",
    "underscore": "doc_x",
    "pattern": "doc/*",
    "sign": "-doc/x",
    "hyphen": "doc/x-",
    "hyphens": "doc/a--b",
    "percent": "doc%2fx",
    "long segment": "a" * 65,
    "long": "/".join(["a" * 64] * 4),
    "deep": "/".join("a" * 9),
}
each_name = pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
NAMED: dict[str, dict[str, Any]] = {
    "SkillService.InvokeSkill": {"agent": "doc-manager"},
    "SkillService.ReadSkillFile": {"agent": "doc-manager", "path": "x"},
    "SkillDefService.CreateSkillDef": {"source": skill_md("x")},
    "SkillDefService.ForkSkillDef": {},
    "SkillDefService.GetSkillDef": {},
    "SkillDefService.ListSkillDefVersions": {},
    "SkillDefService.PromoteSkillDef": {"version": 1},
    "SkillDefService.RetireSkillDef": {},
    "SkillDefService.SetSkillDisabled": {"disabled": True},
    "SkillDefService.SetLabel": {"label": "staging", "version": 1},
    "SkillDefService.DiffSkillDefs": {},
    "SkillDefService.VerifySkillDef": {"content_sha256": "0" * 64},
    "SkillDefService.ExportSkill": {},
    "AuditService.ExplainResolution": {},
    "AuditService.WhoCan": {},
    "AuditService.GetSkillHistory": {},
}


def stored(tenant: TestTenant) -> list[Any]:
    """Return everything that an author of the tenant sees of it, but for ids of events."""
    lists = ("SkillDefService.ListSkillDefs", "SkillDefService.ListCatalog", "AgentService.ListAgents")
    answers = [tenant.author.call(method, page_size=1000) for method in lists]
    for answer in answers:
        answer.decision_id = ""
    return answers


@each_name
def test_a_name_that_is_none_is_refused_wherever_one_is_taken(tenant: TestTenant, name: str) -> None:
    before = stored(tenant)
    for method, fields in NAMED.items():
        client = tenant.runtime if method.startswith("SkillService") else tenant.author
        failed = refused(client, method, name=name, **fields)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_NAME")
        assert [field for field, _ in failed.violations] == ["name"]
        assert failed.message.isascii()
    tested = refused(tenant.author, "AgentService.TestAllowlist", skills=["doc/*"], names=["doc/x", name])
    assert (tested.reason, [field for field, _ in tested.violations]) == ("INVALID_NAME", ["names[1]"])
    assert stored(tenant) == before


@each_name
def test_an_agents_name_that_is_none_is_refused_when_it_is_put(tenant: TestTenant, name: str) -> None:
    before = stored(tenant)
    failed = refused(tenant.author, "AgentService.PutAgent", agent={"name": name, "skills": ["doc/*"]})
    assert (failed.code, [field for field, _ in failed.violations]) == ("INVALID_ARGUMENT", ["agent.name"])
    assert stored(tenant) == before


@pytest.mark.parametrize("count", [201, 10_000])
def test_an_allowlist_of_too_many_entries_is_refused(tenant: TestTenant, count: int) -> None:
    before = stored(tenant)
    entries = [f"doc/n{number}" for number in range(count)]
    for method, fields in (
        ("AgentService.PutAgent", {"agent": {"name": "many", "skills": entries}}),
        ("AgentService.TestAllowlist", {"skills": entries, "names": ["doc/x"]}),
    ):
        failed = refused(tenant.author, method, **fields)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ALLOWLIST")
        assert "200" in failed.message
    assert stored(tenant) == before


def test_ten_thousand_bad_entries_are_refused_in_few_words(tenant: TestTenant) -> None:
    for entry in ("Doc/*", "\0" * 300, "\u043e" * 300):
        failed = refused(tenant.author, "AgentService.TestAllowlist", skills=[entry] * 10_000)
        assert (failed.reason, failed.code) == ("INVALID_ALLOWLIST", "INVALID_ARGUMENT")
        assert 0 < sum(len(field) + len(text) for field, text in failed.violations) < 4096


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (skill_md("big", "x" * (5 * 1024 * 1024)), "TOO_LARGE"),
        (skill_md("big", "\u20ac" * (2 * 1024 * 1024)), "TOO_LARGE"),
        (skill_md("big", "x" * (128 * 1024 + 1)), "INVALID_SKILL"),
        (skill_md("big", "\u20ac" * (128 * 1024 // 3 + 1)), "INVALID_SKILL"),
        (skill_md("big", header=f"license: {'x' * 65536}\n"), "INVALID_SKILL"),
        (skill_md("big", description="x" * 1025), "INVALID_SKILL"),
        (skill_md("big", "a\0b"), "INVALID_SKILL"),
        (skill_md("big", "a\u202eb"), "INVALID_SKILL"),
        (skill_md("big", " \n\n"), "INVALID_SKILL"),
        (skill_md("other"), "INVALID_SKILL"),
        (skill_md("big", header="a: &x [1]\nb: *x\n"), "INVALID_SKILL"),
        (skill_md("big", header="license: a\nlicense: b\n"), "INVALID_SKILL"),
        (skill_md("big", header=f"deep: {'[' * 5000}\n"), "INVALID_SKILL"),
        ("", "INVALID_SKILL"),
    ],
    ids=[
        "5 mb", "6 mb of wide letters", "body", "wide body", "frontmatter", "description", "nul", "direction", "blank",
        "name", "alias", "duplicate", "deep", "empty",
    ],
)  # fmt: skip
def test_a_source_that_is_too_large_or_malformed_is_refused(tenant: TestTenant, source: str, reason: str) -> None:
    before = stored(tenant)
    failed = refused(tenant.author, "SkillDefService.CreateSkillDef", name="doc/big", source=source)
    assert failed.reason == reason
    assert bool(failed.violations) is (reason == "INVALID_SKILL")
    assert reason != "TOO_LARGE" or int(failed.metadata["limit"]) >= 192 * 1024
    assert stored(tenant) == before


def test_the_largest_body_is_taken_and_invoked(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "all"})
    body = "x" * (128 * 1024)
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/big", source=skill_md("big", body))
    invoked = tenant.runtime.call("SkillService.InvokeSkill", agent="all", name="doc/big", arguments="y" * 128 * 1024)
    assert invoked.body == f"{body}\n\nARGUMENTS: {'y' * 128 * 1024}"


def test_messages_and_metadata_beyond_the_limits_do_not_reach_a_method(server: RunningServer) -> None:
    key = server.key(server.tenant().name, Role.AUTHOR)
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary(path_of("SkillDefService.CreateSkillDef"))
        for payload, metadata in ((b"\0" * (9 * 1024 * 1024), ()), (b"", (("x-much", "a" * 20_000),))):
            with pytest.raises(grpc.RpcError) as failed:
                call(payload, metadata=(*bearer(key), *metadata), timeout=10)
            error: Any = failed.value
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_page_of_large_agents_ends_before_it_is_larger_than_what_clients_accept(
    cluster: Cluster, tenant: TestTenant
) -> None:
    many = (
        "INSERT INTO agents (tenant_id, name, description, skills, definition, pins, content_sha256, revision,"
        " created_at, updated_at, updated_by) SELECT %s, 'a-' || number, '', '{}',"
        " json_build_object('prompt', repeat('x', 60000)), '{}', '', 1, now(), now(), 'test'"
        " FROM generate_series(1, 150) AS number"
    )
    assert owner.change(cluster, many, tenant.name) == 150
    tenant.author.call("AgentService.PutAgent", agent={"name": "one-more"})
    pages = list(tenant.author.pages("AgentService.ListAgents", page_size=1000))
    assert max(page.ByteSize() for page in pages) < 4 * 1024 * 1024
    assert {page.total_size for page in pages} == {sum(len(page.agents) for page in pages)}
    assert sum(agent.name.startswith("a-") for page in pages for agent in page.agents) == 150


def test_an_answer_beyond_the_limit_is_refused_with_a_reason(
    tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptors, "MAX_ANSWER_BYTES", 1000)
    for method, fields in (("ListSkills", {}), ("InvokeSkill", {"name": "doc/query"})):
        failed = refused(tenant.runtime, f"SkillService.{method}", agent="doc-manager", **fields)
        assert (failed.code, failed.reason) == ("RESOURCE_EXHAUSTED", "TOO_LARGE")
        assert failed.metadata["limit"] == "1000"
    assert tenant.runtime.call("SkillService.ListSkills", agent="doc-manager", pattern="doc/query").total_size == 1


FORGED = ["abc", "\0", "-1", "9" * 1000, "1e9", "\u00b2", "\ud800", "doc/x'; --", " "]
PAGED: dict[str, Callable[[str], tuple[object, ...]]] = {
    "AgentService.ListAgents": lambda tenant: ("ListAgents", tenant),
    "SkillDefService.ListSkillDefs": lambda tenant: (tenant, "ListSkillDefs", "", False, ""),
    "SkillDefService.ListSkillDefVersions": lambda tenant: ("ListSkillDefVersions", tenant, "", "own/mine"),
    "SkillDefService.ListCatalog": lambda tenant: (tenant, "ListCatalog", "", ""),
    "TenantService.ListTenants": lambda _: ("ListTenants",),
    "TenantService.ListKeys": lambda tenant: ("ListKeys", tenant),
    "AuditService.WhoCan": lambda tenant: ("WhoCan", tenant, tenant, "own/mine"),
    "AuditService.GetSkillHistory": lambda tenant: ("GetSkillHistory", tenant, tenant, "own/mine", None),
    "AuditService.QueryAuditEvents": lambda tenant: ("QueryAuditEvents", tenant, "{}", ""),
}
POSITIONS: dict[str, Callable[[TestTenant], str]] = {
    "AuditService.GetSkillHistory": lambda _: "1.1",
    "AuditService.QueryAuditEvents": lambda tenant: f"{incarnation_seen_by(tenant)}:0::1",
}
"""What stands in a token, where that is not one text or number."""


def incarnation_seen_by(tenant: TestTenant) -> str:
    state = tenant.author.call("SkillDefService.ListSkillDefs").state
    return read_catalog_token(state.catalog_token).incarnation


@pytest.mark.parametrize("method", PAGED)
def test_a_page_token_that_somebody_made_up_does_no_harm(tenant: TestTenant, method: str) -> None:
    operator = method.startswith("TenantService")
    client: Client = tenant.server.operator() if operator else tenant.author
    fields = {"tenant": tenant.name} if method == "TenantService.ListKeys" else {}
    if method in ("SkillDefService.ListSkillDefVersions", "AuditService.WhoCan", "AuditService.GetSkillHistory"):
        fields = {"name": "own/mine"}
        tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))
    # What the token is bound to is known here, so that what is made up gets as far as it can.
    position = POSITIONS[method](tenant) if method in POSITIONS else "1"
    client.call(method, page_token=page_token(position, *PAGED[method](tenant.name)), **fields)
    for after in FORGED:
        token = page_token(after, *PAGED[method](tenant.name))
        try:
            client.call(method, page_token=token, **fields)
        except CallFailed as failed:
            if failed.reason != "INVALID_PAGE_TOKEN":
                raise
    for token in ("x", base64.urlsafe_b64encode(json.dumps(["a", "0" * 16]).encode()).decode()):
        assert refused(client, method, page_token=token, **fields).reason == "INVALID_PAGE_TOKEN"
