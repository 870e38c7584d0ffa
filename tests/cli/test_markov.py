"""``qt-llm markov``: the answer, its object, its files, and one line for whatever is wrong."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction

import pytest

from queuetheory_llm.cli import markov as command
from queuetheory_llm.cli.main import answer
from queuetheory_llm.errors import AssumptionViolated, InvalidInput, InvalidModel, NotConverged

ENGINE = """
[engine]
b_max = {b_max}
[engine.batch_time]
law = "staircase"
c = "0.2 s"
a = "0.3 s"
b0 = 2
"""
WORKLOAD = """
[workload]
arrivals = "poisson"
rate = {rate}
prefill = {prefill}
decode = {decode}
"""


@pytest.fixture
def model(tmp_path):
    def written(*, b_max=4, rate="0.8", prefill="1", decode="2"):
        path = tmp_path / "model.toml"
        path.write_text(ENGINE.format(b_max=b_max) + WORKLOAD.format(rate=rate, prefill=prefill, decode=decode))
        return str(path)

    return written


def run(capsys, *arguments):
    code = answer(["markov", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def refused(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def cell(out, name):
    """The mean and the error bound of a line of the table."""
    (found,) = re.findall(rf"^{re.escape(name)} +(\S+) +(\S+)$", out, flags=re.M)
    return tuple(map(float, found))


def test_the_object_of_one_chain(capsys):
    found = report(capsys)
    assert found["schema"] == "qt-llm/markov/1"
    assert found["mean_requests"] == pytest.approx(1.3006450141, abs=1e-7)
    assert found["p_idle"] + found["utilisation"] == pytest.approx(1)
    assert found["mean_backlog_tokens"] > found["mean_requests"]
    assert found["counted_at"] == "slot start, after arrivals"
    cut = found["truncation"]
    assert cut["level"] > 3
    assert 0 <= cut["mass"] < 1e-6
    assert 0 < cut["bound"] == cut["bounds"]["requests"] <= 1e-6 * found["mean_requests"]
    assert sum(found["requests_law"]) == pytest.approx(1)
    assert found["verdict"] == "STABLE"
    assert found["basis"] == "theorem"
    assert not {"after", "simulated"} & set(found)


def test_the_law_of_the_token_backlog_at_boundaries(capsys, model, monkeypatch):
    for lengths in ({}, {"decode": '{ law = "geometric", mean = 3 }'}):
        found = report(capsys, model(rate="0.4", **lengths))["boundary"]
        law = found["backlog_law"]
        assert sum(law) == pytest.approx(1)
        assert law[0] == pytest.approx(found["p_empty"])
        assert sum(tokens * chance for tokens, chance in enumerate(law)) == pytest.approx(found["mean_backlog_tokens"])
    monkeypatch.setattr("queuetheory_llm.markov.chain._LONGEST_WRITTEN", 32)
    assert report(capsys, model(rate="0.4"))["boundary"]["backlog_law"] is None


def test_several_schedulers_are_a_list_and_a_row_each(capsys):
    names = ["sarathi", "orca", "vllm-vanilla", "fastertransformer"]
    flags = [text for name in names for text in ("--scheduler", name)]
    found = report(capsys, *flags)["results"]
    assert [each["scheduler"] for each in found] == names
    means = [1.3006450141, 1.5937551539, 1.5937551539, 2.925]
    assert [each["mean_requests"] for each in found] == pytest.approx(means, rel=1e-6)
    code, out, _ = run(capsys, *flags)
    assert code == 0
    assert all(re.search(rf"^{name} +STABLE .*\d$", out, flags=re.M) for name in names)


def test_the_text_says_what_is_known_and_how_well(capsys, model):
    code, out, err = run(capsys, model())
    assert (code, err) == (0, "")
    found = report(capsys, model())
    for name, key in (
        ("requests present", "mean_requests"),
        ("token backlog", "mean_backlog_tokens"),
        ("sojourn, s", "mean_sojourn_s"),
        ("  until the prompt is done, s", "mean_prompt_time_s"),
        ("  from there to the last token, s", "mean_decode_time_s"),
        ("P(idle)", "p_idle"),
        ("utilisation", "utilisation"),
    ):
        mean, error = cell(out, name)
        assert abs(mean - found[key]) <= error <= 2e-6 * max(1, mean)
    assert "counted over time" in out
    assert "at batch end or end of an idle time, after arrivals (another law):" in out
    assert f"chain: {found['truncation']['states']} states and {found['truncation']['transitions']} transitions" in out
    assert "falls by eps =" in out
    assert "engine idle: V changes by +" in out
    assert "recurrence" not in out


def test_no_digit_is_printed_that_a_coarse_bound_leaves_open(capsys, model):
    _, fine, _ = run(capsys, model(), "--tolerance", "1e-9")
    _, coarse, _ = run(capsys, model(), "--tolerance", "1e-2")
    for name in ("requests present", "token backlog", "sojourn, s"):
        (mean, error), (true, _) = cell(coarse, name), cell(fine, name)
        assert abs(mean - true) <= error
        assert error <= 1.1e-2 * mean


@pytest.mark.parametrize("tolerance", ["1e-3", "1e-5", "1e-8"])
def test_the_cut_does_not_bend_the_tail_that_is_told(capsys, tmp_path, tolerance):
    """One token a slot, Poisson(.9) arrivals: P(more than n) falls by 1/z a request, z > 1 with z = e^.9(z-1)."""
    path = tmp_path / "slots.toml"
    path.write_text(
        '[engine]\nb_max = 1\n[engine.batch_time]\nlaw = "table"\ntokens = [1]\nseconds = [1]\n[workload]\n'
        'arrivals = "slotted"\nslot = "1 s"\nper_slot = { law = "poisson", mean = 0.9 }\nprefill = 0\ndecode = 1\n'
    )
    z = 2.0
    for _ in range(60):  # Newton's iteration
        z -= (math.exp(0.9 * (z - 1)) - z) / (0.9 * math.exp(0.9 * (z - 1)) - 1)
    assert z > 1.1
    told = report(capsys, str(path), "--tolerance", tolerance)["tail_decay"]
    assert told == pytest.approx(1 / z, abs=1e-4) or (told is None and tolerance != "1e-8")


def test_a_tail_that_is_too_short_is_not_told(capsys):
    question = "--prefill", "1", "--decode", "1", "--rate", "0.5"  # two requests are present at most
    assert "tail: not seen far enough" in run(capsys, *question)[1]
    assert report(capsys, *question)["tail_decay"] is None


def test_the_tail_is_told_with_where_it_was_read(capsys):
    _, out, _ = run(capsys, "--scheduler", "fastertransformer")
    found = report(capsys, "--scheduler", "fastertransformer")
    start, end = found["tail_range"]
    assert f"from {start} to {end} requests, each further one is {found['tail_decay']:.3g} times as likely" in out
    beyond = [sum(found["requests_law"][count + 1 :]) for count in (start, end)]
    assert (beyond[1] / beyond[0]) ** (1 / (end - start)) == pytest.approx(found["tail_decay"], rel=1e-6)


def test_quantiles_are_those_of_the_law(capsys):
    _, out, _ = run(capsys)
    law = report(capsys)["requests_law"]
    found = re.search(r"so much of the time: (\d+) \(50 %\), (\d+) \(95 %\), (\d+) \(99 %\), (\d+) \(99.9 %\)", out)
    assert found is not None
    for text, share in zip(found.groups(), (0.5, 0.95, 0.99, 0.999), strict=True):
        least = int(text)
        assert sum(law[:least]) < share <= sum(law[: least + 1])


def test_a_rule_that_does_not_fill_has_no_such_lyapunov_function(capsys):
    _, out, _ = run(capsys, "--prefill", "1", "--decode", "1", "--rate", "0.6", "--scheduler", "vllm-vanilla")
    assert "no Lyapunov function of this scheduler" in out


def test_a_chain_that_ends_below_the_level_refutes_nothing(capsys):
    """Two tokens a slot and requests of two, Bernoulli(.5): four states, and V falls by a token in one of them."""
    question = "--prefill", "1", "--decode", "1", "--rate", "0.5"
    _, out, _ = run(capsys, *question)
    assert "no Lyapunov" not in out
    assert "falls by eps = 1 tokens a slot" in out
    assert "no request is ever refused: the engine reaches no other states" in out
    found = report(capsys, *question)["drift"]
    assert found["exceptional_set"] == "NOT_SEEN"
    assert (found["epsilon_tokens"], found["exceptional_states"]) == (1, 3)


def test_a_periodic_chain_says_so(capsys, tmp_path):
    """One request a slot under FasterTransformer: prompts and decodes take turns for ever."""
    path = tmp_path / "slots.toml"
    path.write_text(
        '[engine]\nb_max = 3\n[engine.batch_time]\nlaw = "table"\ntokens = [3]\nseconds = [1]\n[workload]\n'
        'arrivals = "slotted"\nslot = "1 s"\nper_slot = { law = "bernoulli", p = 1 }\nprefill = 1\ndecode = 1\n'
    )
    found = report(capsys, str(path), "--scheduler", "fastertransformer")
    assert found["recurrence"]["period"] == 2
    _, out, _ = run(capsys, str(path), "--scheduler", "fastertransformer", "--after", "1000")
    assert "period 2: the law after n batches keeps depending on n" in out
    run(capsys, str(path), "--scheduler", "fastertransformer", "--export", "prism", "--to", str(tmp_path / "x.prism"))
    assert "has period 2" in (tmp_path / "x.prism").read_text()


def test_the_law_after_some_batches_tends_to_the_stationary_one(capsys):
    empty, early, late = (report(capsys, "--after", steps)["after"] for steps in ("0", "3", "300"))
    assert empty["mean_requests"] == 0
    assert empty["total_variation"] > early["total_variation"] > late["total_variation"]
    assert late["total_variation"] < 1e-9
    assert late["mean_requests"] == pytest.approx(report(capsys)["mean_requests"])
    _, out, _ = run(capsys, "--after", "3")
    assert "after 3 slots from the empty engine" in out


def test_a_simulation_beside_it_agrees(capsys, model):
    found = report(capsys, model(), "--simulate", "--seed", "5", "--horizon", "20000")
    runs = found["simulated"]
    assert runs["replications"] == 8
    assert runs["low95"] < runs["mean_requests"] < runs["high95"]
    assert abs(runs["mean_requests"] - found["mean_requests"]) < 4 * runs["standard_error"]
    assert runs["standard_errors_apart"] < 4
    assert report(capsys, model(), "--simulate", "--seed", "5", "--horizon", "20000") == found
    code, out, err = run(capsys, model(), "--simulate", "--horizon", "20000")
    assert (code, err) == (0, "")
    assert "simulation agrees: " in out


def test_a_simulation_too_short_to_tell_says_so(capsys):
    _, out, _ = run(capsys, "--simulate", "--horizon", "40")
    assert "simulation is too short to tell: " in out
    assert "agrees" not in out


def test_a_simulation_that_disagrees_is_a_warning(capsys, model, monkeypatch):
    true = command.requests_present
    monkeypatch.setattr(
        command,
        "requests_present",
        lambda engine, rule, workload, **flags: true(
            engine, rule, workload.with_arrivals(workload.arrivals.with_rate(Fraction(1, 2))), **flags
        ),
    )
    code, out, err = run(capsys, model(), "--simulate", "--horizon", "20000")
    assert code == 0
    assert "simulation DISAGREES" in out
    assert err.startswith("warning: sarathi: the simulated mean is ")


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_figure_is_written_with_its_simulation(capsys, tmp_path, suffix):
    path = tmp_path / f"law.{suffix}"
    code, out, _ = run(capsys, "-o", str(path), "--horizon", "2000")
    assert code == 0
    assert out.endswith(f"wrote {path}\n")
    assert "simulation agrees" in out
    code, out, _ = run(capsys, "-o", str(path), "--no-simulate")
    assert "simulation" not in out
    assert path.stat().st_size > 0


def test_the_chain_is_exported(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "--export", "prism")
    assert code == 0
    assert out.endswith("wrote two-token-slots-sarathi.prism\n")
    assert "dtmc" in (tmp_path / "two-token-slots-sarathi.prism").read_text()
    _, out, _ = run(capsys, "--export", "storm", "--to", str(tmp_path / "chain"))
    assert f"wrote {tmp_path / 'chain.tra'}\n" in out
    assert {"chain.tra", "chain.lab"} <= {path.name for path in tmp_path.iterdir()}
    _, out, _ = run(capsys, "--export", "prism", "--to", str(tmp_path / "own.pm"))
    assert f"wrote {tmp_path / 'own.pm'}\n" in out


def test_progress_is_quiet_where_nobody_sees_it(capsys, model):
    assert run(capsys, model(), "--simulate", "--horizon", "2000")[2] == ""


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--level", "x"], "--level: 'x' is not a number"),
        (["--level", "0"], "--level: 0 is not positive"),
        (["--level", "1"], "error: --level: 1 tokens is outside 1 .. 100000000 requests of 3 tokens"),
        (["--tolerance", "0"], "--tolerance: 0 is not positive"),
        (["--tolerance", "1"], "--tolerance: 1 is not below 1"),
        (["--tolerance", "-1e-3"], "--tolerance: -1e-3 is below 0"),
        (["--cut", "2"], "--cut: 2 is not below 1"),
        (["--cut", "nan"], "--cut: nan is not finite"),
        (["--memory", "2"], "--memory: '2' is no amount of memory"),
        (["--memory", "1 KB"], "--memory: 1 KB is outside 1 MB"),
        (["--after", "1.5"], "--after: 1.5 is not a whole number"),
        (["--after", "-1"], "--after: -1 is below 0"),
        (["--after", "1e8"], "--after: 100000000 is above 1000000"),
        (["--simulate", "--horizon", "0"], "--horizon: 0 is not positive"),
        (["--simulate", "--seed", "x"], "--seed: 'x' is no whole number"),
        (["--horizon", "10"], "--horizon: nothing is simulated"),
        (["--seed", "1"], "--seed: nothing is simulated"),
        (["--rate", "0"], "--rate: 0 is not positive"),
        (["--prefill", "1"], "--decode: missing"),
        (["--scheduler", "fifo"], "fifo"),
        (["--export", "dot"], "--export"),
        (["--to", "x.prism"], "--to: nothing is exported"),
        (["--export", "prism", "--to", "absent/x"], "create it first"),
        (["--export", "storm", "--to", ".tra"], "--to: '.tra': has no name before its ending; write NAME"),
        (["--export", "storm", "--to", ""], "--to: '.tra': has no name before its ending; write NAME"),
        (["--export", "prism", "--to", " "], "--to: ' .prism': has no name before its ending; write NAME"),
        (["--export", "prism", "--to", "two\nlines"], "has a line end in it; give a name of one line"),
        (["-o", "absent/x.svg"], "create it first"),
        (["-o", "x.jpg"], "has an unknown ending"),
        (["-o", "x.svg", "--scheduler", "orca", "--scheduler", "sarathi"], "-o: it holds one chain"),
        (["--export", "prism", "--scheduler", "orca", "--scheduler", "sarathi"], "--export: it holds one chain"),
        (["no-such-model"], "no-such-model"),
    ],
)
def test_flags_are_refused_before_any_work(capsys, monkeypatch, tmp_path, flags, what):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("queuetheory_llm.markov.chain.Question.answer", lambda *_, **__: pytest.fail("began to work"))
    assert what in refused(capsys, *flags)
    assert not list(tmp_path.iterdir())


def test_a_model_is_not_written_over(capsys, tmp_path):
    path = tmp_path / "model.prism"
    path.write_text(ENGINE.format(b_max=4) + WORKLOAD.format(rate=1, prefill=1, decode=1))
    before = path.read_text()
    assert "write to another one" in refused(capsys, str(path), "--export", "prism", "--to", str(path))
    assert path.read_text() == before


@pytest.mark.parametrize("name", ["m.lab", "m.txt", "m.requests.srew"])
def test_a_model_is_not_written_over_by_a_file_beside_the_named_one(capsys, tmp_path, name):
    path = tmp_path / name
    path.write_text(ENGINE.format(b_max=4) + WORKLOAD.format(rate=1, prefill=1, decode=1))
    err = refused(capsys, str(path), "--export", "storm", "--to", str(tmp_path / "m.tra"))
    assert f"--to ({name}): {path} is the file of the model; write to another one" in err
    assert list(tmp_path.iterdir()) == [path]


def test_a_figure_is_not_written_over_by_a_file_of_the_set(capsys, tmp_path):
    (tmp_path / "m.txt").symlink_to("law.svg")
    flags = ["--export", "storm", "--to", str(tmp_path / "m.tra"), "-o", str(tmp_path / "law.svg")]
    assert "is the file of -o; write to another one" in refused(capsys, *flags)


def test_the_named_file_keeps_its_name(capsys, tmp_path):
    (tmp_path / "a.tra").write_text("another one")
    _, out, _ = run(capsys, "--export", "storm", "--to", str(tmp_path / "A.TRA"))
    assert f"wrote {tmp_path / 'A.TRA'}\n" in out
    assert (tmp_path / "a.tra").read_text() == "another one"


def test_an_unbounded_law_needs_a_cut(capsys, model):
    path = model(prefill='{ law = "geometric", mean = 2 }')
    err = refused(capsys, path)
    assert f"{path}: prefill: a geometric law has no largest value" in err
    assert "--cut 1e-12" in err
    code, _, notes = run(capsys, path, "--cut", "1e-2", "--rate", "0.3")
    assert code == 0
    assert "note: lengths: cut where" in notes
    assert report(capsys, model(decode='{ law = "geometric", mean = 2 }'))["mean_requests"] > 0


def test_two_unbounded_laws_are_two_lines(capsys, model):
    unbounded = '{ law = "poisson", mean = 2 }'
    code, out, err = run(capsys, model(prefill=unbounded, decode=unbounded))
    assert (code, out) == (2, "")
    assert [line.split(": ")[2] for line in err.splitlines()] == ["prefill", "decode"]


def test_a_chain_beyond_the_memory_says_its_size(capsys, model, tmp_path):
    figure, chain = tmp_path / "f.svg", tmp_path / "c.prism"
    err = refused(
        capsys, model(), "--memory", "1 MB", "--rate", "1.6", "-o", str(figure), "--export", "prism", "--to", str(chain)
    )
    assert re.search(r"model.toml: sarathi: the chain up to \d.* has .*\d states", err)
    assert "--memory" in err
    assert "far fewer states where decode lengths are geometric" in err
    assert not figure.exists()
    assert not chain.exists()


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [("4", "UNSTABLE, so there is no stationary law"), ("5/3", "CRITICAL, so no stationary law is promised")],
)
def test_a_system_without_a_stationary_law_is_refused_with_the_reason(capsys, model, rate, verdict):
    err = refused(capsys, path := model(), "--rate", rate)
    assert f"error: {path}: sarathi: {verdict}: " in err
    assert "lower the rate" in err


def test_of_several_the_unstable_one_is_a_row_without_means(capsys):
    flags = ["--rate", "0.6", "--scheduler", "fastertransformer", "--scheduler", "sarathi"]
    unstable, stable = report(capsys, *flags)["results"]
    assert stable["mean_requests"] > 0
    assert set(unstable) == {"scheduler", "verdict", "basis", "reason", "load"}
    assert (unstable["scheduler"], unstable["verdict"], unstable["load"]) == ("fastertransformer", "UNSTABLE", 1.2)
    code, out, err = run(capsys, *flags)
    assert (code, err) == (0, "")
    assert re.search(r"^fastertransformer +UNSTABLE +1.2( +-){8}$", out, flags=re.M)
    assert re.search(r"^sarathi +STABLE +0.9 +2.86", out, flags=re.M)
    assert f"fastertransformer: UNSTABLE: {unstable['reason']}\n" in out
    _, out, _ = run(capsys, "--rate", "2/3", "--scheduler", "orca", "--scheduler", "sarathi")
    assert len(re.findall(r"^(?:orca|sarathi) +CRITICAL +1( +-){8}$", out, flags=re.M)) == 2


def test_of_several_a_rule_that_can_never_run_is_found_before_the_others_are_solved(capsys, monkeypatch, model):
    monkeypatch.setattr(command, "exact_chain", lambda *_, **__: pytest.fail("began to solve"))
    path = model(prefill="9")
    err = refused(capsys, path, "--scheduler", "sarathi", "--scheduler", "vllm-vanilla")
    assert f"{path}: workload: a prompt of 9 tokens can never run" in err


def test_a_row_says_how_well_its_means_are_known(capsys):
    """FasterTransformer's mean is 2.925; a coarse tolerance leaves it few digits, and the row says how wrong."""
    flags = ["--scheduler", "fastertransformer", "--scheduler", "sarathi"]
    for tolerance in ("1e-2", "1e-8"):
        _, out, _ = run(capsys, *flags, "--tolerance", tolerance)
        (row,) = re.findall(r"^fastertransformer +STABLE +\S+ +(\S+) +\S+ +\S+ +\S+ +(\S+) ", out, flags=re.M)
        mean, error = map(float, row)
        assert abs(mean / 2.925 - 1) <= error <= 1.1 * float(tolerance)
    assert re.search(r" error at most +p99 +decay +level$", out, flags=re.M)
    assert "each further request is so many times as likely" in out


