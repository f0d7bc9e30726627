"""Values on the command line that click does not know: times, lengths of time, texts and skills from files."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import click

from substrate.domain.archives import MAX_FILE_BYTES, MAX_FILES, MAX_FILES_BYTES, SKILL_FILE
from substrate.sources.disk import Unreadable, list_folder, read_regular

_OF_DAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_DISTANCE = re.compile(r"([0-9]+)([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType[datetime]):
    """Reads ``30d`` (s, m, h, d, w: so far ago, or ahead when `ahead`) or an ISO 8601 time, UTC unless it says else.

    A time alone, such as ``14:02``, is the last that was, or the next that comes when `ahead`.
    """

    name = "time"

    def __init__(self, *, ahead: bool = False) -> None:
        self._sign = 1 if ahead else -1

    def convert(self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the aware point in time; a usage error when `value` is none."""
        if isinstance(value, datetime):
            return value
        distance = _DISTANCE.fullmatch(value)
        try:
            if distance:
                amount, unit = distance.groups()
                return datetime.now(UTC) + self._sign * timedelta(**{_UNITS[unit]: int(amount)})
            point = self._of_day(value) or datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is neither a distance such as 2h or 30d nor a time such as 14:02 or 2026-01-31T08:00Z.",
                param,
                ctx,
            )
        return point if point.tzinfo else point.replace(tzinfo=UTC)

    def _of_day(self, value: str) -> datetime | None:
        if not _OF_DAY.fullmatch(value):
            return None
        now = datetime.now(UTC)
        point = datetime.combine(now.date(), time.fromisoformat(value), UTC)
        passed = point <= now
        return point if passed is (self._sign < 0) else point + self._sign * timedelta(days=1)


class Length(click.ParamType[timedelta]):
    """Reads a length of time such as ``24h`` (s, m, h, d, w)."""

    name = "length"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return the length of time; a usage error when `value` is none."""
        if isinstance(value, timedelta):
            return value
        found = _DISTANCE.fullmatch(value)
        amount, unit = found.groups() if found else ("", "s")
        try:
            return timedelta(**{_UNITS[unit]: int(amount)})
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no length of time such as 90m, 24h or 30d.", param, ctx)


@dataclass(frozen=True, slots=True)
class SkillSource:
    """A skill as its author has it on disk: the text of its SKILL.md and, from a folder, its other files by path."""

    text: str
    files: Mapping[str, bytes] | None = None

    def fields(self) -> dict[str, object]:
        """Return the fields of a request that carry it."""
        if self.files is None:
            return {"source": self.text}
        listed = [{"path": path, "content": content} for path, content in self.files.items()]
        return {"source": self.text, "files": {"files": listed}}


class SkillPath(click.ParamType[SkillSource]):
    """Reads a SKILL.md, or a folder with one and the skill's files, or stdin for ``-``."""

    name = "path"

    def convert(
        self, value: str | SkillSource, param: click.Parameter | None, ctx: click.Context | None
    ) -> SkillSource:
        """Return what is there; a usage error when it cannot be read, and for links in a folder."""
        if isinstance(value, SkillSource):
            return value
        if value == "-" or not Path(value).is_dir():
            return SkillSource(TextFile().convert(value, param, ctx))
        try:
            files = _within_limits(value)
        except Unreadable as error:
            self.fail(str(error), param, ctx)
        if SKILL_FILE not in files:
            self.fail(f"{value} holds no {SKILL_FILE}.", param, ctx)
        try:
            text = files.pop(SKILL_FILE).decode()
        except UnicodeDecodeError as error:
            self.fail(f"{value}/{SKILL_FILE} is not UTF-8 text: {error.reason} at byte {error.start}.", param, ctx)
        return SkillSource(text, files)


def _within_limits(folder: str) -> dict[str, bytes]:
    """Return the files below `folder`; raise Unreadable once they are more than a skill may have."""
    files: dict[str, bytes] = {}
    size = 0
    for path, content in _files(folder):
        files[path] = content
        size += len(content)
        # The SKILL.md is none of the files that are counted, and there is no need to read on to know.
        if len(files) > MAX_FILES + 1 or size > MAX_FILES_BYTES + MAX_FILE_BYTES:
            raise Unreadable(
                f"{folder} holds more than a skill may: {MAX_FILES} files of {MAX_FILES_BYTES:,} bytes in all."
            )
    return files


def _files(folder: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of every file below `folder`; raise Unreadable, which names it, for what is none."""
    for entry in list_folder(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{prefix}{entry.name}/")
            continue
        try:
            yield f"{prefix}{entry.name}", read_regular(entry.path)
        except Unreadable as error:
            raise Unreadable(f"{entry.path} {error}") from None


class TextFile(click.ParamType[str]):
    """Reads the UTF-8 text of the file named, or of stdin for ``-``."""

    name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the whole text; a usage error when it cannot be read."""
        try:
            with click.open_file(value, "rb") as file:
                content: bytes = file.read()
            return content.decode()
        except OSError as error:
            self.fail(f"{value} cannot be read: {error.strerror}.", param, ctx)
        except UnicodeDecodeError as error:
            self.fail(f"{value} is not UTF-8 text: {error.reason} at byte {error.start}.", param, ctx)
