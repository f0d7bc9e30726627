"""What is asked to be explained from its message, and explanations as messages."""

from substrate.api.v1 import audit_pb2 as pb
from substrate.api.v1 import catalog_pb2
from substrate.domain.candidates import Candidate, CandidateState, LayerKind
from substrate.domain.changes import Change, ChangeKind
from substrate.domain.errors import InvalidArgument
from substrate.domain.explain import Explanation, source_of
from substrate.domain.flips import Flip
from substrate.rpc import convert
from substrate.rpc.audit_messages import audit_event
from substrate.services.call import Call
from substrate.services.explain import Asked, Explained

_KINDS: dict[int, ChangeKind] = {pb.ChangeKind.Value(f"CHANGE_KIND_{kind.value}"): kind for kind in ChangeKind}


def asked(request: pb.ExplainResolutionRequest) -> Asked:
    """Return what a request asks for; raise InvalidArgument for values that no enum has."""
    return Asked(
        tenant=request.tenant,
        name=request.name,
        agent=request.agent,
        recorded=request.recorded,
        changes=[_change(change, f"changes[{index}]") for index, change in enumerate(request.changes)],
        caller_kind=convert.caller_kind_of(request.caller_kind),
        names_caller_kind=request.caller_kind != catalog_pb2.CALLER_KIND_UNSPECIFIED,
        touched_paths=tuple(request.touched_paths),
    )


def explanation(explained: Explained, call: Call) -> pb.ExplainResolutionResponse:
    """Return an explanation as the answer to `call`."""
    told, replay = explained.explanation, explained.replay
    resolution = told.resolution
    candidates = convert.candidates(resolution)
    for message, ruling in zip(candidates, resolution.rulings, strict=True):
        _add_provenance(message, ruling.candidate, told)
    winner = convert.winner(resolution)
    if winner is not None and resolution.winner is not None:
        _add_provenance(winner, resolution.winner, told)
    return pb.ExplainResolutionResponse(
        name=resolution.ref.name,
        winner=winner,
        candidates=candidates,
        mode=convert.name_mode(told.mode),
        trials=[
            pb.EntryTrial(
                index=trial.index,
                entry=trial.entry,
                matched=trial.matched,
                effect=trial.effect,
                decided=trial.decided,
            )
            for trial in told.trials
        ],
        decision=convert.decision(told.decision) if told.decision else None,
        would_succeed=told.would_succeed,
        reason=told.reason,
        text=explained.text,
        cause=pb.Cause.Value(f"CAUSE_{told.cause.value}") if told.cause else pb.CAUSE_UNSPECIFIED,
        differences=[
            pb.Difference(field=each.field, winner=each.winner, loser=each.loser) for each in told.differences
        ],
        flips=[_flip(flip) for flip in told.flips],
        state=convert.state(call),
        recorded=audit_event(replay.event) if replay else None,
        replays=replay is not None and not replay.problems,
        replay_problems=replay.problems if replay else (),
        changed_since=replay.changed_since if replay else (),
        decision_id=call.decision_id,
    )


def _change(message: pb.Change, place: str) -> Change:
    kind = _KINDS.get(message.kind)
    if kind is None:
        kinds = ", ".join(f"CHANGE_KIND_{kind.value}" for kind in ChangeKind)
        raise InvalidArgument(f"{place}.kind", f"Must be one of {kinds}.")
    return Change(kind, tuple(message.entries), message.entry, message.index, message.version, message.qualifier)


def _flip(flip: Flip) -> pb.Flip:
    change = flip.change
    text = f"{flip.text} Do it with: {flip.command}" if flip.command else flip.text
    winner = flip.answer.resolution.winner
    return pb.Flip(
        change=pb.Change(
            kind=pb.ChangeKind.Value(f"CHANGE_KIND_{change.kind.value}"),
            entries=change.entries,
            entry=change.entry,
            index=change.index,
            version=change.version,
            qualifier=change.qualifier,
        ),
        text=text,
        would_succeed=flip.answer.refusal is None,
        reason=flip.answer.reason,
        winner=None if winner is None else _winner(winner),
    )


def _winner(candidate: Candidate) -> catalog_pb2.Candidate:
    message = convert.candidate(candidate)
    message.state = catalog_pb2.CandidateState.Value(f"CANDIDATE_STATE_{CandidateState.WON.value}")
    return message


def _add_provenance(message: catalog_pb2.Candidate, candidate: Candidate, told: Explanation) -> None:
    """Say who is behind a tenant's candidate, as far as it is known."""
    known = told.provenance.get(source_of(candidate)) if candidate.kind is LayerKind.TENANT else None
    if known is None:
        return
    if known.created is not None:
        message.created_by = known.created.by
        message.created_at.FromDatetime(known.created.at)
    if known.promoted is not None:
        message.promoted_by = known.promoted.by
        message.promoted_at.FromDatetime(known.promoted.at)
