"""The audit followed as it grows: nothing missed, nothing twice, and no longer than the key is good."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from substrate.bootstrap import SystemClock
from substrate.domain.audit import AuditEvent, EventOutcome, Verb
from substrate.domain.identity import Role
from substrate.domain.names import PLATFORM_TENANT, TenantId
from substrate.rpc.client import CallFailed, Client
from substrate.services import audit as service
from substrate.services.audit_conditions import position_token
from substrate.store.audit import append
from substrate.store.audit_log import Position
from substrate.store.migrate import migrate
from tests.servers import Cluster, RunningServer, TestTenant, running_cluster, running_server
from tests.skills import skill_md
from tests.store.chain import events

TAIL = "AuditService.TailAuditEvents"
QUERY = "AuditService.QueryAuditEvents"
INVOKE = "SkillService.InvokeSkill"


class Tail:
    """A stream, and the last position that it told."""

    def __init__(self, client: Client, **fields: object) -> None:
        self._messages = client.stream(TAIL, timeout=60, **fields)
        first = next(self._messages)
        assert list(first.events) == []
        self.position = first.position
        self.decision_id = first.decision_id

    def take(self, count: int) -> list[Any]:
        """Return the next `count` events, which must be all that the messages with them bring."""
        found: list[Any] = []
        while len(found) < count:
            message = next(self._messages)
            assert message.decision_id == self.decision_id
            self.position = message.position
            found += message.events
        assert len(found) == count
        return found

    def failure(self) -> CallFailed:
        """Return how the stream ends, whatever it brings before."""
        with pytest.raises(CallFailed) as failed:
            for _ in self._messages:
                pass
        return failed.value

    def close(self) -> None:
        self._messages.close()  # type: ignore[attr-defined]  # It is a generator.


@pytest.fixture
def tail() -> Iterator[Callable[..., Tail]]:
    """Opens streams, which are closed at the end."""
    made: list[Tail] = []

    def begin(client: Client, **fields: object) -> Tail:
        made.append(Tail(client, **fields))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def invoke(tenant: TestTenant, name: str = "doc/query", agent: str = "doc-manager") -> str:
    """Return the id of the event of a call that may be refused."""
    try:
        return str(tenant.runtime.call(INVOKE, agent=agent, name=name).decision_id)
    except CallFailed as failed:
        return failed.decision_id


def test_what_is_written_from_now_on_comes_in_order(tenant: TestTenant, tail: Callable[..., Tail]) -> None:
    invoke(tenant)
    stream = tail(tenant.author, verb="invoke")
    made = [invoke(tenant, name) for name in ("doc/query", "doc/absent", "writing/linkedin-post")]
    received = stream.take(3)
    assert [event.id for event in received] == made
    assert received == list(tenant.author.call(QUERY, verb="invoke", oldest_first=True).events)[1:]
    made = [invoke(tenant)]
    assert [event.id for event in stream.take(1)] == made


def test_a_stream_can_begin_in_the_past(tenant: TestTenant, tail: Callable[..., Tail]) -> None:
    made = [invoke(tenant) for _ in range(3)]
    second = tenant.author.call(QUERY, decision_id=made[1]).events[0]
    stream = tail(tenant.author, verb="invoke", since=second.time.ToDatetime())
    assert [event.id for event in stream.take(2)] == made[1:]
    everything = tail(tenant.author, verb="invoke", since=second.time.ToDatetime() - timedelta(days=400))
    assert [event.id for event in everything.take(3)] == made


def test_who_comes_back_misses_nothing_and_gets_nothing_twice(tenant: TestTenant) -> None:
    made: list[str] = []
    received: list[str] = []
    written = threading.Event()

    def write() -> None:
        made.extend(invoke(tenant, "doc/query" if number % 3 else "doc/absent") for number in range(60))
        written.set()

    stream = Tail(tenant.author, verb="invoke", outcome="OUTCOME_ALLOWED")
    position = stream.position
    stream.close()
    writer = threading.Thread(target=write)
    writer.start()
    while not written.is_set() or len(received) < 40:
        messages = tenant.author.stream(TAIL, timeout=60, verb="invoke", outcome="OUTCOME_ALLOWED", position=position)
        for message in messages:
            position = message.position
            received += [event.id for event in message.events]
            if message.events:
                break
        messages.close()  # type: ignore[attr-defined]  # It is a generator.
    writer.join()
    assert received == [made[number] for number in range(60) if number % 3]


@pytest.mark.parametrize(
    "changed",
    [{"verb": "list"}, {"agent": "doc-manager"}, {"reason": "SKILL_NOT_FOUND"}, {"arguments": "b"}, {"version": 1}],
)
def test_a_position_is_good_for_its_own_conditions_alone(
    tenant: TestTenant, tail: Callable[..., Tail], changed: dict[str, object]
) -> None:
    conditions = {"verb": "invoke", "arguments": "a"}
    position = tail(tenant.author, **conditions).position
    assert tail(tenant.author, **conditions, position=position, since=SystemClock().now()).position
    failed = refused_stream(tenant.author, **{**conditions, **changed}, position=position)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")
    assert failed.violations[0][0] == "position"


def refused_stream(client: Client, **fields: object) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        next(client.stream(TAIL, timeout=20, **fields))
    return failed.value


def test_a_position_of_another_database_is_refused(tenant: TestTenant) -> None:
    bound = ("TailAuditEvents", tenant.name, "{}", "")
    failed = refused_stream(tenant.author, position=position_token(Position(3), "0" * 32, *bound))
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "REVISION_UNKNOWN")


def test_a_stream_ends_when_its_database_becomes_another() -> None:
    with running_cluster() as cluster, running_server(cluster) as server:
        stream = Tail(server.tenant().author)
        migrate(cluster.owner_url, restored=True)
        failed = stream.failure()
        assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "REVISION_UNKNOWN")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"agent": "helper"}, [1, 2]),
        ({"pattern": "own/*", "verb": "invoke"}, [1, 2, 3]),
        ({"outcome": "OUTCOME_REFUSED"}, [2, 3]),
        ({"winner_layer": "LAYER_TENANT", "verb": "invoke"}, [1]),
        ({"winner_layer": "LAYER_BUNDLE", "verb": "invoke"}, [0]),
        ({"version": 1, "verb": "invoke"}, [1]),
        ({"denied_only": True}, [3]),
        ({"reason": "SKILL_NOT_FOUND"}, [2]),
        ({"arguments": "chunk 7"}, [0]),
    ],
)
def test_conditions_narrow_a_stream(
    tenant: TestTenant, tail: Callable[..., Tail], conditions: dict[str, object], expected: list[int]
) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="own/mine", source=skill_md("mine"))
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper", "skills": ["own/*"]})
    stream = tail(tenant.author, **conditions)
    made = [tenant.runtime.call(INVOKE, agent="doc-manager", name="doc/query", arguments="chunk 7").decision_id]
    made += [
        invoke(tenant, "own/mine", "helper"),
        invoke(tenant, "own/absent", "helper"),
        invoke(tenant, "own/mine", "doc-manager"),
    ]
    assert [event.id for event in stream.take(len(expected))] == [made[number] for number in expected]


def test_a_key_that_is_revoked_ends_its_streams(server: RunningServer, tenant: TestTenant) -> None:
    key = server.key(tenant.name, Role.AUTHOR)
    stream = Tail(server.client(key))
    operator = server.operator()
    operator.call("TenantService.RevokeKey", tenant=tenant.name, key_id=key.split(".")[1].split("_")[0])
    failed = stream.failure()
    assert (failed.code, failed.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    # An operator's key is proven on the platform's tenant, wherever it looks.
    key = server.key(PLATFORM_TENANT, Role.OPERATOR)
    streams = [Tail(server.client(key), tenant=tenant.name), Tail(server.client(key), verb="create")]
    operator.call("TenantService.RevokeKey", tenant=PLATFORM_TENANT, key_id=key.split(".")[1].split("_")[0])
    assert [each.failure().reason for each in streams] == ["UNAUTHENTICATED"] * 2


def test_a_tenant_that_is_suspended_loses_its_streams(server: RunningServer, tenant: TestTenant) -> None:
    stream = Tail(tenant.author, verb="invoke")
    server.operator().call("TenantService.SetTenantSuspended", tenant=tenant.name, suspended=True)
    failed = stream.failure()
    assert (failed.code, failed.reason) == ("PERMISSION_DENIED", "TENANT_SUSPENDED")


def test_a_stream_without_events_tells_its_position(
    tenant: TestTenant, tail: Callable[..., Tail], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TELL_SECONDS", 0.1)
    messages = tenant.author.stream(TAIL, timeout=60, verb="retire")
    first = next(messages).position
    # Events that do not meet the conditions move the position on too.
    invoke(tenant)
    later = next(message for message in messages if message.position != first)
    assert list(later.events) == []
    messages.close()  # type: ignore[attr-defined]  # It is a generator.
    assert tail(tenant.author, verb="retire", position=later.position).position == later.position


def test_operators_follow_one_tenant_or_all(
    server: RunningServer, tenant: TestTenant, tail: Callable[..., Tail]
) -> None:
    other, operator = server.tenant(), server.operator()
    one = tail(operator, tenant=tenant.name, verb="invoke")
    everybody = tail(operator, verb="invoke", pattern="own/never-*")
    made = [invoke(each, f"own/never-{number}") for number, each in enumerate([tenant, other, tenant])]
    received = everybody.take(3)
    assert [event.id for event in received] == made
    assert [event.tenant for event in received] == [tenant.name, other.name, tenant.name]
    assert [event.id for event in one.take(2)] == [made[0], made[2]]
    again = tail(operator, verb="invoke", pattern="own/never-*", position=everybody.position)
    since = tail(operator, verb="invoke", pattern="own/never-*", since=received[1].time.ToDatetime())
    assert [event.id for event in since.take(2)] == made[1:]
    made = [invoke(other, "own/never-again")]
    for stream in (everybody, again, since):
        assert [event.id for event in stream.take(1)] == made


def test_who_may_follow_what(server: RunningServer, tenant: TestTenant) -> None:
    for named in (server.tenant().name, "nobody-here", PLATFORM_TENANT):
        failed = refused_stream(tenant.author, tenant=named)
        assert (failed.code, failed.reason, failed.metadata["tenant"]) == ("NOT_FOUND", "TENANT_NOT_FOUND", named)
    failed = refused_stream(server.operator(), tenant="nobody-here")
    assert (failed.code, failed.reason) == ("NOT_FOUND", "TENANT_NOT_FOUND")
    assert refused_stream(tenant.runtime).reason == "ROLE_REQUIRED"


def test_a_bound_key_follows_its_own_agent_alone(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "helper", "skills": ["own/*"]})
    bound = tenant.bound(Role.AUTHOR, "helper")
    assert refused_stream(bound, agent="doc-manager").reason == "ROLE_REQUIRED"
    stream = Tail(bound)
    invoke(tenant)
    made = [invoke(tenant, "own/mine", "helper")]
    assert [event.id for event in stream.take(1)] == made
    stream.close()


def test_a_stream_is_an_event_of_its_own_without_the_arguments(cluster: Cluster, tenant: TestTenant) -> None:
    stream = Tail(tenant.author, verb="invoke", arguments="the secret words")
    stream.close()
    event = events(cluster, tenant.name)[-1]
    assert (event["id"], event["verb"]) == (stream.decision_id, "tail_audit")
    assert '"verb": "invoke"' in event["filter"]
    assert "secret" not in str(event)


def test_more_than_fits_a_message_comes_in_several(
    server: RunningServer, tenant: TestTenant, tail: Callable[..., Tail], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TAIL_BATCH", 4)
    clock = SystemClock()
    stream = tail(tenant.author, verb="list")
    owner = TenantId(tenant.name)
    with server.database.tenant(owner) as connection:
        for number in range(14):
            event = AuditEvent(clock.event_id(), owner, clock.now(), f"c-{number}", Verb.LIST, EventOutcome.ALLOWED)
            append(connection, replace(event, filter="x" * (1_000_000 if number % 2 else 10)))
    assert [event.call_id for event in stream.take(14)] == [f"c-{number}" for number in range(14)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"verb": "steal"}, "verb"),
        ({"pattern": "+doc/*"}, "pattern"),
        ({"outcome": 99}, "outcome"),
        ({"winner_layer": 9}, "winner_layer"),
        ({"version": -1}, "version"),
        ({"reason": "BECAUSE"}, "reason"),
        ({"actor": "x" * 257}, "actor"),
        ({"call_id": "x" * 129}, "call_id"),
        ({"arguments": "x" * 65_537}, "arguments"),
        ({"position": "x"}, "position"),
    ],
)
def test_a_condition_that_is_none_is_refused(tenant: TestTenant, fields: dict[str, Any], field: str) -> None:
    failed = refused_stream(tenant.author, **fields)
    assert (failed.code, failed.violations[0][0]) == ("INVALID_ARGUMENT", field)


def test_arguments_are_looked_for_in_one_tenant_alone(server: RunningServer) -> None:
    failed = refused_stream(server.operator(), arguments="x")
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert failed.violations[0][0] == "arguments"
