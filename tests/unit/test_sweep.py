"""Sweeps: points, rows, errors at a point, the file that keeps them, and that nothing depends on the workers."""

from __future__ import annotations

import json
import pickle
import random
from fractions import Fraction

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import queuetheory_llm as qt
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files import sweep_store
from queuetheory_llm.simulation import sweep as points_module
from queuetheory_llm.simulation.grid import Axis
from queuetheory_llm.simulation.sweep import Plan, Task, flat, run_point

MODEL = """
[engine]
b_max = 8
k_max = 4
[engine.batch_time]
law = "staircase"
c = "10 ms"
a = "10 ms"
b0 = 8
[workload]
arrivals = "poisson"
rate = 10
[[workload.class]]
name = "chat"
prefill = 5
decode = 3
[[workload.class]]
name = "batch"
prefill = 9
decode = 1
"""
GRID = {"engine.b_max": [8, 16], "workload.rate": "5:10:5"}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(MODEL)
    return path


def small(model, **options):
    asked = {"grid": GRID, "schedulers": ["sarathi", "vllm-vanilla"], "seeds": 2, "horizon": 3, "n_jobs": 1}
    return qt.sweep(model, **{**asked, **options})


def refused(model, **options):
    with pytest.raises(qt.InvalidInput) as caught:
        small(model, **options)
    return "\n".join(caught.value.faults)


# Points and rows


def test_the_plan_counts_every_combination_once_and_seeds_vary_fastest():
    axes = [Axis.of("a.x", [1, 2, 3]), Axis.of("a.y", ["u", "v"])]
    plan = Plan.of(axes, schedulers=["sarathi", "orca"], seeds=2, horizon="2 s", first_token=None)
    points = [plan.point(index) for index in range(len(plan))]
    rows = [tuple(point.row.values()) for point in points]
    assert len(set(rows)) == len(plan) == 24
    assert rows == sorted(rows, key=lambda row: (row[0], row[1], row[2] != "sarathi", row[3]))
    assert all(plan.setting(plan.setting_of(each.index)) == each.values for each in points)
    assert plan.horizon == Fraction(2)


def test_a_row_is_the_simulation_of_its_point(model):
    result = small(model)
    assert result.points == len(result.rows) == 16
    assert result.failed == 4  # vllm-vanilla takes prompts whole: 9 tokens do not fit b_max = 8
    row = result.rows[-1]
    system = qt.load_model(model)
    workload = system.workload.with_arrivals(qt.PoissonArrivals(rate=10))
    engine = attrs.evolve(system.engine, b_max=16)
    run = qt.simulate(engine, "vllm-vanilla", workload, horizon=3, seed=1)
    head = {"engine.b_max": 16, "workload.rate": 10, "scheduler": "vllm-vanilla", "seed": 1, "error": None}
    assert row == {**head, **flat(run.to_dict())}
    assert row["latency.e2e.p95"] == run.latency["e2e"].p95
    assert row["requests.arrived"] == run.requests["arrived"]


def test_a_point_that_is_bad_input_is_a_row_and_the_others_go_on(model):
    failed = [row for row in small(model).rows if row["error"]]
    assert {(row["engine.b_max"], row["scheduler"]) for row in failed} == {(8, "vllm-vanilla")}
    assert all("prompt of 9 tokens" in row["error"] for row in failed)
    result = small(model, grid={"engine.batch_time.b0": [4, 8], "engine.batch_time.law": ["staircase", "hinge"]})
    assert not any(row["error"] for row in result.rows if row["scheduler"] == "sarathi")


def test_a_combination_that_is_no_model_is_a_row(model):
    grid = {"engine.batch_time": ['{ law = "table", tokens = [8], seconds = [1] }', 1], "engine.b_max": [8, 16]}
    law = {"law": "table", "tokens": [8], "seconds": ["10 ms"]}
    stairs = {"law": "staircase", "c": "10 ms", "a": "10 ms", "b0": 8}
    result = small(model, grid={**grid, "engine.batch_time": [law, stairs]}, schedulers="sarathi", seeds=1)
    errors = [row["error"] for row in result.rows]
    assert [error is None for error in errors] == [True, False, True, True]
    assert "16" in errors[1]


