"""Max-weight over batches: the batch that serves the most weighted tokens per second, weights the token backlogs."""

from __future__ import annotations

from queuetheory_llm.arrays import Floats
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.lengths import RequestLengths
from queuetheory_llm.schedulers.array_rule import ArrayBatch, ArrayRule, ArrayView
from queuetheory_llm.schedulers.weighted import heaviest, law_parameters, serve_oldest


def _form(view: ArrayView, parameters: Floats, batch: ArrayBatch) -> tuple[int, int]:
    """``parameters`` = m_p, m_d, then the law."""
    prefilling = view.prefilling.size
    weights = (prefilling * parameters[0], (prefilling + view.decoding.size) * parameters[1])
    prefill, decode = heaviest(view, parameters[2:], weights)
    return serve_oldest(view, prefill, decode, batch)


def max_weight(engine: Engine, lengths: RequestLengths) -> ArrayRule:
    """Max-weight for an engine and the mean lengths of its requests; the lengths themselves are not known to it.

    Q_p is the number of requests still in their prompt times m_p, Q_d the number of all requests times m_d: those in
    their prompt will decode too. The rule serves the batch of the oldest requests that maximises
    (Q_p x + Q_d y)/t(x + y), the smaller one on ties. Its decodes weigh although most of them may not be ready, and a
    rule that follows them starves the prompts that would make them ready. It is not throughput-optimal in general, and
    not with a whole number of stairs and k_max <= b0 either: simulated counterexamples in experiments/adaptive_rules.
    """
    return ArrayRule(
        name="max-weight",
        function=_form,
        rule="the batch with the most weight per second; a token weighs the mean token backlog of its kind",
        source="Tassiulas and Ephremides, IEEE TAC 37(12), 1992, over batches; an open problem of arXiv 2504.07347",
        parameters=(float(lengths.mean_prefill), float(lengths.mean_decode), *law_parameters(engine)),
    )
