"""What explanations read of one name: the tenant's part of it as it is now, who is behind it, and what was kept."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from substrate.domain.agents import Agent
from substrate.domain.audit import KeptInput, Verb
from substrate.domain.candidates import Candidate, LayerKind, Resolution, Versions
from substrate.domain.catalog import StaticCatalog
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import SkillChanged
from substrate.domain.explain import Deed, Difference, Provenance, body_amount, differences_of, shadowed_first
from substrate.domain.inputs import InvalidInputTextError, agent_of, static_of
from substrate.domain.names import PLATFORM_TENANT, SkillName, SkillRef, TenantId
from substrate.domain.question import Question, of_one_name
from substrate.domain.recorded import Event, whole
from substrate.domain.replay import Kept, decides_layers, versions_of
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.snapshots import Snapshot
from substrate.sources import static
from substrate.sources.tenant import read_name, version_candidate
from substrate.store import audit_reports, skill_defs, tenants
from substrate.store.audit_reports import Recorded
from substrate.store.session import Database, Transaction
from substrate.store.skill_defs import DisabledName, SkillDef, Version

_VERSIONS_READ = 20
_CHANGES_READ = 200


@dataclass(frozen=True, slots=True)
class Present:
    """One name in one tenant at one revision: the tenant's state as far as it matters, and its rows about the name.

    `changes` are the recorded changes of the name that were made, the newest first, up to one that was damaged: of
    those before it none can be said to be the last of its kind.
    """

    snapshot: Snapshot
    name: SkillName
    skill_def: SkillDef | None
    versions: Mapping[int, Version]
    tombstone: DisabledName | None
    changes: tuple[Event, ...]

    @property
    def tenant(self) -> TenantId:
        """The tenant that was read."""
        return self.snapshot.state.tenant

    def question(
        self, ref: SkillRef, agent: Agent | None, caller_kind: CallerKind, touched_paths: Iterable[str], *, drafts: bool
    ) -> Question:
        """Return the question about `ref` on this state."""
        state = self.snapshot.state
        tombstones, definitions = (layer.candidates.get(self.name) for layer in state.layers)
        stored = {(self.name, number): version_candidate(row) for number, row in self.versions.items()}
        return Question(
            self.tenant,
            ref,
            agent,
            tombstone=tombstones,
            skill_def=definitions,
            retired=self.skill_def is not None and self.skill_def.retired_at is not None,
            static=of_one_name(self.snapshot.static.catalog, self.name),
            versions=Versions({**stored, **state.versions.candidates}, state.versions.labels),
            caller_kind=caller_kind,
            touched_paths=tuple(touched_paths),
            drafts=drafts,
            suspended=state.suspended,
        )

    def stored(self) -> dict[int, Candidate]:
        """Return the versions that were read, as candidates."""
        return {number: version_candidate(row) for number, row in self.versions.items()}

    def provenance(self, until: Event | None = None) -> dict[str, Provenance]:
        """Return who is behind the tenant's candidates, by `source_of`; of what was done before `until` was decided."""
        found = {}
        for number, row in self.versions.items():
            event = self._of_version(until, number, Verb.CREATE, Verb.FORK)
            created = Deed(row.created_by, row.created_at, event["id"] if event else "")
            found[f"v{number}"] = Provenance(created, self._promoted(row, until))
        own = self.skill_def
        if own is not None:
            found["skill_def"] = Provenance(Deed(own.created_by, own.created_at))
            source = "skill_def" if own.active_version is None else f"v{own.active_version}"
            retired = self._last(until, Verb.RETIRE) if own.retired_at is not None else None
            if retired is not None and source in found:
                found[source] = replace(found[source], retired=_deed(retired))
        if self.tombstone is not None:
            event = self._last(until, Verb.DISABLE)
            deed = Deed(self.tombstone.disabled_by, self.tombstone.disabled_at, event["id"] if event else "")
            found["disabled"] = Provenance(deed)
        return found

    def differences(self, resolution: Resolution) -> list[Difference]:
        """Return what differs between the winner and what it shadows first; of bodies only how much."""
        winner, loser = resolution.winner, shadowed_first(resolution)
        if winner is None or loser is None or winner.content_sha256 == loser.content_sha256:
            return []
        body, other = self._body(winner), self._body(loser)
        amount = None if body is None or other is None else body_amount(body, other)
        return [*differences_of(winner, loser), *([amount] if amount else [])]

    def _body(self, candidate: Candidate) -> str | None:
        """Return a candidate's body; None when it is not at hand, or not what was decided on."""
        if candidate.kind is LayerKind.TENANT:
            row = self.versions.get(candidate.version or 0)
            return row.body if row is not None and row.content_sha256 == candidate.content_sha256 else None
        with suppress(SkillChanged, OSError):
            return static.read_body(candidate) if candidate.folder or candidate.body is not None else None
        return None

    def _promoted(self, row: Version, until: Event | None) -> Deed | None:
        if row.promoted_at is None:
            return None
        event = self._of_version(until, row.version, Verb.PROMOTE, Verb.CREATE, Verb.FORK, promoted=True)
        # The row knows the latest promotion alone.
        latest = self._of_version(None, row.version, Verb.PROMOTE, Verb.CREATE, Verb.FORK, promoted=True)
        if event is not latest:
            return _deed(event) if event is not None else None
        if event is None and until is not None and row.promoted_at > datetime.fromisoformat(until["time"]):
            return None
        return Deed(row.promoted_by or "", row.promoted_at, event["id"] if event else "")

    def _of_version(self, until: Event | None, number: int, *verbs: Verb, promoted: bool = False) -> Event | None:
        """Return the newest event that made, or promoted, a version; None when it is not at hand."""

        def fits(details: Mapping[str, Any], verb: str) -> bool:
            return details.get("version") == number and (
                not promoted or verb == Verb.PROMOTE.value or bool(details.get("promoted"))
            )

        return self._last(until, *verbs, fits=fits)

    def _last(
        self,
        until: Event | None,
        *verbs: Verb,
        fits: Callable[[Mapping[str, Any], str], bool] = lambda _details, _verb: True,
    ) -> Event | None:
        wanted = {verb.value for verb in verbs}
        return next(
            (
                event
                for event in self.changes
                if event["verb"] in wanted
                and (until is None or _precedes(event, until))
                and fits(event.get("details") or {}, event["verb"])
            ),
            None,
        )


