"""The line a terminal gets while the runner is compiled for the first time."""

import sys
from types import SimpleNamespace

from numba import njit
from numba.core import event

from queuetheory_llm.cli.compiling import compile_note


def compile_kept_code():
    """What numba announces when it compiles a function that it will keep on disk."""
    dispatcher = SimpleNamespace(_cache=object())
    for _ in range(2):
        with event.trigger_event("numba:compile", data={"dispatcher": dispatcher}):
            pass


def test_said_once(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with compile_note():
        compile_kept_code()
    compile_kept_code()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("compiling the runner")


def test_nothing_of_what_is_compiled_for_one_run(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with compile_note():
        assert njit(lambda x: x + 1)(1) == 2
    assert capsys.readouterr().err == ""


def test_nothing_where_stderr_is_no_terminal(capsys):
    with compile_note():
        compile_kept_code()
    assert capsys.readouterr().err == ""
