"""Domain values to and from messages; what more than one servicer needs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from substrate.api.v1 import catalog_pb2 as pb
from substrate.domain.audit import DecidingEntry
from substrate.domain.candidates import Candidate, CandidateState, LayerKind, Resolution, SkillFile
from substrate.domain.catalog import NameMode
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import InvalidArgument
from substrate.domain.explain import why
from substrate.domain.tokens import CatalogToken
from substrate.services.call import Call
from substrate.services.run import Run
from substrate.services.skills import media_type


class RunRequest(Protocol):
    """The fields that runtime requests share."""

    agent: str
    run_id: str
    turn: int
    catalog_token: str

    @property
    def touched_paths(self) -> Sequence[str]:
        """The paths at hand."""

    @property
    def max_staleness(self) -> Duration:
        """How old a state may be."""


_CALLER_KINDS: dict[int, CallerKind] = {
    pb.CALLER_KIND_UNSPECIFIED: CallerKind.MODEL,
    pb.CALLER_KIND_MODEL: CallerKind.MODEL,
    pb.CALLER_KIND_USER: CallerKind.USER,
}


_LAYERS = {kind: pb.Layer.Value(f"LAYER_{kind.value}") for kind in LayerKind}


def run(request: RunRequest, caller_kind: int = pb.CALLER_KIND_MODEL) -> Run:
    """Return what a runtime request says of its run; raise InvalidArgument for a kind of caller that is unknown."""
    return Run(
        request.agent,
        request.run_id,
        request.turn,
        request.catalog_token,
        caller_kind_of(caller_kind),
        tuple(request.touched_paths),
        request.max_staleness.seconds + request.max_staleness.nanos / 1e9,
    )


def caller_kind_of(value: int) -> CallerKind:
    """Return the kind of caller; raise InvalidArgument for one that is unknown."""
    kind = _CALLER_KINDS.get(value)
    if kind is None:
        raise InvalidArgument("caller_kind", "Must be CALLER_KIND_MODEL or CALLER_KIND_USER.")
    return kind


def state(call: Call) -> pb.CatalogState | None:
    """Return which catalog the call was answered from."""
    return None if call.catalog is None else _state(call.catalog)


@lru_cache(maxsize=1024)
def _state(token: CatalogToken) -> pb.CatalogState:
    """Return the message that says the same as `token`; most calls in a row have the same."""
    return pb.CatalogState(catalog_token=str(token), catalog_revision=token.revision, static_digest=token.static_digest)


def layer(kind: LayerKind) -> pb.Layer.ValueType:
    """Return the message's name for a layer."""
    return _LAYERS[kind]


def name_mode(mode: NameMode) -> pb.NameMode.ValueType:
    """Return the message's name for a name mode."""
    return pb.NameMode.Value(f"NAME_MODE_{mode.name}")


def decision(entry: DecidingEntry) -> pb.Decision:
    """Return an allowlist's decision."""
    return pb.Decision(
        allowed=entry.allowed,
        reason=pb.AllowlistReason.Value(f"ALLOWLIST_REASON_{entry.reason}"),
        index=entry.index,
        entry=entry.entry or "",
    )


def candidates(resolution: Resolution) -> list[pb.Candidate]:
    """Return every candidate of a resolution, highest first."""
    return [_candidate(ruling.candidate, ruling.state, resolution) for ruling in resolution.rulings]


def candidate(candidate: Candidate) -> pb.Candidate:
    """Return a candidate that was asked for by itself."""
    return pb.Candidate(
        layer=layer(candidate.kind),
        origin=candidate.origin,
        version=candidate.version or 0,
        content_sha256=candidate.content_sha256,
        description=candidate.header.description if candidate.header else "",
    )


def winner(resolution: Resolution) -> pb.Candidate | None:
    """Return the candidate that a resolution picked."""
    if resolution.winner is None:
        return None
    return _candidate(resolution.winner, CandidateState.WON, resolution)


def _candidate(candidate: Candidate, became: CandidateState, resolution: Resolution) -> pb.Candidate:
    return pb.Candidate(
        layer=layer(candidate.kind),
        origin=candidate.origin,
        version=candidate.version or 0,
        state=pb.CandidateState.Value(f"CANDIDATE_STATE_{became.value}"),
        content_sha256=candidate.content_sha256,
        description=candidate.header.description if candidate.header else "",
        problem=candidate.problem,
        why=why(candidate, became, resolution),
    )


def skill_file(file: SkillFile) -> pb.SkillFile:
    """Return a resource file's listing."""
    return pb.SkillFile(path=file.path, size=file.size, sha256=file.sha256, media_type=media_type(file.path))


def timestamp(moment: datetime | None) -> Timestamp | None:
    """Return a time as a message."""
    if moment is None:
        return None
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def moment(message: Timestamp, field: str) -> datetime:
    """Return a message's time; raise InvalidArgument for `field` when it is outside the years 1 to 9999."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(field, "Must be a time in the years 1 to 9999.") from None
