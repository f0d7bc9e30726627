"""What happens around every call: admission, reading the message, the deadline, errors, and one log line.

An interceptor runs on grpc's one serving thread, so here it only chooses who handles the call; everything else happens
in the handler's thread. Messages are decoded and encoded there too: a message that cannot be read is then a typed
error, and an answer may be bytes already.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc_status import rpc_status
from structlog.contextvars import bind_contextvars, unbind_contextvars

from substrate.domain.errors import Cancelled, InvalidMessage, SubstrateError, TooLarge
from substrate.domain.identity import missing_key
from substrate.rpc import errors
from substrate.rpc.admission import Admission, Arrival
from substrate.rpc.metrics import OTHER_METHOD
from substrate.rpc.streams import OpenStreams
from substrate.services.call import Call, Clock

MAX_ANSWER_BYTES = 8 * 1024 * 1024

_log = structlog.get_logger("substrate.calls")

_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection."

Handler: TypeAlias = Any  # grpc's handlers are generic in the stubs alone.
Behaviour = Callable[[Any, Any], Any]


class Aside:
    """Threads for what must be answered however busy the server is: each kind has its own, so none starves another.

    `health` answers checks, `refusals` says why a call is not admitted, `streams` holds reflection, which stays open.
    """

    def __init__(self, threads: int = 4) -> None:
        self.health = ThreadPoolExecutor(threads, thread_name_prefix="health")
        self.refusals = ThreadPoolExecutor(threads, thread_name_prefix="refusal")
        self.streams = ThreadPoolExecutor(threads, thread_name_prefix="stream")

    def shutdown(self) -> None:
        """Wait until all threads are idle, and end them."""
        for pool in (self.health, self.refusals, self.streams):
            pool.shutdown(wait=True, cancel_futures=True)


class Calls(grpc.ServerInterceptor):
    """Wraps every method.

    `admission` says which calls are taken in hand. What must be answered even when none is has small pools of its own
    in `aside`. `authenticate` admits a bearer to reflection; `keyless` counts calls without a key. `finished` hears of
    every call: its method, its code and how many seconds it took.
    """

    def __init__(
        self,
        admission: Admission,
        aside: Aside,
        clock: Clock,
        authenticate: Callable[[Call], None],
        keyless: Callable[[], None],
        finished: Callable[[str, str, float], None],
    ) -> None:
        self._admission = admission
        self._aside = aside
        self._clock = clock
        self._authenticate = authenticate
        self._keyless = keyless
        self._finished = finished
        self.streams = OpenStreams()
        self._wrapped: dict[str, _Wrapped] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return who handles the call; nothing here may block."""
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None:
            found = continuation(handler_call_details)
            if found is None:
                arrival = self._begun(Arrival(handler_call_details.invocation_metadata))
                self._note(OTHER_METHOD, arrival, None, grpc.StatusCode.UNIMPLEMENTED, "", 0.0)
                return None
            known = self._wrapped[method] = self._wrap(method, found)
        if method.startswith(_HEALTH):
            return known.proven
        arrival = Arrival(handler_call_details.invocation_metadata)
        try:
            if method.startswith(_REFLECTION):
                self._admission.require_room()
                return known.proven
            pool = self._admission.admit(arrival, stream=known.streams)
        except SubstrateError as error:
            return self._refusal(method, error, arrival)
        return known.proven if pool is self._admission.proven else known.unproven

    def _wrap(self, method: str, handler: Any) -> "_Wrapped":
        if method.startswith(_HEALTH):
            if handler.unary_unary is None:
                behaviour = self._watch(handler.unary_stream)
                return _aside(grpc.unary_stream_rpc_method_handler, behaviour, handler)
            behaviour = _on(self._aside.health, handler.unary_unary)
            return _aside(grpc.unary_unary_rpc_method_handler, behaviour, handler)
        if method.startswith(_REFLECTION):
            behaviour = _on(self._aside.streams, self._behind_a_key(method, handler.stream_stream))
            return _aside(grpc.stream_stream_rpc_method_handler, behaviour, handler)
        if handler.unary_stream is not None:
            # As a stream of requests, so that who proves no key is refused before its message has come.
            behaviour = self._stream(method, handler.unary_stream, handler.request_deserializer)
            made: Handler = grpc.stream_stream_rpc_method_handler(_on(self._admission.streams, behaviour))
            return _Wrapped(made, made, streams=True)
        behaviour = self._unary(method, handler.unary_unary, handler.request_deserializer)
        return _Wrapped(
            grpc.unary_unary_rpc_method_handler(behaviour),
            grpc.unary_unary_rpc_method_handler(_on(self._admission.unproven, behaviour)),
        )

    def _watch(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """Begin a watch on the side; it holds no thread while it waits for a change."""

        def aside(request: Any, context: grpc.ServicerContext, send: Callable[[Any], None]) -> Any:
            return behaviour(request, context, send)

        aside.experimental_non_blocking = True  # type: ignore[attr-defined]  # So is grpc told to hand over `send`.
        aside.experimental_thread_pool = self._aside.health  # type: ignore[attr-defined]  # And of a pool.
        return aside

    def _refusal(self, method: str, error: SubstrateError, arrival: Arrival) -> Handler:
        """Return a handler that refuses the call with `error`."""

        def refuse(_: Any, context: grpc.ServicerContext) -> bytes:
            self._note(method, self._begun(arrival), None, errors.code_of(error), error.reason, 0.0)
            return _aborted(context, errors.status_of(error))

        # As a stream, so that grpc does not keep the thread waiting for a message that may never come.
        return grpc.stream_unary_rpc_method_handler(_on(self._aside.refusals, refuse))

    def _behind_a_key(self, method: str, behaviour: Behaviour) -> Behaviour:
        def guarded(requests: Any, context: grpc.ServicerContext) -> Any:
            started = time.monotonic()
            arrival = self._begun(Arrival(context.invocation_metadata()))
            status, code, reason = None, grpc.StatusCode.OK, ""
            try:
                self._authenticate(self._call(method, arrival, context))
            except SubstrateError as error:
                status, code, reason = errors.status_of(error), errors.code_of(error), error.reason
            except Exception:  # noqa: BLE001 - grpc would send the text of any exception to the caller.
                status, code, reason = self._fault(method), grpc.StatusCode.INTERNAL, "INTERNAL"
            # Noted when it is admitted, not when it ends: it may stay open for long.
            self._note(method, arrival, None, code, reason, time.monotonic() - started)
            return behaviour(requests, context) if status is None else _aborted(context, status)

        return guarded

    def _fault(self, method: str) -> status_pb2.Status:
        """Log the exception at hand under an id, and return the status that names the id alone."""
        error_id = str(uuid.uuid4())
        _log.exception("call.failed", method=method, error_id=error_id)
        return errors.internal(error_id)

    def _unary(self, method: str, behaviour: Behaviour, decode: Callable[[bytes], Any]) -> Behaviour:
        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            started = time.monotonic()
            arrival = self._begun(self._admission.here())
            call: Call | None = None
            status = None
            code = grpc.StatusCode.OK
            reason = ""
            try:
                call = self._call(method, arrival, context, started)
                return _encoded(behaviour(_decoded(decode, request), _Context(call)))
            except SubstrateError as error:
                status = errors.status_of(error, call.decision_id if call else "")
                code, reason = errors.code_of(error), error.reason
            except Exception:  # noqa: BLE001 - grpc would send the text of any exception to the caller.
                status = self._fault(method)
                code, reason = grpc.StatusCode.INTERNAL, "INTERNAL"
            finally:
                # Before it is answered: a caller that waits for its answers must find the place free for its next call.
                arrival.leave()
                self._note(method, arrival, call, code, reason, time.monotonic() - started)
            return _aborted(context, status)

        return handle

    def _stream(self, method: str, behaviour: Behaviour, decode: Callable[[bytes], Any]) -> Behaviour:
        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            started = time.monotonic()
            arrival = self._begun(self._admission.here())
            call: Call | None = None
            status = None
            # What it is when grpc drops this generator, since the caller is gone.
            code, reason = grpc.StatusCode.CANCELLED, Cancelled.reason
            try:
                call = self._call(method, arrival, context, started, ended=threading.Event())
                with self.streams.holding(call, context):
                    if arrival.tenant is None:
                        self._authenticate(call)
                    with closing(behaviour(_decoded(decode, _only(requests, call)), _Context(call))) as answers:
                        for answer in answers:
                            yield _encoded(answer)
                            call.require_time()
            except SubstrateError as error:
                if isinstance(error, Cancelled) and self.streams.ending:
                    status, code = errors.stopping(), grpc.StatusCode.UNAVAILABLE
                else:
                    status = errors.status_of(error, call.decision_id if call else "")
                    code, reason = errors.code_of(error), error.reason
            except Exception:  # noqa: BLE001 - grpc would send the text of any exception to the caller.
                status = self._fault(method)
                code, reason = grpc.StatusCode.INTERNAL, "INTERNAL"
            else:
                code, reason = grpc.StatusCode.OK, ""
            finally:
                arrival.leave()
                self._note(method, arrival, call, code, reason, time.monotonic() - started)
            if status is not None:
                _aborted(context, status)

        return handle

    def _call(
        self,
        method: str,
        arrival: Arrival,
        context: grpc.ServicerContext,
        started: float | None = None,
        ended: threading.Event | None = None,
    ) -> Call:
        if arrival.bearer is None:
            self._keyless()
            raise missing_key()
        left = context.time_remaining()
        begun = time.monotonic() if started is None else started
        call = Call(
            method=method,
            call_id=arrival.call_id,
            bearer=arrival.bearer,
            arrived=self._clock.now(),
            started=begun,
            deadline=None if left is None else time.monotonic() + left,  # type: ignore[redundant-expr]  # The stubs forget None.
            ended=ended,
        )
        if not context.add_callback(call.cancel):
            call.cancel()
        return call

    def _begun(self, arrival: Arrival) -> Arrival:
        """Give a call that brings no id one, and let every line that its thread logs carry it."""
        arrival.call_id = arrival.call_id or self._clock.event_id()
        bind_contextvars(call_id=arrival.call_id)
        return arrival

    def _note(
        self, method: str, arrival: Arrival, call: Call | None, code: grpc.StatusCode, reason: str, seconds: float
    ) -> None:
        """Count a call that ends and log its line; what its thread says from then on is not of the call."""
        self._finished(method, code.name, seconds)
        fields: dict[str, Any] = {"call_id": arrival.call_id, "tenant": arrival.tenant or "", "agent": ""}
        if call is not None:
            fields.update(call.log, decision_id=call.decision_id)
        _log.info("call", method=method, code=code.name, reason=reason, ms=round(seconds * 1000, 3), **fields)
        unbind_contextvars("call_id")


class _Wrapped(NamedTuple):
    """The handlers of a method, for calls that have proven their key and for others."""

    proven: Handler
    unproven: Handler
    streams: bool = False


def _aside(kind: Callable[..., Handler], behaviour: Behaviour, handler: Any) -> _Wrapped:
    """Return the handler of a method that is answered on the side whoever calls."""
    made = kind(behaviour, handler.request_deserializer, handler.response_serializer)
    return _Wrapped(made, made)


class _Context:
    """What a servicer is given as its context: the call."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call


def _on(pool: ThreadPoolExecutor, behaviour: Behaviour) -> Behaviour:
    """Let `pool` run a behaviour instead of the server's own."""

    def aside(request: Any, context: grpc.ServicerContext) -> Any:
        return behaviour(request, context)

    aside.experimental_thread_pool = pool  # type: ignore[attr-defined]  # This is how grpc is told of a pool.
    return aside


def call_of(context: Any) -> Call:
    """Return the call that a servicer's `context` stands for."""
    call: Call = context.call
    return call


def _aborted(context: grpc.ServicerContext, status: status_pb2.Status) -> NoReturn:
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status raises.")


def _only(requests: Iterator[bytes], call: Call) -> bytes:
    """Return the one message of a stream's request; raise InvalidMessage when there is none."""
    try:
        return next(requests)
    except StopIteration:
        raise InvalidMessage("", "The request came without a message.") from None
    except grpc.RpcError:
        call.require_time()
        raise


def _decoded(decode: Callable[[bytes], Any], request: bytes) -> Any:
    try:
        return decode(request)
    except (DecodeError, ValueError, RecursionError):
        raise InvalidMessage("", "The request is no valid message of this method; texts must be UTF-8.") from None


def _encoded(answer: Any) -> bytes:
    encoded: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    if len(encoded) > MAX_ANSWER_BYTES:
        # Beyond its limit grpc would refuse it too, but without a reason.
        message = f"The answer has more than {MAX_ANSWER_BYTES} bytes; ask for less, such as a smaller page."
        raise TooLarge(message, limit=str(MAX_ANSWER_BYTES))
    return encoded
