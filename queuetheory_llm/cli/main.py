"""Entry point of ``qt-llm``: the list of commands and the exit codes.

0 answered; 1 a check that was asked for fails; 2 bad input, one ``error: `` line a fault on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnusedCliTokensError

from queuetheory_llm import __version__
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.errors import InvalidInput, QueueTheoryError

#: Command -> one line of help. Each is the function of the same name in the module of the same name, imported
#: when it runs: the start of the program pays for no numerical library.
COMMANDS = {
    "region": "Draw the stability region: vertices, schedulers, operating point and its margin.",
    "capacity": "Largest stable requests/s per scheduler, and the limit that binds.",
    "classify": "Schedulers x topologies: work-conserving? K-FCFS? throughput-optimal?",
    "simulate": "Run one system: verdict, token drift, latencies, batch log.",
    "markov": "Exact stationary law of one engine: means with error bounds, tail, drift, export.",
    "network": "Verdict on a network: loads, virtual stations, the proof, the largest scale of its rates.",
    "fluid": "Path of the fluid model: emptying time or growth factor, overloads over time.",
    "dispatch": "Dispatch rules on unlike instances side by side: capacity, latencies, deadlines, limits, tuning.",
    "check": "Check certificates again, in exact arithmetic: every condition of the proof.",
    "sweep": "Simulate every combination of model values, schedulers and seeds, on all cores or a cluster.",
    "fit": "Fit a batch-time law to a GPU profile and write a model file.",
    "models": "List the packaged models and their sources.",
}


#: What takes less memory, by command.
_LESS = {
    "region": "a shorter --trace or a smaller b_max",
    "capacity": "a shorter --trace, fewer --engines or a smaller b_max",
    "simulate": "a shorter --horizon, a lower --rate or fewer --engines",
    "network": "a network of fewer classes",
    "fluid": "a network of fewer classes, or a shorter --horizon",
    "dispatch": "fewer --queries or --replications",
    "markov": "a lower --level, a larger --tolerance or a --memory below what is free",
    "sweep": "a shorter --horizon, fewer --workers or fewer --engines",
    "fit": "a profile of fewer lines",
}
_LONGEST_WORD, _LONGEST_LINE = 200, 800  # characters of an error; the lists of known formats take 700


def build_app() -> App:
    """The command-line application, all commands registered by import path."""
    app = App(
        name="qt-llm",
        help="Is this LLM serving system stable, how far from the edge, and what moves the edge?",
        version=__version__,
        help_format="plaintext",
    )
    for name, summary in COMMANDS.items():
        app.command(f"queuetheory_llm.cli.{name}:{name}", name=name, help=summary)
    return app


def answer(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every expected failure becomes one-line errors."""
    try:
        result = build_app()(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except UnusedCliTokensError as error:
        command = f"qt-llm {arguments[0]}" if arguments and arguments[0] in COMMANDS else "qt-llm"
        left = " ".join(error.unused_tokens or ())
        return _refuse([f"{left}: {command} takes no such argument; leave it out, or see {command} --help"])
    except CycloptsError as error:
        return _refuse([_one_line(str(error))])
    except InvalidInput as error:
        return _refuse(error.faults)
    except QueueTheoryError as error:
        return _refuse([_one_line(str(error))])
    return result if isinstance(result, int) else 0


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse(faults: Sequence[str]) -> int:
    for fault in faults:
        line = " ".join(_shortened(word, _LONGEST_WORD) for word in fault.split())
        say(f"error: {_shortened(line, _LONGEST_LINE)}", to=sys.stderr)
    return 2


def _shortened(text: str, most: int) -> str:
    """The text without its middle where it is too long: the place is named first, the mending last."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def run() -> None:
    """Console script."""
    sys.exit(_code())


def _code() -> int:
    if sys.stderr is None:  # notes go nowhere, and not to stdout, where print would send them
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - as long as the program
    if sys.stdout is None:
        return _refuse(["stdout: is closed; open it, or send it to /dev/null"])
    try:
        code = answer(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        _drop_stdout()
        return 141
    except MemoryError as error:
        what = str(error).rstrip(".") or "the arrays do not fit"
        return _refuse([f"memory: {what}; give {_LESS.get(''.join(sys.argv[1:2]), 'a smaller model')}"])
    except OSError as error:  # those of files are one-line errors already
        _drop_stdout()
        return _refuse([f"{error.filename or 'stdout'}: {error.strerror or error}; write to another place"])
    return code


def _drop_stdout() -> None:
    """Let the interpreter flush what is left to nowhere: it would complain, and exit with a code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
