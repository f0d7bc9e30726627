"""How failures look on the wire: one table, kept in step with the catalogue that callers read."""

import re
import uuid
from collections.abc import Callable, Iterator

import grpc
import pytest
import structlog
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.api.v1.error_reason_pb2 import ErrorReason
from substrate.domain import errors
from substrate.domain.errors import InvalidSkill, SkillNotFound, SubstrateError, Violation
from substrate.domain.identity import Role
from substrate.rpc.errors import CODES as TABLE
from substrate.rpc.errors import code_of, status_of
from substrate.services.agents import Agents
from substrate.services.skills import Skills
from substrate.services.tenants import Tenants
from tests.rpc.wire import CODES, MAX_DETAILS, Failure, bearer, send
from tests.servers import RunningServer

# These stop a start, or the making of the first key on the server's own machine: no call can meet them.
NEVER_SENT = {errors.InvalidConfig, errors.KeyExists}


def subclasses(kind: type[SubstrateError]) -> Iterator[type[SubstrateError]]:
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


SENT = [kind for kind in subclasses(SubstrateError) if not kind.__subclasses__() and kind not in NEVER_SENT]


def made(kind: type[SubstrateError]) -> SubstrateError:
    """Return an error of `kind`, however its class is constructed."""
    if issubclass(kind, errors.InvalidInput) and kind.__init__ is errors.InvalidInput.__init__:
        return kind(Violation("field", "What is wrong."))
    if issubclass(kind, errors.InvalidInput):
        return kind("field", "What is wrong.")  # type: ignore[arg-type]  # A field and a description.
    return kind("What is wrong.")


def details(status: Status) -> tuple[ErrorInfo, BadRequest]:
    info, request = ErrorInfo(), BadRequest()
    for detail in status.details:
        assert detail.Unpack(info) or detail.Unpack(request)
    return info, request


def test_the_classes_of_errors_and_the_catalogue_of_reasons_are_the_same() -> None:
    documented = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 - an enum is no mapping.
    assert {kind.reason for kind in SENT} == documented - {"UNSPECIFIED", "INTERNAL"}
    assert CODES.keys() == documented - {"UNSPECIFIED"}


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_every_error_has_the_code_that_the_catalogue_promises(kind: type[SubstrateError]) -> None:
    status = status_of(made(kind), "the-decision")
    assert code_of(made(kind)).name == CODES[kind.reason]
    assert status.code == code_of(made(kind)).value[0]
    info, request = details(status)
    assert (info.domain, info.reason, dict(info.metadata)) == (
        "substrate",
        kind.reason,
        {"decision_id": "the-decision"},
    )
    assert bool(request.field_violations) is issubclass(kind, errors.InvalidInput)


def test_the_table_names_no_class_that_is_never_raised() -> None:
    assert set(TABLE) <= set(subclasses(SubstrateError))


@pytest.mark.parametrize("text", ["x", "\u00fc" * 500, "\N{PILE OF POO}" * 300], ids=["short", "long", "wide"])
def test_a_huge_list_of_problems_is_cut_and_says_how_many_are_left_out(text: str) -> None:
    status = status_of(InvalidSkill(*(Violation(f"source[{index}]", text) for index in range(10_000))))
    assert status.ByteSize() <= MAX_DETAILS
    *listed, last = details(status)[1].field_violations
    assert [violation.field for violation in listed] == [f"source[{index}]" for index in range(len(listed))]
    assert len(listed) > 1
    left_out = re.fullmatch(r"(\d+) more problems are not listed\.", last.description)
    assert left_out is not None
    assert int(left_out[1]) + len(listed) == 10_000


@settings(deadline=None)
@given(
    message=st.text(st.characters(), max_size=3000),
    metadata=st.dictionaries(st.sampled_from(["name", "agent", "tools"]), st.text(st.characters(), max_size=900)),
    problems=st.lists(st.tuples(st.text(max_size=300), st.text(st.characters(), max_size=900)), max_size=30),
)
def test_no_error_is_larger_than_what_arrives_safely(
    message: str, metadata: dict[str, str], problems: list[tuple[str, str]]
) -> None:
    found: SubstrateError = SkillNotFound(message, **metadata)
    if problems:
        found = InvalidSkill(*(Violation(*problem) for problem in problems), summary=message)
    status = status_of(found, str(uuid.uuid4()))
    assert status.ByteSize() <= MAX_DETAILS
    assert len(details(status)[1].field_violations) <= len(problems)


@pytest.mark.parametrize(
    ("method", "owner", "name", "role"),
    [
        ("SkillService.InvokeSkill", Skills, "invoke", Role.RUNTIME),
        ("AgentService.PutAgent", Agents, "put", Role.AUTHOR),
        ("TenantService.ListTenants", Tenants, "list", Role.OPERATOR),
    ],
)
@pytest.mark.parametrize(
    "raised",
    [
        lambda: RuntimeError("hunter2 leaked"),
        lambda: ValueError("hunter2", b"hunter2"),
        lambda: KeyError("hunter2"),
        lambda: RecursionError("hunter2"),
        lambda: grpc.RpcError("hunter2"),
    ],
    ids=["RuntimeError", "ValueError", "KeyError", "RecursionError", "RpcError"],
)
def test_an_exception_that_nobody_foresaw_shows_an_id_and_no_text(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    owner: type,
    name: str,
    role: Role,
    raised: Callable[[], Exception],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised()

    key = server.key("platform" if role is Role.OPERATOR else server.tenant().name, role)
    monkeypatch.setattr(owner, name, fail)
    with grpc.insecure_channel(server.address) as channel, structlog.testing.capture_logs() as lines:
        answer = send(channel, method, metadata=bearer(key))
    assert isinstance(answer, Failure)
    assert (answer.code, answer.reason, answer.violations) == ("INTERNAL", "INTERNAL", [])
    assert answer.metadata.keys() == {"error_id"}
    error_id = answer.metadata["error_id"]
    assert str(uuid.UUID(error_id)) == error_id
    assert error_id in answer.message
    assert "hunter2" not in answer.message
    (logged,) = [line for line in lines if line["event"] == "call.failed"]
    assert (logged["error_id"], logged["log_level"], logged["exc_info"]) == (error_id, "error", True)
