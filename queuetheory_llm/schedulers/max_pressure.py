"""Max-pressure between prompts and decodes: max-weight that pays only for work which is there to be served."""

from __future__ import annotations

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.schedulers.array_rule import ArrayBatch, ArrayRule, ArrayView
from queuetheory_llm.schedulers.weighted import heaviest, law_parameters, per_token, serve_oldest


def _form(view: ArrayView, parameters: Floats, batch: ArrayBatch) -> tuple[int, int]:
    """``parameters`` = 1/m_p, 1/m_d, then the law."""
    decoding = view.decoding.size
    pressure = max(view.prefilling.size + view.k_max - decoding, 0)
    weights = (pressure * parameters[0], decoding * parameters[1])
    prefill, decode = heaviest(view, parameters[2:], weights)
    return serve_oldest(view, prefill, decode, batch)


def max_pressure(engine: Engine, lengths: RequestLengths) -> ArrayRule:
    """Max-pressure for an engine and the mean lengths of its requests; the lengths themselves are not known to it.

    Serves the batch of the oldest requests that maximises the pressure it relieves per second,
    ((N_p + k_max - N_d)^+ x/m_p + N_d y/m_d)/t(x + y), N_p requests being in their prompt and N_d past it; the smaller
    batch on ties. Prompts are a queue that feeds the queue of decodes, and are held back only when k_max more requests
    are past their prompt than in it.

    Fluid argument. Scale the queues up; k_max drops out, and V = N_p^2 + N_d^2 changes at the rate
    2 (N_p lambda - the pressure relieved). If the rates (1 + e) lambda (m_p, m_d) are a mixture of feasible batches,
    that mixture relieves N_p lambda (1 + e), the best batch no less, so V falls. A queue that is empty at this scale
    has no weight, so the best batch is always there to be served; max-weight fails because it weighs decodes that are
    not ready. The argument needs batches that can be formed from whole queues whatever came before: x prompt tokens in
    s slots with x <= (s - 1) m_p + 1, since the oldest prompt may have a single token left. For prompts of few tokens
    the region of such batches is smaller than the outer region by about one slot of k_max.
    """
    return ArrayRule(
        name="max-pressure",
        function=_form,
        rule="the batch that relieves the most pressure per second; prompts press by how far they outnumber decodes",
        source="Dai and Lin, Operations Research 53(2), 2005, with batches as activities",
        parameters=(per_token(lengths.mean_prefill), per_token(lengths.mean_decode), *law_parameters(engine)),
    )
