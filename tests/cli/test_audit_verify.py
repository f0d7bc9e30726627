import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from substrate.domain.identity import Role
from substrate.store.signing_keys import made_signing_key
from tests.cli.commands import CommandLine
from tests.processes import client, open_folder, own_cluster, serving
from tests.servers import Cluster
from tests.store.chain import events
from tests.store.owner import change, connect, rows
from tests.store.tampering import Signing, rehash, signing


@pytest.fixture(scope="module")
def signed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    with signing(cluster, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def operator(command: CommandLine, signed: Signing) -> CommandLine:
    return command.with_options(
        "--address", signed.server.address, "--key", signed.server.key("platform", Role.OPERATOR)
    )


def as_author(command: CommandLine, signed: Signing, tenant: str) -> CommandLine:
    return command.with_options("--address", signed.server.address, "--key", signed.server.key(tenant, Role.AUTHOR))


def export(cluster: Cluster, path: Path, *tenants: str) -> list[dict[str, object]]:
    """Write what an export of the tenants' events holds, and return it."""
    found = rows(
        cluster,
        "SELECT tenant_id, sequence, encode(previous_hash, 'hex'), encode(hash, 'hex'), event FROM audit_events"
        " WHERE tenant_id = ANY(%s) ORDER BY sequence, tenant_id",
        list(tenants),
    )
    names = ("tenant", "sequence", "previous_hash", "hash", "event")
    lines = [dict(zip(names, row, strict=True)) for row in found]
    write(path, lines)
    return lines


def write(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_verify_tells_people_what_is_wrong_and_scripts_by_its_exit_code(
    command: CommandLine, operator: CommandLine, signed: Signing
) -> None:
    tenant = signed.used(4, 8, 12).name
    good = operator.ok("audit", "verify", "--tenant", tenant)
    assert good.text == f"{tenant}: intact; 12 events, 1 to 12; held against 2 checkpoints, the last of event 8.\n"
    own = as_author(command, signed, tenant).ok("audit", "verify", "--json").json
    ((chain),) = own["chains"]
    assert (chain["tenant"], chain["intact"], chain["checked_count"]) == (tenant, True, 13)
    change(signed.cluster, "UPDATE audit_events SET event = event || ' ' WHERE tenant_id = %s AND sequence = 6", tenant)
    event_id = events(signed.cluster, tenant)[5]["id"]
    bad = operator("audit", "verify", "--tenant", tenant)
    assert bad.code == 1
    assert bad.text == (
        f"{tenant}: NOT INTACT; first bad event 6: The hash of event 6 is not that of its text. Its id is {event_id}."
        " (5 events checked; held against 1 checkpoint, the last of event 4)\n"
    )
    machine = operator("audit", "verify", "--tenant", tenant, "--json")
    assert machine.code == 1
    assert machine.json["chains"][0]["first_bad_sequence"] == 6


def test_verify_takes_all_tenants_for_operators(command: CommandLine, operator: CommandLine, signed: Signing) -> None:
    tenants = {signed.used(2).name, signed.used(2).name}
    printed = operator("audit", "verify", "--tenant", "all", "--json")
    assert tenants | {"platform"} <= {chain["tenant"] for chain in printed.json["chains"]}
    printed = as_author(command, signed, min(tenants))("audit", "verify", "--tenant", max(tenants))
    assert (printed.code, printed.fact("reason")) == (1, "TENANT_NOT_FOUND")


def test_an_export_is_verified_without_a_server(command: CommandLine, signed: Signing, tmp_path: Path) -> None:
    other, tenant = signed.used(2, 3).name, signed.used(4, 8, 10).name
    file = tmp_path / "export.jsonl"
    lines = export(signed.cluster, file, tenant, other)
    key = signed.key.with_suffix(".pub.pem")
    arguments = ("audit", "verify", "--file", str(file), "--checkpoints", str(signed.file), "--public-key", str(key))
    good = command.ok(*arguments)
    assert f"{tenant}: intact; 10 events, 1 to 10; held against 2 checkpoints, the last of event 8.\n" in good.text
    assert f"{other}: intact; 3 events, 1 to 3; held against 2 checkpoints, the last of event 3.\n" in good.text
    alone = command.ok(*arguments, "--tenant", other, "--json").json["chains"]
    assert [(chain["tenant"], chain["intact"]) for chain in alone] == [(other, True)]

    def first_bad(changed: list[dict[str, object]]) -> tuple[int, object]:
        write(file, changed)
        printed = command(*arguments, "--tenant", tenant, "--json")
        return printed.code, printed.json["chains"][0]["first_bad_sequence"]

    place = next(n for n, line in enumerate(lines) if (line["tenant"], line["sequence"]) == (tenant, 6))
    assert first_bad([*lines[:place], *lines[place + 1 :]]) == (1, 6)
    assert first_bad([*lines[:place], lines[place] | {"event": "{}"}, *lines[place + 1 :]]) == (1, 6)
    assert first_bad([line for line in lines if line["tenant"] != tenant or line["sequence"] in range(1, 8)]) == (1, 8)
    assert first_bad(lines[::-1]) == (1, 1)
    with connect(signed.cluster) as owner:
        owner.execute(
            "UPDATE audit_events SET event = replace(event, 'runtime', 'author') WHERE tenant_id = %s AND sequence = 6",
            [tenant],
        )
        rehash(owner, tenant, 6)
    export(signed.cluster, file, tenant)
    assert command(*arguments).code == 1
    unheld = command.ok("audit", "verify", "--file", str(file))
    assert "held against 0 checkpoints" in unheld.text
    assert "Without --checkpoints" in unheld.err


def test_an_export_of_all_tenants_must_hold_every_chain_that_was_signed(
    command: CommandLine, signed: Signing, tmp_path: Path
) -> None:
    kept, lost = signed.used(2, 3).name, signed.used(2, 3).name
    file = tmp_path / "export.jsonl"
    export(signed.cluster, file, kept)
    key = signed.key.with_suffix(".pub.pem")
    arguments = ("audit", "verify", "--file", str(file), "--checkpoints", str(signed.file), "--public-key", str(key))
    assert [row.split(":")[0] for row in command.ok(*arguments).text.splitlines()] == [kept]
    told = command(*arguments, "--tenant", "all")
    assert told.code == 1
    assert f"{kept}: intact; 3 events" in told.text
    problem = "There is no event of this tenant, and checkpoints were signed of its chain."
    assert f"{lost}: NOT INTACT; first bad event 1: {problem} (0 events checked;" in told.text


def test_an_export_that_is_none_is_refused(command: CommandLine, signed: Signing, tmp_path: Path) -> None:
    file, absent = tmp_path / "export.jsonl", str(tmp_path / "absent")
    for content in ("nonsense\n", "[]\n", "{}\n", '{"tenant":"a","sequence":"1"}\n', "[" * 100_000):
        file.write_text(content)
        printed = command("audit", "verify", "--file", str(file))
        assert (printed.code, printed.out) == (1, b"")
        assert "Line 1 of the export is no event" in printed.err
    file.write_text("")
    assert "holds no events" in command("audit", "verify", "--file", str(file)).err
    assert "No such file" in command("audit", "verify", "--file", absent).err
    with_key = ("audit", "verify", "--file", str(file), "--checkpoints", str(signed.file), "--public-key")
    assert "holds no Ed25519 public key" in command(*with_key, str(signed.key)).err
    assert "cannot be read" in command(*with_key, absent).err


def test_wrong_usage(command: CommandLine, tmp_path: Path) -> None:
    file = str(tmp_path / "x")
    assert "go with --file" in command.misused("audit", "verify", "--checkpoints", file)
    assert "Pass both" in command.misused("audit", "verify", "--file", file, "--checkpoints", file)
    this_month = f"{datetime.now(UTC):%Y-%m}"
    for month in ("2026", "2026-13", "2026-6", "0000-01", "26-06", "2026-06-01", "", "\u0662026-06"):
        assert "is no month such as" in command.misused("audit", "retention", "--before", month)
    for month in (this_month, "9999-12"):
        assert "is not over" in command.misused("audit", "retention", "--before", month)
    assert "--before" in command.misused("audit", "retention")


def test_retention_needs_the_servers_own_files(command: CommandLine, cluster: Cluster, tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        printed = command("audit", "retention", "--before", "2026-01", "--data-dir", str(tmp_path / "data"), *options)
        assert (printed.code, printed.out) == (1, b"")
        return printed.err

    assert "No server runs its database in" in refused()
    owner = ("--database-url", cluster.owner_url)
    assert "audit-checkpoints.jsonl is not there" in refused(*owner)
    checkpoints, key = tmp_path / "checkpoints.jsonl", tmp_path / "key.pem"
    checkpoints.write_text("")
    assert "key.pem cannot be read" in refused(*owner, "--checkpoints", str(checkpoints), "--signing-key", str(key))
    made_signing_key(key)
    files = ("--checkpoints", str(checkpoints), "--signing-key", str(key))
    printed = command.ok("audit", "retention", "--before", "2020-01", *owner, *files)
    assert printed.text == "There is no month before 2020-01 to drop.\n"
    assert "cannot be read" in refused("--database-url", "postgresql://a:b", *files)
    assert "nothing was dropped" in refused("--database-url", "postgresql://nobody@127.0.0.1:1/x", *files)


def test_retention_finds_the_database_of_the_server_that_runs_here(command: CommandLine) -> None:
    with open_folder() as data_dir, serving("--data-dir", str(data_dir)) as server:
        own = own_cluster(data_dir)
        month = date(2026, 5, 1)
        change(
            own,
            "CREATE TABLE audit_events_2026_05 PARTITION OF audit_events"
            " FOR VALUES FROM ('2026-05-01') TO ('2026-06-01')",
        )
        with client(server, data_dir, "author") as author:
            author.call("AgentService.ListAgents")
        with connect(own) as owner:
            # The first keys' events, as if they were of May.
            owner.execute("UPDATE audit_events SET occurred_at = %s, event = event WHERE sequence = 1", [month])
        refused = command("audit", "retention", "--before", "2026-06", "--data-dir", str(data_dir))
        assert "Nothing is dropped, since the audit is not intact" in refused.err
        change(own, "UPDATE audit_events SET occurred_at = (event::json ->> 'time')::timestamptz WHERE sequence = 1")
        printed = command.ok("audit", "retention", "--before", "2026-06", "--data-dir", str(data_dir), "--json")
        assert printed.json == {
            "dropped": [{"month": "2026-05", "partition": "audit_events_2026_05", "events": 0, "tenants": 0}]
        }
        local = command.with_options("--data-dir", str(data_dir))
        chains = local.ok("audit", "verify", "--tenant", "all", "--json").json["chains"]
        assert {chain["tenant"]: chain["intact"] for chain in chains} == {"default": True, "platform": True}
