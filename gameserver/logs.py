"""Logs of the server process: one line an event, JSON for machines, aligned text for a terminal.

No line holds tokens, credentials or what players say.
"""

import logging
import sys
from typing import TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor


def configure(level: str = "info", stream: TextIO = sys.stderr) -> None:
    """Send structlog's and the standard library's records to `stream`, in one format.

    Args:
        level: least severe level that is written: debug, info, warning or error.
        stream: JSON lines, unless it is a terminal.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.StackInfoRenderer(),
    ]
    if stream.isatty():
        # The default formatter prints local variables, in which players' words are.
        plain = structlog.dev.plain_traceback
        final: list[Processor] = [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    else:
        final = [structlog.processors.format_exc_info, _render_json]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # Libraries say every connection and every request; errors are enough.
    for chatty in (
        *("websockets", "uvicorn", "asyncio", "huggingface_hub"),
        *("httpx", "httpcore", "httpx2", "httpcore2"),
    ):
        logging.getLogger(chatty).setLevel(max(logging.ERROR, root.level))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _render_json(logger: object, method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=repr).decode()
