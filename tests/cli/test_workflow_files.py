"""Workflow files where networks are read, and certificates about clusters at the command line."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from queuetheory_llm.cli.main import answer
from queuetheory_llm.files.certificates import write_certificate
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.files.workflow_file import load_workflow
from queuetheory_llm.stability.cluster_capacity import cluster_capacity


def test_a_workflow_file_is_the_network_of_its_best_split(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates 2.4 in 2 : 1, loads .8 at both servers."""
    network = load_network("two-servers")
    assert [come.arrivals.rate for come in network.arrivals] == [Fraction(8, 5), Fraction(4, 5)]
    assert answer(["network", "two-servers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "STABLE"
    assert [each["load_exact"] for each in found["stations"]] == ["4/5", "4/5"]
    assert answer(["fluid", "two-servers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "two-servers"


def test_an_instance_that_is_no_station_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["network", "hexgen-cluster-1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("instance[" in line and "seats = 1" in line for line in lines)


def test_certificates_about_a_cluster_are_checked_against_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("two-servers", "hexgen-cluster-1"):
        path = tmp_path / f"{name}.json"
        write_certificate(path, cluster_capacity(load_workflow(name)).certificate())
        assert answer(["check", str(path), "--model", name]) == 0
        assert "static split" in capsys.readouterr().out
    assert answer(["check", str(tmp_path / "two-servers.json"), "--model", "hexgen-cluster-1"]) == 1
    assert "in the model file" in capsys.readouterr().err
    over = tmp_path / "over.json"
    write_certificate(over, cluster_capacity(load_workflow("two-servers").with_rate(Fraction(4))).certificate())
    assert answer(["check", str(over)]) == 0
    assert "UNSTABLE" in capsys.readouterr().out
    assert answer(["check", str(over), "--model", "two-servers"]) == 1
    capsys.readouterr()
    assert answer(["check", str(over), "--model", "rybko-stolyar"]) == 1
    assert "cluster of instances" in capsys.readouterr().err
