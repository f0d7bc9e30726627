"""What reports read from the audit: the changes of a name, the static states that were served, counts of invocations.

Everything is of the one tenant that the caller's transaction sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, literal, literal_column, select

from substrate.domain.audit import Verb
from substrate.domain.history import CHANGING
from substrate.domain.names import AgentName, SkillName, TenantId
from substrate.domain.patterns import Pattern
from substrate.store.audit_log import names_matching
from substrate.store.tables import audit_events, audit_inputs, audit_starts, skill_def_versions, skill_defs

_LONGEST_CALL = timedelta(minutes=10)
_FIRST_TIME, _LAST_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_ALLOWED = "ALLOWED"

# Constants rather than parameters, so that the database sees which of its indexes serve.
_IS_CHANGE: ColumnElement[bool] = literal_column(
    f"audit_events.verb IN ({', '.join(repr(verb.value) for verb in CHANGING)})"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event's place in its chain, what its columns say of it, and its text."""

    sequence: int
    time: datetime
    verb: str
    event: str


@dataclass(frozen=True, slots=True)
class Invocations:
    """How many invocations have everything in common, and when the last of them arrived."""

    name: str
    layer: str
    version: int | None
    agent: str
    outcome: str
    reason: str
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Fork:
    """A SkillDef that is in effect, and the bundled skill that it goes back to."""

    name: SkillName
    version: int
    forked_from: str
    forked_sha256: str


def changes(
    connection: Connection, tenant: TenantId, name: SkillName, before: int | None, limit: int
) -> list[Recorded]:
    """Return up to `limit` events of calls that changed `name`, the newest first; those before a sequence if given.

    A change that was rehearsed, or that repeats an earlier one, was not made.
    """
    columns = audit_events.c
    return _newest(connection, tenant, before, limit, columns.name == name, _IS_CHANGE, *_made())


def imports(connection: Connection, tenant: TenantId, name: SkillName) -> list[Recorded]:
    """Return the events of imports that can have made the SkillDef `name`: those that came shortly before it."""
    columns = skill_defs.c
    made = connection.execute(
        select(columns.created_at).where((columns.tenant_id == tenant) & (columns.name == name))
    ).scalar()
    if made is None:
        return []
    arrived = audit_events.c.occurred_at
    when = arrived.between(made - _LONGEST_CALL, made)
    return _newest(connection, tenant, None, None, audit_events.c.verb == Verb.IMPORT.value, when, *_made())


def loads(connection: Connection, platform: TenantId, before: int | None, limit: int) -> list[Recorded]:
    """Return up to `limit` events of static states that servers began to serve, the newest first."""
    columns = audit_events.c
    # Servers themselves are the actor, by whom there are few events.
    conditions: list[ColumnElement[bool]] = [columns.actor == "server", columns.verb == Verb.LOAD_STATIC.value]
    return _newest(connection, platform, before, limit, *conditions)


def kept(connection: Connection, tenant: TenantId, sha256: str) -> str | None:
    """Return the text that is kept under a digest."""
    columns = audit_inputs.c
    found: str | None = connection.execute(
        select(columns.content).where((columns.tenant_id == tenant) & (columns.sha256 == sha256))
    ).scalar()
    return found


def is_cut(connection: Connection, tenant: TenantId) -> bool:
    """Whether the first months of the tenant's chain were dropped."""
    return (
        connection.execute(select(audit_starts.c.sequence).where(audit_starts.c.tenant_id == tenant)).first()
        is not None
    )


def invocations(
    connection: Connection,
    tenant: TenantId,
    since: datetime,
    until: datetime,
    agent: AgentName | None,
    pattern: Pattern | None,
    limit: int,
) -> list[Invocations]:
    """Count the invocations from `since` to before `until` in up to `limit` rows, by name, then the most frequent."""
    columns = audit_events.c
    shared = (columns.name, columns.winner_layer, columns.version, columns.agent, columns.outcome, columns.reason)
    count = func.count()
    rows = connection.execute(
        select(*shared, count, func.max(columns.occurred_at))
        .where(_invoked(tenant, since, until, agent, pattern))
        .group_by(*shared)
        .order_by(columns.name, count.desc(), *shared[1:])
        .limit(limit)
    )
    return [Invocations(*row) for row in rows]


