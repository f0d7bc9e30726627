"""Prepared statements sent together, so that they take one round trip instead of one each.

psycopg has pipelines of its own, which adapt values of every type and look for answers after each statement. Whoever
runs the same few statements thousands of times a second, with texts for values, saves three quarters of that time here.
"""

import select
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Connection, OperationalError
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

_SILENT_AFTER_MS = 5000
_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE, ExecStatus.PIPELINE_ABORTED)


class Pipeline:
    """The `statements` of one connection, by name; they take ``$1``, ``$2``, … and give rows of texts.

    The connection belongs to the pipeline, which leaves the beginning and the end of transactions to its statements. A
    statement is prepared when it is first run, so that a table that is locked holds up only those that need it.
    """

    def __init__(self, connection: Connection[Any], statements: Mapping[str, str]) -> None:
        self._libpq = connection.pgconn
        self._unprepared = dict(statements)
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._socket = select.poll()

    def run(self, *commands: tuple[str, Sequence[str]]) -> list[list[tuple[str, ...]]]:
        """Run statements with their values, in order, and return the rows of each; an SQL NULL is an empty text.

        Raises psycopg.Error: that of the first statement that failed, after which none ran; OperationalError also when
        the connection was lost or was silent for 5 s, and then it is of no more use.
        """
        preparing = {name for name, _ in commands if name in self._unprepared}
        for name in preparing:
            self._libpq.send_prepare(name.encode(), self._unprepared[name].encode())
        for name, values in commands:
            self._libpq.send_query_prepared(name.encode(), [value.encode() for value in values])
        self._libpq.pipeline_sync()
        while self._libpq.flush():
            # The server may not take more before its answers so far have been read.
            self._wait(select.POLLIN | select.POLLOUT)
            self._libpq.consume_input()
        prepared = [(name, self._result_of_one()) for name in preparing]
        results = [self._result_of_one() for _ in commands]
        self._result()  # That of the sync.
        for name, result in prepared:
            if result.status not in _FAILED:
                # Whatever became of the rest: what has been prepared stays so.
                del self._unprepared[name]
        failed = next((r for r in (*(result for _, result in prepared), *results) if r.status in _FAILED), None)
        if failed is not None:
            raise error_from_result(failed)
        return [_rows(result) for result in results]

    def _result_of_one(self) -> PGresult:
        result = self._result()
        if result is None or self._result() is not None:
            raise OperationalError("The connection was lost.")
        return result

    def _result(self) -> PGresult | None:
        while self._libpq.is_busy():
            self._wait(select.POLLIN)
            self._libpq.consume_input()
        return self._libpq.get_result()

    def _wait(self, events: int) -> None:
        self._socket.register(self._libpq.socket, events)
        if not self._socket.poll(_SILENT_AFTER_MS):
            raise OperationalError("The server is silent.")


def _rows(result: PGresult) -> list[tuple[str, ...]]:
    columns = range(result.nfields)
    return [
        tuple((result.get_value(row, column) or b"").decode() for column in columns) for row in range(result.ntuples)
    ]
