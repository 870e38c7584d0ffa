"""One engine and what it serves: the content of a model file."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.model.engine import Engine
from queuetheory_llm.model.workload import Workload


@attrs.frozen(kw_only=True)
class System:
    """An engine, its workload where one is given, and where the numbers come from.

    Attributes
    ----------
    engine : Engine
    workload : Workload or None
    source : mapping of str to str
        Free text: title, url, section.
    name : str
        File path or packaged name, for messages.
    """

    engine: Engine
    workload: Workload | None = None
    source: Mapping[str, str] = attrs.field(factory=dict)
    name: str = "model"

    def require_workload(self) -> Workload:
        """The workload, for a command that cannot answer without one.

        Raises
        ------
        InvalidInput
            If the model has none.
        """
        if self.workload is None:
            raise InvalidInput(
                f"{self.name}: workload: missing; add a [workload] table, or give --trace FILE "
                "or --prefill N --decode N"
            )
        return self.workload