def _precedes(change: Event, event: Event) -> bool:
    """Whether a change was there when `event` was decided; a change that `event` itself records was.

    The catalog revision says it. When calls arrived says it only for want of that: one may arrive first and end last.
    """
    made, seen = ((each.get("details") or {}).get("revision") for each in (change, event))
    seen = event.get("revision") if seen is None else seen
    if made is not None and seen is not None:
        return bool(made <= seen)
    return datetime.fromisoformat(change["time"]) <= datetime.fromisoformat(event["time"])


def _deed(event: Event) -> Deed:
    return Deed(event["actor"], datetime.fromisoformat(event["time"]), event["id"])


def read_present(
    decisions: Decisions, call: Call, tenant: TenantId, name: SkillName, versions: Iterable[int]
) -> Present:
    """Read `name` in `tenant` in one transaction, its newest versions and those in `versions`; raise TenantNotFound."""
    began = time.monotonic()
    with decisions.database.tenant(tenant, call.deadline, snapshot=True) as connection:
        state = read_name(connection, tenant, name)
        if state.revision is None:
            raise tenants.no_tenant(tenant)
        row = skill_defs.get(connection, tenant, name)
        found = {} if row is None else _versions(connection, tenant, row, versions)
        tombstones = skill_defs.disabled(connection, tenant)
        changes = audit_reports.changes(connection, tenant, name, None, _CHANGES_READ)
    return Present(
        Snapshot(state, decisions.snapshots.static, began),
        name,
        row,
        found,
        next((each for each in tombstones if each.name == name), None),
        tuple(_undamaged(changes, tenant)),
    )


