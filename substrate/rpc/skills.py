"""`SkillService` on the wire."""

from grpc import ServicerContext

from substrate.api.v1 import skills_pb2 as pb
from substrate.api.v1.skills_pb2_grpc import SkillServiceServicer
from substrate.domain.rendering import MAX_LISTED_FILES, TOOL_DESCRIPTION, TOOL_NAME, tool_schema_json
from substrate.rpc import convert
from substrate.rpc.interceptors import call_of
from substrate.services.skill_tool import SkillTool
from substrate.services.skills import Admitted, Page, Skills

MAX_OMITTED_NAMES = 1000


class SkillServicer(SkillServiceServicer):
    """Reads requests, asks the services, writes responses."""

    def __init__(self, skills: Skills, tool: SkillTool) -> None:
        self._skills = skills
        self._tool = tool

    def PrepareRun(self, request: pb.PrepareRunRequest, context: ServicerContext) -> pb.PrepareRunResponse:
        """Return what to wire into a run."""
        call = call_of(context)
        prepared = self._skills.prepare(call, convert.run(request, request.caller_kind), request.budget_tokens)
        omitted = prepared.note.omitted if prepared.note else ()
        tool = pb.SkillTool(name=TOOL_NAME, description=TOOL_DESCRIPTION, input_schema_json=tool_schema_json())
        return pb.PrepareRunResponse(
            tool=tool if prepared.offers_tool else None,
            note=prepared.note.text if prepared.note else "",
            omitted_count=len(omitted),
            omitted_names=omitted[:MAX_OMITTED_NAMES],
            state=convert.state(call),
            catalog_changed=call.catalog_changed,
            decision_id=call.decision_id,
        )

    def ListSkills(self, request: pb.ListSkillsRequest, context: ServicerContext) -> pb.ListSkillsResponse:
        """Return one page of the skills that the agent may invoke.

        The answer is bytes: the page as it was encoded when it was first asked for, then what differs per call, since
        encoded messages of one type may be joined.
        """
        call = call_of(context)
        page = self._skills.list(
            call,
            convert.run(request, request.caller_kind),
            request.pattern,
            request.page_size,
            request.page_token,
        )
        tail = pb.ListSkillsResponse(
            state=convert.state(call), catalog_changed=call.catalog_changed, decision_id=call.decision_id
        )
        return _encoded(page) + tail.SerializeToString()  # type: ignore[return-value]  # The wrapper sends bytes as they are.

    def InvokeSkill(self, request: pb.InvokeSkillRequest, context: ServicerContext) -> pb.InvokeSkillResponse:
        """Return one skill's body; the answer is bytes, joined as those of a list are."""
        call = call_of(context)
        invoked = self._skills.invoke(
            call,
            convert.run(request, request.caller_kind),
            request.name,
            request.arguments,
            request.skill_dir,
            request.expected_digest,
        )
        tail = pb.InvokeSkillResponse(
            body=invoked.body,
            state=convert.state(call),
            catalog_changed=call.catalog_changed,
            decision_id=call.decision_id,
        )
        return _encoded_skill(invoked.skill) + tail.SerializeToString()  # type: ignore[return-value]  # As above.

    def ReadSkillFile(self, request: pb.ReadSkillFileRequest, context: ServicerContext) -> pb.ReadSkillFileResponse:
        """Return one resource file."""
        call = call_of(context)
        read = self._skills.read_file(call, convert.run(request, request.caller_kind), request.name, request.path)
        return pb.ReadSkillFileResponse(
            path=read.file.path,
            content=read.content,
            media_type=read.media_type,
            is_text=read.is_text,
            size=read.file.size,
            sha256=read.file.sha256,
            content_sha256=read.winner.content_sha256,
            state=convert.state(call),
            catalog_changed=call.catalog_changed,
            decision_id=call.decision_id,
        )

    def CallSkillTool(self, request: pb.CallSkillToolRequest, context: ServicerContext) -> pb.CallSkillToolResponse:
        """Do what the model asked of the Skill tool."""
        call = call_of(context)
        answer = self._tool.call(call, convert.run(request), request.input_json, request.skill_dir)
        return pb.CallSkillToolResponse(
            text=answer.text,
            is_error=bool(answer.reason),
            reason=answer.reason,
            state=convert.state(call),
            catalog_changed=call.catalog_changed,
            decision_id=call.decision_id,
        )


def _encoded_skill(skill: Admitted) -> bytes:
    """Return what answers say of the skill itself, in wire form, made once and kept with it."""
    if skill.encoded is None:
        winner = skill.winner
        skill.encoded = pb.InvokeSkillResponse(
            name=skill.ref.name,
            content_sha256=winner.content_sha256,
            layer=convert.layer(winner.kind),
            origin=winner.origin,
            version=winner.version or 0,
            allowed_tools=(winner.header.allowed_tools or ()) if winner.header else (),
            files=[convert.skill_file(file) for file in winner.files[:MAX_LISTED_FILES]],
            files_omitted=max(0, len(winner.files) - MAX_LISTED_FILES),
        ).SerializeToString()
    return skill.encoded


def _encoded(page: Page) -> bytes:
    """Return the page in wire form, made once and kept with it."""
    if page.encoded is None:
        message = pb.ListSkillsResponse(next_page_token=page.next_page_token, total_size=page.listed.total)
        for entry in page.listed.entries:
            header = entry.winner.header
            message.skills.add(
                name=entry.name,
                description=header.description if header else "",
                when_to_use=(header.when_to_use or "") if header else "",
                argument_hint=(header.argument_hint or "") if header else "",
                content_sha256=entry.winner.content_sha256,
            )
        page.encoded = message.SerializeToString()
    return page.encoded
