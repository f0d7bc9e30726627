"""Signed checkpoints: what a chain was at some moment, as lines of a file outside the database.

A line is JSON with sorted keys and no blanks, and `signature` last: the Ed25519 signature, in hex, of the line without
that field. `number` counts the lines from 1, and `previous` is the SHA-256, in hex, of the line before (64 zeros in the
first), so that a line cannot be taken out or moved unnoticed. `key` is the first 16 hex digits of the SHA-256 of the
public key. A line of kind ``start`` says where a chain begins whose first months were dropped.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from substrate.domain.chain import Point, Start

FIRST_PREVIOUS = "0" * 64

_KEY_DIGITS = 16
_HASH_DIGITS = 64
_MAX_SEQUENCE = 2**63 - 1
_MAX_PROBLEMS = 10
_DAMAGED = (ValueError, TypeError, AttributeError, KeyError, RecursionError)

_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was signed of a tenant's chain at `time`, in UTC: that `point` is an event of it.

    With `start` the chain begins after that point, since the months named in `dropped` were dropped.
    """

    tenant: str
    point: Point
    time: datetime
    start: Start | None = None
    dropped: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file as it was read; whether its signature is good is another matter."""

    number: int
    previous: str
    key: str
    checkpoint: Checkpoint
    body: bytes
    signature: bytes


def key_id(key: Ed25519PublicKey) -> str:
    """Return how lines name the key that has signed them."""
    return sha256(key.public_bytes_raw()).hexdigest()[:_KEY_DIGITS]


def digest_of(line: bytes) -> str:
    """Return what the line after `line`, which is without its line feed, has as its `previous`."""
    return sha256(line).hexdigest()


def signed_line(checkpoint: Checkpoint, number: int, previous: str, key: Ed25519PrivateKey) -> bytes:
    """Return the line of `checkpoint`, without a line feed."""
    fields: dict[str, Any] = {
        "hash": checkpoint.point.hash.hex(),
        "key": key_id(key.public_key()),
        "kind": "start" if checkpoint.start else "checkpoint",
        "number": number,
        "previous": previous,
        "sequence": checkpoint.point.sequence,
        "tenant": checkpoint.tenant,
        "time": checkpoint.time.isoformat(timespec="microseconds"),
    }
    if checkpoint.start is not None:
        fields["stragglers"] = {str(sequence): digest for sequence, digest in checkpoint.start.stragglers.items()}
        fields["dropped"] = list(checkpoint.dropped)
    body = _encode(fields).encode()
    return _whole(body, key.sign(body))


def parse_line(line: bytes) -> Line:
    """Return what a line, without its line feed, says; raise ValueError when it is none."""
    try:
        fields = json.loads(line)
        signature = bytes.fromhex(fields.pop("signature"))
        body = _encode(fields).encode()
        if _whole(body, signature) != line:
            raise ValueError("It is not spelt as such lines are.")
        point = Point(_sequence(fields["sequence"]), _hash(fields["hash"]))
        start = None
        if fields["kind"] == "start":
            stragglers = {_sequence(int(n)): _hash(digest).hex() for n, digest in fields["stragglers"].items()}
            start = Start(point, stragglers)
        elif fields["kind"] != "checkpoint":
            raise ValueError("It is of no known kind.")
        checkpoint = Checkpoint(
            str(fields["tenant"]),
            point,
            datetime.fromisoformat(fields["time"]),
            start,
            tuple(map(str, fields.get("dropped", ()))),
        )
        return Line(
            _sequence(fields["number"]), str(fields["previous"]), str(fields["key"]), checkpoint, body, signature
        )
    except _DAMAGED as error:
        raise ValueError("It is no line of checkpoints.") from error


@dataclass(slots=True)
class Signed:
    """What a file of checkpoints holds: those with good signatures by tenant, and what is wrong with the file."""

    checkpoints: dict[str, list[Checkpoint]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def points(self, tenant: str) -> list[Point]:
        """Return all places of a tenant's chain that were signed."""
        return [checkpoint.point for checkpoint in self.checkpoints.get(tenant, ())]

    def starts(self, tenant: str) -> list[Start]:
        """Return the starts of a tenant's chain that were signed, the oldest first."""
        return [checkpoint.start for checkpoint in self.checkpoints.get(tenant, ()) if checkpoint.start is not None]


class Reading:
    """One pass over the lines of a file, checked with `key`; `tenant` is the only one to keep checkpoints of, or None.

    Every line must follow the one before, whoever it is of. Signatures are checked of the lines that are kept.
    """

    def __init__(self, key: Ed25519PublicKey, tenant: str | None = None) -> None:
        self._key = key
        self._key_id = key_id(key)
        self._tenant = tenant
        self._mark = None if tenant is None else _encode({"tenant": tenant})[1:-1].encode()
        self._read = 0
        self._number = 0
        self._digest = FIRST_PREVIOUS
        self._signed = Signed()

    def add(self, raw: bytes) -> None:
        """Read the next line, without its line feed."""
        self._read += 1
        if self._mark is not None and self._mark not in raw and b'"previous":"%b"' % self._digest.encode() in raw:
            # Of others' lines only the place matters here, and there may be a great many of them.
            self._follow(raw, self._number + 1)
            return
        try:
            line = parse_line(raw)
        except ValueError:
            self._problem("cannot be read")
            self._follow(raw, self._number + 1)
            return
        if line.number != self._number + 1 or line.previous != self._digest:
            self._problem("does not follow the line before it: lines were changed, moved or taken out before it")
        self._follow(raw, line.number)
        checkpoint = line.checkpoint
        if self._tenant not in (None, checkpoint.tenant):
            return
        if line.key != self._key_id:
            self._problem(f"was signed with another key, {line.key}")
            return
        try:
            self._key.verify(line.signature, line.body)
        except InvalidSignature:
            self._problem("has a signature that is not of what it says")
            return
        self._signed.checkpoints.setdefault(checkpoint.tenant, []).append(checkpoint)

    def result(self) -> Signed:
        """Return what was found in all lines that were read."""
        return self._signed

    def _follow(self, raw: bytes, number: int) -> None:
        self._number, self._digest = number, digest_of(raw)

    def _problem(self, problem: str) -> None:
        if len(self._signed.problems) < _MAX_PROBLEMS:
            self._signed.problems.append(f"Line {self._read} of the checkpoints {problem}.")


def _whole(body: bytes, signature: bytes) -> bytes:
    return body[:-1] + b',"signature":"' + signature.hex().encode() + b'"}'


def _sequence(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= _MAX_SEQUENCE:
        raise ValueError("It is no number of an event.")
    return number


def _hash(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(text) != _HASH_DIGITS or digest.hex() != text:
        raise ValueError("It is no SHA-256 in hex.")
    return digest
