"""What a batch leads to: endless decodes beside lengths that are drawn, and where requests stand after a batch."""

from collections import Counter

import pytest

from queuetheory_llm.markov.outcomes import Outcomes
from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.chances import request_law
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import Geometric
from queuetheory_llm.model.workload import Workload
from queuetheory_llm.schedulers.policy import Batch
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.schedulers.state import ENDLESS, State


@pytest.mark.parametrize("memoryless", [True, False])
def test_an_endless_decode_stays_beside_those_that_end(memoryless):
    """Two memoryless decodes of mean 4 end with chance 1/4 each; lengths that are known are counted down."""
    law = request_law(Workload.of(prefill=2, decode=Geometric(mean=4) if memoryless else 3), memoryless=memoryless)
    engine = Engine(batch_time=Staircase(c=0, a="1 s", b0=8), b_max=8)
    outcomes = Outcomes(engine=engine, scheduler=parse_scheduler("sarathi"), law=law)
    other = (0, -1) if memoryless else (0, 1)
    ended = Counter()
    for each in outcomes.of(State(((0, ENDLESS), other, other, (0, ENDLESS))), 0):
        assert each.tokens == 4
        assert each.core.left.count((0, ENDLESS)) == 2
        ended[4 - len(each.core.left)] += each.chance
    assert ended == pytest.approx({0: 9 / 16, 1: 6 / 16, 2: 1 / 16} if memoryless else {2: 1})


def test_where_requests_stand_after_a_batch():
    state = State(((2, 1), (0, 1), (3, 0), (0, 2)), (1, 3))
    after, place = state.followed(Batch(prefill=[(0, 2), (2, 3)], decode=[1, 3]))
    assert after == state.after(Batch(prefill=[(0, 2), (2, 3)], decode=[1, 3])) == State(((0, 1), (0, 1)), (1, 0))
    assert place == {0: 0, 3: 1}
