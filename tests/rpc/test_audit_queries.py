"""Operators and authors search the audit: by every condition, in either direction, while it grows."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from substrate.api.v1 import audit_pb2, catalog_pb2
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT
from substrate.domain.tokens import page_token
from substrate.rpc.client import Client
from tests.servers import Cluster, RunningServer, TestTenant
from tests.skills import refused, skill_md
from tests.store.chain import events

QUERY = "AuditService.QueryAuditEvents"
EXPLAIN = "AuditService.ExplainResolution"


@dataclass(frozen=True)
class History:
    """A tenant that ten calls were made of, and its operator; queries by the operator leave no event in its log."""

    tenant: TestTenant
    operator: Client

    def found(self, **conditions: object) -> list[int]:
        """Return the sequences of the events that meet `conditions`, oldest first."""
        page = self.operator.call(QUERY, tenant=self.tenant.name, oldest_first=True, **conditions)
        assert page.next_page_token == ""
        return [event.sequence for event in page.events]


@pytest.fixture(scope="module")
def history(server: RunningServer) -> History:
    tenant = server.tenant()
    invoke = {"agent": "doc-manager", "name": "doc/query"}
    made = tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))  # 1
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper", "skills": ["own/*"]})  # 2
    tenant.runtime.call("SkillService.InvokeSkill", **invoke)  # 3
    tenant.runtime.call("SkillService.InvokeSkill", agent="helper", name="own/mine")  # 4
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="helper", name="doc/query")  # 5
    tenant.runtime.call("SkillService.ListSkills", agent="helper")  # 6
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="nobody", name="own/mine")  # 7
    tenant.author.call("SkillDefService.RetireSkillDef", name="own/mine", etag=made.skill_def.etag)  # 8
    refused(tenant.runtime, "SkillService.InvokeSkill", agent="helper", name="own/mine")  # 9
    tenant.runtime.call("SkillService.InvokeSkill", **invoke, arguments="chunk 7")  # 10
    return History(tenant, server.operator())


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"agent": "helper"}, [2, 4, 5, 6, 9]),
        ({"agent": "nobody"}, [7]),
        ({"agent": "never-heard-of"}, []),
        ({"pattern": "own/mine"}, [1, 4, 8, 9]),
        ({"pattern": "own/*"}, [1, 4, 8, 9]),
        ({"pattern": "*/query"}, [3, 5, 10]),
        ({"pattern": "own"}, []),
        ({"verb": "invoke"}, [3, 4, 5, 7, 9, 10]),
        ({"verb": "retire"}, [8]),
        ({"outcome": "OUTCOME_REFUSED"}, [5, 7, 9]),
        ({"outcome": "OUTCOME_ALLOWED"}, [1, 2, 3, 4, 6, 8, 10]),
        ({"outcome": "OUTCOME_CANCELLED"}, []),
        ({"winner_layer": "LAYER_BUNDLE"}, [3, 10]),
        ({"winner_layer": "LAYER_TENANT", "verb": "invoke"}, [4]),
        ({"winner_layer": "LAYER_INLINE"}, []),
        ({"version": 1, "verb": "invoke"}, [4]),
        ({"version": 2}, []),
        ({"denied_only": True}, [5]),
        ({"denied_only": True, "reason": "SKILL_NOT_PERMITTED"}, [5]),
        ({"denied_only": True, "reason": "SKILL_NOT_FOUND"}, []),
        ({"reason": "AGENT_NOT_FOUND"}, [7]),
        ({"reason": "SKILL_NOT_FOUND"}, [9]),
        ({"shadowed_only": True}, []),
        ({"arguments": "chunk 7"}, [10]),
        ({"arguments": "chunk 7 "}, []),
        ({"arguments": "chunk 7", "pattern": "own/*"}, []),
        ({"verb": "invoke", "agent": "helper", "outcome": "OUTCOME_REFUSED", "pattern": "own/**"}, [9]),
    ],
)
def test_every_condition_narrows_and_all_must_hold(
    history: History, conditions: Mapping[str, object], expected: list[int]
) -> None:
    assert history.found(**conditions) == expected


def test_events_are_found_by_their_own_and_by_their_calls_id(history: History) -> None:
    page = history.operator.call(QUERY, tenant=history.tenant.name)
    for event in page.events:
        assert history.found(decision_id=event.id) == [event.sequence]
        assert history.found(decision_id=event.id.upper()) == [event.sequence]
        assert history.found(call_id=event.call_id) == [event.sequence]
    assert history.found(decision_id="00000000-0000-7000-8000-000000000000") == []
    assert history.found(call_id="never") == []


def test_times_bound_the_events_from_the_first_to_before_the_last(history: History) -> None:
    page = history.operator.call(QUERY, tenant=history.tenant.name, oldest_first=True)
    times = [event.time.ToDatetime(UTC) for event in page.events]
    assert times == sorted(times)
    assert history.found(since=times[3]) == [4, 5, 6, 7, 8, 9, 10]
    assert history.found(until=times[3]) == [1, 2, 3]
    assert history.found(since=times[3], until=times[5]) == [4, 5]
    assert history.found(since=times[9] + timedelta(microseconds=1)) == []
    failed = refused(history.operator, QUERY, tenant=history.tenant.name, since=times[5], until=times[5])
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "until")


def test_events_come_the_newest_first_unless_told_otherwise(history: History) -> None:
    newest = [event.sequence for event in history.operator.call(QUERY, tenant=history.tenant.name).events]
    assert newest == history.found()[::-1]


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("size", [1, 3, 10, 5000])
def test_pages_make_up_the_whole(history: History, size: int, *, oldest_first: bool) -> None:
    pages = history.operator.pages(QUERY, tenant=history.tenant.name, page_size=size, oldest_first=oldest_first)
    sizes, found = [], []
    for page in pages:
        sizes.append(len(page.events))
        found += [event.sequence for event in page.events]
    assert found == (history.found() if oldest_first else history.found()[::-1])
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert sum(sizes) == 10
    assert sizes[-1] > 0


@pytest.mark.parametrize("oldest_first", [True, False])
def test_events_written_while_a_list_is_paged_neither_repeat_nor_hide_others(
    tenant: TestTenant, *, oldest_first: bool
) -> None:
    def invoke() -> None:
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")

    for _ in range(6):
        invoke()
    found = []
    for page in tenant.author.pages(QUERY, page_size=2, oldest_first=oldest_first, verb="invoke"):
        found += [event.sequence for event in page.events]
        if len(found) < 10:
            invoke()
    # The query of each page is an event of its own, so the calls between the pages have sequences of their own too.
    older = [1, 2, 3, 4, 5, 6]
    if oldest_first:
        assert found[:6] == older
        assert found == sorted(set(found))
    else:
        assert found == older[::-1]


def test_a_page_token_is_good_for_its_own_query_alone(history: History, server: RunningServer) -> None:
    name = history.tenant.name
    token = history.operator.call(QUERY, tenant=name, page_size=1).next_page_token
    other = server.tenant().name
    for changed in (
        {"tenant": name, "verb": "invoke"},
        {"tenant": name, "oldest_first": True},
        {"tenant": name, "agent": "helper"},
        {"tenant": name, "since": datetime(2020, 1, 1, tzinfo=UTC)},
        {"tenant": other},
    ):
        failed = refused(history.operator, QUERY, page_token=token, **changed)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")
        assert failed.violations[0][0] == "page_token"
    larger = history.operator.call(QUERY, tenant=name, page_size=3, page_token=token)
    assert [event.sequence for event in larger.events] == [9, 8, 7]


@pytest.mark.parametrize(
    "after",
    [
        "x",
        "7",
        *(f"{'0' * 32}:{key}" for key in ("0::1x", "0::-1", f"0::{'9' * 30}", "9" * 20 + "::1", "0:A:1", "0::\u0661")),
    ],
)
def test_a_made_up_token_of_the_right_form_is_refused(tenant: TestTenant, after: str) -> None:
    asked = page_token(after, "QueryAuditEvents", tenant.name, "{}", "")
    failed = refused(tenant.author, QUERY, page_token=asked)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")


def test_a_token_of_another_database_is_told_from_one_of_another_query(tenant: TestTenant) -> None:
    asked = page_token(f"{'0' * 32}:0::7", "QueryAuditEvents", tenant.name, "{}", "")
    failed = refused(tenant.author, QUERY, page_token=asked)
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "REVISION_UNKNOWN")


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"verb": "steal"}, "INVALID_ARGUMENT", "verb"),
        ({"pattern": "+doc/*"}, "INVALID_ARGUMENT", "pattern"),
        ({"decision_id": "7"}, "INVALID_ARGUMENT", "decision_id"),
        ({"decision_id": "{00000000-0000-7000-8000-000000000000}"}, "INVALID_ARGUMENT", "decision_id"),
        ({"agent": "Not A Slug"}, "INVALID_NAME", "agent"),
        ({"outcome": 99}, "INVALID_ARGUMENT", "outcome"),
        ({"call_id": "x" * 129}, "INVALID_ARGUMENT", "call_id"),
        ({"page_size": -1}, "INVALID_ARGUMENT", "page_size"),
        ({"winner_layer": 9}, "INVALID_ARGUMENT", "winner_layer"),
        ({"version": -1}, "INVALID_ARGUMENT", "version"),
        ({"reason": "BECAUSE"}, "INVALID_ARGUMENT", "reason"),
        ({"actor": "x" * 257}, "INVALID_ARGUMENT", "actor"),
        ({"arguments": "x" * 65_537}, "INVALID_ARGUMENT", "arguments"),
    ],
)
def test_a_condition_that_is_none_is_refused(
    tenant: TestTenant, fields: dict[str, Any], reason: str, field: str
) -> None:
    failed = refused(tenant.author, QUERY, **fields)
    assert (failed.code, failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", reason, field)


def test_an_operator_names_the_tenant_and_an_author_has_its_own(history: History, tenant: TestTenant) -> None:
    failed = refused(history.operator, EXPLAIN, name="doc/query")
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "tenant")
    for method, fields in ((QUERY, {}), (EXPLAIN, {"name": "doc/query"})):
        failed = refused(history.operator, method, tenant="nobody-here", **fields)
        assert (failed.code, failed.reason, failed.metadata["tenant"]) == (
            "NOT_FOUND",
            "TENANT_NOT_FOUND",
            "nobody-here",
        )
        for other in (history.tenant.name, "nobody-here", PLATFORM_TENANT):
            failed = refused(tenant.author, method, tenant=other, **fields)
            assert (failed.code, failed.reason, failed.metadata["tenant"]) == ("NOT_FOUND", "TENANT_NOT_FOUND", other)
        assert tenant.author.call(method, tenant=tenant.name, **fields).decision_id
        failed = refused(tenant.runtime, method, **fields)
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        assert failed.metadata["roles"] == "author,operator"
    assert (
        history.operator.call(EXPLAIN, tenant=history.tenant.name, name="own/mine").candidates[0].origin == "tenant:v1"
    )


def test_a_bound_key_sees_its_own_agents_events_and_explanations_alone(history: History, cluster: Cluster) -> None:
    bound = history.tenant.server.client(history.tenant.server.key(history.tenant.name, Role.AUTHOR, "helper"))
    # What others did with the agent in mind, such as defining it, is none of its own doing.
    runs = ("prepare", "list", "invoke", "read_file")
    told = [event for event in events(cluster, history.tenant.name) if event.get("agent") == "helper"]
    own = [event["id"] for event in told if event["verb"] in runs]
    assert 0 < len(own) < len(told)
    seen = bound.call(QUERY, oldest_first=True).events
    assert [event.id for event in seen] == own
    others = [event["id"] for event in events(cluster, history.tenant.name) if event.get("agent") == "doc-manager"]
    assert list(bound.call(QUERY, decision_id=others[0]).events) == []
    for method, fields in ((QUERY, {}), (EXPLAIN, {"name": "own/mine"})):
        failed = refused(bound, method, agent="doc-manager", **fields)
        assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "ROLE_REQUIRED")
        assert failed.metadata["agent"] == "helper"
    explained = bound.call(EXPLAIN, name="own/mine")
    assert [trial.entry for trial in explained.trials] == ["own/*"]
    outside = [refused(bound, EXPLAIN, name=name) for name in ("doc/query", "doc/nothing")]
    assert {(failed.code, failed.reason) for failed in outside} == {("PERMISSION_DENIED", "SKILL_NOT_PERMITTED")}


def test_an_answered_query_is_an_event_of_its_own(cluster: Cluster, tenant: TestTenant) -> None:
    answer = tenant.author.call(QUERY, verb="invoke", outcome=audit_pb2.Outcome.OUTCOME_REFUSED)
    assert answer.decision_id not in [event.id for event in answer.events]
    event = events(cluster, tenant.name)[-1]
    assert (event["id"], event["verb"]) == (answer.decision_id, "query_audit")
    assert "invoke" in event["filter"]
    answer = tenant.author.call(QUERY, arguments="the secret words")
    event = events(cluster, tenant.name)[-1]
    assert event["id"] == answer.decision_id
    assert "secret" not in str(event)


def test_an_actor_finds_what_one_key_did(history: History) -> None:
    everything = history.operator.call(QUERY, tenant=history.tenant.name, oldest_first=True).events
    actors = {event.actor for event in everything}
    assert len(actors) >= 2
    for actor in actors:
        assert history.found(actor=actor) == [event.sequence for event in everything if event.actor == actor]
    assert history.found(actor="runtime:nobody.x") == []


def test_what_shadows_a_bundle_is_found(tenant: TestTenant) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="doc/query", source=skill_md("query"))
    for name in ("doc/query", "doc/chunk-add"):
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name=name)
    (event,) = tenant.author.call(QUERY, verb="invoke", shadowed_only=True).events
    assert (event.name, event.winner.layer) == ("doc/query", catalog_pb2.LAYER_TENANT)
    assert [found.state for found in event.candidates][1] == catalog_pb2.CANDIDATE_STATE_SHADOWED


def test_arguments_are_looked_for_in_one_tenant_alone(history: History, server: RunningServer) -> None:
    failed = refused(history.operator, QUERY, arguments="chunk 7")
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "arguments")
    # The same arguments look different in another tenant, whose key is another.
    other = server.tenant()
    other.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query", arguments="chunk 7")
    (mine,) = history.operator.call(QUERY, tenant=history.tenant.name, arguments="chunk 7").events
    (theirs,) = other.author.call(QUERY, arguments="chunk 7").events
    assert len(mine.arguments_hmac) == len(theirs.arguments_hmac) == 64
    assert mine.arguments_hmac != theirs.arguments_hmac


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_an_operator_pages_through_all_tenants_as_they_were_written(
    server: RunningServer, size: int, *, oldest_first: bool
) -> None:
    operator, tenants = server.operator(), [server.tenant() for _ in range(3)]
    pattern = f"own/{secrets.token_hex(4)}"
    made = [
        refused(tenants[number % 3].runtime, "SkillService.InvokeSkill", agent="doc-manager", name=pattern).decision_id
        for number in range(7)
    ]
    pages = operator.pages(QUERY, pattern=pattern, page_size=size, oldest_first=oldest_first)
    found = [event.id for page in pages for event in page.events]
    assert found == (made if oldest_first else made[::-1])
    token = operator.call(QUERY, pattern=pattern, page_size=1).next_page_token
    failed = refused(operator, QUERY, pattern=pattern, page_token=token, tenant=tenants[0].name)
    assert failed.reason == "INVALID_PAGE_TOKEN"
