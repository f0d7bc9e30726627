"""Values on the command line that click does not know: points in time, lengths of time, and texts from files."""

import re
from datetime import UTC, datetime, timedelta

import click

_DISTANCE = re.compile(r"([0-9]+)([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType[datetime]):
    """Reads ``30d`` (s, m, h, d, w: so far ago, or ahead when `ahead`) or an ISO 8601 time, UTC unless it says else."""

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
            point = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is neither a distance such as 2h or 30d nor a time such as 2026-01-31T08:00Z.", param, ctx
            )
        return point if point.tzinfo else point.replace(tzinfo=UTC)


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
