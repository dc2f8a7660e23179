"""The link of this process: made from its environment, kept until the process ends."""

from __future__ import annotations

import atexit
import os

from outlast.config import ClientConfig
from outlast.errors import SessionNotFound
from outlast.session import ids
from outlast.session.calllog import CallLog
from outlast.session.client import ClientSession
from outlast.session.recovery import FaultRecovery
from outlast.session.schema import Intent
from outlast.shim.link import SessionLink
from outlast.shim.settings import LinkSettings
from outlast.shim.spill import FileSpill
from outlast.shim.tokens import TokenStore

#: Set in our environment so that a program we spawn sees whose session it inherited.
OWNER = "OUTLAST_SESSION_OWNER"


def current() -> SessionLink:
    """Connect this process as its environment says.

    Raises
    ------
    ServerUnreachable
        No server answers.
    OutlastError
        The server refuses, or a setting cannot be used.
    """
    return connect(ClientConfig.from_env())


def connect(config: ClientConfig) -> SessionLink:
    """Connect to the server and session that ``config`` names."""
    name, anonymous = _session_name(config)
    fresh = ids.new_token()
    token = config.resume_token or fresh
    if not anonymous:
        # Before the session exists: a client that dies right after can be followed.
        tokens = TokenStore(config.state_dir)
        if config.resume_token:
            tokens.replace(config.server, name, token)
        else:
            token = tokens.keep(config.server, name, fresh)
    intents = [Intent.CREATE] if token == fresh else [Intent.ADOPT, Intent.CREATE]
    for intent in intents:
        link = _link(config, name, token, intent)
        try:
            link.open()
        except SessionNotFound:
            if intent is intents[-1]:
                raise
            continue
        break
    atexit.register(link.close, end=anonymous)
    os.environ[OWNER] = f"{os.getpid()}:{name}"
    return link


def _link(config: ClientConfig, name: str, token: str, intent: Intent) -> SessionLink:
    log = CallLog(config.replay_limit, config.replay_hard_limit, FileSpill(config.spill_dir))
    recovery = FaultRecovery(config.fault_recovery and config.reconnect_timeout > 0)
    session = ClientSession(name, ids.new_incarnation(), token, log, intent, recovery)
    return SessionLink(session, LinkSettings.of(config))


def _session_name(config: ClientConfig) -> tuple[str, bool]:
    """Return the session's name and whether it ends with this process."""
    if not config.session:
        return ids.random_session_id(), True
    owner, _, owned = os.environ.get(OWNER, "").partition(":")
    if owned == config.session and owner != str(os.getpid()) and _alive(owner):
        # Spawned by the session's own program: a session of its own.
        return ids.random_session_id(), True
    return ids.check_session_id(config.session), False


def _alive(pid: str) -> bool:
    if os.name != "posix":
        return True  # signal 0 asks nothing elsewhere: it interrupts
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True
