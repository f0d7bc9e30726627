"""`SkillDefService` on the wire."""

from grpc import ServicerContext

from substrate.api.v1 import skill_defs_pb2 as pb
from substrate.api.v1.skill_defs_pb2_grpc import SkillDefServiceServicer
from substrate.domain.candidates import CandidateState, LayerKind
from substrate.rpc import convert
from substrate.rpc import skill_def_messages as messages
from substrate.rpc.interceptors import call_of
from substrate.rpc.repeats import answered
from substrate.services.archives import Archives, Imported
from substrate.services.authoring import Authored
from substrate.services.call import Call
from substrate.services.catalog import CatalogView
from substrate.services.skill_def_views import SkillDefViews
from substrate.services.skill_defs import SkillDefs
from substrate.services.versions import Draft


class SkillDefServicer(SkillDefServiceServicer):
    """Reads requests, asks the services, writes responses."""

    def __init__(self, skill_defs: SkillDefs, views: SkillDefViews, archives: Archives, catalog: CatalogView) -> None:
        self._skill_defs = skill_defs
        self._views = views
        self._archives = archives
        self._catalog = catalog

    def CreateSkillDef(self, request: pb.CreateSkillDefRequest, context: ServicerContext) -> pb.CreateSkillDefResponse:
        """Create a SkillDef with its first version."""
        call = call_of(context)

        def act() -> Authored:
            files = messages.read_files(request.files) if request.HasField("files") else None
            promote = request.promote if request.HasField("promote") else True
            draft = Draft(request.source, files, request.positional_base, promote)
            return self._skill_defs.create(
                call, request.agent, request.name, draft, validate_only=request.validate_only
            )

        return answered(call, request, act, lambda made: _created(call, made))

    def ForkSkillDef(self, request: pb.ForkSkillDefRequest, context: ServicerContext) -> pb.ForkSkillDefResponse:
        """Add a version made from another content of the name."""
        call = call_of(context)

        def act() -> Authored:
            files = messages.read_files(request.files) if request.HasField("files") else None
            base = request.positional_base if request.HasField("positional_base") else None
            draft = Draft(request.source, files, base, request.promote)
            origin = getattr(request, "from")
            return self._skill_defs.fork(
                call, request.agent, request.name, origin, draft, request.etag, validate_only=request.validate_only
            )

        return answered(
            call,
            request,
            act,
            lambda made: pb.ForkSkillDefResponse(
                skill_def=messages.own(made),
                version=messages.version(made.version),
                winner=convert.winner(made.effect.after),
                effect=messages.effect(made.effect),
                warnings=made.warnings,
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
        )

    def GetSkillDef(self, request: pb.GetSkillDefRequest, context: ServicerContext) -> pb.GetSkillDefResponse:
        """Return a SkillDef and one version of it."""
        call = call_of(context)
        found = self._views.get(call, request.agent, request.name, request.version, tenant=request.tenant)
        return pb.GetSkillDefResponse(
            skill_def=messages.found(found),
            version=messages.version(found.version, with_source=request.include_source),
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def ListSkillDefs(self, request: pb.ListSkillDefsRequest, context: ServicerContext) -> pb.ListSkillDefsResponse:
        """Return one page of SkillDefs."""
        call = call_of(context)
        page = self._views.list(
            call,
            request.agent,
            request.pattern,
            request.page_size,
            request.page_token,
            include_retired=request.include_retired,
        )
        return pb.ListSkillDefsResponse(
            skill_defs=[messages.found(row) for row in page.rows],
            next_page_token=page.next_page_token,
            total_size=page.total,
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def ListSkillDefVersions(
        self, request: pb.ListSkillDefVersionsRequest, context: ServicerContext
    ) -> pb.ListSkillDefVersionsResponse:
        """Return one page of a SkillDef's versions."""
        call = call_of(context)
        found, page = self._views.list_versions(
            call, request.agent, request.name, request.page_size, request.page_token, tenant=request.tenant
        )
        return pb.ListSkillDefVersionsResponse(
            skill_def=messages.found(found),
            versions=[message for row in page.rows if (message := messages.version(row))],
            next_page_token=page.next_page_token,
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def PromoteSkillDef(
        self, request: pb.PromoteSkillDefRequest, context: ServicerContext
    ) -> pb.PromoteSkillDefResponse:
        """Make a version the active one."""
        call = call_of(context)

        def act() -> Authored:
            return self._skill_defs.promote(
                call,
                request.agent,
                request.name,
                request.version,
                request.etag,
                tenant=request.tenant,
                validate_only=request.validate_only,
            )

        return answered(
            call,
            request,
            act,
            lambda done: pb.PromoteSkillDefResponse(
                skill_def=messages.own(done),
                winner=convert.winner(done.effect.after),
                effect=messages.effect(done.effect),
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
        )

    def RetireSkillDef(self, request: pb.RetireSkillDefRequest, context: ServicerContext) -> pb.RetireSkillDefResponse:
        """Retire a SkillDef or bring it back."""
        call = call_of(context)

        def act() -> Authored:
            retired = request.retired if request.HasField("retired") else True
            return self._skill_defs.retire(
                call, request.agent, request.name, request.etag, retired=retired, validate_only=request.validate_only
            )

        return answered(
            call,
            request,
            act,
            lambda done: pb.RetireSkillDefResponse(
                skill_def=messages.own(done),
                winner=convert.winner(done.effect.after),
                effect=messages.effect(done.effect),
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
        )

    def SetSkillDisabled(
        self, request: pb.SetSkillDisabledRequest, context: ServicerContext
    ) -> pb.SetSkillDisabledResponse:
        """Hide a name or show it again."""
        call = call_of(context)

        def act() -> Authored:
            return self._skill_defs.set_disabled(
                call,
                request.agent,
                request.name,
                request.reason,
                request.etag,
                disabled=request.disabled,
                validate_only=request.validate_only,
            )

        return answered(
            call,
            request,
            act,
            lambda done: pb.SetSkillDisabledResponse(
                disabled=done.disabled,
                skill_def=messages.own(done),
                winner=convert.winner(done.effect.after),
                effect=messages.effect(done.effect),
                etag=done.etag,
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
        )

    def SetLabel(self, request: pb.SetLabelRequest, context: ServicerContext) -> pb.SetLabelResponse:
        """Move a label or take it away."""
        call = call_of(context)

        def act() -> Authored:
            return self._skill_defs.set_label(
                call,
                request.agent,
                request.name,
                request.label,
                request.version,
                request.etag,
                validate_only=request.validate_only,
            )

        return answered(
            call,
            request,
            act,
            lambda done: pb.SetLabelResponse(
                skill_def=messages.own(done),
                effect=messages.effect(done.effect),
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
        )

    def DiffSkillDefs(self, request: pb.DiffSkillDefsRequest, context: ServicerContext) -> pb.DiffSkillDefsResponse:
        """Compare two contents of a name."""
        call = call_of(context)
        origin = getattr(request, "from")
        found = self._views.diff(call, request.agent, request.name, origin, request.to, tenant=request.tenant)
        answer = pb.DiffSkillDefsResponse(
            to=convert.candidate(found.after),
            fields=[pb.FieldDiff(field=f.field, from_json=f.before, to_json=f.after) for f in found.fields],
            body_diff=found.body,
            files=found.files,
            state=convert.state(call),
            decision_id=call.decision_id,
        )
        getattr(answer, "from").CopyFrom(convert.candidate(found.before))
        return answer

    def VerifySkillDef(self, request: pb.VerifySkillDefRequest, context: ServicerContext) -> pb.VerifySkillDefResponse:
        """Say whose a digest is."""
        call = call_of(context)
        found = self._views.verify(call, request.agent, request.name, request.content_sha256)
        return pb.VerifySkillDefResponse(
            matches=found.matches,
            winner=convert.winner(found.resolution),
            versions=found.versions,
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def ExportSkill(self, request: pb.ExportSkillRequest, context: ServicerContext) -> pb.ExportSkillResponse:
        """Return a skill as an archive."""
        call = call_of(context)
        found = self._archives.export(call, request.agent, request.name, getattr(request, "from"))
        return pb.ExportSkillResponse(
            archive=found.archive,
            candidate=convert.candidate(found.candidate),
            state=convert.state(call),
            decision_id=call.decision_id,
        )

    def ImportSkills(self, request: pb.ImportSkillsRequest, context: ServicerContext) -> pb.ImportSkillsResponse:
        """Store the skills of an archive."""
        call = call_of(context)

        def act() -> list[Imported]:
            return self._archives.load(
                call, request.agent, request.archive, promote=request.promote, validate_only=request.validate_only
            )

        return answered(
            call,
            request,
            act,
            lambda done: pb.ImportSkillsResponse(
                skills=[
                    pb.ImportedSkill(
                        name=one.name, version=one.version, created=one.created, content_sha256=one.content_sha256
                    )
                    for one in done
                ],
                state=convert.state(call),
                decision_id=call.decision_id,
            ),
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
                    etag=row.etag,
                )
                for row in page.rows
            ],
            next_page_token=page.next_page_token,
            total_size=page.total,
            state=convert.state(call),
            decision_id=call.decision_id,
        )


def _created(call: Call, made: Authored) -> pb.CreateSkillDefResponse:
    resolution = made.effect.after
    ours = resolution.winner is not None and resolution.winner.kind is LayerKind.TENANT
    listed = zip(resolution.rulings, convert.candidates(resolution), strict=True) if ours else ()
    return pb.CreateSkillDefResponse(
        skill_def=messages.own(made),
        version=messages.version(made.version),
        winner=convert.winner(resolution),
        shadows=[message for ruling, message in listed if ruling.state is CandidateState.SHADOWED],
        warnings=made.warnings,
        effect=messages.effect(made.effect),
        state=convert.state(call),
        decision_id=call.decision_id,
    )
