"""Every property holds in every state that the bounds allow."""

from __future__ import annotations

import os

import pytest
from model.explorer import Explorer, Result
from model.parts import Bounds
from model.scenarios import LARGE, SMALL

#: A scenario that needs more is too large for every run.
MOST_STATES = 40_000
#: Enough on a machine that does much else, too.
pytestmark = pytest.mark.timeout(300)

#: How far the soak goes.
SOAK_STATES = int(os.environ.get("OUTLAST_MODEL_STATES", "300000"))


def explored(bounds: Bounds, max_states: int) -> Result:
    result = Explorer(bounds, max_states).run()
    assert result.violation is None, result.explain()
    return result


@pytest.mark.parametrize("name", SMALL)
def test_every_property_holds_in_every_state_when(name: str) -> None:
    result = explored(SMALL[name], MOST_STATES)
    assert not result.cut, f"more than {MOST_STATES} states: {result.states}"
    assert result.quiescent > 0
    faults = {*SMALL[name].limits}
    assert faults <= {*result.actions}, "not everything that was meant to happen has happened"


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LARGE)
def test_every_property_holds_within_a_larger_bound_when(name: str) -> None:
    result = explored(LARGE[name], SOAK_STATES)
    assert result.states > MOST_STATES
