"""The lines of the log, whatever is in the messages."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from oslo_config import cfg
from oslo_log import log
from oslo_log.formatters import ContextFormatter

from tenure.cmd.log_lines import SafeLines, escaped

FORGED = "x\n2026-01-01 00:00:00,000 ERROR tenure.engine FORGED \x1b[2J\x9b\u2028\u202e\ud800\r\0"


@contextmanager
def logger_of(formatter: logging.Formatter | None, *, indent: str = "") -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """Give a logger whose lines are formatted so, and what it writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(SafeLines(formatter, indent=indent))
    logger = logging.Logger("tenure.test")
    logger.addHandler(handler)
    yield logger, written


def oslo_formatter() -> logging.Formatter:
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([])
    return ContextFormatter(config=conf)


@pytest.mark.parametrize(
    "formatter",
    [None, logging.Formatter("%(levelname)s %(message)s"), oslo_formatter()],
    ids=["usual", "of logging", "of oslo.log"],
)
def test_a_message_is_one_line_that_can_be_printed(formatter: logging.Formatter | None):
    with logger_of(formatter) as (logger, written):
        logger.warning("the flavor %s of %s", FORGED, {"key": FORGED})
        logger.warning(FORGED)
        logger.warning("%d" + FORGED, "no number")
    lines = written.getvalue().splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert (
        "x\\n2026-01-01 00:00:00,000 ERROR tenure.engine FORGED \\x1b[2J\\x9b\\u2028\\u202e\\ud800\\r\\x00" in lines[0]
    )


@pytest.mark.parametrize("formatter", [None, oslo_formatter()], ids=["usual", "of oslo.log"])
def test_the_lines_of_a_traceback_are_told_from_records(formatter: logging.Formatter | None):
    with logger_of(formatter, indent="  ") as (logger, written):
        try:
            raise ValueError(FORGED)
        except ValueError:
            logger.exception("it failed")
    first, *others = written.getvalue().rstrip("\n").split("\n")
    assert "it failed" in first
    assert any("Traceback" in line for line in others)
    assert all(line.startswith("  ") for line in others)
    assert all(line.isprintable() for line in (first, *others))


def test_other_records_are_as_they_were():
    record = logging.LogRecord("tenure", logging.INFO, "path", 1, "%s is ä", ("\n",), None)
    formatter = SafeLines(logging.Formatter("%(message)s"))
    assert [formatter.format(record), formatter.format(record)] == ["\\n is ä"] * 2
    assert (record.msg, record.args) == ("%s is ä", ("\n",))


def test_colours_of_the_format_stay():
    record = logging.LogRecord("tenure", logging.INFO, "path", 1, "\x1b[31m%s", ("a\tb",), None)
    record.color = "\x1b[00;36m"
    assert SafeLines(logging.Formatter("%(color)s%(message)s")).format(record) == "\x1b[00;36m\\x1b[31ma b"


def test_printable_text_stays():
    assert escaped("A lease of Zoë, 5 GiB: “now”") == "A lease of Zoë, 5 GiB: “now”"
