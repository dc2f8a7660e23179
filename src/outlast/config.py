"""The settings of the server and of a client program, one frozen dataclass each.

A field is a setting: its parser, flag, environment variable, default and documentation stand
beside it, and ``--help`` and the tests of ``docs/configuration.md`` read them from there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from outlast import emulated_settings, values
from outlast.available_memory import available_memory
from outlast.log import LEVELS
from outlast.settings import DEFAULT, resolve, setting, settings_of, switch, unusable

DEFAULT_ENDPOINT: Final = f"tcp://127.0.0.1:{values.DEFAULT_PORT}"
#: A longer one would wrap round in the 16 bits of milliseconds that some peers keep it in.
HEARTBEAT_TIMEOUT_LIMIT: Final = 65.536  # seconds
#: A shorter lease could not be renewed in time.
LEAST_LEASE: Final = 1.0  # seconds
#: Memory of a client's log when none is set: this share of what is available, within bounds.
REPLAY_LIMIT_SHARE: Final = 1 / 4
LEAST_REPLAY_LIMIT: Final = 32 << 20  # 32 MiB
MOST_REPLAY_LIMIT: Final = 4 << 30  # 4 GiB
#: The same where nobody says what is available.
PLAIN_REPLAY_LIMIT: Final = 256 << 20  # 256 MiB
#: Hard limit of the log when none is set, in multiples of its cap, and at most.
HARD_LIMIT_FACTOR: Final = 16
MOST_HARD_LIMIT: Final = 16 << 30  # 16 GiB


def state_home() -> Path:
    """Return the folder for what a program keeps between its runs."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if Path(base).is_absolute():  # the XDG specification has relative ones ignored
        return Path(base) / "outlast"
    if sys.platform == "win32" and (base := os.environ.get("LOCALAPPDATA", "")):
        return Path(base) / "outlast"
    try:
        return Path.home() / ".local" / "state" / "outlast"
    except RuntimeError as error:
        allowed = "there is no home folder here, so the state folder has to be named"
        raise unusable("state_dir", DEFAULT, "~", allowed) from error


def _client_state() -> Path:
    return state_home() / "client"


def _replay_limit() -> int:
    """Return room for what a program copies in its first seconds: memory costs when it is used."""
    available = available_memory()
    if available is None:
        return PLAIN_REPLAY_LIMIT
    share = int(available * REPLAY_LIMIT_SHARE)
    return max(LEAST_REPLAY_LIMIT, min(MOST_REPLAY_LIMIT, share))


