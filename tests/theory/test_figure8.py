"""Figure 8 of Dai et al. 2025: the batches four rules form of the same five requests."""

import pytest

from queuetheory_llm.model.batch_time import Staircase
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.schedulers.registry import parse_scheduler
from queuetheory_llm.simulation.clock import Clock
from queuetheory_llm.simulation.reference import run
from queuetheory_llm.simulation.requests import Requests

SECOND = Clock(rate=10**9)
UNIT = Staircase(c=0, a=1, b0=8)  # every batch lasts one second
# A, B, C decode, with 2, 4 and 3 tokens left; D and E arrive during the first batch.
REQUESTS = Requests(arrival=[0, 0, 0, 5 * 10**8, 5 * 10**8], prefill=[0, 0, 0, 1, 1], decode=[2, 4, 3, 1, 1])

COMPOSITIONS = {
    "vllm-vanilla": "ABCd | DEp | ABCDd | BCEd | Bd",
    "orca": "ABCd | DEp ABCd | BCDEd | Bd",
    "fastertransformer": "ABCd | ABCd | BCd | Bd | DEp | DEd",
    "sarathi": "ABCd | ABCd Dp | BCDd Ep | BEd",
}


def letters(requests):
    return "".join("ABCDE"[request] for request in requests)


def in_words(batch, prefill_first):
    parts = [
        letters(request for request, _ in batch.prefill) + "p" if batch.prefill else "",
        letters(batch.decode) + "d" if batch.decode else "",
    ]
    return " ".join(part for part in (parts if prefill_first else parts[::-1]) if part)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_batches_of_figure_8(name):
    engine = Engine(batch_time=UNIT, b_max=5 if name == "orca" else 4)
    done = run(engine, parse_scheduler(name), REQUESTS, SECOND, log=True)
    assert " | ".join(in_words(batch, name == "orca") for batch in done.log) == COMPOSITIONS[name]
    assert done.log.starts.tolist() == [index * 10**9 for index in range(len(done.log.tokens))]
