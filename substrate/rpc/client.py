"""The client's side of the wire API, for callers that import neither grpc nor the generated code.

Requests are built from keyword fields through the descriptors, so a new RPC or field needs no line here.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo  # Has no py.typed.
from grpc_status import rpc_status

from substrate.api.v1 import agents_pb2, audit_pb2, skill_defs_pb2, skills_pb2, tenants_pb2

_FILES = (skills_pb2, skill_defs_pb2, agents_pb2, tenants_pb2, audit_pb2)
_METHODS: Mapping[str, MethodDescriptor] = {
    f"{service.name}.{method.name}": method
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_DOMAIN = "substrate"
_OPTIONS = (
    # The server bounds what it sends; a page of large entries may exceed the 4 MiB that gRPC takes by default.
    ("grpc.max_receive_message_length", -1),
    # A proxy meant for browsing must not come between a client and the server beside it.
    ("grpc.enable_http_proxy", 0),
    # Clients of one process would share a connection, and with it one worker of the server.
    ("grpc.use_local_subchannel_pool", 1),
)


class CallFailed(Exception):
    """A call that the server refused or never answered.

    `code` is the canonical gRPC code's name. `reason` is one of error_reason.proto, or empty when the failure does not
    come from the server itself. `violations` are pairs of field and description. `decision_id` names the audit event,
    empty when the call was not recorded.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = list(violations)
        self.decision_id = self.metadata.get("decision_id", "")


class Client:
    """One connection to a server, with the key that every call carries; a context manager that closes it.

    `timeout` is in seconds, for each call. With `root_certificates` (PEM) the connection is TLS, otherwise plain text.
    `identity` is the client's own certificate chain and its private key (PEM), for servers that ask for one. Raises
    ValueError for a key that cannot be sent, and for an identity without root certificates.
    """

    def __init__(
        self,
        address: str,
        key: str,
        *,
        timeout: float = 10.0,
        root_certificates: bytes | None = None,
        identity: tuple[bytes, bytes] | None = None,
    ) -> None:
        if not (key.isascii() and key.isprintable()):
            # Checked here because grpc's own error would show the key.
            raise ValueError("The key holds characters that no key has.")
        if identity is not None and root_certificates is None:
            raise ValueError("A client's certificate is shown on a TLS connection, which root certificates make it.")
        self._address = address
        self._metadata = (("authorization", f"Bearer {key}"),)
        self._timeout = timeout
        if root_certificates is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            chain, private_key = identity or (None, None)
            credentials = grpc.ssl_channel_credentials(root_certificates, private_key, chain)
            self._channel = grpc.secure_channel(address, credentials, options=_OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls in flight end as CANCELLED."""
        self._channel.close()

    def call(self, method: str, **fields: object) -> Any:
        """Return the answer to one call of `method`, such as ``SkillService.ListSkills``.

        `fields` are the request's, in their proto names: messages as mappings, enum values as numbers or names,
        timestamps as aware datetimes; None leaves a field out. Raises CallFailed; TypeError for a method or field that
        does not exist or a value of the wrong type; ValueError for a value that cannot be sent, such as a number out
        of range or text that is not Unicode.
        """
        request, path, answer_type = _request(method, fields)
        send = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer_type.FromString
        )
        try:
            return send(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._failure(error, self._timeout) from None

    def stream(self, method: str, *, timeout: float | None = None, **fields: object) -> Iterator[Any]:
        """Return the messages of a method that sends several, as they come; otherwise as `call`.

        `timeout` is in seconds for all of them together; None waits for ever. Leaving the iterator ends the call.
        """
        request, path, answer_type = _request(method, fields)
        send = self._channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer_type.FromString
        )
        return self._received(send(request, timeout=timeout, metadata=self._metadata), timeout)

    def _received(self, answers: Any, timeout: float | None) -> Iterator[Any]:
        try:
            yield from answers
        except grpc.RpcError as error:
            raise self._failure(error, timeout or 0.0) from None
        finally:
            answers.cancel()

    def pages(self, method: str, **fields: object) -> Iterator[Any]:
        """Yield every page of a list, each asked for when the one before has been taken; otherwise as `call`."""
        token = ""
        while True:
            page: Any = self.call(method, page_token=token, **fields)
            yield page
            token = page.next_page_token
            if not token:
                return

    def _failure(self, error: Any, timeout: float) -> CallFailed:
        info, violations = _details(error)
        code = error.code().name
        if info is not None:
            return CallFailed(code, error.details(), reason=info.reason, metadata=info.metadata, violations=violations)
        # Without our details the failure is the connection's, and its text is for developers of gRPC.
        if code == "UNAVAILABLE":
            # Of what gRPC tells of its attempts, the end is for people.
            why = (error.details() or "").rpartition("connect: ")[2].rstrip(".")
            return CallFailed(code, f"No server can be reached at {self._address}: {why}.")
        if code == "DEADLINE_EXCEEDED":
            return CallFailed(code, f"{self._address} did not answer within {timeout:g} s.")
        return CallFailed(code, error.details() or "The call failed without a message.")


def _request(method: str, fields: Mapping[str, object]) -> tuple[Message, str, type[Message]]:
    """Return a request of `method`, its path on the wire, and the type of its answers; raise as `Client.call` does."""
    descriptor = _METHODS.get(method)
    if descriptor is None:
        raise TypeError(f"There is no method {method!r}.")
    unknown = fields.keys() - descriptor.input_type.fields_by_name.keys()
    if unknown:
        raise TypeError(f"{method} has no field {', '.join(sorted(unknown))}.")
    request = GetMessageClass(descriptor.input_type)(**fields)
    path = f"/{descriptor.containing_service.full_name}/{descriptor.name}"
    return request, path, GetMessageClass(descriptor.output_type)


def to_plain(message: Message) -> dict[str, Any]:
    """Return the JSON form of `message` with its proto field names.

    Numbers, texts, truth values and lists are there even when unset; messages and optional fields only when set.
    Whole numbers stay numbers, bytes are base64, timestamps RFC 3339 in UTC.
    """
    return MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=True,
        unquote_int64_if_possible=True,
    )


def _details(error: Any) -> tuple[ErrorInfo | None, list[tuple[str, str]]]:
    """Return the substrate's ErrorInfo, or None, and the field violations that came with a failed call."""
    info, request = ErrorInfo(), BadRequest()
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        # Something between the client and the server changed the code or the text: the details are not to be trusted.
        return None, []
    for detail in status.details if status else ():
        # Unpack leaves its target alone when the detail is of another type.
        _ = detail.Unpack(info) or detail.Unpack(request)
    violations = [(violation.field, violation.description) for violation in request.field_violations]
    return (info if info.domain == _DOMAIN else None), violations
