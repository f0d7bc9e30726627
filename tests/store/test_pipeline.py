import socket
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from substrate.store.pipeline import Pipeline
from tests.servers import Cluster

STATEMENTS = {
    "begin": "BEGIN",
    "rollback": "ROLLBACK",
    "two rows": "SELECT $1::text, NULL::text UNION ALL SELECT $2::text, 'x' ORDER BY 1",
    "length": "SELECT length($1::text)",
    "divide": "SELECT 12 / $1::int",
}


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cluster.login_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def pipeline(connection: psycopg.Connection) -> Pipeline:
    return Pipeline(connection, STATEMENTS)


def test_the_rows_of_each_statement_come_back_as_texts(pipeline: Pipeline) -> None:
    rows = pipeline.run(("begin", ()), ("two rows", ("b", "ä")), ("divide", ("3",)), ("rollback", ()))
    assert rows == [[], [("b", ""), ("ä", "x")], [("4",)], []]


def test_the_first_failure_is_raised_and_the_next_run_is_none_the_worse(pipeline: Pipeline) -> None:
    with pytest.raises(errors.DivisionByZero):
        pipeline.run(("begin", ()), ("divide", ("0",)), ("length", ("abc",)))
    pipeline.run(("rollback", ()))
    assert pipeline.run(("length", ("abc",))) == [[("3",)]]


def test_more_is_sent_than_a_socket_takes_at_once(pipeline: Pipeline) -> None:
    long = "x" * 8_000_000
    assert pipeline.run(*[("length", (long,))] * 3) == [[("8000000",)]] * 3


def test_a_statement_that_cannot_be_prepared_fails_when_it_is_run_and_keeps_no_other_from_running(
    connection: psycopg.Connection,
) -> None:
    pipeline = Pipeline(connection, {"wrong": "SELEKT 1", "right": "SELECT 1"})
    assert pipeline.run(("right", ())) == [[("1",)]]
    for _ in range(2):
        with pytest.raises(errors.SyntaxError):
            pipeline.run(("right", ()), ("wrong", ()))
    assert pipeline.run(("right", ())) == [[("1",)]]


def test_a_lost_connection_is_an_error(pipeline: Pipeline, connection: psycopg.Connection) -> None:
    with socket.socket(fileno=connection.fileno()) as link:
        link.shutdown(socket.SHUT_RDWR)
        with pytest.raises(psycopg.OperationalError):
            pipeline.run(("length", ("abc",)))
        link.detach()
