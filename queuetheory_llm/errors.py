"""The errors of the package, one class per mathematical situation.

Every message is one line that says what is wrong and how to mend it. The command line prints it behind
``error: `` and exits with 2.
"""

from __future__ import annotations

from collections.abc import Iterable


class QueueTheoryError(Exception):
    """Root of every error the package raises on purpose."""


class InvalidInput(QueueTheoryError, ValueError):
    """Input that cannot be read as what it claims to be: a flag, a file, a line of a trace.

    Parameters
    ----------
    faults : str or iterable of str
        One line a fault, each ``WHERE: WHAT, and how to mend it``.
    source : str, optional
        The file the faults are in; put before each of them.
    """

    def __init__(self, faults: str | Iterable[str], *, source: str | None = None) -> None:
        lines = [faults] if isinstance(faults, str) else list(faults)
        self.faults: tuple[str, ...] = tuple(f"{source}: {line}" if source else line for line in lines)
        self.source = source
        super().__init__("\n".join(self.faults))


class InvalidModel(InvalidInput):
    """A model whose numbers contradict its own definition (``b_max = 0``, a negative time)."""


class InfeasibleRequest(InvalidInput):
    """A request that a rule can never serve, such as a prompt above ``b_max`` where prompts are not split."""


class AssumptionViolated(QueueTheoryError):
    """A theorem or a formula was asked for outside its assumptions."""


class NotConverged(QueueTheoryError):
    """A numerical method stopped before its stated tolerance; no number is returned."""


class CertificateRejected(QueueTheoryError):
    """A proof object that fails one of its conditions."""
