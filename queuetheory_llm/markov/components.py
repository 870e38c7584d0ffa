"""The closed classes and periods of a chain that is written out."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray


@attrs.frozen(eq=False)
class Recurrence:
    """What becomes of a chain in the long run, by its graph alone.

    Attributes
    ----------
    classes : tuple of int arrays
        The closed classes: the states of each, ascending. Once entered, a class is never left.
    periods : tuple of int
        Of each class; 1 where the chain forgets at which batch it started.
    transient : int
        Number of the other states.
    """

    classes: tuple[NDArray[np.integer], ...]
    periods: tuple[int, ...]
    transient: int


def recurrence_of(matrix: Any) -> Recurrence:
    """The closed classes of a sparse stochastic ``matrix``, by the strong components of its graph."""
    from scipy.sparse.csgraph import connected_components

    matrix.eliminate_zeros()
    number, label = connected_components(matrix, directed=True, connection="strong")
    edges = matrix.tocoo()
    closed = np.ones(number, dtype=bool)
    closed[label[edges.row[label[edges.row] != label[edges.col]]]] = False
    classes = tuple(np.flatnonzero(label == component) for component in np.flatnonzero(closed))
    return Recurrence(
        classes=classes,
        periods=tuple(_period_of(matrix, states) for states in classes),
        transient=matrix.shape[0] - sum(map(len, classes)),
    )


def _period_of(matrix: Any, states: NDArray[np.integer]) -> int:
    """The period of a closed class."""
    from scipy.sparse.csgraph import dijkstra

    inner = matrix[states][:, states]
    depth = dijkstra(inner, indices=0, unweighted=True).astype(np.int64)
    edges = inner.tocoo()
    return int(np.gcd.reduce(np.abs(depth[edges.row] + 1 - depth[edges.col])))
