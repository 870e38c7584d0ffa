"""Tables as they are printed: no cell broken, numbers aligned right."""

from queuetheory_llm.cli.main import answer
from queuetheory_llm.cli.output import print_table


def test_no_cell_is_broken_however_wide_the_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    words = ["UNDECIDED", "vllm-vanilla", "a sentence of several words"] * 9
    print_table([f"column {index}" for index in range(len(words))], [words], title="a title " * 20)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "a title " * 20
    assert sum(all(word in line for word in words) for line in lines) == 1


def test_a_column_with_a_negative_number_is_aligned_right(capsys):
    print_table(["drift", "name"], [["-12.5", "-x"], ["3", "y"], ["-", ""]])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()][2:]
    assert [line.index(cell) + len(cell) for line, cell in zip(lines, ("-12.5", "3", "-"), strict=True)] == [5, 5, 5]
    assert lines[0].index("-x") == lines[1].index("y")


def test_the_source_of_a_model_stands_on_its_own_line(capsys):
    answer(["models"])
    assert "  url: https://arxiv.org/abs/2504.07347\n" in capsys.readouterr().out


def test_latencies_of_an_unstable_system_are_marked_and_the_first_token_is_explained(capsys):
    answer(["simulate", "--rate", "30", "--horizon", "60"])
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("e2e")]
    assert line.split()[1] == "-"
    assert all(cell.endswith("*") for cell in line.split()[2:6])
    assert "* of an UNSTABLE system: grows with the horizon" in out
    assert "--first-token engine" in out
    answer(["simulate", "--rate", "5", "--horizon", "60", "--first-token", "engine"])
    out = capsys.readouterr().out
    assert "*" not in out
    assert "--first-token engine" not in out


def test_a_sweep_says_why_it_decides_nothing_and_what_stars_and_dashes_mean(capsys):
    answer(["sweep", "--grid", "workload.rate=5,12,40", "--horizon", "3", "--workers", "1"])
    out = capsys.readouterr().out
    assert "measured UNDECIDED at 3 of 3 points; commonest reason: " in out
    assert "\n* of an UNSTABLE system" in out
    assert "\n-: no request has finished" in out


def test_a_load_near_1_does_not_read_1(capsys):
    answer(["region", "--rate", "13.871", "--scheduler", "sarathi"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "UNSTABLE" in line]
    assert float(line.split()[2]) > 1
