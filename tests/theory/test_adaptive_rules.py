"""Adaptive rules under a batch size: what max-weight and max-pressure hold of the region, and where they fail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import engines

from queuetheory_llm.schedulers.array_rule import array_view
from queuetheory_llm.schedulers.state import State
from queuetheory_llm.schedulers.weighted import heaviest, law_parameters


@st.composite
def states(draw):
    """Requests present in any phase."""
    left = st.tuples(st.integers(0, 5), st.integers(0, 2)).filter(any)
    return State(left=tuple(draw(st.lists(left, min_size=1, max_size=7))))


def weights_of(batch, weights, engine):
    return (weights[0] * batch[0] + weights[1] * batch[1]) / float(engine.batch_time.seconds(sum(batch)))


@given(engines(), states(), st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any))
def test_the_search_finds_the_heaviest_batch_of_the_oldest_requests(engine, state, weights):
    view = array_view(state.view(engine.b_max, engine.k_max))
    prompts = np.cumsum([0, *view.prefill_left[view.prefilling]])
    feasible = [
        (x, y)
        for slots in range(len(prompts))
        for x in range(int(prompts[slots]) + 1)
        for y in range(min(view.decoding.size, view.k_max - slots) + 1)
        if 0 < x + y <= engine.b_max
    ]
    best = max(weights_of(batch, weights, engine) for batch in feasible)
    found = heaviest(view, np.array(law_parameters(engine)), weights)
    assert found in feasible
    if best > 0:
        assert weights_of(found, weights, engine) == pytest.approx(best, rel=1e-12)
        # the smaller batch on ties, but for rounding
        assert sum(found) <= min(sum(b) for b in feasible if weights_of(b, weights, engine) > best * (1 - 1e-12)) or (
            weights_of(found, weights, engine) >= best
        )
