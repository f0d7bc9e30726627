"""The streams that are open: each can be told to end, and a stop of the server tells all of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from substrate.services.call import Call

_PATIENCE_SECONDS = 1.0


class OpenStreams:
    """The open streams of one server."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, tuple[Call, grpc.ServicerContext]] = {}
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether they have been told to end, so that it is the server that ends them and not their callers."""
        return self._ending

    @contextmanager
    def holding(self, call: Call, context: grpc.ServicerContext) -> Iterator[None]:
        """Count a stream as open; one that begins after the end was called for is cancelled at once."""
        with self._changed:
            self._open[id(call)] = (call, context)
            if self._ending:
                call.cancel()
        try:
            yield
        finally:
            with self._changed:
                del self._open[id(call)]
                self._changed.notify_all()

    def end(self) -> None:
        """Tell all streams to end, and cut off those that cannot since their callers do not take what is sent."""
        with self._changed:
            self._ending = True
            for call, _ in self._open.values():
                call.cancel()
            self._changed.wait_for(lambda: not self._open, _PATIENCE_SECONDS)
            stuck = [context for _, context in self._open.values()]
        for context in stuck:
            context.cancel()
