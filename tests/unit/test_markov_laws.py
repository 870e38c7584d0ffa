"""Where the law of the token backlog may end, and when it is not written down."""

import numpy as np
import pytest
from exported import slotted, stationary, timed
from scipy.stats import nbinom

import queuetheory_llm as qt
from queuetheory_llm.errors import NotConverged
from queuetheory_llm.markov import laws


@pytest.mark.parametrize("mean", [1.01, 1.5, 3, 50, 1000])
def test_a_sum_of_geometric_lengths_stays_within_the_length_of_its_law(mean):
    count = np.arange(1, 400)
    longest = laws._MEANS * count * mean + laws._MEANS_MORE * mean
    assert (nbinom.sf(longest - count, count, 1 / mean) < 1e-16).all()


@pytest.mark.parametrize(
    "rewards", [slotted("sarathi", 2, 1, ".45", level=20), timed("sarathi", 2, qt.Geometric(mean=2), ".2", level=20)]
)
def test_a_law_of_the_backlog_longer_than_allowed_is_refused(rewards):
    law = stationary(rewards.operator.matrix().toarray())
    whole = laws.backlog_at_boundaries(rewards, law)
    assert whole @ np.arange(whole.size) == pytest.approx(law @ rewards.space.backlog())
    np.testing.assert_array_equal(laws.backlog_at_boundaries(rewards, law, longest=whole.size), whole)
    with pytest.raises(NotConverged, match="its mean is known"):
        laws.backlog_at_boundaries(rewards, law, longest=whole.size - 1)
