"""One question, whole: what a reference stands for to an agent, with everything that the answer depends on.

The functions that decide for callers answer it too, in the same order: suspension, gate, resolution, eligibility.
Nothing is read meanwhile, so a question can be kept, changed and answered again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from substrate.domain.agents import Agent
from substrate.domain.audit import DecidingEntry, deciding_entry
from substrate.domain.candidates import Candidate, Layer, LayerKind, Outcome, Resolution, Versions
from substrate.domain.catalog import Catalog, NameMode, StaticCatalog
from substrate.domain.eligibility import CallerKind, reached
from substrate.domain.errors import (
    InvocationNotAllowed,
    SkillIneligible,
    SkillNotPermitted,
    SubstrateError,
    ToolsExceedAgent,
)
from substrate.domain.identity import suspended
from substrate.domain.names import SkillName, SkillRef, TenantId
from substrate.domain.skillmatch import Reason


class Cause(Enum):
    """Why a name cannot be invoked, in one word."""

    UNLISTED = "UNLISTED"
    DENIED = "DENIED"
    ABSENT = "ABSENT"
    DRAFT = "DRAFT"
    RETIRED = "RETIRED"
    DISABLED = "DISABLED"
    QUARANTINED = "QUARANTINED"
    LOCKED = "LOCKED"
    INELIGIBLE = "INELIGIBLE"
    TOOLS_EXCEED = "TOOLS_EXCEED"
    CALLER_EXCLUDED = "CALLER_EXCLUDED"


@dataclass(frozen=True, slots=True)
class Question:
    """A reference, and what is known of its name.

    Without an `agent` neither allowlist nor tools nor pins have a say. `tombstone` and `skill_def` are the tenant's
    part; `retired` is told apart from the SkillDef's standing, which a quarantine hides. `static` holds the layers
    below and the name modes, `versions` the labels and every version that is known, the active one included. `drafts`
    says that the caller may reach versions that were never promoted, as authors may.
    """

    tenant: TenantId
    ref: SkillRef
    agent: Agent | None = None
    tombstone: Candidate | None = None
    skill_def: Candidate | None = None
    retired: bool = False
    static: StaticCatalog = field(default_factory=StaticCatalog)
    versions: Versions = field(default_factory=Versions)
    caller_kind: CallerKind = CallerKind.MODEL
    touched_paths: tuple[str, ...] = ()
    drafts: bool = False
    suspended: str | None = None

    @property
    def name(self) -> SkillName:
        """The name without its qualifier."""
        return self.ref.name

    @property
    def mode(self) -> NameMode:
        """What operators let tenants do with the name."""
        return self.static.modes.mode_of(self.name)

    @property
    def catalog(self) -> Catalog:
        """The tenant's catalog as far as this name is concerned."""
        return Catalog(
            (_layer("tenant:disabled", self.name, self.tombstone), _layer("tenant", self.name, self.skill_def)),
            self.static,
            self.versions,
        )

    @property
    def numbers(self) -> list[int]:
        """The numbers of the versions that are known."""
        return sorted(number for name, number in self.versions.candidates if name == self.name)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is decided: by the allowlist, if an agent was asked about, by the layers, and in the end.

    The layers are looked at whatever the allowlist says, which a call would not do. `refusal` is the error that a call
    would get, None when it succeeds.
    """

    decision: DecidingEntry | None
    resolution: Resolution
    refusal: SubstrateError | None

    @property
    def reason(self) -> str:
        """The error reason that a call would get; empty when it succeeds."""
        return self.refusal.reason if self.refusal else ""

    @property
    def served(self) -> tuple[object, ...] | None:
        """What tells the content that a call would get from every other; None when it gets none."""
        winner = self.resolution.winner
        if self.refusal is not None or winner is None:
            return None
        return winner.kind, winner.version, winner.origin, winner.content_sha256, winner.positional_base

    @property
    def cause(self) -> Cause | None:
        """Why it cannot be invoked; None when it can, and for a suspended tenant, which can invoke nothing."""
        if self.decision is not None and not self.decision.allowed:
            return Cause.UNLISTED if self.decision.reason == Reason.UNLISTED.value else Cause.DENIED
        if self.resolution.winner is None:
            return cause_of(self.resolution)
        return _BARRIERS.get(type(self.refusal))


def answer(question: Question) -> Answer:
    """Answer `question` as a call would be."""
    agent, ref, catalog = question.agent, question.ref, question.catalog
    decision = None
    refusal: SubstrateError | None = None
    if question.suspended is not None:
        refusal = suspended(question.tenant, question.suspended)
    if agent is not None:
        decision = deciding_entry(agent.allowlist, agent.allowlist.decide(ref.name))
        if not decision.allowed and refusal is None:
            refusal = SkillNotPermitted(
                f"The agent '{agent.name}' may not use the skill '{ref.name}'.", agent=agent.name, name=ref.name
            )
    pins: Mapping[SkillName, str] = agent.pins if agent else {}
    if ref.qualifier is None:
        resolution = catalog.resolve_for(ref.name, pins)
    else:
        number = ref.qualifier.version
        picked = None if number is None else question.versions.candidates.get((ref.name, number))
        resolution = catalog.resolve(ref, picked, drafts=question.drafts or catalog.pins_to(ref, pins))
    if refusal is None:
        found = reached(resolution, agent, question.caller_kind, question.touched_paths)
        refusal = found if isinstance(found, SubstrateError) else None
    return Answer(decision, resolution, refusal)


def cause_of(resolution: Resolution) -> Cause | None:
    """Return why nothing is reached; None when something is."""
    return None if resolution.outcome is Outcome.RESOLVED else Cause(resolution.outcome.value)


def of_one_name(static: StaticCatalog, name: SkillName) -> StaticCatalog:
    """Return what `static` says of `name` alone, with all name modes."""
    kept = (
        replace(layer, candidates={name: layer.candidates[name]}) for layer in static.layers if name in layer.candidates
    )
    return StaticCatalog(tuple(kept), static.modes)


def _layer(origin: str, name: SkillName, candidate: Candidate | None) -> Layer:
    return Layer(LayerKind.TENANT, origin, {} if candidate is None else {name: candidate})


_BARRIERS: Mapping[type, Cause] = {
    ToolsExceedAgent: Cause.TOOLS_EXCEED,
    InvocationNotAllowed: Cause.CALLER_EXCLUDED,
    SkillIneligible: Cause.INELIGIBLE,
}
