"""Calls below the client: any bytes and any metadata in, and out what a failure carries, read from the wire."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from substrate.api.v1 import agents_pb2, audit_pb2, error_reason_pb2, skill_defs_pb2, skills_pb2, tenants_pb2

METHODS: Mapping[str, MethodDescriptor] = {
    f"{service.name}.{method.name}": method
    for file in (skills_pb2, skill_defs_pb2, agents_pb2, tenants_pb2, audit_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

_PROTO = Path(__file__).parents[2] / "protos" / "substrate" / "api" / "v1" / "error_reason.proto"
_ENTRY = re.compile(r"^  // ([A-Z_]+)\. (?:(?!^  ERROR_REASON).*\n)+^  ERROR_REASON_([A-Z_]+) = [0-9]+;", re.MULTILINE)

CODES: Mapping[str, str] = {reason: code for code, reason in _ENTRY.findall(_PROTO.read_text())}
"""The canonical code of each reason, as the comment above it in the catalogue of errors promises."""

MAX_DETAILS = 4096


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call: its code, and the details that came with it."""

    code: str
    message: str
    reason: str
    metadata: Mapping[str, str]
    violations: Sequence[tuple[str, str]]
    size: int


def path_of(method: str) -> str:
    """Return the path that a call of `method`, such as ``SkillService.ListSkills``, has on the wire."""
    descriptor = METHODS[method]
    return f"/{descriptor.containing_service.full_name}/{descriptor.name}"


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries `key`."""
    return (("authorization", f"Bearer {key}"),)


def send(
    channel: grpc.Channel,
    method: str,
    payload: bytes = b"",
    metadata: tuple[tuple[str, str], ...] = (),
    timeout: float = 10.0,
) -> bytes | Failure:
    """Send `payload` as it is; return the answer's bytes, or the failure, which must be one of the documented ones.

    Of a stream the first message is the answer.
    """
    begin: Any = channel.unary_stream(path_of(method))
    call: Any = channel.unary_unary(path_of(method))
    try:
        if METHODS[method].server_streaming:
            stream = begin(payload, metadata=metadata, timeout=timeout)
            answer: bytes = next(stream)
            stream.cancel()
        else:
            answer = call(payload, metadata=metadata, timeout=timeout)
    except grpc.RpcError as error:
        return typed(error)
    return answer


def typed(error: Any) -> Failure:
    """Return what a failed call carries; fail unless it is a reason of the catalogue, with its code and in its size."""
    status = rpc_status.from_call(error)
    assert status is not None, f"a failure without details: {error.code()} {error.details()}"
    infos, requests = [], []
    for detail in status.details:
        info, request = ErrorInfo(), BadRequest()
        if detail.Unpack(info):
            infos.append(info)
        elif detail.Unpack(request):
            requests.append(request)
    assert len(infos) == 1
    assert len(requests) <= 1
    assert len(status.details) == len(infos) + len(requests)
    (info,) = infos
    failure = Failure(
        error.code().name,
        error.details(),
        info.reason,
        dict(info.metadata),
        [(v.field, v.description) for request in requests for v in request.field_violations],
        status.ByteSize(),
    )
    assert info.domain == "substrate"
    assert f"ERROR_REASON_{info.reason}" in error_reason_pb2.ErrorReason.keys()  # noqa: SIM118 - an enum is no mapping.
    assert failure.code == CODES[info.reason]
    assert failure.size <= MAX_DETAILS
    return failure


def leaves(method: str) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the way to every field of a request that is no message, through the messages that hold it."""
    pending: list[tuple[FieldDescriptor, ...]] = [(field,) for field in METHODS[method].input_type.fields]
    while pending:
        way = pending.pop()
        inner = way[-1].message_type
        if inner is None:
            yield way
        else:
            pending.extend((*way, field) for field in inner.fields)


def varint(value: int) -> bytes:
    """Return `value`, modulo 2^64, as the wire spells whole numbers."""
    value %= 1 << 64
    spelled = bytearray()
    while value > 0x7F:
        spelled.append(value & 0x7F | 0x80)
        value >>= 7
    spelled.append(value)
    return bytes(spelled)


def with_field(way: Sequence[FieldDescriptor], value: bytes | int) -> bytes:
    """Return bytes that, after those of a request, give the field at the end of `way` the `value`, valid or not."""
    field = way[-1]
    if isinstance(value, int):
        spelled = varint(field.number << 3) + varint(value)
    else:
        spelled = varint(field.number << 3 | 2) + varint(len(value)) + value
    for outer in reversed(way[:-1]):
        spelled = varint(outer.number << 3 | 2) + varint(len(spelled)) + spelled
    return spelled
