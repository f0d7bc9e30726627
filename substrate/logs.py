"""Log lines: JSON for machines, colours for a terminal, always on standard error."""

import json
import logging
import sys
from typing import Any

import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, style: str) -> None:
    """Set up structlog for this process; `style` is auto, json or console."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks come without local variables: those hold keys, arguments and bodies.
    if console:
        plain = structlog.dev.plain_traceback
        ends: list[Any] = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    else:
        explain = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        encode = json.JSONEncoder(default=str).encode

        def as_json(logger: Any, method: str, line: Any) -> str:
            # One step with an encoder made once: this runs for every call.
            return encode(explain(logger, method, line) if "exc_info" in line else line)

        ends = [as_json]
    structlog.configure(
        processors=[*shared, *ends],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries speak through `logging`; what they warn of gets the form of our own lines.
    handler = logging.StreamHandler(sys.stderr)
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[without_meta, *ends])
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
