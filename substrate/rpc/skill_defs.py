"""`SkillDefService` on the wire."""

from grpc import ServicerContext

from substrate.api.v1 import skill_defs_pb2 as pb
from substrate.api.v1.skill_defs_pb2_grpc import SkillDefServiceServicer
from substrate.domain.catalog import CandidateState, LayerKind
from substrate.domain.skillheader import header_from_plain
from substrate.domain.skillmd import to_skill_md
from substrate.rpc import convert
from substrate.rpc.interceptors import call_of
from substrate.services.catalog import CatalogView
from substrate.services.skill_defs import Authored, SkillDefs
from substrate.store.skill_defs import SkillDef, Version


class SkillDefServicer(SkillDefServiceServicer):
    """Reads requests, asks the services, writes responses."""

    def __init__(self, skill_defs: SkillDefs, catalog: CatalogView) -> None:
        self._skill_defs = skill_defs
        self._catalog = catalog

    def CreateSkillDef(self, request: pb.CreateSkillDefRequest, context: ServicerContext) -> pb.CreateSkillDefResponse:
        """Create a SkillDef with its first version."""
        call = call_of(context)
        made = self._skill_defs.create(
            call,
            request.agent,
            request.name,
            request.source,
            promote=request.promote if request.HasField("promote") else True,
            positional_base=request.positional_base,
        )
        ours = made.resolution.winner is not None and made.resolution.winner.kind is LayerKind.TENANT
        listed = zip(made.resolution.rulings, convert.candidates(made.resolution), strict=True) if ours else ()
        return pb.CreateSkillDefResponse(
            skill_def=_own(made),
            version=_version(made.version, with_source=False),
            winner=convert.winner(made.resolution),
            shadows=[message for ruling, message in listed if ruling.state is CandidateState.SHADOWED],
            warnings=made.warnings,
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def GetSkillDef(self, request: pb.GetSkillDefRequest, context: ServicerContext) -> pb.GetSkillDefResponse:
        """Return a SkillDef and one version of it."""
        call = call_of(context)
        found = self._skill_defs.get(call, request.agent, request.name, request.version)
        return pb.GetSkillDefResponse(
            skill_def=_own(found),
            version=_version(found.version, with_source=request.include_source),
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def ListSkillDefs(self, request: pb.ListSkillDefsRequest, context: ServicerContext) -> pb.ListSkillDefsResponse:
        """Return one page of SkillDefs."""
        call = call_of(context)
        page = self._skill_defs.list(
            call,
            request.agent,
            request.pattern,
            request.page_size,
            request.page_token,
            include_retired=request.include_retired,
        )
        return pb.ListSkillDefsResponse(
            skill_defs=[_skill_def(row, disabled=disabled) for row, disabled in page.rows],
            next_page_token=page.next_page_token,
            total_size=page.total,
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def PromoteSkillDef(
        self, request: pb.PromoteSkillDefRequest, context: ServicerContext
    ) -> pb.PromoteSkillDefResponse:
        """Make a version the active one."""
        call = call_of(context)
        done = self._skill_defs.promote(call, request.agent, request.name, request.version, request.etag)
        return pb.PromoteSkillDefResponse(
            skill_def=_own(done),
            winner=convert.winner(done.resolution),
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def RetireSkillDef(self, request: pb.RetireSkillDefRequest, context: ServicerContext) -> pb.RetireSkillDefResponse:
        """Retire a SkillDef or bring it back."""
        call = call_of(context)
        retired = request.retired if request.HasField("retired") else True
        done = self._skill_defs.retire(call, request.agent, request.name, request.etag, retired=retired)
        return pb.RetireSkillDefResponse(
            skill_def=_own(done),
            winner=convert.winner(done.resolution),
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def SetSkillDisabled(
        self, request: pb.SetSkillDisabledRequest, context: ServicerContext
    ) -> pb.SetSkillDisabledResponse:
        """Hide a name or show it again."""
        call = call_of(context)
        done = self._skill_defs.set_disabled(
            call, request.agent, request.name, request.reason, request.etag, disabled=request.disabled
        )
        return pb.SetSkillDisabledResponse(
            disabled=done.disabled,
            skill_def=_own(done),
            winner=convert.winner(done.resolution),
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def ListCatalog(self, request: pb.ListCatalogRequest, context: ServicerContext) -> pb.ListCatalogResponse:
        """Return one page of the whole catalog."""
        call = call_of(context)
        page = self._catalog.list(call, request.agent, request.pattern, request.page_size, request.page_token)
        return pb.ListCatalogResponse(
            entries=[
                pb.CatalogEntry(
                    name=row.resolution.ref.name,
                    winner=convert.winner(row.resolution),
                    candidates=convert.candidates(row.resolution),
                    mode=convert.name_mode(row.mode),
                    decision=convert.decision(row.decision) if row.decision else None,
                )
                for row in page.rows
            ],
            next_page_token=page.next_page_token,
            total_size=page.total,
            state=convert.state(call),
            decision_id=call.decision_id,
        )


def _own(authored: Authored) -> pb.SkillDef | None:
    return _skill_def(authored.skill_def, disabled=authored.disabled) if authored.skill_def else None


def _skill_def(row: SkillDef, *, disabled: bool) -> pb.SkillDef:
    return pb.SkillDef(
        name=row.name,
        active_version=row.active_version or 0,
        latest_version=row.latest_version,
        retired=row.retired_at is not None,
        disabled=disabled,
        etag=row.etag,
        create_time=convert.timestamp(row.created_at),
        update_time=convert.timestamp(row.updated_at),
        created_by=row.created_by,
    )


def _version(row: Version | None, *, with_source: bool) -> pb.SkillDefVersion | None:
    if row is None:
        return None
    header = header_from_plain(row.header)
    return pb.SkillDefVersion(
        name=row.name,
        version=row.version,
        description=header.description,
        source=to_skill_md(header, row.body) if with_source else "",
        content_sha256=row.content_sha256,
        create_time=convert.timestamp(row.created_at),
        created_by=row.created_by,
        promote_time=convert.timestamp(row.promoted_at),
        promoted_by=row.promoted_by or "",
        allowed_tools=header.allowed_tools or (),
        positional_base=row.positional_base,
    )