def test_classes_are_entered_by_name_and_by_index(model):
    by = [
        small(model, grid={key: [1, 3]}, schedulers="sarathi").rows
        for key in ("workload.class.chat.weight", "workload.class.0.weight", "workload.class[0].weight")
    ]
    values = [[list(row.values()) for row in rows] for rows in by]
    assert values[0] == values[1] == values[2]
    assert values[0][0] != values[0][2]
    assert "did you mean chat?" in refused(model, grid={"workload.class.chatt.weight": [1]})


def test_a_system_in_memory_is_its_model_file(model):
    from_file, from_memory = small(model), small(qt.load_model(model))
    assert from_file.rows == from_memory.rows


def test_a_trace_is_replayed_and_its_seeds_are_said_to_be_the_same(tmp_path):
    (tmp_path / "t.csv").write_text("arrival,prefill,decode\n0,5,3\n0.005,5,0\n0.02,9,1\n")
    path = tmp_path / "model.toml"
    path.write_text(MODEL.split("[workload]")[0] + '[workload]\narrivals = "trace"\ntrace = "t.csv"\n')
    result = qt.sweep(path, grid={"engine.k_max": [1, 4]}, seeds=2, n_jobs=1)
    assert [row["requests.finished"] for row in result.rows] == [3] * 4
    assert any("nothing random" in note for note in result.notes)
    assert {key: value for key, value in result.rows[0].items() if key != "seed"} == {
        key: value for key, value in result.rows[1].items() if key != "seed"
    }


def test_several_engines_are_part_of_the_question(model, tmp_path):
    store = tmp_path / "s.jsonl"
    spread = {"engines": 3, "dispatch": "round-robin"}
    options = {"grid": {"engine.b_max": [16]}, "schedulers": "orca", "seeds": 1}
    row = small(model, **options, **spread, store=store).rows[0]
    system = qt.load_model(model)
    engine = attrs.evolve(system.engine, b_max=16)
    found = qt.simulate(engine, "orca", system.workload, **spread, horizon=3, seed=0)
    assert row["latency.e2e.p95"] == found.latency["e2e"].p95
    assert (row["engines"], row["dispatch"]) == (3, "round-robin")
    assert "engines 3 there, 1 here, dispatch round-robin there, random here" in refused(model, **options, store=store)
    assert "--engines: 0" in refused(model, engines=0)
    assert "'nearest' is not a dispatch rule" in refused(model, dispatch="nearest", engines=2)


def test_a_rule_of_ones_own_is_run_by_a_worker(model):
    result = small(model, schedulers=[qt.SCHEDULERS["orca"], "sarathi+target=4"], seeds=1)
    assert {row["scheduler"] for row in result.rows} == {"orca", "sarathi+target=4"}


def test_a_worker_of_another_version_is_refused():
    plan = Plan.of([], schedulers=["sarathi"], seeds=1, horizon=1, first_token=None)
    task = Task(point=plan.point(0), system="", horizon=None, first_token=None, version="0.0.0")
    assert pickle.loads(pickle.dumps(task)) == task
    with pytest.raises(qt.InvalidInput, match=r"0\.0\.0"):
        run_point(task)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": {"engine.b_maxx": [1, 2]}}, ["engine.b_maxx: unknown key; did you mean b_max?", "model.toml: "]),
        ({"grid": {"engine.b_max": [0, 8, -1]}}, ["engine.b_max: 0 ", "engine.b_max = -1"]),
        ({"grid": {"engine.b_max.x": [1]}}, ["engine.b_max is 8, no table"]),
        ({"grid": {"workload.rate": ["fast"]}}, ["workload.rate: 'fast' is not a number"]),
        ({"grid": {"source": [1]}}, ["source"]),
        ({"grid": {"workload.rate": []}}, ["no values"]),
        ({"grid": {"a.b": range(400), "c.d": range(400)}}, ["640000 points"]),
        ({"n_jobs": 0}, ["--workers: 0"]),
        ({"seeds": 0}, ["--seeds: 0"]),
        ({"seeds": True}, ["--seeds: True"]),
        ({"horizon": 0}, ["--horizon"]),
        ({"horizon": float("nan")}, ["not finite"]),
        ({"schedulers": []}, ["--scheduler: none"]),
        ({"schedulers": ["orca", "orca"]}, ["orca is given twice"]),
        ({"schedulers": ["orcha"]}, ["did you mean orca?"]),
        ({"backend": "spark"}, ["spark"]),
        (
            {"schedulers": ["vllm-vanilla"], "grid": {"engine.b_max": [8]}},
            ["every point fails (2 of them)", "9 tokens"],
        ),
    ],
    ids=str,
)
def test_a_bad_question_is_refused_before_or_with_all_its_points(model, tmp_path, options, words):
    store = tmp_path / "s.jsonl"
    said = refused(model, store=store, **options)
    assert all(word in said for word in words)
    assert not store.exists()


