"""Changes that can be sent again: a request id makes the same request get its first answer."""

import copy
import hashlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from substrate.services.call import Call, Repeat
from substrate.services.decisions import AnsweredBefore

T = TypeVar("T")


class Answer(Protocol):
    """A response message."""

    def SerializeToString(self) -> bytes:
        """Return its bytes."""


class Change(Protocol):
    """A request message of a change."""

    @property
    def request_id(self) -> str:
        """The caller's id for the request; empty for none."""

    def ClearField(self, field_name: Any, /) -> None:
        """Take a field's value away."""

    def SerializeToString(self, *, deterministic: bool) -> bytes:
        """Return its bytes."""


R = TypeVar("R", bound=Answer)


def answered(call: Call, request: Change, act: Callable[[], T], respond: Callable[[T], R]) -> R:
    """Return the response to `act`, or the bytes of the one that the same request was given before.

    A request is the same when method, key and every field are.
    """
    if request.request_id:
        same = copy.deepcopy(request)
        same.ClearField("request_id")
        asked = f"{call.method}\n{call.bearer.key_id}\n".encode() + same.SerializeToString(deterministic=True)
        call.repeat = Repeat(
            request.request_id.lower(),
            hashlib.sha256(asked).digest(),
            lambda done: respond(done).SerializeToString(),
        )
    try:
        return respond(act())
    except AnsweredBefore as first:
        return first.answer  # type: ignore[return-value]  # The interceptor sends bytes as they are.
