"""The Skill tool as a model calls it: its own JSON in, text out.

Models spell the call in several ways, all of which are understood: ``{"op": "list", "pattern": "doc/*"}``,
``{"op": "invoke", "name": "…", "arguments": "…", "file": "…"}``, ``{"name": "…"}`` (invoke), the same inside
``{"tool": "skill", "input": {…}}``, with ``skill`` or ``handle`` for the name and ``args`` for the arguments. What the
model can act on comes back as text marked as an error; what only the runtime or an operator can act on is raised.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from substrate.domain.audit import Verb
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import (
    InvalidArgument,
    InvalidInput,
    InvocationNotAllowed,
    NotFound,
    SkillChanged,
    SkillFileNotFound,
    SkillIneligible,
    SkillNotFound,
    SkillNotPermitted,
    SkillQuarantined,
    SubstrateError,
    TooLarge,
    ToolsExceedAgent,
    VersionNotFound,
)
from substrate.domain.rendering import CatalogEntry, file_text, files_text, frame_skill, list_text, refusal_text
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.run import RUN_FIELDS, Run, begin
from substrate.services.skills import Skills
from substrate.services.trace import Trace

MAX_INPUT_LENGTH = 256 * 1024
MAX_LISTED = 200

_NAME_SPELLINGS = ("name", "skill", "handle")
_ARGUMENT_SPELLINGS = ("arguments", "args")
_KNOWN = frozenset({"op", "pattern", "file", *_NAME_SPELLINGS, *_ARGUMENT_SPELLINGS})
_ACTIONABLE = (
    SkillNotPermitted,
    SkillNotFound,
    VersionNotFound,
    SkillFileNotFound,
    SkillQuarantined,
    SkillChanged,
    SkillIneligible,
    InvocationNotAllowed,
    ToolsExceedAgent,
    InvalidInput,
    TooLarge,
)
_CODES: Mapping[type[SubstrateError], str] = {
    SkillNotPermitted: "PERMISSION_DENIED",
    NotFound: "NOT_FOUND",
    SkillChanged: "ABORTED",
    InvalidInput: "INVALID_ARGUMENT",
    TooLarge: "RESOURCE_EXHAUSTED",
}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model is given; `reason` is that of a refusal, else empty."""

    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A tool call as it was understood."""

    op: str
    name: str = ""
    arguments: str = ""
    pattern: str = ""
    file: str = ""


class SkillTool:
    """The use case of `CallSkillTool`, on top of the same decisions that typed calls go through."""

    def __init__(self, skills: Skills, decisions: Decisions) -> None:
        self._skills = skills
        self._decisions = decisions

    def call(self, call: Call, run: Run, input_json: str, skill_dir: str) -> ToolAnswer:
        """Do what the model's `input_json` says, as the agent of `run`, and answer for the model to read."""
        if run.caller_kind is not CallerKind.MODEL:
            raise ValueError("The Skill tool is called by models only.")
        try:
            wish = _read(input_json)
        except (InvalidInput, TooLarge) as error:
            return self._refuse_unread(call, run, error)
        try:
            return self._do(call, run, wish, skill_dir)
        except _ACTIONABLE as error:
            if any(v.field.partition("[")[0] in (*RUN_FIELDS, "skill_dir") for v in error.violations):
                raise
            return _refusal(error)

    def _do(self, call: Call, run: Run, wish: _Wish, skill_dir: str) -> ToolAnswer:
        if wish.op == "list":
            page = self._skills.list(call, run, wish.pattern, MAX_LISTED)
            entries = [
                CatalogEntry(v.name, v.winner.header.description if v.winner.header else "")
                for v in page.listed.entries
            ]
            return ToolAnswer(list_text(entries, page.listed.total, wish.pattern or None))
        if wish.file:
            read = self._skills.read_file(call, run, wish.name, wish.file)
            if not read.is_text:
                return ToolAnswer(f"{wish.file} is {read.media_type}, {read.file.size} bytes, and not text.")
            return ToolAnswer(file_text(read.winner.name, read.file.path, read.content.decode()))
        invoked = self._skills.invoke(call, run, wish.name, wish.arguments, skill_dir)
        framed = frame_skill(invoked.skill.ref.name, invoked.location, invoked.body)
        files = files_text([(file.path, file.size) for file in invoked.skill.winner.files])
        return ToolAnswer(f"{framed}\n{files}" if files else framed)

    def _refuse_unread(self, call: Call, run: Run, error: SubstrateError) -> ToolAnswer:
        """Refuse an input that cannot be read, to a caller that is known and whose run is in order."""

        def judge(trace: Trace) -> ToolAnswer:
            begin(trace, run)
            trace.details = {"unreadable_input": error.message[:200]}
            return _refusal(error)

        return self._decisions.settle(call, Verb.INVOKE, judge, required=False)


def _refusal(error: SubstrateError) -> ToolAnswer:
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "FAILED_PRECONDITION")
    return ToolAnswer(refusal_text(code, error.reason, error.message), error.reason)


def _read(input_json: str) -> _Wish:
    if len(input_json) > MAX_INPUT_LENGTH:
        raise TooLarge(f"The tool's input has more than {MAX_INPUT_LENGTH} characters.", limit=str(MAX_INPUT_LENGTH))
    try:
        data = json.loads(input_json)
    except (ValueError, RecursionError):
        raise InvalidArgument(
            "input", 'The input is not JSON; write {"op":"list"} or {"op":"invoke","name":"…"}.'
        ) from None
    if isinstance(data, Mapping) and isinstance(data.get("input"), Mapping):
        data = data["input"]
    if not isinstance(data, Mapping):
        raise InvalidArgument("input", 'The input must be a JSON object such as {"op":"list"}.')
    unknown = sorted(str(key) for key in data if key not in _KNOWN)
    if unknown:
        raise InvalidArgument("input", f"Unknown fields: {', '.join(unknown)[:200]!a}.")
    name = _one(data, _NAME_SPELLINGS)
    wish = _Wish(
        op=_one(data, ("op",)) or ("invoke" if name else ""),
        name=name,
        arguments=_one(data, _ARGUMENT_SPELLINGS),
        pattern=_one(data, ("pattern",)),
        file=_one(data, ("file",)),
    )
    if wish.op not in ("list", "invoke"):
        raise InvalidArgument("op", 'Set "op" to "list" or "invoke".')
    if wish.op == "invoke" and not name:
        raise InvalidArgument("name", 'Set "name" to the skill to invoke; "op":"list" shows which there are.')
    return wish


def _one(data: Mapping[str, Any], spellings: tuple[str, ...]) -> str:
    """Return the text under one of `spellings`; numbers and nested values are given back as JSON text."""
    given = [(key, data[key]) for key in spellings if data.get(key) is not None]
    if len(given) > 1:
        raise InvalidArgument(given[1][0], f"Give only one of {', '.join(key for key, _ in given)}.")
    if not given:
        return ""
    key, value = given[0]
    if isinstance(value, str):
        return value
    if key in _ARGUMENT_SPELLINGS:
        return json.dumps(value, ensure_ascii=False)
    raise InvalidArgument(key, f'"{key}" must be text.')
