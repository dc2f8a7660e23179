"""Log lines: one line a record, extras as key=value, no secrets."""

from __future__ import annotations

import logging
import re

import pytest

from outlast import log


@pytest.fixture(autouse=True)
def restored_logging(monkeypatch):
    """Give the process its own logging back after each test."""
    root, ours = logging.getLogger(), logging.getLogger("outlast")
    levels = root.level, ours.level
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)
    monkeypatch.setattr(log, "_protected", set())
    yield
    for handler in [h for h in root.handlers if isinstance(h, log.StderrHandler)]:
        root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def logger():
    return logging.getLogger("outlast.server.gateway")


def test_a_line_has_time_level_logger_message_and_extras(capsys, logger):
    log.configure("info")
    logger.info("Draining started", extra={"action": "drain_started", "session": "my train"})
    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO outlast\.server\.gateway Draining started "
        r'action=drain_started session="my train"\n',
        line,
    )


def test_the_level_is_that_of_our_own_loggers_and_others_start_at_warning(capsys, logger):
    log.configure("debug")
    logger.debug("ours")
    logging.getLogger("alembic").info("theirs")
    logging.getLogger("alembic").warning("their warning")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 3)[3] for line in lines] == ["ours", "their warning"]


def test_configuring_again_changes_the_level_and_repeats_no_line(capsys, logger):
    log.configure("debug")
    log.configure("warning")
    logger.info("quiet")
    logger.warning("once")
    assert capsys.readouterr().err.count("\n") == 1


def test_text_from_a_peer_cannot_forge_a_line(capsys, logger):
    log.configure("info")
    logger.info("Session %s", "x\n2025 INFO forged", extra={"name_given": 'a"b\nc'})
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert r"x\n2025 INFO forged" in error
    assert r'name_given="a\"b\nc"' in error


def test_protected_secrets_leave_messages_extras_and_tracebacks(capsys, logger):
    log.configure("info")
    log.protect("s3cret-resume-token")
    logger.info("hello %s", "s3cret-resume-token", extra={"peer": "s3cret-resume-token"})
    try:
        raise ValueError("s3cret-resume-token")
    except ValueError:
        logger.exception("failed")
    error = capsys.readouterr().err
    assert "s3cret" not in error
    assert error.count(log.BLOT) >= 3
    assert "Traceback" in error


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://me:pw@h:5/n", "postgresql+psycopg://me:***@h:5/n"),
        ("postgresql://me:p@w@h/n", "postgresql://me:***@h/n"),
        ("postgresql://h/n?user=me&password=pw&x=1", "postgresql://h/n?user=me&password=***&x=1"),
        ("host=h password='p w' user=me", "host=h password=*** user=me"),
        ("resume_token=abc secret: def", "resume_token=*** secret: ***"),
        ("tcp://127.0.0.1:14833 is up", "tcp://127.0.0.1:14833 is up"),
        ("fencing_token=7 action=fenced", "fencing_token=7 action=fenced"),
    ],
)
def test_passwords_and_tokens_are_blotted_out_and_nothing_else(text, shown):
    assert log.redact(text) == shown


def test_a_short_text_is_no_secret():
    log.protect("a")
    assert log.redact("a train") == "a train"
