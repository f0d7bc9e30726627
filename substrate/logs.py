"""Log lines: JSON for machines, colours for a terminal, always on standard error.

What a thread does for a call is logged with the call's id, whichever layer says it. Exceptions are logged as what they
are and where they were raised, never with their own text: that may quote a key, an argument, a body or a row.
"""

import atexit
import contextlib
import json
import logging
import queue
import sys
import threading
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import structlog
from structlog.contextvars import merge_contextvars
from structlog.tracebacks import ExceptionDictTransformer

_CLOSE_SECONDS = 2.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Lines:
    """Lines on their way to standard error, which a thread of its own writes.

    A call only puts its line down: whoever writes gives up the interpreter's lock, and gets it back after the others.
    A line that cannot be written, to a full disk or a closed pipe, is dropped; it must not fail a call.
    """

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> int:
        """Put down a whole line, or several."""
        self._lines.put(line if line.endswith("\n") else f"{line}\n")
        return len(line)

    # What structlog calls a logger by the level of a line.
    debug = info = warning = error = critical = msg = write

    def flush(self) -> None:
        """Leave the writing to the thread."""

    def close(self) -> None:
        """Write what was put down, and end."""
        self._lines.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        line = self._lines.get()
        while line is not None:
            batch = [line]
            with contextlib.suppress(queue.Empty):
                while (line := self._lines.get_nowait()) is not None:
                    batch.append(line)
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("".join(batch))
                sys.stderr.flush()
            if line is not None:
                line = self._lines.get()


def configure(level: str, style: str) -> None:
    """Set up structlog for this process; `style` is auto, json or console."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    if console:
        chain = for_people(colors=sys.stderr.isatty())
    else:
        explain = structlog.processors.ExceptionRenderer(_told)
        encode = json.JSONEncoder(default=str).encode

        def as_json(logger: Any, level: str, line: Any) -> str:
            # One step with an encoder made once, in place of five: it runs for every call.
            if "exc_info" in line:
                line = explain(logger, level, line)
            merge_contextvars(logger, level, line)
            line["level"] = level
            line["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            return encode(line)

        chain = [as_json]
    lines = _Lines()
    atexit.register(lines.close)
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    # Libraries speak through `logging`; what they warn of gets the form of our own lines.
    handler = logging.StreamHandler(cast("TextIO", lines))
    handler.addFilter(_without_texts)
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[without_meta, *chain]))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    threading.excepthook = _thread_failed


def for_people(*, colors: bool) -> list[Any]:
    """Return the processors that make lines for people, coloured or plain."""
    return [
        merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_told_to_people),
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
    ]


_transform = ExceptionDictTransformer(show_locals=False)


def _told(exc_info: Any) -> list[dict[str, Any]]:
    """Return what may be said of an exception and those it came from: types and places, and no texts."""
    return [{"exc_type": stack["exc_type"], "frames": stack["frames"]} for stack in _transform(exc_info)]


def _told_to_people(exc_info: Any) -> str:
    """Return the same as text, the first cause first."""
    parts = []
    for stack in reversed(_told(exc_info)):
        places = [f'  File "{at.get("filename")}", line {at.get("lineno")}, in {at["name"]}' for at in stack["frames"]]
        parts.append("\n".join([*places, stack["exc_type"]]))
    return "\n\nwhich led to:\n\n".join(parts)


def _without_texts(record: logging.LogRecord) -> bool:
    """Leave out what a library puts into its line beside an exception, which is the exception's text as a rule."""
    if record.exc_info:
        record.args = ()
    return True


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Log what ends a thread; Python would print it, with its text."""
    name = failed.thread.name if failed.thread else ""
    structlog.get_logger("substrate").error("thread.failed", thread=name, exc_info=failed.exc_value)
