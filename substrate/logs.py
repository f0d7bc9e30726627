"""Log lines: JSON for machines, colours for a terminal, always on standard error."""

import logging
import sys
from typing import Any

import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, style: str) -> None:
    """Set up structlog for this process; `style` is auto, json or console."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if console:
        ends: list[Any] = [structlog.dev.ConsoleRenderer()]
    else:
        ends = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, *ends],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
