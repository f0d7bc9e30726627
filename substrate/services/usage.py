"""Who invoked what, what nobody did, and which SkillDefs stand before a bundled skill that has moved on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain

from substrate.domain.audit import Verb
from substrate.domain.candidates import Candidate, LayerKind, Standing
from substrate.domain.catalog import Catalog
from substrate.domain.errors import InvalidArgument
from substrate.domain.names import SkillName, SkillRef, TenantId, parse_agent_name
from substrate.domain.patterns import Pattern, PatternSet, parse_query_pattern
from substrate.services.access import require_unbound, subject_of
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import fitting
from substrate.services.snapshots import Snapshot
from substrate.services.trace import Trace
from substrate.store import audit_reports
from substrate.store.audit_reports import Fork, Invocations
from substrate.store.tenants import no_tenant

DEFAULT_RANGE = timedelta(days=30)
MAX_RANGE = timedelta(days=400)
MAX_ROWS = 10_000

_OVERHEAD = 160
"""What a row takes on the wire beside its texts: digests, times and numbers, rounded up."""


@dataclass(frozen=True, slots=True)
class DriftedFork:
    """A SkillDef in effect, and the bundled skill of its name as it is now; None when no bundle has it any more."""

    fork: Fork
    bundled: Candidate | None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What was counted from `since` to before `until`; `truncated` says that there was more than it holds."""

    rows: Sequence[Invocations]
    never_invoked: Sequence[SkillName]
    drifted: Sequence[DriftedFork]
    since: datetime
    until: datetime
    truncated: bool


class Usage:
    """The use case of `GetUsageReport`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def report(
        self, call: Call, tenant: str, since: datetime | None, until: datetime | None, agent: str, pattern: str
    ) -> UsageReport:
        """Report on a tenant's invocations, of `agent` alone if it is named, of names that `pattern` matches.

        Without `until` the time ends now, without `since` it begins 30 days before its end.
        """

        def judge(trace: Trace) -> UsageReport:
            subject = subject_of(trace, tenant)
            require_unbound(trace)
            begin, end = _range(since, until, call.arrived)
            by = parse_agent_name(agent) if agent else None
            wanted = parse_query_pattern(pattern)
            trace.filter = pattern
            trace.details = {**(trace.details or {}), "since": begin.isoformat(), "until": end.isoformat()}
            trace.details |= {"of_agent": by} if by else {}
            catalog = self._snapshot(trace, subject).catalog
            with self._decisions.database.tenant(subject, call.deadline, snapshot=True) as connection:
                asked = (connection, subject, begin, end, by, wanted)
                rows = audit_reports.invocations(*asked, MAX_ROWS + 1)
                if len(rows) > MAX_ROWS:
                    invoked = audit_reports.invoked(*asked)
                else:
                    invoked = {row.name for row in rows if row.outcome == "ALLOWED"}
                forks = audit_reports.bundle_forks(connection, subject)
            live = [name for name in _matching(catalog.names(), wanted) if catalog.resolve(SkillRef(name)).winner]
            never = [name for name in live if name not in invoked]
            admitted = set(_matching([fork.name for fork in forks], wanted))
            drifted = [found for fork in forks if fork.name in admitted and (found := _drift(catalog, fork))]
            trace.admitted = len(rows)
            return _fitting(rows, never, drifted, begin, end)

        return self._decisions.settle(call, Verb.GET_USAGE, judge, required=False)

    def _snapshot(self, trace: Trace, subject: TenantId) -> Snapshot:
        if subject == trace.principal.tenant:
            return trace.snapshot
        snapshot = self._decisions.snapshots.load(subject, trace.call.started, trace.call.deadline)
        if snapshot.state.revision is None:
            raise no_tenant(subject)
        return snapshot


def _range(since: datetime | None, until: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    end = until or now
    try:
        begin = since or end - DEFAULT_RANGE
    except OverflowError:
        begin = datetime.min.replace(tzinfo=UTC)
    if begin >= end:
        raise InvalidArgument("until", "Must be later than `since`; without it, it is now.")
    if end - begin > MAX_RANGE:
        raise InvalidArgument("since", f"Must be at most {MAX_RANGE.days} days before `until`; ask for less at a time.")
    return begin, end


def _matching(names: Sequence[SkillName], wanted: Pattern | None) -> list[SkillName]:
    patterns = PatternSet([wanted]) if wanted is not None else None
    return [name for name in names if patterns is None or patterns.matching(name)]


def _drift(catalog: Catalog, fork: Fork) -> DriftedFork | None:
    """Return the fork if it is what its name stands for, and the bundled skill below is not what it was forked from."""
    found = catalog.resolve(SkillRef(fork.name))
    winner = found.winner
    if winner is None or winner.kind is not LayerKind.TENANT or winner.version != fork.version:
        return None
    below = (ruling.candidate for ruling in found.rulings if ruling.candidate.kind is LayerKind.BUNDLE)
    bundled = next((candidate for candidate in below if candidate.standing is Standing.ACTIVE), None)
    if bundled is not None and bundled.content_sha256 == fork.forked_sha256:
        return None
    return DriftedFork(fork, bundled)


def _fitting(
    rows: Sequence[Invocations],
    never: Sequence[SkillName],
    drifted: Sequence[DriftedFork],
    begin: datetime,
    end: datetime,
) -> UsageReport:
    """Return the report of as much as a message holds: first of drifted forks, then of rows, then of names."""
    kept = drifted[:MAX_ROWS], rows[:MAX_ROWS], never[:MAX_ROWS]
    weights = chain(
        (2 * _OVERHEAD + 2 * len(found.fork.forked_from) + len(found.fork.name) for found in kept[0]),
        (_OVERHEAD + len(row.name) + len(row.agent) + len(row.reason) for row in kept[1]),
        (len(name) + 4 for name in kept[2]),
    )
    room = fitting(weights)
    forks, counted = kept[0][:room], kept[1][: max(0, room - len(kept[0]))]
    names = kept[2][: max(0, room - len(kept[0]) - len(kept[1]))]
    truncated = len(forks) + len(counted) + len(names) < len(drifted) + len(rows) + len(never)
    return UsageReport(counted, names, forks, begin, end, truncated)
