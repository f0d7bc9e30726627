"""What a name stood for as time went by, told from audit events.

The event of a change holds every candidate of its name as it was afterwards. What a tenant says of the name is read
from there, and what lies below from there too or from a kept static state; the catalog's own rules then say what the
name stood for. Nothing is guessed: what is not recorded any more is unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from substrate.domain.audit import Verb
from substrate.domain.candidates import Candidate, CandidateState, Layer, LayerKind, Outcome, Resolution, Standing
from substrate.domain.catalog import Catalog, NameMode, NameModes, StaticCatalog
from substrate.domain.names import SkillName, SkillRef
from substrate.domain.patterns import parse_pattern
from substrate.domain.recorded import Event

CHANGING = (Verb.CREATE, Verb.FORK, Verb.PROMOTE, Verb.RETIRE, Verb.UNRETIRE, Verb.DISABLE, Verb.ENABLE)
"""The verbs of changes that are about one name and can change what it stands for; an import is about many."""

_SHOWN = 200

_STANDINGS = {
    CandidateState.WON: Standing.ACTIVE,
    CandidateState.SHADOWED: Standing.ACTIVE,
    CandidateState.DRAFT: Standing.DRAFT,
    CandidateState.RETIRED: Standing.RETIRED,
    CandidateState.DISABLED: Standing.DISABLED,
    CandidateState.QUARANTINED: Standing.QUARANTINED,
}


@dataclass(frozen=True, slots=True)
class Own:
    """What a tenant says of one name: whether a tombstone stands on it, and its SkillDef, if it has one."""

    disabled: bool = False
    skill_def: Candidate | None = None

    def over(self, static: StaticCatalog, name: SkillName) -> Resolution:
        """Return what `name` stands for above `static`."""
        tombstone = Candidate(name, LayerKind.TENANT, "tenant", Standing.DISABLED)
        layers = (
            Layer(LayerKind.TENANT, "tenant:disabled", {name: tombstone} if self.disabled else {}),
            Layer(LayerKind.TENANT, "tenant", {name: self.skill_def} if self.skill_def else {}),
        )
        return Catalog(layers, static).resolve(SkillRef(name))


def own_of(candidates: Sequence[Candidate]) -> Own:
    """Return what a tenant's `candidates` of one name say together."""
    disabled = any(candidate.standing is Standing.DISABLED for candidate in candidates)
    return Own(disabled, next((c for c in candidates if c.standing is not Standing.DISABLED), None))


def imports(event: Event, name: SkillName) -> bool:
    """Whether the event is of an import that made the SkillDef `name`; one that found it changed nothing in effect."""
    return _imported(event, name) is not None


def stands_alone(event: Event) -> bool:
    """Whether the event alone tells what the tenant said of its name; beneath a lock that is what nobody looked at."""
    lock = CandidateState.SUPPRESSED_BY_LOCK.value
    return event["verb"] != Verb.IMPORT.value and all(c["state"] != lock for c in event.get("candidates", ()))


def own_after(event: Event, name: SkillName, before: Own) -> Own:
    """Return what the tenant said of `name` after the change, and `before` it, which matters unless it stands alone."""
    if event["verb"] == Verb.IMPORT.value:
        row = _imported(event, name)
        if row is None:
            return before
        _, version, _, digest = row
        if not _details(event).get("promoted"):
            return replace(before, skill_def=Candidate(name, LayerKind.TENANT, "tenant", Standing.DRAFT))
        made = Candidate(name, LayerKind.TENANT, f"tenant:v{version}", content_sha256=digest, version=version)
        return replace(before, skill_def=made)
    if not stands_alone(event):
        # Of a locked name a tenant can do two things: retire its SkillDef and take its tombstone away.
        if event["verb"] == Verb.ENABLE.value:
            return replace(before, disabled=False)
        if event["verb"] == Verb.RETIRE.value and before.skill_def is not None:
            return replace(before, skill_def=replace(before.skill_def, standing=Standing.RETIRED))
        return before
    return own_of([_candidate(name, fields) for fields in event.get("candidates", ()) if _is_own(fields)])


def static_around(event: Event, name: SkillName) -> StaticCatalog | None:
    """Return what lay below `name` when it was changed, or None when the event does not tell whether it was locked."""
    if event["verb"] == Verb.IMPORT.value:
        return None
    candidates = event.get("candidates", ())
    if not any(map(_is_own, candidates)):
        return None
    layers = [
        Layer(LayerKind(fields["layer"]), fields["origin"], {name: _candidate(name, fields)})
        for fields in candidates
        if not _is_own(fields)
    ]
    locked = [(parse_pattern(name), NameMode.LOCKED)] if not stands_alone(event) else []
    return StaticCatalog(tuple(layers), NameModes(locked))


