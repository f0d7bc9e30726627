"""Log lines: JSON for machines, colours for a terminal, always on standard error."""

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Standing:
    """Standard error as long as it can be written to: a full disk or a closed pipe must not fail a call."""

    def write(self, text: str) -> int:
        """Write `text`, or drop it."""
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        """Hand on what was written, if that can be."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(level: str, style: str) -> None:
    """Set up structlog for this process; `style` is auto, json or console."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    # Tracebacks come without local variables: those hold keys, arguments and bodies.
    if console:
        plain = structlog.dev.plain_traceback
        chain: list[Any] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain),
        ]
    else:
        explain = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        encode = json.JSONEncoder(default=str).encode

        def as_json(logger: Any, level: str, line: Any) -> str:
            # One step with an encoder made once, in place of four: it runs for every call.
            if "exc_info" in line:
                line = explain(logger, level, line)
            line["level"] = level
            line["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            return encode(line)

        chain = [as_json]
    structlog.configure(
        processors=chain,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Standing())),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through `logging`; what they warn of gets the form of our own lines.
    handler = logging.StreamHandler(cast("TextIO", _Standing()))
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[without_meta, *chain]))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
