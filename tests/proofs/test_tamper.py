"""Whatever the owner of the database does to the audit is found, and the first bad event is named.

That the server's own roles can neither update, delete nor truncate events is shown in `tests/store/test_roles.py`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from substrate.domain.chain import COLUMNS
from substrate.store.signing_keys import made_signing_key
from tests.servers import Cluster, TestTenant
from tests.store.chain import events
from tests.store.owner import connect
from tests.store.tampering import Owner, Signing, copy_event, move_head, rehash, signing, verified

SIGNED = (4, 8, 12)
"""Each chain has twelve events, and was signed when it had four and when it had eight."""

Edit = Callable[[Owner, str], object]


@pytest.fixture(scope="module")
def signed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    with signing(cluster, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def other(signed: Signing) -> TestTenant:
    return signed.used(*SIGNED)


def statement(text: str) -> Edit:
    """Return an edit by a statement that takes the tenant as its parameter, and must change something."""

    def run(owner: Owner, tenant: str) -> None:
        assert owner.execute(text.encode(), [tenant]).rowcount > 0

    return run


def change(assignment: str, sequence: int) -> Edit:
    """Return an edit that sets something in one event."""
    text = "UPDATE audit_events SET {} WHERE tenant_id = %s AND sequence = {}"
    return statement(text.format(assignment, sequence))


def delete(condition: str) -> Edit:
    text = "DELETE FROM audit_events WHERE tenant_id = %s AND {}"
    return statement(text.format(condition))


def head(assignment: str) -> Edit:
    text = "UPDATE chain_heads SET {} WHERE tenant_id = %s"
    return statement(text.format(assignment))


def then(*edits: Edit) -> Edit:
    def all_of_them(owner: Owner, tenant: str) -> None:
        for edit in edits:
            edit(owner, tenant)

    return all_of_them


def rehashed(sequence: int) -> Edit:
    return lambda owner, tenant: rehash(owner, tenant, sequence)


def its_hash(sequence: int) -> Edit:
    return change("hash = sha256(previous_hash || int8send(sequence) || convert_to(event, 'UTF8'))", sequence)


def head_at(sequence: int) -> Edit:
    return lambda owner, tenant: move_head(owner, tenant, sequence)


def forged(sequence: int, **changes: object) -> Edit:
    return lambda owner, tenant: copy_event(owner, tenant, 6, sequence=sequence, **changes)


TEXT = """event = replace(event, '"role":"runtime"', '"role":"author"')"""
SWAP = statement(
    "UPDATE audit_events SET sequence = 13 - sequence WHERE tenant_id = %s AND sequence IN (6, 7)",
)
LINK_OF_6 = change(
    "previous_hash = (SELECT hash FROM audit_events AS e WHERE e.tenant_id = audit_events.tenant_id AND sequence = 5)",
    6,
)
CLOSE_UP = then(
    delete("sequence = 6"),
    statement("UPDATE audit_events SET sequence = sequence - 1 WHERE tenant_id = %s AND sequence > 6"),
)
BEGIN_AFTER_6 = statement(
    "INSERT INTO audit_starts SELECT tenant_id, sequence, hash, '{}', '{}', now() FROM audit_events"
    " WHERE tenant_id = %s AND sequence = 6"
)
BEGIN_WITH_NONSENSE = statement("INSERT INTO audit_starts VALUES (%s, 3, sha256('x'), '[\"x\"]', '{}', now())")
NO_HEAD = head("sequence = 0, hash = decode(repeat('00', 32), 'hex')")
OTHER_VALUES = {
    "event_id": "gen_random_uuid()",
    "occurred_at": "occurred_at + interval '1 microsecond'",
    "version": "7",
    "shadowed": "true",
}

EDITS: dict[str, tuple[Edit, int, str]] = {
    "text": (change(TEXT, 6), 6, "hash of event 6 is not that of its text"),
    "text of the first": (change(TEXT, 1), 1, "hash of event 1"),
    "text of the last": (change(TEXT, 12), 12, "hash of event 12"),
    "text with its hash": (then(change(TEXT, 6), its_hash(6)), 6, "was rewritten with its hash"),
    "text with its hash, before one that was signed": (then(change(TEXT, 3), its_hash(3)), 3, "was rewritten"),
    "text of the last with its hash": (then(change(TEXT, 12), its_hash(12)), 12, "not that of the head"),
    "hash": (change("hash = sha256('x')", 6), 6, "hash of event 6"),
    "link": (change("previous_hash = sha256('x')", 6), 6, "does not follow the event before it"),
    "link with its hash": (then(change("previous_hash = sha256('x')", 9), its_hash(9)), 9, "does not follow"),
    "event deleted": (delete("sequence = 6"), 6, "Event 6 is missing"),
    "events deleted": (delete("sequence IN (6, 7)"), 6, "Events 6 to 7 are missing"),
    "first deleted": (delete("sequence = 1"), 1, "Event 1 is missing"),
    "deleted and closed up": (CLOSE_UP, 6, "Event 6 does not follow the event before it"),
    "forged in the middle": (forged(6, event="{}"), 6, "event 6|number 6"),
    "forged twin": (forged(6), 6, "two events with the number 6|column event_id of event 6"),
    "forged before the first": (forged(0), 1, "before the start"),
    "forged far before the first": (forged(-7), 1, "before the start"),
    "forged beyond the head": (forged(13), 13, "beyond the head"),
    "reordered": (SWAP, 6, "Event 6 does not follow"),
    "reordered and linked": (then(SWAP, LINK_OF_6), 6, "hash of event 6"),
    "tail cut": (delete("sequence > 10"), 11, "the chain ends with event 10, and the head of the chain is event 12"),
    "tail cut, head moved back": (then(delete("sequence > 6"), head_at(6)), 7, "a checkpoint was signed of event 8"),
    "head moved back": (head_at(10), 11, "events beyond the head"),
    "head moved on": (head("sequence = 20"), 13, "the head of the chain is event 20"),
    "head's hash": (head("hash = sha256('x')"), 12, "not that of the head"),
    "head deleted": (statement("DELETE FROM chain_heads WHERE tenant_id = %s"), 1, "the chain is empty"),
    "all deleted": (then(delete("true"), NO_HEAD), 1, "the chain is empty, and a checkpoint was signed of event 8"),
    "tail rewritten": (then(change(TEXT, 6), rehashed(6)), 5, "Event 8 has another hash than was signed"),
    "all rewritten": (then(change(TEXT, 1), rehashed(1)), 1, "Event 4 has another hash than was signed"),
    "tail rewritten without one": (then(CLOSE_UP, rehashed(6)), 5, "Event 8 has another hash than was signed"),
    "no JSON": (then(change("event = 'nonsense'", 10), rehashed(10)), 10, "no audit event"),
    "no event": (then(change("event = '[1, {}]'", 10), rehashed(10)), 10, "no audit event"),
    "too deep": (then(change("event = repeat('[', 100000)", 10), rehashed(10)), 10, "no audit event"),
    "start moved on": (then(BEGIN_AFTER_6, delete("sequence <= 6")), 1, "no such start was signed"),
    "start of nonsense": (BEGIN_WITH_NONSENSE, 1, "no such start was signed"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_found_and_the_first_bad_event_named(signed: Signing, edit: str) -> None:
    tenant = signed.used(*SIGNED)
    operator = signed.server.operator()
    before = verified(operator, tenant.name)[tenant.name]
    assert (before.intact, before.problem, before.first_bad_sequence) == (True, "", 0)
    assert (before.checked_count, before.first_sequence, before.last_sequence) == (12, 1, 12)
    assert (before.checkpoint_count, before.last_checkpoint_sequence) == (2, 8)
    apply, first_bad, problem = EDITS[edit]
    with connect(signed.cluster) as owner:
        apply(owner, tenant.name)
    found = verified(operator, tenant.name)[tenant.name]
    assert not found.intact
    assert found.first_bad_sequence == first_bad, found.problem
    assert any(part in found.problem for part in problem.split("|")), found.problem


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_that_does_not_say_what_the_text_says_is_found(signed: Signing, column: str) -> None:
    tenant = signed.used(4, 8)
    value = OTHER_VALUES.get(column, "'other'")
    with connect(signed.cluster) as owner:
        change(f"{column} = {value}", 6)(owner, tenant.name)
    found = verified(signed.server.operator(), tenant.name)[tenant.name]
    assert (found.intact, found.first_bad_sequence) == (False, 6)
    event_id = events(signed.cluster, tenant.name)[5]["id"]
    assert found.problem == f"The column {column} of event 6 is not what its text says. Its id is {event_id}."


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "4000-01-01 BC", "20000-01-01"])
def test_a_time_that_is_none_is_found(signed: Signing, moment: str) -> None:
    tenant = signed.used(4, 8)
    with connect(signed.cluster) as owner:
        change(f"occurred_at = '{moment}'", 6)(owner, tenant.name)
    found = verified(signed.server.operator(), tenant.name)[tenant.name]
    event_id = events(signed.cluster, tenant.name)[5]["id"]
    assert found.problem == f"The column occurred_at of event 6 is not what its text says. Its id is {event_id}."


def test_an_event_of_another_tenant_is_found_in_both_chains(signed: Signing, other: TestTenant) -> None:
    tenant, thief = signed.used(*SIGNED), signed.used(*SIGNED)
    with connect(signed.cluster) as owner:
        owner.execute(
            "UPDATE audit_events SET tenant_id = %s, sequence = 13 WHERE tenant_id = %s AND sequence = 6",
            [thief.name, tenant.name],
        )
        rehash(owner, thief.name, 13)
    operator = signed.server.operator()
    lost = verified(operator, tenant.name)[tenant.name]
    assert (lost.first_bad_sequence, lost.problem) == (6, "Event 6 is missing.")
    taken = verified(operator, thief.name)[thief.name]
    event_id = events(signed.cluster, thief.name)[12]["id"]
    assert taken.first_bad_sequence == 13
    assert taken.problem == f"The text of event 13 is of another tenant's event. Its id is {event_id}."
    assert verified(operator, other.name)[other.name].intact


def test_a_restored_backup_is_found_also_when_new_events_were_appended(signed: Signing) -> None:
    tenant = signed.used(4, 8, 8)
    with connect(signed.cluster) as owner:
        delete("sequence > 6")(owner, tenant.name)
        move_head(owner, tenant.name, 6)
    operator = signed.server.operator()
    found = verified(operator, tenant.name)[tenant.name]
    assert (found.first_bad_sequence, found.last_sequence) == (7, 6)
    for _ in range(4):
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    found = verified(operator, tenant.name)[tenant.name]
    assert (found.first_bad_sequence, found.last_sequence) == (5, 10)
    assert "Event 8 has another hash than was signed of it" in found.problem


def test_a_tenant_that_was_taken_away_whole_is_missed(signed: Signing) -> None:
    tenant = signed.used(4, 8)
    operator = signed.server.operator()
    with connect(signed.cluster) as owner:
        text = "DELETE FROM {} WHERE tenant_id = %s"
        for table in ("audit_events", "audit_inputs", "chain_heads", "keys", "tenants"):
            statement(text.format(table))(owner, tenant.name)
    found = verified(operator)[tenant.name]
    assert (found.intact, found.first_bad_sequence, found.last_sequence) == (False, 1, 0)


Lines = list[bytes]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda lines, at: lines[at].replace(b'"sequence":8', b'"sequence":7'), "{} has a signature that is not of"),
        (lambda lines, at: lines[at].replace(b'"kind"', b'"Kind"'), "{} cannot be read"),
        (lambda lines, at: lines[at] + b" ", "{} cannot be read"),
        (lambda *_: b"{}", "{} cannot be read"),
        (lambda *_: b"", "{} cannot be read"),
        (lambda *_: None, "{} does not follow the line before it"),
        (lambda lines, at: lines[at - 1], "{} does not follow the line before it"),
        (lambda lines, at: lines[at] + b"\n" + lines[at], "{next} does not follow the line before it"),
    ],
)
def test_what_is_done_to_a_line_of_the_checkpoints_is_found(
    signed: Signing, edit: Callable[[Lines, int], bytes | None], problem: str
) -> None:
    tenant = signed.used(4, 8, 12)
    signed.checkpointer.poll(last=True)
    kept = signed.file.read_bytes()
    lines = kept.splitlines()
    at = next(n for n, line in enumerate(lines) if tenant.name.encode() in line and b'"sequence":8,' in line)
    line = edit(lines, at)
    changed = [*lines[:at], *([] if line is None else [line]), *lines[at + 1 :]]
    try:
        signed.file.write_bytes(b"".join(each + b"\n" for each in changed))
        found = verified(signed.server.operator(), tenant.name)[tenant.name]
    finally:
        signed.file.write_bytes(kept)
    # No event is bad, but the chain is not held against all that was signed of it.
    assert (found.intact, found.first_bad_sequence, found.checked_count) == (False, 0, 12)
    assert (
        problem.format(f"Line {at + 1} of the checkpoints", next=f"Line {at + 2} of the checkpoints") in found.problem
    )
    assert verified(signed.server.operator(), tenant.name)[tenant.name].intact


def test_checkpoints_that_are_gone_or_of_another_key_are_missed(cluster: Cluster, tmp_path: Path) -> None:
    with signing(cluster, tmp_path / "data") as own:
        tenant = own.used(4, 8)
        operator = own.server.operator()
        own.file.rename(own.file.with_suffix(".away"))
        gone = verified(operator, tenant.name)[tenant.name]
        assert (gone.intact, gone.first_bad_sequence, gone.checkpoint_count) == (False, 0, 0)
        assert gone.problem == "The checkpoints cannot be read by the server: No such file or directory."
        own.file.with_suffix(".away").rename(own.file)
        own.key.unlink()
        assert "key that signs checkpoints cannot be read" in verified(operator, tenant.name)[tenant.name].problem
        made_signing_key(own.key)
        other = verified(operator, tenant.name)[tenant.name]
        assert (other.intact, other.checkpoint_count) == (False, 0)
        assert "was signed with another key" in other.problem