def _spill_folder() -> Path:
    import tempfile  # late: no server needs it

    return Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of ``outlast serve``."""

    bind: str = setting(
        values.bind_endpoint,
        DEFAULT_ENDPOINT,
        "Address to listen at; port 0 takes any free one.",
        env="OUTLAST_BIND",
        flag="--bind",
        metavar="tcp://HOST:PORT",
    )
    insecure: bool = setting(
        switch,
        False,
        "Allow an address beyond loopback although clients are not authenticated.",
        env="OUTLAST_INSECURE",
        flag="--insecure",
        shown="no",
    )
    relay: bool = setting(
        switch,
        False,
        "Send all traffic through the gateway's port, never directly to a worker.",
        env="OUTLAST_RELAY",
        flag="--relay",
        shown="no",
    )
    device: str = setting(
        values.choice("auto", "cuda", "emulated"),
        "auto",
        "Device behind the workers; auto takes a GPU where CUDA finds one, else the emulated one.",
        env="OUTLAST_DEVICE",
        flag="--device",
        metavar="auto|cuda|emulated",
    )
    emulated_devices: int = emulated_settings.devices()
    emulated_faults: str = emulated_settings.faults()
    state_dir: Path = setting(
        values.folder,
        state_home,
        "Folder of the journal, the checkpoints and the lock files.",
        env="OUTLAST_STATE_DIR",
        flag="--state",
        shown="~/.local/state/outlast",
        metavar="FOLDER",
    )
    database: str = setting(
        values.database_url,
        "",
        "Journal: sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME. "
        "A password belongs into the environment variable.",
        env="OUTLAST_DATABASE",
        flag="--database",
        shown="journal.db in the state folder",
        metavar="URL",
        secret=True,
    )
    provider: str = setting(
        values.provider,
        "directory",
        "Checkpoint provider that stores the epochs; directory:FOLDER takes another folder, which "
        "several servers may share.",
        env="OUTLAST_PROVIDER",
        flag="--provider",
        metavar="NAME[:ARGUMENT]",
    )
    checkpoint_interval: float = setting(
        values.seconds(zero=True),
        60.0,
        "Seconds between the checkpoints of a session in use; 0: only when its client asks "
        "and at shutdown.",
        env="OUTLAST_CHECKPOINT_INTERVAL",
        flag="--checkpoint-interval",
        shown="60",
        metavar="SECONDS",
    )
    epoch_deadline: float = setting(
        values.seconds(zero=False),
        5.0,
        "Seconds that a session may stand still for one checkpoint before it goes on without.",
        env="OUTLAST_EPOCH_DEADLINE",
        flag="--epoch-deadline",
        shown="5",
        metavar="SECONDS",
    )
    grace: float = setting(
        values.seconds(zero=True),
        30.0,
        "Seconds from SIGTERM within which every session is saved and the server gone.",
        env="OUTLAST_GRACE",
        flag="--grace",
        shown="30",
        metavar="SECONDS",
    )
    heartbeat: float = setting(
        values.seconds(zero=False),
        1.0,
        "Seconds of silence after which a peer is asked whether it is there.",
        env="OUTLAST_HEARTBEAT",
        flag="--heartbeat",
        shown="1",
        metavar="SECONDS",
    )
    heartbeat_timeout: float = setting(
        values.seconds(zero=False),
        5.0,
        "Seconds of silence after which a peer counts as gone; more than twice the "
        "heartbeat, below 65.536.",
        env="OUTLAST_HEARTBEAT_TIMEOUT",
        flag="--heartbeat-timeout",
        shown="5",
        metavar="SECONDS",
    )
    lease_ttl: float = setting(
        values.seconds(zero=False),
        30.0,
        "Seconds after which another host may take over the sessions of a silent server.",
        env="OUTLAST_LEASE_TTL",
        flag="--lease-ttl",
        shown="30",
        metavar="SECONDS",
    )
    linger: float = setting(
        values.seconds(zero=True),
        600.0,
        "Seconds after which a session without a name (no LUPINE_SESSION) is ended if no client "
        "is attached to it: its program was killed; 0: never.",
        env="OUTLAST_LINGER",
        flag="--linger",
        shown="600",
        metavar="SECONDS",
    )
    idle_seal: float = setting(
        values.seconds(zero=True),
        0.5,
        "Seconds for which a session is idle before its memory is left with the keeper, so that "
        "a worker that dies then costs nothing; 0: never.",
        env="OUTLAST_IDLE_SEAL",
        flag="--idle-seal",
        shown="0.5",
        metavar="SECONDS",
    )
    keep_for: float = setting(
        values.seconds(zero=False),
        600.0,
        "Seconds for which device memory waits with the keeper for the next worker: after "
        "SIGUSR2, or when the one before was killed while its session was idle.",
        env="OUTLAST_KEEP_FOR",
        flag="--keep-for",
        shown="600",
        metavar="SECONDS",
    )
    take_over: str = setting(
        values.take_over,
        "no",
        "Take the place of the server that uses the state folder: it hands its sessions over once "
        "all is ready here. With 'gateway' its workers stay.",
        env="OUTLAST_TAKE_OVER",
        flag="--take-over",
        metavar="gateway",
        bare="yes",
    )
    log_level: str = setting(
        values.choice(*LEVELS),
        "info",
        "Least severe log lines to write to stderr.",
        env="OUTLAST_LOG_LEVEL",
        flag="--log-level",
        metavar="|".join(LEVELS),
    )
    #: Where each value that is not a default came from: a flag or an environment variable.
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_heartbeats(self.heartbeat, self.heartbeat_timeout, self.sources)
        if self.lease_ttl < LEAST_LEASE:
            raise unusable(
                "lease_ttl",
                self.sources.get("lease_ttl", DEFAULT),
                self.lease_ttl,
                f"allowed: {LEAST_LEASE:g} s or more, for it is renewed three times in its time",
            )
        if not self.insecure and not values.is_loopback(self.bind):
            raise unusable(
                "bind",
                self.sources.get("bind", DEFAULT),
                self.bind,
                "allowed without --insecure: a loopback address (127.0.0.1, [::1], localhost), "
                "because clients are not authenticated",
            )
        if not self.database:
            object.__setattr__(self, "database", self._default_database())

    def _default_database(self) -> str:
        path = (self.state_dir / "journal.db").as_posix()
        if "?" in path:
            source = self.sources.get("state_dir", DEFAULT)
            allowed = "allowed: a path without '?', which would end it in the database's URL"
            raise unusable("state_dir", source, self.state_dir, allowed)
        return f"sqlite:///{path}"

    @classmethod
    def resolve(
        cls, flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None
    ) -> ServeConfig:
        """Build the settings from flags (by field name), environment and defaults.

        Raises
        ------
        ConfigError
            A value cannot be used.
        """
        return resolve(cls, SERVE_SETTINGS, flags, os.environ if environ is None else environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a client program; they come from its environment alone."""

    server: str = setting(
        values.server_endpoint,
        DEFAULT_ENDPOINT,
        "The session server.",
        env="LUPINE_SERVER",
        metavar="HOST:PORT",
    )
    session: str = setting(
        values.session_id,
        "",
        "Name of the session; a program that is started again goes on with the one it names.",
        env="LUPINE_SESSION",
        shown="a random one",
    )
    relay: bool = setting(
        switch,
        False,
        "Talk to the worker through the server's one port even where a direct way exists.",
        env="LUPINE_RELAY",
        shown="no",
    )
    connect_timeout: float = setting(
        values.seconds(zero=False),
        10.0,
        "Seconds within which the first connection must stand.",
        env="LUPINE_CONNECT_TIMEOUT",
        shown="10",
    )
    reconnect_timeout: float = setting(
        values.seconds(zero=True),
        300.0,
        "Seconds within which a lost connection must stand again before calls fail; 0: none.",
        env="LUPINE_RECONNECT_TIMEOUT",
        shown="300",
    )
    heartbeat: float = setting(
        values.seconds(zero=False),
        1.0,
        "Seconds of silence after which the server is asked whether it is there.",
        env="LUPINE_HEARTBEAT",
        shown="1",
    )
    heartbeat_timeout: float = setting(
        values.seconds(zero=False),
        5.0,
        "Seconds of silence after which the link counts as lost; more than twice the "
        "heartbeat, below 65.536.",
        env="LUPINE_HEARTBEAT_TIMEOUT",
        shown="5",
    )
    stream_credits: int = setting(
        values.number(1, 1 << 20),
        512,
        "Operations of a stream that may be unfinished; the thread that issues another one waits.",
        env="LUPINE_STREAM_CREDITS",
        shown="512",
    )
    fault_recovery: bool = setting(
        switch,
        False,
        "Recover from an error that ends a context (700, 719, ...) as from a worker's death: the "
        "program sees it only if it comes again.",
        env="LUPINE_FAULT_RECOVERY",
        shown="no",
    )
    replay_limit: int = setting(
        values.size,
        0,
        "Memory for the log of calls since the last checkpoints; what is over it goes to a file.",
        env="LUPINE_REPLAY_LIMIT",
        shown="a quarter of the available memory, at most 4GiB",
    )
    replay_hard_limit: int = setting(
        values.size,
        0,
        "Size of the log, file included, at which calls wait for a checkpoint, and fail if none "
        "succeeds.",
        env="LUPINE_REPLAY_HARD_LIMIT",
        shown=f"{HARD_LIMIT_FACTOR} times LUPINE_REPLAY_LIMIT, at most 16GiB",
    )
    spill_dir: Path = setting(
        values.folder,
        _spill_folder,
        "Folder of the file that takes the log's overflow.",
        env="LUPINE_SPILL_DIR",
        shown="the system's temporary folder",
    )
    state_dir: Path = setting(
        values.folder,
        _client_state,
        "Folder where resume tokens are kept, readable by the user alone.",
        env="LUPINE_STATE_DIR",
        shown="~/.local/state/outlast/client",
    )
    resume_token: str = setting(
        values.token,
        "",
        "Token that lets this program take over the session of one that died.",
        env="LUPINE_RESUME_TOKEN",
        shown="the one in LUPINE_STATE_DIR",
        secret=True,
    )
    #: What the log keeps to where fresh memory turns out to be slow; 0 if its limit was set.
    careful_limit: int = field(default=0, init=False, repr=False, compare=False)
    #: Which environment variable each value that is not a default came from.
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_heartbeats(self.heartbeat, self.heartbeat_timeout, self.sources)
        if not self.replay_limit:
            limit = min(_replay_limit(), self.replay_hard_limit or MOST_REPLAY_LIMIT)
            object.__setattr__(self, "replay_limit", limit)
            object.__setattr__(self, "careful_limit", min(limit, PLAIN_REPLAY_LIMIT))
        if not self.replay_hard_limit:
            limit = min(self.replay_limit * HARD_LIMIT_FACTOR, MOST_HARD_LIMIT)
            object.__setattr__(self, "replay_hard_limit", max(limit, self.replay_limit))
        elif self.replay_hard_limit < self.replay_limit:
            raise unusable(
                "replay_hard_limit",
                self.sources.get("replay_hard_limit", DEFAULT),
                self.replay_hard_limit,
                f"allowed: at least the replay limit ({self.replay_limit} bytes)",
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ClientConfig:
        """Build the settings from the environment.

        Raises
        ------
        ConfigError
            A value cannot be used.
        """
        return resolve(cls, CLIENT_SETTINGS, {}, os.environ if environ is None else environ)


SERVE_SETTINGS: Final = settings_of(ServeConfig)
CLIENT_SETTINGS: Final = settings_of(ClientConfig)


def _check_heartbeats(interval: float, timeout: float, sources: Mapping[str, str]) -> None:
    source = sources.get("heartbeat_timeout", sources.get("heartbeat", DEFAULT))
    if timeout >= HEARTBEAT_TIMEOUT_LIMIT:
        raise unusable(
            "heartbeat_timeout", source, timeout, f"allowed: below {HEARTBEAT_TIMEOUT_LIMIT} s"
        )
    if timeout <= 2 * interval:
        raise unusable(
            "heartbeat_timeout",
            source,
            timeout,
            f"allowed: more than twice the heartbeat of {interval} s",
        )
