import json
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from substrate.domain.chain import Point, Start
from substrate.domain.checkpoints import FIRST_PREVIOUS, Checkpoint, Reading, Signed, digest_of, parse_line, signed_line

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
START = Start(Point(7, b"s" * 32), {3: "ab" * 32})


def made() -> list[bytes]:
    """Return a file of four lines, the last of which is a start."""
    wanted = [
        Checkpoint("acme", Point(5, b"a" * 32), NOW),
        Checkpoint("other", Point(1, b"b" * 32), NOW),
        Checkpoint("acme", Point(9, b"c" * 32), NOW),
        Checkpoint("acme", START.point, NOW, START, ("2026-04",)),
    ]
    lines: list[bytes] = []
    for number, checkpoint in enumerate(wanted, start=1):
        lines.append(signed_line(checkpoint, number, digest_of(lines[-1]) if lines else FIRST_PREVIOUS, KEY))
    return lines


def read(lines: list[bytes], tenant: str | None = None, key: Ed25519PrivateKey = KEY) -> Signed:
    reading = Reading(key.public_key(), tenant)
    for line in lines:
        reading.add(line)
    return reading.result()


def test_a_line_is_what_its_description_says() -> None:
    first, second, *_, start = made()
    fields = json.loads(second)
    assert list(fields) == [*sorted(set(fields) - {"signature"}), "signature"]
    assert fields["previous"] == sha256(first).hexdigest()
    assert json.loads(first)["previous"] == "0" * 64
    public = KEY.public_key()
    assert fields["key"] == sha256(public.public_bytes_raw()).hexdigest()[:16]
    signature = bytes.fromhex(fields.pop("signature"))
    public.verify(signature, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"{}")
    assert (fields["kind"], fields["number"], fields["tenant"], fields["sequence"]) == ("checkpoint", 2, "other", 1)
    assert (fields["hash"], fields["time"]) == ((b"b" * 32).hex(), "2026-05-01T12:00:00.000000+00:00")
    assert json.loads(start)["stragglers"] == {"3": "ab" * 32}


def test_what_was_signed_is_read_back() -> None:
    signed = read(made())
    assert signed.problems == []
    assert signed.points("acme") == [Point(5, b"a" * 32), Point(9, b"c" * 32), Point(7, b"s" * 32)]
    assert signed.starts("acme") == [START]
    assert signed.checkpoints["acme"][2].dropped == ("2026-04",)
    assert signed.points("nobody") == []
    assert set(read(made(), "other").checkpoints) == {"other"}


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (lambda line: line.replace(b"acme", b"evil"), ["Line 3", "signature that is not", "Line 4", "follow"]),
        (lambda line: line.replace(b'"sequence":9', b'"sequence":8'), ["Line 3", "signature", "Line 4", "follow"]),
        (lambda line: line[:-130] + b"00" + line[-128:], ["Line 3", "signature", "Line 4"]),
        (lambda line: line.replace(b'","', b'", "'), ["Line 3", "cannot be read", "Line 4", "follow"]),
        (lambda line: line.replace(b'"sequence":9', b'"sequence":true'), ["Line 3", "cannot be read"]),
        (lambda line: line.replace(b'"sequence":9', b'"sequence":-9'), ["Line 3", "cannot be read"]),
        (lambda line: line.replace(b'"number":3', b'"number":"3"'), ["Line 3", "cannot be read"]),
        (lambda line: line.replace(b"checkpoint", b"something"), ["Line 3", "cannot be read"]),
        (lambda line: line.replace(b"2026", b"20x6"), ["Line 3", "cannot be read"]),
        (lambda _: b"[" * 100_000, ["Line 3", "cannot be read"]),
        (lambda _: b"\xff", ["Line 3", "cannot be read"]),
        (lambda _: b"", ["Line 3", "cannot be read"]),
    ],
)  # fmt: skip
def test_an_edited_line_is_named_and_counts_for_nothing(edit: Callable[[bytes], bytes], problems: list[str]) -> None:
    lines = made()
    changed = edit(lines[2])
    assert changed != lines[2]
    signed = read([*lines[:2], changed, lines[3]])
    said = " ".join(signed.problems)
    at = 0
    for problem in problems:
        at = said.index(problem, at)
    assert signed.points("acme") == [Point(5, b"a" * 32), Point(7, b"s" * 32)]


@pytest.mark.parametrize(
    ("order", "line"), [([0, 1, 3], 3), ([1, 2, 3], 1), ([0, 2, 1, 3], 2), ([0, 1, 1, 2, 3], 3), ([3], 1)]
)
def test_lines_taken_out_moved_or_doubled_are_found_even_for_one_tenant(order: list[int], line: int) -> None:
    lines = made()
    for tenant in (None, "other"):
        signed = read([lines[n] for n in order], tenant)
        assert signed.problems[0].startswith(f"Line {line} of the checkpoints does not follow the line before it")


def test_lines_of_another_key_are_no_checkpoints() -> None:
    signed = read(made(), key=Ed25519PrivateKey.generate())
    assert signed.checkpoints == {}
    assert "Line 1 of the checkpoints was signed with another key" in signed.problems[0]


def test_a_file_that_is_bad_throughout_is_not_told_line_by_line() -> None:
    assert len(read([b"x"] * 1000).problems) == 10


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"null", b'{"signature":1}'])
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="no line of checkpoints"):
        parse_line(line)
