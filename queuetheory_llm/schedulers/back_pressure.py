"""Back-pressure: serve the class whose service lowers the sum of squared queues fastest, and none that would raise it.

Tassiulas and Ephremides (1992); Dai and Lin, Operations Research 53(2), 2005 (maximum pressure policies): stable
whenever every load is below 1, for classes that are routed one by one. It may idle: a class that feeds longer queues
than its own is better left alone, and idling has pressure 0.

At a batch engine the same argument needs that the tasks of a class leave in proportion to the tokens served, so decodes
first within a class (``sarathi``): then the tasks under way are fewer than 2 b_max at any time and vanish at fluid
scale, and a full batch goes to the class of the largest pressure whenever its queue is long. With prompts first
(``orca``) requests past their prompt pile up unseen by the rule. Nothing is proved of several engines at one station,
where each serves its own queue and the weight counts all of them, nor of joins: siblings that wait for a join are in no
class and have no weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from queuetheory_llm.model.fluid_model import FluidModel


@attrs.frozen
class BackPressure:
    """The weights mu_k (Q_k - sum_l P_kl Q_l), in floats.

    Attributes
    ----------
    rates : tuple of float
        mu_k, tasks of class k per second of its station.
    flows : tuple of ((class, P_kl), ...)
    """

    rates: tuple[float, ...]
    flows: tuple[tuple[tuple[int, float], ...], ...]

    @classmethod
    def of(cls, model: FluidModel) -> BackPressure:
        """The rule of a network."""
        return cls(
            tuple(float(1 / mean) for mean in model.service),
            tuple(tuple((to, float(p)) for to, p in row) for row in model.routing),
        )

    def weight(self, k: int, present: Sequence[int]) -> float:
        """mu_k (Q_k - sum_l P_kl Q_l); positive only where class k has tasks."""
        pressure = float(present[k])
        for to, p in self.flows[k]:
            pressure -= p * present[to]
        return self.rates[k] * pressure

    def order(self, classes: Sequence[int], present: Sequence[int]) -> Sequence[int]:
        """See `ClassOrder.order`: by decreasing weight, positive weights only; equal ones in the order of the model."""
        weights = {k: self.weight(k, present) for k in classes}
        return sorted((k for k in classes if weights[k] > 0), key=lambda k: -weights[k])
