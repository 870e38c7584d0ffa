"""The same call on real clusters: a Dask cluster of two worker processes, and Ray where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import queuetheory_llm as qt

ROOT = Path(__file__).resolve().parents[2]
QUESTION = {"grid": {"workload.rate": [4, 20]}, "schedulers": ["sarathi", "orca"], "seeds": 2, "horizon": 20}
#: In a process of its own: whatever threads and children a cluster leaves end with it.
PROGRAM = """
import sys
import queuetheory_llm as qt

QUESTION = {question}

def on_dask():
    from dask.distributed import Client, LocalCluster
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster) as client:
        assert len(set(client.run(__import__("os").getpid).values())) == 2
        qt.sweep("codellama-34b-a100", **QUESTION, backend="dask", store=sys.argv[1])

def on_ray():
    qt.sweep("codellama-34b-a100", **QUESTION, backend="ray", store=sys.argv[1])

if __name__ == "__main__":
    {function}()
"""


@pytest.mark.parametrize(("function", "library"), [("on_dask", "distributed"), ("on_ray", "ray")])
def test_a_cluster_makes_the_same_bytes(function, library, tmp_path):
    pytest.importorskip(library)
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    qt.sweep("codellama-34b-a100", **QUESTION, n_jobs=1, store=here)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(question=QUESTION, function=function))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(program), str(there)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert there.read_bytes() == here.read_bytes()


def test_dask_without_a_client_is_one_line():
    pytest.importorskip("distributed")
    with pytest.raises(qt.InvalidInput, match="there is no client"):
        qt.sweep("codellama-34b-a100", **QUESTION, backend="dask")