def test_a_bad_model_is_refused_with_the_reader_s_own_words(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(MODEL.replace('c = "10 ms"', "c = 10"))
    assert f"{path}: engine.batch_time.c: 10 has no unit" in refused(path)
    path.write_text(MODEL.replace("rate = 10", ""))
    assert "workload.rate: missing" in refused(path, grid={"engine.b_max": [8]})
    assert small(path, grid={"workload.rate": [5]}, schedulers="sarathi").failed == 0


# Tables


def test_the_table_in_every_form(model, tmp_path):
    pandas = pytest.importorskip("pandas")
    result = small(model)
    frame = result.to_pandas()
    assert list(frame.columns) == result.columns
    assert len(frame) == 16
    assert [json.loads(line) for line in result.to_jsonl().splitlines()] == list(result.rows)
    csv = tmp_path / "t.csv"
    csv.write_text(result.to_csv())
    pandas.testing.assert_frame_equal(
        pandas.read_csv(csv)[["engine.b_max", "seed", "latency.e2e.p95"]],
        frame[["engine.b_max", "seed", "latency.e2e.p95"]],
    )
    assert result.to_dict()["failed"] == 4
    assert "vllm-vanilla" in result._repr_html_()
    groups = list(result.groups())
    assert [len(rows) for _, _, rows in groups] == [2] * 8
    assert groups[1][:2] == ({"engine.b_max": 8, "workload.rate": 5}, "vllm-vanilla")


# The file


def test_the_same_bytes_with_1_2_and_7_workers(model, tmp_path):
    kept = []
    for workers in (1, 2, 7):
        store = tmp_path / f"{workers}.jsonl"
        result = small(model, store=store, n_jobs=workers)
        kept.append((store.read_bytes(), result.rows, result.to_csv()))
    assert kept[0] == kept[1] == kept[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    path, store = folder / "model.toml", folder / "s.jsonl"
    path.write_text(MODEL)
    small(path, store=store)
    return path, store, store.read_bytes()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), seed=st.integers(0, 2**32), torn=st.booleans())
def test_wherever_it_is_cut_it_goes_on_to_the_same_bytes(finished, monkeypatch, share, seed, torn):
    """Lines in the order of any race, killed in the middle of any line, the end torn once more on top."""
    path, store, whole = finished
    head, *lines = whole.splitlines(keepends=True)
    random.Random(seed).shuffle(lines)
    body = b"".join(lines)
    cut = body[: round(share * len(body))]
    kept = cut.count(b"\n")
    store.write_bytes(head + cut + b'{"point": 1, "eng\n' * torn)
    ran = []
    monkeypatch.setattr(points_module, "run_point", lambda task: ran.append(task.point.index) or run_point(task))
    result = small(path, store=store)
    assert store.read_bytes() == whole
    assert len(ran) == len(set(ran)) == 16 - kept
    dropped = torn or not (head + cut).endswith(b"\n")
    assert any("torn line" in note for note in result.notes) == dropped


def test_points_are_in_the_file_as_they_come(model, tmp_path):
    store, seen = tmp_path / "s.jsonl", []
    small(
        model,
        store=store,
        progress=lambda done, points: seen.append((done, points, _lines(store))),
    )
    assert seen == [(0, 16, 0), *((done, 16, done + 1) for done in range(1, 17))]


def _lines(store):
    return len(store.read_bytes().splitlines()) if store.exists() else 0


def interrupted(*_):
    raise KeyboardInterrupt


