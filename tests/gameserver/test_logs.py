"""Logs are one JSON object a line where a machine reads them."""

import io
import json
import logging

import pytest
import structlog

from gameserver import logs


@pytest.fixture
def lines() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("info", stream)
    return stream


def test_both_kinds_of_loggers_write_json_lines(lines: io.StringIO) -> None:
    structlog.get_logger("troupe.test").info("opened", scene="griffin")
    logging.getLogger("troupe.engine").warning("slow %s", "step")
    logging.getLogger("troupe.engine").debug("not this")
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["event"], first["scene"], first["level"]) == ("opened", "griffin", "info")
    assert (second["event"], second["logger"]) == ("slow step", "troupe.engine")


def test_an_exception_keeps_to_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("broken\nbadly")
    except ValueError:
        logging.getLogger("troupe").exception("failed")
    (line,) = lines.getvalue().splitlines()
    assert "ValueError" in json.loads(line)["exception"]


def test_no_local_variable_is_printed_for_people_either() -> None:
    """What players say is in variables of whatever fails."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    logs.configure("info", stream)
    try:
        whispered = "the key " + "is under the stone"
        raise ValueError(len(whispered))
    except ValueError:
        structlog.get_logger("troupe.test").exception("failed")
    assert "ValueError" in stream.getvalue() and "under the stone" not in stream.getvalue()
