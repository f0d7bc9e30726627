"""How failures look on the wire: the one table from the domain's errors to canonical codes.

Every failure is a `google.rpc.Status` with one `ErrorInfo` (domain ``substrate``, the error's own `reason` and
metadata) and, for wrong input, a `BadRequest`. Details are kept below 4 KiB, since large trailers get lost on the way.
"""

from collections.abc import Sequence

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from substrate.domain import errors
from substrate.domain.errors import SubstrateError

DOMAIN = "substrate"
MAX_DETAILS_BYTES = 4096

_MAX_MESSAGE = 1024
_MAX_METADATA_VALUE = 512
_MAX_DESCRIPTION = 400

CODES: dict[type[SubstrateError], grpc.StatusCode] = {
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.RoleRequired: grpc.StatusCode.PERMISSION_DENIED,
    errors.TenantSuspended: grpc.StatusCode.PERMISSION_DENIED,
    errors.SkillNotPermitted: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.NameLocked: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ReviewRequired: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SkillQuarantined: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ToolsExceedAgent: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SkillIneligible: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvocationNotAllowed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RevisionUnknown: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SkillChanged: grpc.StatusCode.ABORTED,
    errors.EtagMismatch: grpc.StatusCode.ABORTED,
    errors.AuditUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.QuotaExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
}
"""The table. A class that is not named has the code of the nearest class above it that is."""


def code_of(error: SubstrateError) -> grpc.StatusCode:
    """Return the canonical code of `error`."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def status_of(error: SubstrateError, decision_id: str = "") -> status_pb2.Status:
    """Return `error` as the status that is sent."""
    metadata = dict(error.metadata)
    if decision_id:
        metadata["decision_id"] = decision_id
    return _status(code_of(error), error.reason, error.message, metadata, error.violations)


def internal(error_id: str) -> status_pb2.Status:
    """Return the status for a fault of ours: an id to find it by in the log, and no text of the exception."""
    message = f"An internal error occurred; quote its id {error_id} to the operator."
    return _status(grpc.StatusCode.INTERNAL, "INTERNAL", message, {"error_id": error_id}, ())


def stopping() -> status_pb2.Status:
    """Return the status of a stream that ends with its server; like grpc's own of that kind it has no details."""
    return status_pb2.Status(code=code_pb2.UNAVAILABLE, message="The server is stopping.")


def _status(
    code: grpc.StatusCode,
    reason: str,
    message: str,
    metadata: dict[str, str],
    violations: Sequence[errors.Violation],
) -> status_pb2.Status:
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=_cut(message, _MAX_MESSAGE))
    info = error_details_pb2.ErrorInfo(
        reason=reason,
        domain=DOMAIN,
        metadata={key: _cut(value, _MAX_METADATA_VALUE) for key, value in metadata.items()},
    )
    _add(status, info)
    if violations:
        _add(status, _bad_request(violations, MAX_DETAILS_BYTES - status.ByteSize()))
    return status


def _bad_request(violations: Sequence[errors.Violation], room: int) -> error_details_pb2.BadRequest:
    """Return as many violations as there is room for; the last one then says how many are left out."""
    bad_request = error_details_pb2.BadRequest()
    room -= 200
    for index, violation in enumerate(violations):
        field = bad_request.field_violations.add(
            field=_cut(violation.field, 200), description=_cut(violation.description, _MAX_DESCRIPTION)
        )
        if bad_request.ByteSize() > room:
            field.field = ""
            field.description = f"{len(violations) - index} more problems are not listed."
            break
    return bad_request


def _add(status: status_pb2.Status, detail: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def _cut(text: str, limit: int) -> str:
    """Return `text` as valid UTF-8 of at most `limit` bytes."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= limit and text.isascii() else encoded[:limit].decode("utf-8", "ignore")