def invoked(
    connection: Connection,
    tenant: TenantId,
    since: datetime,
    until: datetime,
    agent: AgentName | None,
    pattern: Pattern | None,
) -> set[str]:
    """Return the names that were invoked successfully from `since` to before `until`."""
    columns = audit_events.c
    wanted = _invoked(tenant, since, until, agent, pattern) & (columns.outcome == _ALLOWED)
    return set(connection.execute(select(columns.name).where(wanted).distinct()).scalars())


def bundle_forks(connection: Connection, tenant: TenantId) -> list[Fork]:
    """Return the SkillDefs in effect that go back to a bundled skill, directly or by way of older versions, by name.

    An agent's new text counts as forked from what it was put in the place of.
    """
    defs, versions = skill_defs.c, skill_def_versions.c
    lineage = versions.lineage
    # Texts, unlike JSON, can be compared, which ends the search even if rows that nobody should change form a circle.
    origin = lineage["origin"].as_string().label("origin")
    digest = lineage["content_sha256"].as_string().label("digest")
    parent = lineage["version"].as_integer().label("parent")
    line = (
        select(defs.name, defs.active_version, origin, digest, parent)
        .join(
            skill_def_versions,
            (versions.tenant_id == defs.tenant_id)
            & (versions.name == defs.name)
            & (versions.version == defs.active_version),
        )
        .where((defs.tenant_id == tenant) & defs.retired_at.is_(None) & lineage.is_not(None))
        .cte("line", recursive=True)
    )
    line = line.union(
        select(line.c.name, line.c.active_version, origin, digest, parent)
        .join(
            skill_def_versions,
            and_(versions.tenant_id == tenant, versions.name == line.c.name, versions.version == line.c.parent),
        )
        .where(lineage.is_not(None))
    )
    rows = connection.execute(
        select(line.c.name, line.c.active_version, line.c.origin, line.c.digest)
        .where(line.c.origin.startswith("bundle:"))
        .order_by(line.c.name)
    )
    return [Fork(*row) for row in rows]


def _made() -> list[ColumnElement[bool]]:
    """Return the conditions that a change was made: it was allowed, not rehearsed, and no repetition."""
    columns = audit_events.c
    # Inside a text of the JSON every quote has a backslash before it, so these are the fields themselves.
    unmade = ('"validate_only":true', '"repeats":true')
    return [columns.outcome == _ALLOWED, *(~columns.event.contains(field) for field in unmade)]


def _invoked(
    tenant: TenantId, since: datetime, until: datetime, agent: AgentName | None, pattern: Pattern | None
) -> ColumnElement[bool]:
    columns = audit_events.c
    conditions: list[Any] = [
        columns.tenant_id == tenant,
        columns.verb == Verb.INVOKE.value,
        columns.occurred_at >= since,
        columns.occurred_at < until,
    ]
    if agent is not None:
        conditions.append(columns.agent == agent)
    if pattern is not None and not pattern.matches_all:
        conditions.append(names_matching(pattern))
    return and_(literal(value=True), *conditions)


def _newest(
    connection: Connection, tenant: TenantId, before: int | None, limit: int | None, *conditions: ColumnElement[bool]
) -> list[Recorded]:
    columns = audit_events.c
    wanted: Sequence[ColumnElement[bool]] = (columns.tenant_id == tenant, *conditions)
    # Somebody may have put a time there that Python has no value for.
    time = func.least(func.greatest(columns.occurred_at, _FIRST_TIME), _LAST_TIME)
    statement = select(columns.sequence, time, columns.verb, columns.event).where(and_(*wanted))
    statement = statement.order_by(columns.sequence.desc())
    if before is not None:
        statement = statement.where(columns.sequence < before)
    return [Recorded(*row) for row in connection.execute(statement.limit(limit))]