def differ(before: Resolution, after: Resolution) -> bool:
    """Whether a name stood for something else, or for nothing for another reason."""
    return _essence(before) != _essence(after)


def change_text(event: Event, before: Resolution | None, after: Resolution, note: str = "") -> str:
    """Tell in a sentence who did what, and what came of it; `before` is None when it is unknown, and `note` why."""
    if before is None:
        effect = f"from then on it stood {_standing(after)}; {note}"
    elif before.winner is not None and after.winner is not None:
        effect = _replaced(before.winner, after.winner)
    else:
        effect = f"from then on it stood {_standing(after)}, before {_standing(before)}"
    return f"{_deed(event)}: {effect}."


def unknown_text(event: Event) -> str:
    """Say that the static state that an event brought is not there to tell what came of it."""
    return f"{_deed(event)}: what came of it is not known, since that state, {event['static_digest']}, is not kept."


def damaged_text(sequence: int) -> str:
    """Say that the event with this number cannot be read, and how to find out more."""
    return f"Event {sequence} was damaged: what came of it is not known; verify the audit of its tenant."


def _details(event: Event) -> Mapping[str, Any]:
    found: Mapping[str, Any] = event.get("details") or {}
    return found


def _deed(event: Event) -> str:
    details = _details(event)
    version = f"v{details['version']}" if details.get("version") else "it"
    promoted = "" if details.get("promoted") else ", not promoted"
    match Verb(event["verb"]):
        case Verb.CREATE:
            deed = f"created {version}{promoted}"
        case Verb.FORK:
            deed = f"forked {version} from {details.get('forked_from', 'what was there')}{promoted}"
        case Verb.IMPORT:
            deed = f"imported it{promoted}"
        case Verb.PROMOTE:
            deed = f"promoted {version}, written by {details.get('author') or 'nobody known'}"
        case Verb.RETIRE:
            deed = "retired it"
        case Verb.UNRETIRE:
            deed = "brought it back from retirement"
        case Verb.DISABLE:
            reason = details.get("reason")
            deed = f"disabled the name, saying {reason[:_SHOWN]!r}" if reason else "disabled the name"
        case Verb.ENABLE:
            deed = "enabled the name"
        case _:
            deed = "loaded other bundles or configuration"
    # Whoever reads this knows no server by the name of a process alone.
    return f"{event['actor']} {event['server']} {deed}" if event["actor"] == "server" else f"{event['actor']} {deed}"


_WHY_NOTHING = {
    Outcome.DRAFT: "no version promoted",
    Outcome.RETIRED: "retired",
    Outcome.DISABLED: "disabled",
    Outcome.QUARANTINED: "quarantined",
    Outcome.LOCKED: "locked",
}


def _standing(found: Resolution) -> str:
    if found.winner is not None:
        return f"for {found.winner.origin}"
    return f"for nothing ({_WHY_NOTHING.get(found.outcome, 'no layer has it')})"


def _replaced(before: Candidate, after: Candidate) -> str:
    if before.origin == after.origin:
        return f"{after.origin} became sha256:{after.content_sha256[:12]}, from sha256:{before.content_sha256[:12]}"
    return f"{after.origin} took the place of {before.origin}"


def _essence(found: Resolution) -> tuple[object, ...]:
    winner = found.winner
    return (found.outcome, *((winner.kind, winner.version, winner.content_sha256) if winner else ()))


def _imported(event: Event, name: SkillName) -> tuple[str, int, bool, str] | None:
    """Return what an import says of `name` if it made its first version."""
    rows = _details(event).get("skills", ()) if event["verb"] == Verb.IMPORT.value else ()
    return next((tuple(row) for row in rows if row[:3] == [name, 1, True]), None)


def _is_own(fields: Mapping[str, Any]) -> bool:
    return bool(fields["layer"] == LayerKind.TENANT.value)


def _candidate(name: SkillName, fields: Mapping[str, Any]) -> Candidate:
    return Candidate(
        name=name,
        kind=LayerKind(fields["layer"]),
        origin=fields["origin"],
        standing=_STANDINGS[CandidateState(fields["state"])],
        content_sha256=fields["digest"],
        version=fields["version"],
    )
