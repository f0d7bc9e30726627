"""Events whose text somebody has damaged in the database: still served, and nothing is concluded from them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.api.v1.audit_pb2 import Outcome
from substrate.rpc.audit_messages import audit_event
from substrate.store.audit import StoredEvent
from tests.domain.test_audit_event import BARE, FULL
from tests.domain.test_recorded import BROKEN, PLAIN, WRONG
from tests.rpc.explained import EXPLAIN, INVOKE, NAME, authored, write_parts
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.skills import changed, refused
from tests.store.owner import change, value

HISTORY = "AuditService.GetSkillHistory"
QUERY = "AuditService.QueryAuditEvents"


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A database of this module alone: the tail over all tenants must meet no other damage."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def guarded(own: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(own, write_parts(tmp_path_factory.mktemp("parts"))) as server:
        yield server


@pytest.fixture
def tenant(guarded: RunningServer) -> TestTenant:
    return guarded.tenant()


def damage(cluster: Cluster, tenant: str, verb: str, text: str) -> int:
    """Put `text` in the place of the only event of a verb; return its number."""
    change(cluster, "UPDATE audit_events SET event = %s WHERE tenant_id = %s AND verb = %s", text, tenant, verb)
    number = "SELECT sequence FROM audit_events WHERE tenant_id = %s AND verb = %s"
    return int(value(cluster, number, tenant, verb))


TEXTS = [
    *(text for text in BROKEN if "\0" not in text),
    *(json.dumps({"id": "x", "tenant": "other", field: values[0]}) for field, values in WRONG.items()),
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_a_damaged_event_is_served_as_it_is_and_hides_no_other(
    own: Cluster, guarded: RunningServer, tenant: TestTenant, text: str
) -> None:
    operator = guarded.operator()
    made = tenant.runtime.call(INVOKE, agent="docs", name=NAME).decision_id
    number = damage(own, tenant.name, "invoke", text)
    after = tenant.runtime.call(INVOKE, agent="docs", name="doc/src", touched_paths=["src/a"]).decision_id
    for client, scope in ((tenant.author, {}), (operator, {"tenant": tenant.name}), (operator, {})):
        event = client.call("AuditService.GetAuditEvent", id=made, **scope).event
        assert (event.tenant, event.sequence, event.event_json) == (tenant.name, number, text)
    events = tenant.author.call(QUERY, verb="invoke").events
    assert [each.event_json for each in events][1:] == [text]
    assert (events[0].id, events[0].outcome) == (after, Outcome.OUTCOME_ALLOWED)
    for client, scope in ((operator, {}), (tenant.author, {})):
        stream = client.stream("AuditService.TailAuditEvents", timeout=60, since=_BEGIN, verb="invoke", **scope)
        found = [event.event_json for message in _until(stream, after) for event in message.events]
        assert text in found
    failed = refused(tenant.author, EXPLAIN, recorded=made)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "recorded")
    assert f"number {number}" in failed.violations[0][1]
    *_, report = operator.stream("AuditService.VerifyAudit", timeout=60, tenant=tenant.name)
    assert (report.done, report.intact, report.first_bad_sequence) == (True, False, number)


_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


def _until(stream: Iterator[Any], last: str) -> Iterator[Any]:
    for message in stream:
        yield message
        if any(event.id == last for event in message.events):
            return


@pytest.mark.parametrize("text", ["x", "{}", json.dumps({**json.loads(FULL.text()), "verb": "create"})])
def test_a_change_whose_event_is_damaged_is_told_as_unknown(own: Cluster, tenant: TestTenant, text: str) -> None:
    authored(tenant)
    number = damage(own, tenant.name, "create", text)
    (told,) = tenant.author.call(HISTORY, name=NAME).changes
    assert told.text.startswith(f"Event {number} was damaged")
    assert (told.verb, told.HasField("before"), told.HasField("after")) == ("create", False, False)
    explained = tenant.author.call(EXPLAIN, name=NAME, agent="docs")
    assert explained.winner.origin == "tenant:v1"
    # What comes after it stands alone, and is told again; what was before that is unknown.
    changed(tenant.author, "SkillDefService.RetireSkillDef", name=NAME)
    newest, damaged = tenant.author.call(HISTORY, name=NAME).changes
    assert (newest.verb, newest.HasField("before"), newest.after.layer) == ("retire", False, 3)
    assert damaged == told


def test_static_states_whose_event_is_damaged_leave_all_else_told(own: Cluster, tenant: TestTenant) -> None:
    authored(tenant)
    before = tenant.author.call(HISTORY, name=NAME).changes
    statement = "UPDATE audit_events SET event = '{}' WHERE verb = 'load_static'"
    assert change(own, statement) > 0
    assert tenant.author.call(HISTORY, name=NAME).changes == before


@given(st.dictionaries(st.sampled_from(sorted(FULL.fields())), PLAIN))
def test_whatever_a_field_holds_there_is_a_message(found: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(FULL.text()), **found})
    message = audit_event(StoredEvent(BARE.tenant, 1, bytes(32), bytes(32), text))
    assert (message.event_json, message.sequence) == (text, 1)
    message.SerializeToString()