def test_nothing_is_touched_before_the_first_result(model, tmp_path):
    """A finished file outlives a backend that is not there, an interruption, and a sweep of nothing but errors."""
    store = tmp_path / "s.jsonl"
    small(model, store=store)
    whole = store.read_bytes()
    assert "dask: " in refused(model, store=store, restart=True, backend="dask", n_jobs=None)
    assert store.read_bytes() == whole
    errors = {"schedulers": ["vllm-vanilla"], "grid": {"engine.b_max": [8]}}
    assert "every point fails" in refused(model, store=store, restart=True, **errors)
    assert store.read_bytes() == whole

    with pytest.raises(KeyboardInterrupt):
        small(model, store=store, restart=True, progress=interrupted)
    assert store.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.toml", "s.jsonl"]


def test_an_interrupted_run_never_removes_a_file_it_did_not_make(model, tmp_path):
    store = tmp_path / "s.jsonl"
    small(model, store=store)
    head, *lines = store.read_bytes().splitlines(keepends=True)
    errors = head + b"".join(line for line in lines if b'"error": null' not in line)
    store.write_bytes(errors)

    with pytest.raises(KeyboardInterrupt):
        small(model, store=store, progress=interrupted)
    assert store.read_bytes() == errors


def test_one_sweep_writes_a_file_at_a_time(model, tmp_path):
    store, said = tmp_path / "s.jsonl", []

    def meanwhile(done, _):
        if done == 3:
            said.append(refused(model, store=store))
            said.append(refused(model, store=store, restart=True))

    small(model, store=store, progress=meanwhile)
    assert said == [f"{store}: another run is writing it; wait for its end, or give another file"] * 2
    assert small(model, store=store).notes == (f"{store}: goes on after 16 finished points",)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"horizon": 4}, "horizon 3.0 there, 4.0 here"),
        ({"seeds": 3}, "seeds 2 there, 3 here"),
        ({"grid": {"engine.b_max": [8, 16]}}, "grid"),
        ({"schedulers": ["sarathi"]}, "schedulers"),
        ({"first_token": "engine"}, "first_token null there, engine here"),
    ],
    ids=str,
)
def test_a_file_of_another_question_is_refused_and_kept(finished, change, word):
    path, store, whole = finished
    store.write_bytes(whole)
    said = refused(path, store=store, **change)
    assert said.startswith(f"{store}: line 1: holds another sweep: ")
    assert word in said
    assert said.endswith("give another file, or --restart to begin anew")
    assert store.read_bytes() == whole


def test_a_changed_model_or_trace_is_another_question(model, tmp_path):
    store = tmp_path / "s.jsonl"
    small(model, store=store)
    model.write_text(MODEL + "\n# a remark changes nothing\n")
    assert small(model, store=store).notes == (f"{store}: goes on after 16 finished points",)
    model.write_text(MODEL.replace("decode = 3", "decode = 4"))
    assert "the model" in refused(model, store=store)
    assert small(model, store=store, restart=True).rows[0]["seed"] == 0
    (tmp_path / "t.csv").write_text("arrival,prefill,decode\n0,5,3\n1,5,3\n")
    model.write_text(MODEL.split("[workload]")[0] + '[workload]\narrivals = "trace"\ntrace = "t.csv"\n')
    options = {"grid": {"engine.b_max": [16]}, "seeds": 1}
    small(model, store=store, restart=True, **options)
    (tmp_path / "t.csv").write_text("arrival,prefill,decode\n0,5,3\n2,5,3\n")
    assert "the model" in refused(model, store=store, **options)


def test_a_file_of_another_version_is_refused(finished, monkeypatch):
    path, store, whole = finished
    newer = whole.replace(b"qt-llm/sweep/1", b"qt-llm/sweep/2", 1)
    store.write_bytes(newer)
    for said in (refused(path, store=store), _read_refused(store)):
        assert "qt-llm/sweep/2" in said
        assert "qt-llm/sweep/1" in said
        assert "--restart" in said
    assert store.read_bytes() == newer
    store.write_bytes(whole)
    monkeypatch.setattr(sweep_store, "__version__", "9.9.9")
    said = refused(path, store=store)
    assert "made by version 0.1.0" in said
    assert "this is 9.9.9" in said
    assert store.read_bytes() == whole


