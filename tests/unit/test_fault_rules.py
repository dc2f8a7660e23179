"""Rules of faults: what they may say, and what is said of those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.config import ServeConfig
from outlast.errors import ConfigError
from outlast.fault_rules import ACTIONS, FUNCTIONS, read_rules
from outlast.server.app import serve
from outlast.server.drivers import registry
from outlast.server.drivers.emulated.driver import EmulatedDriver
from outlast.server.drivers.emulated.fault_calls import ALIASES, calls_of, refused

KILL = {"match": "cuMemAlloc", "action": "kill"}


def configure(text: str) -> ServeConfig:
    return ServeConfig.resolve({"emulated_faults": text}, {})


def test_a_rule_fires_once_at_the_first_call_unless_it_says_otherwise() -> None:
    (rule,) = read_rules(json.dumps([KILL]))
    assert (rule.number, rule.after, rule.every, rule.times, rule.p) == (1, 0, 1, 1, 1.0)
    assert rule.names("cuMemAlloc")
    assert not rule.names("cuMemAllocAsync")


def test_rules_come_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps([KILL]))
    environ = {"OUTLAST_EMULATED_FAULTS": f"@{path}"}
    config = ServeConfig.resolve({}, environ)
    path.unlink()
    assert read_rules(config.emulated_faults)[0].action == "kill"
    with pytest.raises(ConfigError, match="a file that can be read"):
        ServeConfig.resolve({}, environ)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"match": "cuMemAloc"}, "match"),
        ({"match": "cu("}, "match"),
        ({"match": None}, "match"),
        ({"action": "explode"}, "action"),
        ({"after": -1}, "after"),
        ({"after": True}, "after"),
        ({"every": 0}, "every"),
        ({"times": 0}, "times"),
        ({"p": 1.5}, "p"),
        ({"p": float("nan")}, "p"),
        ({"seed": "x"}, "seed"),
        ({"device": 16}, "device"),
        ({"session": 3}, "session"),
        ({"count": "server"}, "count"),
        ({"seconds": 1}, "seconds"),
        ({"middle": 1}, "middle"),
        ({"middle": True}, "middle"),
        ({"action": "return"}, "result"),
        ({"action": "return", "result": 700}, "result"),
        ({"action": "return", "result": 3333}, "result"),
        ({"action": "sticky", "result": 2}, "result"),
        ({"action": "lost", "result": 2}, "result"),
        ({"action": "hang", "seconds": 0}, "seconds"),
        ({"action": "slow"}, "seconds"),
        ({"action": "slow", "gb_per_s": 1}, "gb_per_s"),
        ({"action": "flip", "bit": 8}, "bit"),
        ({"action": "flip", "allocation": 0}, "allocation"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named_with_its_field(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"rule 2, field {field}: allowed: ") as caught:
        configure(json.dumps([KILL, KILL | change]))
    assert caught.value.fields["setting"] == "emulated_faults"


@pytest.mark.parametrize("text", ["kill", "{}", "[]", "[1]", "[" * 100_000, "@", "@/nowhere/x"])
def test_what_is_no_list_of_rules_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="emulated_faults"):
        configure(text)


def test_functions_are_those_that_the_device_has() -> None:
    names = {name for names in calls_of(EmulatedDriver.__new__(EmulatedDriver)).values()
             for name in names}  # fmt: skip
    assert names == FUNCTIONS
    assert all(hasattr(EmulatedDriver, method) for method in ALIASES)


def test_each_function_can_be_refused() -> None:
    driver = EmulatedDriver.__new__(EmulatedDriver)
    for method in calls_of(driver):
        result = refused(driver, method, 2)
        assert (result[0] if isinstance(result, tuple) else result) == 2
    assert len(refused(driver, "cuMemGetInfo", 2)) == 3


def test_a_server_with_a_gpu_refuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "require", lambda name, memory: "cuda")
    flags = {"emulated_faults": json.dumps([KILL]), "state_dir": str(tmp_path / "state")}
    with pytest.raises(ConfigError, match=r"emulated_faults from --emulated-faults: .* cuda"):
        serve(ServeConfig.resolve(flags, {}))


def test_every_action_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert all(f"| `{action}` |" in text for action in ACTIONS)
