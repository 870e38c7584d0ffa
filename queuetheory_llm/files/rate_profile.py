"""Rate profiles as files: CSV with the header ``time,factor`` or ``time,rate``."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from queuetheory_llm.errors import InvalidInput, InvalidModel
from queuetheory_llm.files.profiles.table import Row, each_row, read_head
from queuetheory_llm.model.rate_profile import QUANTITIES, RateProfile


def load_rate_profile(path: str | Path, *, shape: str = "steps", classes: Sequence[str] | None = None) -> RateProfile:
    """Read a profile of rates over time.

    Parameters
    ----------
    path : path
        CSV, in any order of its two columns: ``time`` in seconds, the first row 0, increasing; and ``factor``, a
        multiple of the rates of the model, or ``rate``, requests (tasks) per second. Numbers are read exactly.
    shape : {"steps", "linear"}
        Whether a value holds until the next time or is joined to the next by a line.
    classes : sequence of str, optional
        Names of the classes it is about; None is all.

    Raises
    ------
    InvalidInput, InvalidModel
        ``FILE: line N: WHAT, and how to mend it``, one line a fault.
    """
    source = Path(path)
    quantity = _quantity(source)
    times: list[Fraction] = []
    values: list[Fraction] = []
    faults: list[str] = []

    def take(row: Row) -> None:
        time, value = row.number("time"), row.number(quantity)
        faults.extend(f"line {row.line}: {what}" for what in _faults(times, time, quantity, value))
        times.append(time)
        values.append(value)

    each_row(source, take)
    if faults:
        raise InvalidInput(faults, source=str(path))
    try:
        return RateProfile(times=times, values=values, shape=shape, quantity=quantity, classes=classes)
    except InvalidModel as error:
        raise InvalidModel(error.faults, source=str(path)) from None


def _quantity(path: Path) -> str:
    """What the second column is, from the header."""
    columns = read_head(path).columns
    for quantity in QUANTITIES:
        if sorted(columns) == sorted(("time", quantity)):
            return quantity
    raise InvalidInput(
        f"line 1: {','.join(columns) or 'no columns'} is no header of a rate profile; write time,factor or time,rate",
        source=str(path),
    )


def _faults(times: Sequence[Fraction], time: Fraction, quantity: str, value: Fraction) -> list[str]:
    """What the model would refuse, told with its line."""
    faults = []
    if not times and time != 0:
        faults.append(f"time: {float(time):g} is not 0; a profile begins at 0, where the run begins")
    if times and time <= times[-1]:
        faults.append(f"time: {float(time):g} does not follow {float(times[-1]):g}; sort the rows, each time once")
    if value < 0:
        faults.append(f"{quantity}: {float(value):g} is negative; nothing arrives at 0")
    return faults
