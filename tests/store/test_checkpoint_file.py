"""The file that keeps checkpoints: whoever writes it, and whatever becomes of it, its lines follow each other."""

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from substrate.domain.chain import Point
from substrate.domain.checkpoints import Checkpoint
from substrate.store.checkpoint_file import CheckpointFile, Latest, read_checkpoints

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "checkpoints.jsonl"


def signed(path: Path, tenant: str) -> list[int]:
    """Return the numbers that were signed of a chain; the file must be in order."""
    found = read_checkpoints(path, KEY.public_key(), None)
    assert found.problems == []
    return [point.sequence for point in found.points(tenant)]


def of(number: int, tenant: str = "acme") -> Checkpoint:
    return Checkpoint(tenant, Point(number, bytes(32)), NOW)


def test_many_writers_make_one_chain_of_lines(path: Path) -> None:
    CheckpointFile(path, KEY)

    def write(writer: int) -> None:
        file = CheckpointFile(path, KEY)
        for number in range(20):
            file.append(lambda _: [of(100 * writer + number), of(100 * writer + number)])  # noqa: B023 - called at once.

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert len(signed(path, "acme")) == 240


@pytest.mark.parametrize("torn", [b"", b'{"hash":"0000', b"\0\0\0\0"])
def test_a_line_that_was_not_written_to_its_end_is_cut_off(path: Path, torn: bytes) -> None:
    file = CheckpointFile(path, KEY)
    file.append(lambda _: [of(1)])
    with path.open("ab") as end:
        end.write(torn)
    assert signed(path, "acme") == [1]
    file.append(lambda _: [of(2)])
    CheckpointFile(path, KEY).append(lambda _: [of(3)])
    assert signed(path, "acme") == [1, 2, 3]


def test_a_disk_that_is_full_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CheckpointFile(path, KEY)
    file.append(lambda _: [of(1)])
    kept = path.read_bytes()
    write = os.write
    written: list[int] = []

    def full(descriptor: int, data: Any) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(write(descriptor, data[:50]))
        return written[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            file.append(lambda _: [of(2)])
    assert path.read_bytes() == kept
    file.append(lambda _: [of(2)])
    assert signed(path, "acme") == [1, 2]


def _moved_away(path: Path, _: Path) -> None:
    path.rename(path.with_suffix(".old"))


def _an_older_copy(path: Path, older: Path) -> None:
    older.replace(path)


def _cut_short(path: Path, older: Path) -> None:
    os.truncate(path, older.stat().st_size)


@pytest.mark.parametrize(
    ("replace", "again"),
    [(_moved_away, [4]), (_an_older_copy, [1, 4]), (_cut_short, [1, 4])],
)
def test_what_was_seen_signed_is_signed_again_in_a_file_that_has_taken_the_place(
    path: Path, replace: Callable[[Path, Path], None], again: list[int]
) -> None:
    file = CheckpointFile(path, KEY)
    file.append(lambda _: [of(1), of(2, "beta")])
    older = path.with_suffix(".copy")
    shutil.copy(path, older)
    file.append(lambda _: [of(4)])
    replace(path, older)
    seen: list[dict[str, int]] = []

    def due(latest: Mapping[str, Latest]) -> list[Checkpoint]:
        seen.append({tenant: each.sequence for tenant, each in latest.items()})
        return []

    with capture_logs() as lines:
        file.append(due)
        file.append(due)
    assert [(line["event"], line["file"], line["lines"]) for line in lines] == [("checkpoints.replaced", str(path), 3)]
    # A chain that was cut meanwhile is held against what was seen, not against what is left.
    assert seen == [{"acme": 4, "beta": 2}] * 2
    assert (signed(path, "acme"), signed(path, "beta")) == (again, [2])


def test_what_others_have_signed_since_in_the_new_file_is_not_signed_again(path: Path) -> None:
    file = CheckpointFile(path, KEY)
    file.append(lambda _: [of(4), of(2, "beta")])
    _moved_away(path, path)
    CheckpointFile(path, KEY).append(lambda _: [of(6)])
    file.append(lambda _: [])
    assert (signed(path, "acme"), signed(path, "beta")) == ([6], [2])


def test_what_could_not_be_signed_again_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CheckpointFile(path, KEY)
    file.append(lambda _: [of(4)])
    _moved_away(path, path)

    def full(_: int, __: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            file.append(lambda _: [])
    file.append(lambda _: [])
    assert signed(path, "acme") == [4]


def test_a_damaged_line_stays_for_verification_to_name(path: Path) -> None:
    file = CheckpointFile(path, KEY)
    file.append(lambda _: [of(1)])
    with path.open("ab") as end:
        end.write(b"nonsense\n")
    file.append(lambda _: [of(2)])
    found = read_checkpoints(path, KEY.public_key())
    assert found.problems == ["Line 2 of the checkpoints cannot be read."]
    assert [point.sequence for point in found.points("acme")] == [1, 2]
