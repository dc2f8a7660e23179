"""Settings: precedence, what is allowed, and what messages say."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast.config
from outlast import values
from outlast.config import SERVE_SETTINGS, ClientConfig, ServeConfig
from outlast.errors import ConfigError
from outlast.session.ids import random_session_id
from outlast.settings import Setting, Unusable


def serve(environ: dict[str, str] | None = None, **flags: str) -> ServeConfig:
    return ServeConfig.resolve(flags, environ or {})


def test_defaults_are_a_loopback_server_with_a_journal_in_the_state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = serve()
    assert config.bind == "tcp://127.0.0.1:14833"
    assert config.state_dir == tmp_path / "outlast"
    assert config.database == f"sqlite:///{tmp_path}/outlast/journal.db"
    assert (config.device, config.provider, config.log_level) == ("auto", "directory", "info")
    assert (config.grace, config.heartbeat, config.heartbeat_timeout) == (30, 1, 5)
    assert not config.insecure
    assert not config.relay


def test_documented_defaults_are_the_real_ones():
    config = ServeConfig()
    for name, entry in SERVE_SETTINGS.items():
        if name not in ("state_dir", "database"):
            assert entry.parse(entry.default) == getattr(config, name), name


def test_a_flag_wins_over_the_environment_and_that_over_the_default():
    environ = {"OUTLAST_GRACE": "7", "OUTLAST_HEARTBEAT": "2"}
    config = serve(environ, grace="8")
    assert (config.grace, config.heartbeat, config.heartbeat_timeout) == (8, 2, 5)
    assert config.sources == {"grace": "--grace", "heartbeat": "OUTLAST_HEARTBEAT"}


def test_an_empty_environment_variable_counts_as_unset():
    assert serve({"OUTLAST_GRACE": ""}).grace == 30


def test_a_relative_xdg_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert serve().state_dir == tmp_path / ".local" / "state" / "outlast"


def test_an_error_names_setting_source_value_and_what_is_allowed():
    with pytest.raises(ConfigError) as caught:
        serve({"OUTLAST_GRACE": "soon"})
    for part in ("grace", "OUTLAST_GRACE", "'soon'", "a number of seconds, 0 or more"):
        assert part in str(caught.value)
    assert (caught.value.setting, caught.value.source) == ("grace", "OUTLAST_GRACE")


def test_a_configuration_survives_the_way_to_another_process():
    config = serve(grace="8")
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.sources == config.sources


LOOPBACK = [
    "tcp://127.0.0.1:0",
    "127.9.8.7:1",
    "tcp://localhost:14833",
    "tcp://[::1]:5",
    "LOCALHOST",
]
BEYOND = [
    "tcp://0.0.0.0:14833",
    "tcp://*:14833",
    "tcp://[::]:14833",
    "tcp://eth0:14833",
    "tcp://lo:14833",
    "tcp://192.168.1.5:14833",
    "tcp://127.1:14833",
    "tcp://0:14833",
    "tcp://localhost.example.org:1",
    "tcp://[::ffff:10.0.0.1]:1",
]


@pytest.mark.parametrize("bind", LOOPBACK)
def test_a_loopback_address_needs_no_permission(bind):
    assert values.is_loopback(serve(bind=bind).bind)


@pytest.mark.parametrize("bind", BEYOND)
def test_an_address_beyond_loopback_is_refused_without_insecure(bind):
    with pytest.raises(ConfigError, match="without --insecure"):
        serve(bind=bind)
    assert serve(bind=bind, insecure="yes").bind == bind
    assert serve({"OUTLAST_INSECURE": "1"}, bind=bind).insecure


def test_the_refusal_holds_for_a_configuration_made_in_code_too():
    with pytest.raises(ConfigError, match="without --insecure"):
        ServeConfig(bind="tcp://0.0.0.0:14833")


@pytest.mark.parametrize(
    "bind",
    [
        "",
        "a b",
        "tcp://",
        "tcp://:1",
        "udp://127.0.0.1:1",
        "ipc:///tmp/x",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:x",
        "tcp://::1:5",
        "tcp://[::1",
        "tcp://[host]:1",
        "tcp://127.0.0.1:1;0.0.0.0:1",
        "tcp://127.0.0.1:1,tcp://b:2",
        "tcp://u@127.0.0.1:1",
    ],
)
def test_what_is_no_address_is_refused(bind):
    with pytest.raises(ConfigError, match=r"allowed: tcp://HOST:PORT"):
        serve(bind=bind, insecure="yes")


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("gpu.example.org", "tcp://gpu.example.org:14833"),
        ("gpu.example.org:5", "tcp://gpu.example.org:5"),
        ("tcp://10.0.0.1:5", "tcp://10.0.0.1:5"),
        ("[fe80::1]:5", "tcp://[fe80::1]:5"),
    ],
)
def test_a_client_takes_a_server_with_or_without_scheme_and_port(text, server):
    assert ClientConfig.from_env({"LUPINE_SERVER": text}).server == server


def test_a_client_cannot_connect_to_port_0():
    with pytest.raises(ConfigError, match="LUPINE_SERVER"):
        ClientConfig.from_env({"LUPINE_SERVER": "localhost:0"})


def test_client_defaults():
    config = ClientConfig.from_env({})
    assert config.server == "tcp://127.0.0.1:14833"
    assert (config.session, config.resume_token, config.relay) == ("", "", False)
    assert (config.connect_timeout, config.reconnect_timeout) == (10, 300)
    assert config.state_dir.name == "client"


@pytest.mark.parametrize(
    ("available", "limit", "hard_limit"),
    [
        (256 << 30, 4 << 30, 16 << 30),
        (2 << 30, 512 << 20, 8 << 30),
        (64 << 20, 32 << 20, 512 << 20),
        (0, 32 << 20, 512 << 20),
        (None, 256 << 20, 4 << 30),
    ],
)
def test_the_log_takes_a_share_of_the_memory_that_is_available(
    monkeypatch, available, limit, hard_limit
):
    monkeypatch.setattr(outlast.config, "available_memory", lambda: available)
    config = ClientConfig.from_env({})
    assert (config.replay_limit, config.replay_hard_limit) == (limit, hard_limit)
    assert config.careful_limit == min(limit, 256 << 20)


def test_what_is_set_wins_over_what_is_available(monkeypatch):
    monkeypatch.setattr(outlast.config, "available_memory", lambda: 256 << 30)
    config = ClientConfig.from_env({"LUPINE_REPLAY_LIMIT": "300g"})
    assert (config.replay_limit, config.careful_limit) == (300 << 30, 0)
    assert ClientConfig.from_env({"LUPINE_REPLAY_HARD_LIMIT": "1g"}).replay_limit == 1 << 30


def test_the_hard_limit_of_the_log_follows_its_cap_and_is_never_below():
    def hard_limit(**limits: str) -> int:
        environment = {f"LUPINE_REPLAY_{name.upper()}": text for name, text in limits.items()}
        return ClientConfig.from_env(environment).replay_hard_limit

    assert hard_limit(limit="1MiB") == 16 << 20
    assert hard_limit(limit="2g") == 16 << 30
    assert hard_limit(limit="20g") == 20 << 30
    with pytest.raises(ConfigError, match="at least the replay limit"):
        hard_limit(limit="2MiB", hard_limit="1MiB")


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-1", "1e3", "1_0", "", "5 s", "+1", "9e999", "\u0661"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(Unusable):
        values.seconds(zero=True)(text)


def test_a_heartbeat_cannot_be_zero_but_a_grace_time_can():
    assert serve(grace="0").grace == 0
    with pytest.raises(ConfigError, match="more than 0"):
        serve(heartbeat="0")


@pytest.mark.parametrize("text", ["0", "17", "-1", "two", "1.0", "\u0664"])
def test_the_emulated_device_shows_1_to_16_devices(text):
    assert serve(emulated_devices="16").emulated_devices == 16
    with pytest.raises(ConfigError, match="a whole number from 1 to 16"):
        serve(emulated_devices=text)


@pytest.mark.parametrize("timeout", ["65.536", "66", "3600"])
def test_a_heartbeat_timeout_that_wraps_in_libzmq_is_refused(timeout):
    with pytest.raises(ConfigError, match=r"below 65\.536"):
        serve(heartbeat_timeout=timeout)
    with pytest.raises(ConfigError, match="LUPINE_HEARTBEAT_TIMEOUT"):
        ClientConfig.from_env({"LUPINE_HEARTBEAT_TIMEOUT": timeout})


def test_a_heartbeat_timeout_is_more_than_two_heartbeats():
    assert serve(heartbeat="1", heartbeat_timeout="2.1").heartbeat_timeout == 2.1
    with pytest.raises(ConfigError, match="more than twice the heartbeat"):
        serve(heartbeat="1", heartbeat_timeout="2")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("65536", 65536),
        ("256MiB", 256 << 20),
        ("256 mib", 256 << 20),
        ("1g", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("2MB", 2_000_000),
        ("7b", 7),
    ],
)
def test_sizes_take_units(text, size):
    assert values.size(text) == size


@pytest.mark.parametrize("text", ["0", "-1", "1x", "nan", "infg", "", "MiB", "1e3", "9999999999t"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(Unusable, match="a size above 0"):
        values.size(text)


@given(st.integers(1, (1 << 63) - 1))
def test_every_plain_number_of_bytes_is_exact(number):
    assert values.size(str(number)) == number


@pytest.mark.parametrize(
    "text", ["postgresql://u@h/n", "postgres://u@h/n", "PostgreSQL+psycopg://u@h/n"]
)
def test_a_postgresql_journal_uses_the_driver_that_is_installed(text):
    assert serve(database=text).database == "postgresql+psycopg://u@h/n"


@pytest.mark.parametrize(
    "text",
    [
        "mysql://h/n",
        "journal.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "postgresql://h",
    ],
)
def test_a_journal_that_cannot_be_is_refused(text):
    with pytest.raises(ConfigError, match="allowed: sqlite:///PATH"):
        serve(database=text)


@pytest.mark.parametrize(
    "text",
    ["mysql://u:hunter22secret@h/n", "postgresql://u:hunter22secret@h", "u:hunter22secret@h"],
)
def test_no_message_shows_a_password(text):
    with pytest.raises(ConfigError) as caught:
        serve({"OUTLAST_DATABASE": text})
    assert "hunter22secret" not in str(caught.value)
    assert "hunter22secret" not in repr(caught.value.fields)


def test_the_text_form_of_settings_shows_no_secret():
    config = serve(database="postgresql://u:hunter22secret@h/n")
    client = ClientConfig.from_env({"LUPINE_RESUME_TOKEN": "hunter22secret-token"})
    assert "hunter22secret" not in repr(config)
    assert "hunter22secret" not in repr(client)


def test_a_state_folder_is_absolute_and_must_not_be_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert serve(state_dir="new").state_dir == tmp_path / "new"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="this is a file"):
        serve(state_dir="file")
    with pytest.raises(ConfigError, match="without '\\?'"):
        serve(state_dir="what?")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert serve(state_dir="~/x").state_dir == Path(tmp_path, "x")


def test_a_session_is_not_named_like_those_without_a_name():
    with pytest.raises(ConfigError, match="LUPINE_SESSION"):
        ClientConfig.from_env({"LUPINE_SESSION": random_session_id()})
    assert ClientConfig.from_env({"LUPINE_SESSION": "anonymous-run"}).session == "anonymous-run"


@pytest.mark.parametrize("session", ["x" * 129, "tab\there", "line\n"])
def test_a_session_id_is_short_and_printable(session):
    with pytest.raises(ConfigError, match="1 to 128 printable characters"):
        ClientConfig.from_env({"LUPINE_SESSION": session})


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("Yes", True), ("off", False), ("0", False)]
)
def test_switches_take_the_usual_words(text, value):
    assert ClientConfig.from_env({"LUPINE_RELAY": text}).relay is value


def test_a_switch_takes_nothing_else():
    with pytest.raises(ConfigError, match=r"LUPINE_RELAY.*'maybe'.*allowed: 1, true"):
        ClientConfig.from_env({"LUPINE_RELAY": "maybe"})


@pytest.mark.parametrize(
    ("name", "value"), [("device", "tpu"), ("log_level", "loud"), ("provider", "../evil")]
)
def test_a_name_that_is_not_known_is_refused_with_those_that_are(name, value):
    with pytest.raises(ConfigError, match=f"{name} from --.*allowed: "):
        serve(**{name: value})


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_typed_error(text):
    def explained(entry: Setting) -> bool:
        try:
            entry.parse(text)
        except Unusable as error:
            return "allowed" in str(error)
        return True

    assert all(map(explained, SERVE_SETTINGS.values()))
