"""The figure of a sweep carries its rows: a point a seed at its value, lines at the means."""

from __future__ import annotations

import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.plots.sweep import MOST_LINES, draw_sweep, render_sweep, require_drawable
from queuetheory_llm.simulation.sweep import SweepResult

DRIFT = "measured.token_drift.mean"


def table(grid, values, *, schedulers=("sarathi",), seeds=2, verdict="STABLE", error=None):
    """Rows of a sweep over one key with the given drifts, seeds fastest."""
    (key,) = grid
    heads = [(value, rule, seed) for value in grid[key] for rule in schedulers for seed in range(seeds)]
    rows = [
        {key: value, "scheduler": rule, "seed": seed, "error": error, "verdict": verdict, DRIFT: drift}
        for (value, rule, seed), drift in zip(heads, values, strict=True)
    ]
    question = {"grid": grid, "schedulers": list(schedulers), "seeds": seeds, "horizon": 100.0, "first_token": None}
    return SweepResult(model="model", question=question, points=len(rows), rows=tuple(rows))


def points(ax):
    return sorted(tuple(line.get_xydata()[0]) for line in ax.get_lines() if line.get_marker() == "o")


def test_points_are_the_seeds_and_the_line_their_means():
    ax = draw_sweep(table({"workload.rate": [8, 9.5]}, [1, 3, -4, -8]))
    assert points(ax) == [(8, 1), (8, 3), (9.5, -8), (9.5, -4)]
    (line,) = [line for line in ax.get_lines() if line.get_label() == "sarathi"]
    assert line.get_xydata().tolist() == [[8, 2], [9.5, -6]]
    assert ax.get_xlabel() == "workload.rate"
    assert ax.get_ylabel() == "token drift (tokens/s)"
    assert ax.get_yscale() == "linear"


def test_units_and_fractions_are_numbers_and_laws_are_categories():
    assert points(draw_sweep(table({"c": ["10 ms", "1/2 ms"]}, [1, 1, 2, 2]))) == [(0.5, 2), (0.5, 2), (10, 1), (10, 1)]
    assert draw_sweep(table({"c": ["10 ms", "20 ms"]}, [1, 1, 2, 2])).get_xlabel() == "c (ms)"
    ax = draw_sweep(table({"arrivals": ["poisson", "deterministic"]}, [1, 1, 2, 2]))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["poisson", "deterministic"]
    assert draw_sweep(table({"c": ["10 ms", "1 s"]}, [1, 1, 2, 2])).get_xlabel() == "c"


def test_the_verdict_is_the_marker():
    for verdict, marker, open_ in (("STABLE", "o", False), ("UNSTABLE", "o", True), ("UNDECIDED", "x", None)):
        ax = draw_sweep(table({"rate": [1, 2]}, [1, 1, 2, 2], verdict=verdict))
        marks = [line for line in ax.get_lines() if line.get_marker() == marker]
        assert len(marks) == 4
        if open_ is not None:
            assert {line.get_markerfacecolor() == "white" for line in marks} == {open_}


def test_wide_positive_values_are_logarithmic_and_the_legend_covers_no_point():
    values = [0.1, 0.1, 0.2, 0.2, 50, 60, 70, 80]
    ax = draw_sweep(table({"rate": [1, 2]}, values, schedulers=("sarathi", "orca")))
    assert ax.get_yscale() == "log"
    ax.figure.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    for x, y in points(ax):
        assert not legend.contains(*ax.transData.transform((x, y)))


def test_lines_at_one_place_stand_side_by_side_within_the_axes():
    result = table({"rate": [8, 9]}, [5, 5, 5, 5], schedulers=("sarathi", "orca"), seeds=1)
    ax = draw_sweep(result)
    ax.figure.canvas.draw()
    marks = [line for line in ax.get_lines() if line.get_marker() == "o"]
    seen = sorted(tuple(line.get_transform().transform(line.get_xydata())[0]) for line in marks)
    assert len({round(x) for x, _ in seen}) == 4
    frame = ax.get_window_extent()
    assert all(frame.x0 < x < frame.x1 and frame.y0 < y < frame.y1 for x, y in seen)
    assert points(ax) == [(8, 5), (8, 5), (9, 5), (9, 5)]
    assert "side by side" in words(ax)


def words(ax):
    return " ".join(" ".join(text.get_text().split()) for text in ax.figure.texts)


def test_the_caption_says_whose_the_verdict_is():
    ax = draw_sweep(table({"rate": [1, 2]}, [1, 1, 2, 2]))
    assert "the verdict is a theorem's where one decides, the height is the drift measured" in words(ax)
    assert "side by side" not in words(ax)


def test_four_names_stand_two_by_two():
    rules = ("sarathi", "orca", "vllm-chunked", "vllm-vanilla")
    legend = draw_sweep(table({"rate": [1, 2]}, [1] * 8, schedulers=rules, seeds=1)).get_legend()
    legend.figure.canvas.draw()
    corners = [text.get_window_extent() for text in legend.get_texts()]
    assert len({round(box.x0) for box in corners}) == len({round(box.y0) for box in corners}) == 2


def test_rows_that_are_errors_are_left_out_and_counted():
    good = table({"rate": [1, 2]}, [1, 1, 2, 2])
    bad = {"rate": 3, "scheduler": "sarathi", "seed": 0, "error": "no"}
    question = {**good.question, "grid": {"rate": [1, 2, 3]}}
    result = SweepResult(model="model", question=question, points=6, rows=(*good.rows, bad))
    ax = draw_sweep(result)
    assert len(points(ax)) == 4
    texts = " ".join(" ".join(text.get_text().split()) for text in ax.figure.texts)
    assert "Points left out: 1 bad input, 1 not finished." in texts


def test_what_cannot_be_drawn_is_one_line():
    result = table({"rate": [1, 2]}, [1, 1, 2, 2])
    with pytest.raises(InvalidInput, match="did you mean rate"):
        draw_sweep(result, x="rates")
    with pytest.raises(InvalidInput, match=f"did you mean {DRIFT}"):
        draw_sweep(result, y="measured.token_drift.men")
    with pytest.raises(InvalidInput, match=f"{MOST_LINES + 1} lines"):
        require_drawable({"a": list(range(20)), "b": list(range(MOST_LINES + 1))}, ["sarathi"])


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_the_same_table_is_the_same_file(kind):
    result = table({"rate": [1, 2]}, [1, 1, 2, 2])
    assert render_sweep(result, kind) == render_sweep(result, kind)