def _undamaged(changes: Iterable[Recorded], tenant: TenantId) -> Iterator[Event]:
    for each in changes:
        event = whole(each.event, tenant)
        if event is None:
            return
        yield event


def _versions(connection: Transaction, tenant: TenantId, row: SkillDef, wanted: Iterable[int]) -> dict[int, Version]:
    found = {
        each.version: each for each in skill_defs.page_versions(connection, tenant, row.name, None, _VERSIONS_READ)
    }
    more = {*wanted, row.active_version or 1} - found.keys()
    others = skill_defs.some_versions(connection, tenant, [(row.name, number) for number in sorted(more)])
    return found | {each.version: each for each in others}


def read_kept(database: Database, call: Call, event: Event, present: Present) -> Kept:
    """Read what was kept of the decision that `event` records."""
    problems: list[str] = []
    tenant, name = TenantId(event["tenant"]), SkillName(event["name"])
    agent = None
    if event.get("agent"):
        agent = _kept_agent(database, call, tenant, event, problems)
    # Where the layers decided nothing, what was served is nice to know and not missed.
    below = _kept_static(database, call, event, name, problems if decides_layers(event) else [])
    known = of_one_name(present.snapshot.static.catalog, name)
    below = None if below is None else _described(below, known, name)
    stored = {number: candidate for number, candidate in present.stored().items() if number in versions_of(event)}
    return Kept(agent, below, stored, tuple(problems))


def _kept_agent(database: Database, call: Call, tenant: TenantId, event: Event, problems: list[str]) -> Agent | None:
    name, sha256 = event["agent"], event.get("agent_sha256", "")
    if not sha256:
        problems.append(f"The agent '{name}', as it decided, was not kept with the event.")
        return None
    text = _kept(database, call, tenant, sha256)
    if text is None:
        problems.append(f"The agent '{name}', as it decided, is not kept any more ({sha256}).")
        return None
    try:
        agent = agent_of(KeptInput(sha256, text))
    except InvalidInputTextError as error:
        problems.append(f"The agent '{name}', as it decided: {error}")
        return None
    if (agent.name, agent.allowlist_sha256) != (name, event.get("allowlist_sha256", agent.allowlist_sha256)):
        problems.append(f"The agent that was kept is not the one that the event names ({sha256}).")
        return None
    return agent


def _kept_static(
    database: Database, call: Call, event: Event, name: SkillName, problems: list[str]
) -> StaticCatalog | None:
    sha256 = event.get("static_digest", "")
    text = _kept(database, call, PLATFORM_TENANT, sha256)
    if text is None:
        problems.append(f"The bundles and configuration that were served are not kept ({sha256}).")
        return None
    try:
        return of_one_name(static_of(KeptInput(sha256, text), name), name)
    except InvalidInputTextError as error:
        problems.append(f"The bundles and configuration that were served: {error}")
        return None


def _kept(database: Database, call: Call, tenant: TenantId, sha256: str) -> str | None:
    with database.tenant(tenant, call.deadline) as connection:
        return audit_reports.kept(connection, tenant, sha256)


def _described(kept: StaticCatalog, known: StaticCatalog, name: SkillName) -> StaticCatalog:
    """Return what was kept with the full headers of those candidates that are served still, which are the same."""
    served = {
        (layer.kind, candidate.origin, candidate.content_sha256): candidate
        for layer in known.layers
        for candidate in layer.candidates.values()
        if candidate.header is not None
    }

    def whole(candidate: Candidate) -> Candidate:
        same = served.get((candidate.kind, candidate.origin, candidate.content_sha256))
        return candidate if same is None or candidate.header is None else same

    layers = tuple(replace(layer, candidates={name: whole(layer.candidates[name])}) for layer in kept.layers)
    return StaticCatalog(layers, kept.modes)
