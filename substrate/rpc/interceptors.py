"""What happens around every call: admission, reading the message, the deadline, errors, and one log line.

An interceptor runs on grpc's one serving thread, so here it only chooses who handles the call; everything else happens
in the handler's thread. Messages are decoded and encoded there too: a message that cannot be read is then a typed
error, and an answer may be bytes already.
"""

import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc_status import rpc_status

from substrate.domain.errors import InvalidMessage, Overloaded, SubstrateError, TooLarge
from substrate.domain.identity import Bearer, missing_key, parse_bearer
from substrate.rpc import errors
from substrate.services.call import Call
from substrate.services.judging import Clock

MAX_ANSWER_BYTES = 8 * 1024 * 1024

_log = structlog.get_logger("substrate.calls")

_CALL_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection."

Handler: TypeAlias = Any  # grpc's handlers are generic in the stubs alone.
Behaviour = Callable[[Any, Any], Any]


class CountedPool(ThreadPoolExecutor):
    """A thread pool that knows how many calls it holds, running and waiting."""

    def __init__(self, threads: int) -> None:
        super().__init__(max_workers=threads, thread_name_prefix="call", initializer=_wait_when_woken)
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """How many calls have been put and are not finished."""
        return self._held

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Put a call, counted until it is finished."""
        self._count(1)
        try:
            return super().submit(self._run, fn, *args, **kwargs)
        except BaseException:
            self._count(-1)
            raise

    def _run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            self._held += more


def _wait_when_woken() -> None:
    """Keep this thread from interrupting the one that wakes it: that one holds Python's lock, so it would have to wait.

    Each call is woken three times; not to interrupt saves a tenth of a busy core.
    """
    with suppress(OSError):  # It is only a hint, and a sandbox may forbid it.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class Aside:
    """Threads for what must be answered however busy the server is: each kind has its own, so none starves another.

    `health` answers checks, `refusals` says OVERLOADED, `streams` holds reflection, which may stay open.
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

    `admitted` is how many calls may be held before more are refused as OVERLOADED. What must be answered even then has
    small pools of its own in `aside`. `authenticate` admits a bearer to reflection. `finished` is told of every call:
    its method, its code and how many seconds it took.
    """

    def __init__(
        self,
        pool: CountedPool,
        aside: "Aside",
        admitted: int,
        clock: Clock,
        authenticate: Callable[[Call], None],
        finished: Callable[[str, str, float], None],
    ) -> None:
        self._pool = pool
        self._aside = aside
        self._admitted = admitted
        self._clock = clock
        self._authenticate = authenticate
        self._finished = finished
        self._wrapped: dict[str, Handler] = {}
        self._refusing: dict[str, Handler] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return who handles the call; nothing here may block."""
        method = handler_call_details.method
        if self._pool.held >= self._admitted and not method.startswith(_HEALTH):
            return self._refusal(method)
        known = self._wrapped.get(method)
        if known is None:
            found = continuation(handler_call_details)
            if found is None:
                return None
            known = self._wrapped[method] = self._wrap(method, found)
        return known

    def _wrap(self, method: str, handler: Any) -> Handler:
        if method.startswith(_HEALTH):
            if handler.unary_unary is None:
                return grpc.unary_stream_rpc_method_handler(
                    self._watch(handler.unary_stream), handler.request_deserializer, handler.response_serializer
                )
            return grpc.unary_unary_rpc_method_handler(
                _on(self._aside.health, handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        if method.startswith(_REFLECTION):
            return grpc.stream_stream_rpc_method_handler(
                _on(self._aside.streams, self._behind_a_key(method, handler.stream_stream)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, handler.request_deserializer)
        )

    def _watch(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """Begin a watch on the side; it holds no thread while it waits for a change."""

        def aside(request: Any, context: grpc.ServicerContext, send: Callable[[Any], None]) -> Any:
            return behaviour(request, context, send)

        aside.experimental_non_blocking = True  # type: ignore[attr-defined]  # So is grpc told to hand over `send`.
        aside.experimental_thread_pool = self._aside.health  # type: ignore[attr-defined]  # And of a pool.
        return aside

    def _refusal(self, method: str) -> Handler:
        """Return a handler that refuses `method` because there is too much to do."""

        def refuse(_: Any, context: grpc.ServicerContext) -> bytes:
            error = Overloaded("The server has as many calls in hand as it can serve; try again in a moment.")
            self._note(method, None, errors.code_of(error), error.reason, 0.0)
            return _aborted(context, errors.status_of(error))

        known = self._refusing.get(method)
        if known is None:
            known = self._refusing[method] = grpc.unary_unary_rpc_method_handler(_on(self._aside.refusals, refuse))
        return known

    def _behind_a_key(self, method: str, behaviour: Behaviour) -> Behaviour:
        def guarded(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._authenticate(self._call(method, context))
            except SubstrateError as error:
                status = errors.status_of(error)
            except Exception:  # noqa: BLE001 - grpc would send the text of any exception to the caller.
                status = self._fault(method)
            else:
                return behaviour(requests, context)
            return _aborted(context, status)

        return guarded

    def _fault(self, method: str) -> status_pb2.Status:
        """Log the exception at hand under an id, and return the status that names the id alone."""
        error_id = str(uuid.uuid4())
        _log.exception("call.failed", method=method, error_id=error_id)
        return errors.internal(error_id)

    def _unary(self, method: str, behaviour: Behaviour, decode: Callable[[bytes], Any]) -> Behaviour:
        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            started = time.monotonic()
            call: Call | None = None
            status = None
            code = grpc.StatusCode.OK
            reason = ""
            try:
                call = self._call(method, context, started)
                return _encoded(behaviour(_decoded(decode, request), _Context(call)))
            except SubstrateError as error:
                status = errors.status_of(error, call.decision_id if call else "")
                code, reason = errors.code_of(error), error.reason
            except Exception:  # noqa: BLE001 - grpc would send the text of any exception to the caller.
                status = self._fault(method)
                code, reason = grpc.StatusCode.INTERNAL, "INTERNAL"
            finally:
                self._note(method, call, code, reason, time.monotonic() - started)
            return _aborted(context, status)

        return handle

    def _call(self, method: str, context: grpc.ServicerContext, started: float | None = None) -> Call:
        bearer, call_id = _metadata(context)
        left = context.time_remaining()
        begun = time.monotonic() if started is None else started
        call = Call(
            method=method,
            call_id=call_id or self._clock.event_id(),
            bearer=bearer,
            arrived=self._clock.now(),
            started=begun,
            deadline=None if left is None else time.monotonic() + left,  # type: ignore[redundant-expr]  # The stubs forget None.
        )
        if not context.add_callback(lambda: _cancel(call)):
            call.cancelled = True
        return call

    def _note(self, method: str, call: Call | None, code: grpc.StatusCode, reason: str, seconds: float) -> None:
        self._finished(method, code.name, seconds)
        fields = {} if call is None else {"call_id": call.call_id, "decision_id": call.decision_id, **call.log}
        _log.info("call", method=method, code=code.name, reason=reason, ms=round(seconds * 1000, 3), **fields)


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


def _cancel(call: Call) -> None:
    call.cancelled = True


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


def _metadata(context: grpc.ServicerContext) -> tuple[Bearer, str]:
    """Return the caller's key and the call id it proposes, if any; raise Unauthenticated."""
    bearer = ""
    call_id = ""
    for key, value in context.invocation_metadata():
        if key == "authorization" and isinstance(value, str):
            if bearer:
                # Which of two keys counts must not depend on who put them in which order.
                raise missing_key()
            bearer = value
        elif key == "x-call-id" and isinstance(value, str) and _CALL_ID.fullmatch(value):
            call_id = value
    scheme, _, text = bearer.partition(" ")
    if scheme.lower() != "bearer":
        raise missing_key()
    return parse_bearer(text.strip()), call_id
