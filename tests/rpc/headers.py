"""Calls whose headers are sent and whose message is not, so that a server has them in hand until they are cancelled."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc

from tests.rpc.wire import Failure, bearer, path_of, typed

Future = Any  # grpc's future is generic in the stubs alone.


class HeadersOnly:
    """Such calls, over one connection to `address`; a key of None is no key at all."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.calls: list[Future] = []
        self._ended = threading.Event()

    @classmethod
    @contextmanager
    def to(cls, address: str) -> Iterator[Self]:
        """Connect, and cancel what has been begun at the end."""
        made = cls(address)
        try:
            yield made
        finally:
            made.cancel()
            made.channel.close()

    def begin(self, key: str | None, method: str = "SkillService.ListSkills") -> Future:
        """Send the headers of a call."""
        begin: Any = self.channel.stream_unary(path_of(method))
        call: Future = begin.future(_nothing(self._ended), metadata=bearer(key) if key else (), timeout=30)
        self.calls.append(call)
        return call

    def refused(self, key: str | None) -> Failure:
        """Return how a call is refused that sends no message."""
        error = self.begin(key).exception(timeout=20)
        assert error is not None
        return typed(error)

    def cancel(self) -> None:
        """Cancel all calls."""
        for call in self.calls:
            call.cancel()
        self.calls.clear()
        self._ended.set()
        self._ended = threading.Event()


def _nothing(ended: threading.Event) -> Iterator[bytes]:
    """Yield no message, but only when the call has ended."""
    ended.wait()
    yield from ()
