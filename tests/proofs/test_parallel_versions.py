"""Proof: however many write at the same time, versions are 1, 2, 3 and so on without gaps, and every call succeeds."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from sqlalchemy import Connection

from substrate.domain.identity import Role
from substrate.domain.names import SkillName, TenantId
from substrate.rpc.client import CallFailed, Client
from substrate.store import skill_defs, tenants
from substrate.store.skill_defs import SkillDef
from tests.proofs.replicas import clients
from tests.servers import Cluster, RunningServer
from tests.skills import skill_md
from tests.store.owner import rows

WRITERS = 20
EACH = 50
NAME = "doc/query"


def numbered(authors: Sequence[Client], each: int) -> list[object]:
    """Let all authors fork one skill at the same time, `each` times; return the numbers given, and what went wrong."""

    def work(author: Client) -> list[object]:
        got: list[object] = []
        for number in range(each):
            source = skill_md("query", f"Number {number}.\n")
            try:
                made = author.call("SkillDefService.ForkSkillDef", name=NAME, source=source)
                got.append(made.version.version)
            except CallFailed as failed:
                got.append(failed.message)
        return got

    with ThreadPoolExecutor(len(authors)) as pool:
        done = [pool.submit(work, author) for author in authors]
        return [number for each_done in done for number in each_done.result()]


def _authors(server: RunningServer, tenant: str, addresses: Sequence[str], count: int) -> list[Client]:
    key = server.key(tenant, Role.AUTHOR)
    return clients([addresses[number % len(addresses)] for number in range(count)], key)


def test_twenty_writers_get_every_number_once(cluster: Cluster, server: RunningServer, processes: list[str]) -> None:
    tenant = server.tenant().name
    got = numbered(_authors(server, tenant, processes, WRITERS), EACH)
    every = list(range(1, WRITERS * EACH + 1))
    assert sorted(got, key=str) == sorted(every, key=str)
    stored = "SELECT version FROM skill_def_versions WHERE tenant_id = %s ORDER BY 1"
    assert [version for (version,) in rows(cluster, stored, tenant)] == every


def test_numbers_that_are_read_before_the_writers_take_turns_are_found(
    server: RunningServer, mutants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authors = _authors(server, server.tenant().name, mutants, 6)
    numbered(authors[:1], 1)
    bump, get = tenants.bump, skill_defs.get
    read: dict[int, SkillDef | None] = {}

    def bump_after_reading(connection: Connection, tenant: TenantId, now: datetime | None = None) -> int:
        read[id(connection)] = get(connection, tenant, SkillName(NAME))
        return bump(connection, tenant, now)

    monkeypatch.setattr(tenants, "bump", bump_after_reading)
    monkeypatch.setattr(skill_defs, "get", lambda connection, *_: read[id(connection)])
    got = numbered(authors, 5)
    assert len({number for number in got if isinstance(number, int)}) < len(got)
