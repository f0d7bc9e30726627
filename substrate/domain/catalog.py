"""Which skill a name stands for: layers of candidates, merged by rank, with the state of every candidate.

Three sources say what skills exist: a tenant's SkillDefs, the operator's inline definitions and static bundles, in this
order of precedence; among bundles the one configured first. Each source yields a **layer**, an ordered map from name to
candidate. Resolving a name looks at the layers from high to low:

- an active candidate wins and shadows all below it;
- a tenant's draft (no version promoted) or retired SkillDef is passed over;
- a tenant's tombstone (a disabled name) hides whatever lies below;
- an invalid tenant row ends the search with an error, never with a silent fall-through; an invalid bundle file is
  passed over, so that one bad file harms no other;
- in a `locked` name what the tenant says is suppressed.

A qualifier (``@bundle``, ``@inline``, ``@v3``) picks another candidate of the name, but never gets past a tombstone or
a quarantined tenant row, and never reaches a candidate that is retired, quarantined or suppressed. A version that was
never promoted is reached only where drafts are asked for, which authors and agents pinned to it may, and in names that
need a review by nobody: there the promotion by a second pair of eyes is what lets it be used.

An agent may **pin** a name to a version or a label: to this agent the bare name then stands for that version, under the
same conditions as a qualifier. A pin that reaches nothing makes the name fail for the agent; it never falls back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from substrate.domain.candidates import (
    Candidate,
    CandidateState,
    Layer,
    LayerKind,
    Outcome,
    Resolution,
    Ruling,
    Standing,
    Versions,
)
from substrate.domain.names import Qualifier, QualifierKind, SkillName, SkillRef
from substrate.domain.patterns import Pattern, PatternSet


class NameMode(Enum):
    """What tenants may do with a name: anything, promote only with a second pair of eyes, or nothing."""

    OPEN = "open"
    REVIEW = "review"
    LOCKED = "locked"


class NameModes:
    """The operator's modes per pattern; the first pattern that matches a name decides, else the name is open."""

    def __init__(self, modes: Sequence[tuple[Pattern, NameMode]] = ()) -> None:
        self.modes = tuple(modes)
        self._patterns = PatternSet([pattern for pattern, _ in modes]) if modes else None

    def mode_of(self, name: SkillName) -> NameMode:
        """Return the mode of `name`."""
        found = self._patterns.matching(name) if self._patterns else []
        return self.modes[found[0]][1] if found else NameMode.OPEN


@dataclass(frozen=True)
class StaticCatalog:
    """The inline and bundle layers, from high to low, and the name modes: built once, shared by all tenants."""

    layers: tuple[Layer, ...] = ()
    modes: NameModes = field(default_factory=NameModes)

    @cached_property
    def resolutions(self) -> Mapping[SkillName, Resolution]:
        """What each name resolves to for a tenant that says nothing about it."""
        names = {name: None for layer in self.layers for name in layer.candidates}
        return {name: _resolve(SkillRef(name), _candidates(self.layers, name), NameMode.OPEN) for name in sorted(names)}


class Catalog:
    """One tenant's view: its own layers (tombstones above SkillDefs) over the static ones; immutable."""

    __slots__ = ("_static", "_tenant", "_versions")

    def __init__(self, tenant: Sequence[Layer], static: StaticCatalog, versions: Versions | None = None) -> None:
        self._tenant = tuple(tenant)
        self._static = static
        self._versions = versions or Versions()

    def names(self) -> list[SkillName]:
        """Return every name that any layer says something about, sorted."""
        own = {name for layer in self._tenant for name in layer.candidates}
        return sorted(own.union(self._static.resolutions))

    def mode_of(self, name: SkillName) -> NameMode:
        """Return the mode that operators have set for `name`."""
        return self._static.modes.mode_of(name)

    def is_disabled(self, name: SkillName) -> bool:
        """Whether a tombstone of the tenant stands on `name`."""
        return any(c.standing is Standing.DISABLED for c in _candidates(self._tenant, name))

    def skill_def(self, name: SkillName) -> Candidate | None:
        """Return what the tenant's SkillDef layer says about `name`, tombstones left aside."""
        return next((c for c in _candidates(self._tenant, name) if c.standing is not Standing.DISABLED), None)

    def skill_defs(self) -> list[Candidate]:
        """Return what the tenant's SkillDef layer says, by name, tombstones left aside."""
        own = {
            c.name: c
            for layer in self._tenant
            for c in layer.candidates.values()
            if c.standing is not Standing.DISABLED
        }
        return [own[name] for name in sorted(own)]

    def labels_of(self, name: SkillName) -> Mapping[str, int]:
        """Return the labels of `name` with the versions they point at."""
        return self._versions.labels.get(name, {})

    def pins_to(self, ref: SkillRef, pins: Mapping[SkillName, str]) -> bool:
        """Whether one of `pins` points at the very version that `ref` asks for."""
        asked = ref.qualifier.version if ref.qualifier else None
        pin = pins.get(ref.name)
        return asked is not None and pin is not None and self._versions.number_of(ref.name, pin) == asked

    def resolve_for(self, name: SkillName, pins: Mapping[SkillName, str]) -> Resolution:
        """Resolve the bare `name` for an agent with these `pins`."""
        pin = pins.get(name)
        if pin is None:
            return self.resolve(SkillRef(name))
        number = self._versions.number_of(name, pin)
        if number is None:
            found = self.resolve(SkillRef(name))
            return replace(found, outcome=found.outcome if _is_barred(found) else Outcome.ABSENT, winner=None, pin=pin)
        ref = SkillRef(name, Qualifier(QualifierKind.VERSION, number))
        found = self.resolve(ref, self._versions.candidates.get((name, number)), drafts=True)
        return replace(found, ref=SkillRef(name), pin=pin)

    def resolve(self, ref: SkillRef, picked: Candidate | None = None, *, drafts: bool = False) -> Resolution:
        """Resolve `ref`.

        For a ``@v<N>`` reference that is not the active version, `picked` is the candidate made from that version, or
        None when there is no such version. `drafts` lets it be one that was never promoted.
        """
        own = _candidates(self._tenant, ref.name)
        if own:
            found = _resolve(
                SkillRef(ref.name), own + _candidates(self._static.layers, ref.name), self.mode_of(ref.name)
            )
        else:
            known = self._static.resolutions.get(ref.name)
            found = known or Resolution(SkillRef(ref.name), Outcome.ABSENT, None, ())
        if ref.qualifier is None:
            return found
        drafts = drafts and self.mode_of(ref.name) is not NameMode.REVIEW
        return _qualified(found, ref, ref.qualifier, picked, drafts=drafts)


