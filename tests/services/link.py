"""A way to a database on which the news of a commit can be lost, as when a network fails at the worst moment."""

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from sqlalchemy.engine import make_url

from tests.processes import open_folder
from tests.servers import Cluster

_SOCKET = ".s.PGSQL.5432"
_COMMIT = b"commit\0"
"""How a message says that the chain writer's statement of that name is to be run."""

_READY_AND_IDLE = b"Z\0\0\0\5I"
"""What the database sends last after a transaction has ended, however it has."""


class Link:
    """Passes on what servers and their database say to each other; `cluster` is the database at its other end."""

    def __init__(self, cluster: Cluster, listener: socket.socket) -> None:
        url = make_url(cluster.login_url)
        self._upstream = f"{url.query['host']}/{_SOCKET}"
        self._listener = listener
        self._on_loss: Callable[[], object] | None = None
        self._stay_down = self._down = False
        folder = str(listener.getsockname()).rpartition("/")[0]
        ours = url.update_query_dict({"host": folder}).render_as_string(hide_password=False)
        self.cluster = replace(cluster, login_url=ours)
        self.losses = 0

    def lose_the_next_commit(self, then: Callable[[], object] = lambda: None, *, stay_down: bool = False) -> None:
        """Let the next commit happen, run `then`, and cut the connection with nobody told; once, or until mended."""
        self._stay_down = stay_down
        self._on_loss = then

    def mend(self) -> None:
        """Let connections be made again."""
        self._down = False

    def accept(self) -> None:
        """Take connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with closing(client), socket.socket(socket.AF_UNIX) as database, suppress(OSError):
            if self._down:
                return
            database.connect(self._upstream)
            while not self._is_over(client, database):
                pass

    def _is_over(self, client: socket.socket, database: socket.socket) -> bool:
        ready, _, _ = select.select([client, database], [], [])
        for source in ready:
            data = source.recv(1 << 20)
            other = database if source is client else client
            other.sendall(data)
            if not data:
                return True
            if source is client and _COMMIT in data and self._on_loss is not None:
                self._lose(database)
                return True
        return False

    def _lose(self, database: socket.socket) -> None:
        answer = b""
        while not answer.endswith(_READY_AND_IDLE):
            answer += database.recv(1 << 20)
        then, self._on_loss = self._on_loss, None
        assert then is not None
        then()
        self._down = self._stay_down
        self.losses += 1


@contextmanager
def linked(cluster: Cluster) -> Iterator[Link]:
    """Give a link to the database, for its `cluster` to be used in place of the one that is given."""
    with open_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / _SOCKET))
        listener.listen()
        link = Link(cluster, listener)
        thread = threading.Thread(target=link.accept, daemon=True)
        thread.start()
        yield link
        # Closing it would not wake the thread.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
