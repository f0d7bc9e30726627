"""The file of signed checkpoints, which lies outside the database and which several servers may write."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from substrate.domain.checkpoints import FIRST_PREVIOUS, Checkpoint, Reading, Signed, digest_of, parse_line, signed_line
from substrate.domain.errors import InvalidConfig

_log = structlog.get_logger("substrate")


class Latest(NamedTuple):
    """The last that was signed of a chain."""

    checkpoint: Checkpoint

    @property
    def sequence(self) -> int:
        """The number of the event that it was signed of."""
        return self.checkpoint.point.sequence

    @property
    def time(self) -> datetime:
        """When that was."""
        return self.checkpoint.time


def read_checkpoints(path: Path, key: Ed25519PublicKey, tenant: str | None = None) -> Signed:
    """Return what the file holds, of one tenant or of all for None; raise FileNotFoundError, OSError.

    A last line without its line feed is still being written, or was when a server was killed, and counts for nothing.
    """
    reading = Reading(key, tenant)
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                reading.add(line[:-1])
    return reading.result()


class CheckpointFile:
    """Appends to the file at `path`, which is made if there is none; raises InvalidConfig when it cannot be written.

    Not for several threads at once.
    """

    def __init__(self, path: Path, key: Ed25519PrivateKey) -> None:
        self._path = path
        self._key = key
        self._place: tuple[int, int] | None = None
        self._end = 0
        self._number = 0
        self._digest = FIRST_PREVIOUS
        self._latest: dict[str, Latest] = {}
        self._lost: dict[str, Latest] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise InvalidConfig(
                summary=f"The checkpoints of the audit cannot be written to {path} ({error.strerror}); set "
                "SUBSTRATE_AUDIT_CHECKPOINTS to a file outside the database that the server may write."
            ) from None

    @property
    def latest(self) -> Mapping[str, Latest]:
        """The last that was signed of each tenant's chain, as of the last `append`."""
        return self._latest

    def append(self, due: Callable[[Mapping[str, Latest]], Iterable[Checkpoint]]) -> int:
        """Sign and append what `due` wants, given the last that was signed of each chain; return how many lines.

        They are on the disk when it returns. Nobody else appends meanwhile. Raises OSError, with nothing appended.
        """
        with self._locked() as file:
            self._catch_up(file)
            lines = []
            number, digest = self._number, self._digest
            # What this process has seen signed holds in a file that has taken the place of the first too.
            known = _latest_of(self._latest, self._lost)
            lost = [seen.checkpoint for tenant, seen in known.items() if seen is not self._latest.get(tenant)]
            for checkpoint in (*lost, *due(known)):
                number += 1
                line = signed_line(checkpoint, number, digest, self._key)
                digest = digest_of(line)
                lines.append(line + b"\n")
            if lines:
                self._write(file, b"".join(lines))
                self._catch_up(file)
                self._lost.clear()
            return len(lines)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        # Opened anew each time: who looks after the file may have put another in its place.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _catch_up(self, file: int) -> None:
        """Read the lines that were added since the last time, and cut off one that was not written to its end."""
        found = os.fstat(file)
        place = (found.st_dev, found.st_ino)
        if place != self._place or found.st_size < self._end:
            if self._latest:
                _log.error("checkpoints.replaced", file=str(self._path), lines=self._number)
            self._lost = _latest_of(self._latest, self._lost)
            self._place, self._end, self._number, self._digest = place, 0, 0, FIRST_PREVIOUS
            self._latest.clear()
        with open(file, "rb", closefd=False) as reader:
            reader.seek(self._end)
            for line in reader:
                if not line.endswith(b"\n"):
                    os.ftruncate(file, self._end)
                    break
                self._end += len(line)
                self._note(line[:-1])

    def _note(self, raw: bytes) -> None:
        self._digest = digest_of(raw)
        try:
            line = parse_line(raw)
        except ValueError:
            # Verification names it; what follows is counted as if it were a line.
            self._number += 1
            return
        self._number = line.number
        tenant, sequence = line.checkpoint.tenant, line.checkpoint.point.sequence
        before = self._latest.get(tenant)
        # The start of a chain, and what another server signs late, lie further back.
        if before is None or sequence > before.sequence:
            self._latest[tenant] = Latest(line.checkpoint)

    def _write(self, file: int, content: bytes) -> None:
        try:
            os.lseek(file, self._end, os.SEEK_SET)
            left = memoryview(content)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self._end)
            raise


def _latest_of(one: Mapping[str, Latest], other: Mapping[str, Latest]) -> dict[str, Latest]:
    """Return what was signed last of each tenant's chain, by either."""
    later = {
        tenant: seen for tenant, seen in other.items() if tenant not in one or seen.sequence > one[tenant].sequence
    }
    return {**one, **later}