def _read_refused(path):
    with pytest.raises(qt.InvalidInput) as caught:
        qt.read_sweep(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "content", [b"precious\n", b"{}\n", b"[1]\n", b'{"schema": "qt-llm/simulate/1"}\n', b"\0\xff\n", b"[" * 100_000]
)
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_no_sweep_file_is_never_overwritten(model, tmp_path, content, restart):
    store = tmp_path / "s.jsonl"
    store.write_bytes(content)
    said = refused(model, store=store, restart=restart)
    assert said == f"{store}: line 1: is no header of a sweep; give another file"
    assert store.read_bytes() == content
    assert _read_refused(store) == said


def test_a_line_that_is_no_point_is_an_error(finished):
    path, store, whole = finished
    head, first, *_ = whole.splitlines(keepends=True)
    for line in (b'{"point": 16}\n', b'{"point": -1}\n', b'{"seed": 0}\n', b'{"point": true}\n', b'{"point": 0}\n'):
        store.write_bytes(head + line)
        assert f"{store}: line 2: is no point of this sweep" in refused(path, store=store)
    store.write_bytes(head + first + first.replace(b'"seed": 0', b'"seed": 1'))
    assert "line 3" in refused(path, store=store)
    store.write_bytes(b'{"schema": "qt-llm/sweep/1"}\n')
    assert "header of the sweep is damaged" in refused(path, store=store)
    assert "header of the sweep is damaged" in _read_refused(store)


def test_an_empty_file_is_begun_and_other_places_are_refused(model, tmp_path):
    store = tmp_path / "s.jsonl"
    store.touch()
    assert small(model, store=store).notes == ()
    assert "is a directory" in refused(model, store=tmp_path)
    assert "does not exist" in refused(model, store=tmp_path / "no" / "s.jsonl")
    assert "no such file" in _read_refused(tmp_path / "no.jsonl")
    assert "is a directory" in _read_refused(tmp_path)


def test_a_file_is_read_back_finished_or_not(finished):
    path, store, whole = finished
    store.write_bytes(whole)
    result, again = small(path), qt.read_sweep(store)
    assert again.rows == result.rows
    assert again.to_dict() == {**result.to_dict(), "model": again.model}
    store.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]) + b"{")
    part = qt.read_sweep(store)
    assert len(part.rows) == 3
    assert [note.partition(": ")[2] for note in part.notes] == [
        "1 torn line left out",
        "13 of 16 points are not finished",
    ]


def test_a_full_disk_is_one_line_and_keeps_the_points(model, tmp_path, monkeypatch):
    store = tmp_path / "s.jsonl"
    write, calls = sweep_store.os.write, []

    def full(file, data):
        calls.append(data)
        return write(file, data[:10] if len(calls) == 4 else data)

    monkeypatch.setattr(sweep_store.os, "write", full)
    said = refused(model, store=store)
    assert said.startswith(f"{store}: cannot be written")
    monkeypatch.undo()
    assert f"{store}: goes on after 4 finished points" in small(model, store=store).notes


@pytest.mark.parametrize(
    ("line", "old", "new", "fault"),
    [
        (1, '"workload.rate": 8', '"workload.rate": 99', "line 2: is no point of this sweep"),
        (1, '"seed": 0', '"seed": 3', "line 2: is no point of this sweep"),
        (1, '"error": null', '"error": 5', "line 2: is no point of this sweep"),
        (0, '"points": 2', '"points": 1000000', "line 1: holds another sweep: its header is damaged"),
    ],
)
def test_a_store_that_was_edited_is_refused(tmp_path, line, old, new, fault):
    store = tmp_path / "s.jsonl"
    asked = {"grid": {"workload.rate": [8, 9]}, "horizon": 20, "n_jobs": 1, "store": store}
    qt.sweep("codellama-34b-a100", **asked)
    lines = store.read_text().splitlines(keepends=True)
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    store.write_text("".join(lines))
    with pytest.raises(InvalidInput, match=fault):
        qt.sweep("codellama-34b-a100", **asked)


def test_a_number_that_is_none_is_a_torn_line(tmp_path):
    store = tmp_path / "s.jsonl"
    asked = {"grid": {"workload.rate": [8, 9]}, "horizon": 20, "n_jobs": 1, "store": store}
    whole = qt.sweep("codellama-34b-a100", **asked)
    lines = store.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"load": ', '"load": NaN, "was": ')
    store.write_text("".join(lines))
    again = qt.sweep("codellama-34b-a100", **asked)
    assert again.rows == whole.rows
    assert any("torn" in note for note in again.notes)