def _candidates(layers: Iterable[Layer], name: SkillName) -> list[Candidate]:
    return [candidate for layer in layers if (candidate := layer.candidates.get(name)) is not None]


_PASSED_OVER = {
    Standing.DRAFT: CandidateState.DRAFT,
    Standing.RETIRED: CandidateState.RETIRED,
    Standing.QUARANTINED: CandidateState.QUARANTINED,
    Standing.DISABLED: CandidateState.DISABLED,
}

_WITHOUT_WINNER = {
    CandidateState.DISABLED: Outcome.DISABLED,
    CandidateState.QUARANTINED: Outcome.QUARANTINED,
    CandidateState.SUPPRESSED_BY_LOCK: Outcome.LOCKED,
    CandidateState.RETIRED: Outcome.RETIRED,
    CandidateState.DRAFT: Outcome.DRAFT,
}


def _resolve(ref: SkillRef, candidates: Sequence[Candidate], mode: NameMode) -> Resolution:
    rulings = []
    winner: Candidate | None = None
    decided = False
    for candidate in candidates:
        if candidate.kind is LayerKind.TENANT and mode is NameMode.LOCKED:
            state = CandidateState.SUPPRESSED_BY_LOCK
        elif candidate.standing is Standing.ACTIVE:
            state = CandidateState.SHADOWED if decided else CandidateState.WON
            winner = winner if decided else candidate
            decided = True
        else:
            state = _PASSED_OVER[candidate.standing]
            decided = decided or _ends_the_search(candidate)
        rulings.append(Ruling(candidate, state))
    if winner is not None:
        outcome = Outcome.RESOLVED
    else:
        states = {ruling.state for ruling in rulings}
        outcome = next((o for state, o in _WITHOUT_WINNER.items() if state in states), Outcome.ABSENT)
    return Resolution(ref, outcome, winner, tuple(rulings))


def _ends_the_search(candidate: Candidate) -> bool:
    """Whether a candidate that cannot win hides what lies below it all the same."""
    return candidate.standing is Standing.DISABLED or (
        candidate.standing is Standing.QUARANTINED and candidate.kind is LayerKind.TENANT
    )


_REACHABLE = (CandidateState.WON, CandidateState.SHADOWED)


def _is_barred(found: Resolution) -> bool:
    """Whether a tombstone or a quarantined tenant row keeps every qualifier and pin from what lies below."""
    return found.winner is None and any(
        _ends_the_search(ruling.candidate)
        for ruling in found.rulings
        if ruling.state is not CandidateState.SUPPRESSED_BY_LOCK
    )


def _qualified(
    found: Resolution, ref: SkillRef, qualifier: Qualifier, picked: Candidate | None, *, drafts: bool
) -> Resolution:
    if _is_barred(found):
        return Resolution(ref, found.outcome, None, found.rulings)
    if qualifier.kind is QualifierKind.VERSION:
        return _version(found, ref, qualifier, picked, drafts=drafts)
    kind = LayerKind.INLINE if qualifier.kind is QualifierKind.INLINE else LayerKind.BUNDLE
    of_kind = [ruling for ruling in found.rulings if ruling.candidate.kind is kind]
    reached = next((ruling.candidate for ruling in of_kind if ruling.state in _REACHABLE), None)
    missed = Outcome.QUARANTINED if of_kind else Outcome.ABSENT
    return Resolution(ref, Outcome.RESOLVED if reached else missed, reached, found.rulings)


def _version(
    found: Resolution, ref: SkillRef, qualifier: Qualifier, picked: Candidate | None, *, drafts: bool
) -> Resolution:
    """Pick a SkillDef's version: the active one, one promoted before, or a draft where those are asked for."""
    own = next((ruling for ruling in found.rulings if ruling.candidate.kind is LayerKind.TENANT), None)
    if own is None or not (own.state in _REACHABLE or (drafts and own.state is CandidateState.DRAFT)):
        outcome = _WITHOUT_WINNER[own.state] if own else Outcome.ABSENT
        return Resolution(ref, outcome, None, found.rulings)
    if own.candidate.version == qualifier.version:
        return Resolution(ref, Outcome.RESOLVED, own.candidate, found.rulings)
    if picked is None:
        return Resolution(ref, Outcome.ABSENT, None, found.rulings)
    if picked.standing is Standing.ACTIVE:
        return Resolution(ref, Outcome.RESOLVED, picked, (*found.rulings, Ruling(picked, CandidateState.SHADOWED)))
    state = _PASSED_OVER[picked.standing]
    rulings = (*found.rulings, Ruling(picked, state))
    if drafts and state is CandidateState.DRAFT:
        return Resolution(ref, Outcome.RESOLVED, picked, rulings)
    return Resolution(ref, _WITHOUT_WINNER[state], None, rulings)
