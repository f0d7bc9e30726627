"""What layers say about names, and what becomes of it: the values that `substrate.domain.catalog` works with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from substrate.domain.names import SkillName, SkillRef
from substrate.domain.skillheader import SkillHeader


class LayerKind(Enum):
    """Where a candidate comes from, in order of precedence."""

    TENANT = "TENANT"
    INLINE = "INLINE"
    BUNDLE = "BUNDLE"


class Standing(Enum):
    """What a candidate is by itself, before the others of its name are looked at."""

    ACTIVE = "ACTIVE"
    DRAFT = "DRAFT"
    RETIRED = "RETIRED"
    DISABLED = "DISABLED"
    QUARANTINED = "QUARANTINED"


class CandidateState(Enum):
    """What became of a candidate in a resolution."""

    WON = "WON"
    SHADOWED = "SHADOWED"
    DRAFT = "DRAFT"
    RETIRED = "RETIRED"
    DISABLED = "DISABLED"
    QUARANTINED = "QUARANTINED"
    SUPPRESSED_BY_LOCK = "SUPPRESSED_BY_LOCK"


class Outcome(Enum):
    """How a resolution ended; everything but RESOLVED has no winner."""

    RESOLVED = "RESOLVED"
    ABSENT = "ABSENT"
    DRAFT = "DRAFT"
    RETIRED = "RETIRED"
    DISABLED = "DISABLED"
    QUARANTINED = "QUARANTINED"
    LOCKED = "LOCKED"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A resource file of a skill: `path` relative to its folder, `size` in bytes, `sha256` in hex."""

    path: str
    size: int
    sha256: str


def pairs_of(files: Iterable[SkillFile]) -> list[tuple[str, str]]:
    """Return path and digest of each file, which is what a skill's digest covers of them."""
    return [(file.path, file.sha256) for file in files]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one layer says about one name.

    `header` is None when there is nothing to show (a tombstone, a draft, an unreadable file). `version` is a SkillDef's
    (from 1). `folder` and `file_sha256` say where a bundled skill's text lies and what its bytes must hash to; inline
    text is kept in `body`. `problem` says why the candidate is quarantined.
    """

    name: SkillName
    kind: LayerKind
    origin: str
    standing: Standing = Standing.ACTIVE
    header: SkillHeader | None = None
    content_sha256: str = ""
    version: int | None = None
    positional_base: int = 0
    files: tuple[SkillFile, ...] = ()
    folder: str = ""
    file_sha256: str = ""
    body: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """An ordered map from name to candidate, all of one kind; `origin` names the source, as ``bundle:core``."""

    kind: LayerKind
    origin: str
    candidates: Mapping[SkillName, Candidate]


@dataclass(frozen=True, slots=True)
class Ruling:
    """A candidate and what became of it."""

    candidate: Candidate
    state: CandidateState


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer for one reference: every candidate from high to low with its state, the winner, and how it ended.

    `pin` is the agent's pin that picked the version, ``v3`` or a label, or empty.
    """

    ref: SkillRef
    outcome: Outcome
    winner: Candidate | None
    rulings: tuple[Ruling, ...]
    pin: str = ""

    @property
    def beneath(self) -> Candidate | None:
        """The candidate that would win without a tombstone, which hides the name and may be lifted again."""
        return next((r.candidate for r in self.rulings if r.candidate.standing is Standing.ACTIVE), None)


@dataclass(frozen=True, slots=True)
class Versions:
    """A tenant's labels, and those versions beside the active ones that labels and agents' pins point at."""

    candidates: Mapping[tuple[SkillName, int], Candidate] = field(default_factory=dict)
    labels: Mapping[SkillName, Mapping[str, int]] = field(default_factory=dict)

    def number_of(self, name: SkillName, pin: str) -> int | None:
        """Return the version that `pin` (``v3`` or a label) means for `name`, or None when there is no such label."""
        labelled = self.labels.get(name, {}).get(pin)
        return int(pin[1:]) if labelled is None and pin[1:].isdigit() and pin[0] == "v" else labelled