def test_arrivals_that_remember_are_refused(capsys):
    err = refused(capsys, "codellama-34b-a100-k100")
    assert "k100: workload: arrivals: deterministic arrivals remember when the last request came" in err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (AssumptionViolated("the Poisson equation needs"), "two-token-slots: sarathi: the Poisson equation needs"),
        (NotConverged("known to 1e-3; allow a larger tolerance"), "two-token-slots: sarathi: known to 1e-3; allow a "),
        (InvalidInput(["tolerance: 2 is outside", "scheduler x: not"]), "--tolerance: 2 is outside"),
        (InvalidInput("horizon: 1e+14 s do not fit"), "--horizon: 1e+14 s do not fit"),
        (InvalidInput("tail: 2 is no probability"), "--cut: 2 is no probability"),
        (InvalidModel("slot: 1 s, but"), "two-token-slots: slot: 1 s, but"),
        (InvalidInput("prefill: no", source="other.toml"), "other.toml: prefill: no"),
    ],
)
@pytest.mark.parametrize("stage", ["exact_chain", "requests_present"])
def test_whatever_fails_says_where(capsys, monkeypatch, stage, error, line):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(command, stage, fails)
    code, out, err = run(capsys, "--simulate")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {line}")
    assert "geometric" not in err
    if len(getattr(error, "faults", ())) == 2:
        assert "\nerror: two-token-slots: scheduler x: not\n" in err


def test_a_model_without_a_rate_says_what_to_give(capsys):
    assert "vllm-default: workload.rate: missing; give the workload a rate, or --rate R" in refused(
        capsys, "vllm-default"
    )
    err = refused(capsys, "hexgen-a100")
    assert "hexgen-a100: workload: missing; " in err
    assert "--trace" not in err


def test_a_prompt_that_never_fits_is_refused(capsys, model):
    path = model(prefill="9")
    assert f"{path}: workload: a prompt of 9 tokens can never run" in refused(
        capsys, path, "--scheduler", "vllm-vanilla"
    )
