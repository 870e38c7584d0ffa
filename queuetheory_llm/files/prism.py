"""Writing a chain for probabilistic model checkers: the language of PRISM, or the explicit files of Storm.

A model in the language keeps the lines of a `Space`: one command moves a range of states, so its size is that of the
moves. The explicit files list every transition. Storm reads both. Formats: Kwiatkowska, Norman, Parker 2011, "PRISM
4.0"; Hensel, Junges, Katoen, Quatmann, Volk 2022, "The probabilistic model checker Storm".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO

import attrs
import numpy as np

from queuetheory_llm.arrays import Floats
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_apart, check_target, write_atomically, write_together
from queuetheory_llm.markov.edge import Flags, line_ends, may_refuse
from queuetheory_llm.markov.rewards import Rewards
from queuetheory_llm.markov.space import Space
from queuetheory_llm.model.arrivals import SlottedArrivals
from queuetheory_llm.model.chances import RequestLaw
from queuetheory_llm.schedulers.state import Left, State

#: Most updates (places a command leads to) of a model in the PRISM language: 50 bytes each; Storm reads 15 000 in 1 s.
MOST_UPDATES = 1_000_000
#: Most transitions of explicit files: 10 to 30 bytes each on disk, 70 in memory while they are written.
MOST_TRANSITIONS = 10_000_000
#: Endings of the file that is named, by format.
ENDINGS = {"prism": ("prism", "pm"), "storm": ("tra",)}
#: What states earn; see `rewards`.
REWARDS = ("requests", "backlog", "seconds", "tokens", "idle", "requests_seconds", "backlog_seconds")

_BLOCK = 1 << 16  # transitions formatted at a time
_Writer = Callable[[IO[bytes]], object]


def export(
    path: str | Path, chain: Rewards, *, title: str = "", notes: Sequence[str] = (), period: int = 1
) -> tuple[Path, ...]:
    """Write a chain for a model checker, all of it or nothing.

    Parameters
    ----------
    path : path
        NAME.prism or NAME.pm for a model in the PRISM language; NAME.tra for the explicit files of Storm, which are
        NAME.tra (transitions), NAME.lab (labels init, empty, full, level; see `labels`), NAME.REWARD.srew (one for each
        of `rewards`) and NAME.txt (what the states are).
    chain : Rewards
        The states, their moves and what they are worth.
    title, notes : str, sequence of str
        What the model is; written as comments.
    period : int
        Of the chain; a comment says what a period above 1 does to long-run averages.

    Returns
    -------
    tuple of Path
        The files written.

    Raises
    ------
    InvalidInput
        In one line: an unknown ending, a place that cannot be written, two names of one file, a chain above
        `MOST_UPDATES` or `MOST_TRANSITIONS`.
    """
    kind = check_export(path, chain)
    header = list(_header(chain, title, notes, period))
    if kind == "prism":
        write_atomically(path, partial(_write, _prism(chain, header)))
        return (Path(path),)
    files = export_files(path)
    write_together(dict(zip(files, _explicit(chain, header), strict=True)))
    return files


def export_files(path: str | Path) -> tuple[Path, ...]:
    """All files that `export` writes, the named one first."""
    named = Path(path)
    if _kind(named) == "prism":
        return (named,)
    endings = (".lab", *(f".{name}.srew" for name in REWARDS), ".txt")
    return (named, *(named.with_suffix(ending) for ending in endings))


def check_export(path: str | Path, chain: Rewards | None = None) -> str:
    """The format that a path asks for, "prism" or "storm"; for commands to call before the work, then without a chain.

    Raises
    ------
    InvalidInput
        See `export`.
    """
    name, endings = str(path), [ending for each in ENDINGS.values() for ending in each]
    if name.splitlines() not in ([], [name]):
        raise InvalidInput(f"{name!r}: has a line end in it; give a name of one line")
    if Path(path).stem.strip().lower() in ("", *(f".{ending}" for ending in endings)):
        raise InvalidInput(f"{name!r}: has no name before its ending; write NAME.prism or NAME.tra")
    check_target(path, endings)
    files = export_files(path)
    for each in files:
        check_target(each)
    check_apart({f"the file {each.name}": each for each in files}, {})
    kind = _kind(Path(path))
    if chain is not None:
        _check_size(path, kind, {"prism": updates(chain.space), "storm": chain.operator.transitions})
    return kind


def _kind(path: Path) -> str:
    """The format of an ending."""
    return next(kind for kind, endings in ENDINGS.items() if path.suffix.lstrip(".").lower() in endings)


def _check_size(path: str | Path, kind: str, sizes: Mapping[str, int]) -> None:
    """Refuse what is too large, with what would not be."""
    most = {"prism": MOST_UPDATES, "storm": MOST_TRANSITIONS}
    if sizes[kind] <= most[kind]:
        return
    other = next(each for each in most if each != kind)
    instead = f", or write NAME.{ENDINGS[other][0]}" if sizes[other] <= most[other] else ""
    what = {"prism": "updates in the PRISM language", "storm": "transitions in Storm's explicit files"}[kind]
    raise InvalidInput(
        f"{path}: the chain has {sizes[kind]} {what}, more than the {most[kind]} that are written; "
        f"give a lower --level{instead}"
    )


# ------------------------------------------------------------------------------------------------------ what is written


def rewards(chain: Rewards) -> dict[str, Floats]:
    """What a state earns until the next boundary, by name; arrays of shape (states,).

    ``requests`` present and ``backlog`` (expected tokens left) at the boundary; ``seconds`` until the next one, in the
    mean; ``tokens`` of the batch, in the mean; ``idle`` 1 in the empty engine; ``requests_seconds`` and
    ``backlog_seconds`` the mean integrals of those two until the next boundary, see `Rewards`.
    """
    idle = np.zeros(len(chain.space))
    idle[0] = 1.0
    return {
        "requests": chain.space.requests().astype(np.float64),
        "backlog": chain.space.backlog(),
        "seconds": chain.seconds,
        "tokens": chain.batch_tokens,
        "idle": idle,
        "requests_seconds": chain.requests,
        "backlog_seconds": chain.backlog,
    }


def labels(space: Space) -> dict[str, Flags]:
    """Where a label holds, by name; arrays of shape (states,).

    ``empty``: nobody is present. ``full``: an arrival may be refused until the next boundary. ``level``: no further
    request fits.
    """
    empty = np.zeros(len(space), dtype=np.bool_)
    empty[0] = True
    return {"empty": empty, "full": may_refuse(space), "level": line_ends(space)}


# -------------------------------------------------------------------------------------------------- the PRISM language


@attrs.frozen
class _Piece:
    """States of one core with ``low``..``high`` unseen, which the same moves take on."""

    core: int
    low: int
    high: int
    moves: tuple[int, ...]


def prism_text(chain: Rewards, title: str = "", notes: Sequence[str] = (), period: int = 1) -> Iterator[str]:
    """The lines of a model in the PRISM language, a discrete-time chain (dtmc), each with its line end; ASCII.

    The variables are ``core`` and ``unseen``, see `Space`; the probabilities are decimals of at most 17 significant
    digits that give back the floats of the chain. Rewards and labels are those of `rewards` and `labels`.
    """
    return _prism(chain, _header(chain, title, notes, period))


def _prism(chain: Rewards, header: Iterable[str]) -> Iterator[str]:
    space = chain.space
    yield "dtmc\n\n"
    yield from _comment(header)
    # Storm loses updates that leave everything as it was when a variable has one value only: none has.
    yield f"\nmodule engine\n  core : [0..{max(1, len(space.known) - 1)}] init 0;\n"
    yield f"  unseen : [0..{max(1, int(space.room.max()))}] init 0;\n"
    pieces = list(_pieces(space))
    for core, group in groupby(pieces, lambda piece: piece.core):
        yield from _comment([f"core {core}: {_content(space.cores[core])}"], "\n  ")
        for piece in group:
            yield f"  [] {_guard(space, piece.core, piece.low, piece.high)} ->\n     {_updates(space, piece)};\n"
    yield "endmodule\n\n"
    for name, holds in labels(space).items():
        yield f'label "{name}" = {_anywhere(space, holds)};\n'
    yield from _rewards(chain, pieces)


def updates(space: Space) -> int:
    """Number of updates of the model in the PRISM language, at most."""
    moves = space.moves
    line = moves.source.astype(np.int64) * (int(space.room.max()) + 2)
    begin, end = line + moves.low, line + moves.high + 1
    cuts = np.unique(np.concatenate([begin, end]))
    pieces = np.searchsorted(cuts, end) - np.searchsorted(cuts, begin)
    arrivals = np.array([each.arrivals.size for each in space.durations])
    return int((pieces * arrivals[moves.duration]).sum())


def _pieces(space: Space) -> Iterator[_Piece]:
    """The states in their order, as few pieces as the moves allow."""
    moves = space.moves
    order = np.argsort(moves.source, kind="stable")
    bounds = np.searchsorted(moves.source[order], np.arange(len(space.known) + 1)).tolist()
    low, high = moves.low.tolist(), moves.high.tolist()
    for core, (start, stop) in enumerate(pairwise(bounds)):
        rows = order[start:stop].tolist()
        cuts = sorted({low[row] for row in rows} | {high[row] + 1 for row in rows})
        for begin, end in pairwise(cuts):
            yield _Piece(core, begin, end - 1, tuple(row for row in rows if low[row] <= begin and end <= high[row] + 1))


def _updates(space: Space, piece: _Piece) -> str:
    """Where a piece goes, each place once."""
    moves, room = space.moves, space.room
    found: dict[tuple[int, str], float] = {}
    for row in piece.moves:
        target, taken, chance = int(moves.target[row]), int(moves.taken[row]), float(moves.chance[row])
        for come, share in enumerate(space.durations[moves.duration[row]].arrivals.tolist()):
            if chance * share > 0:
                place = target, _after(piece, come - taken, int(room[target]))
                found[place] = found.get(place, 0.0) + chance * share
    return " +\n     ".join(
        f"{chance!r}:(core'={target})&(unseen'={after})" for (target, after), chance in found.items()
    )


def _after(piece: _Piece, shift: int, last: int) -> str:
    """The number unseen after a shift along a line that ends at ``last``."""
    if piece.low == piece.high or piece.low + shift >= last:
        return str(min(piece.low + shift, last))
    moved = f"unseen{shift:+d}" if shift else "unseen"
    return moved if piece.high + shift <= last else f"min({moved},{last})"


def _guard(space: Space, core: int, low: int, high: int) -> str:
    """The states of a core with ``low``..``high`` unseen."""
    if low == high:
        return f"core={core} & unseen={low}"
    lower = f" & unseen>={low}" if low else ""
    return f"core={core}{lower}" + (f" & unseen<={high}" if high < space.room[core] else "")


def _anywhere(space: Space, holds: Flags) -> str:
    """The states where something holds, as an expression of small depth: model checkers walk it by recursion."""
    edges = np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8))
    inner = space.first[1:-1]  # a range does not go on from one core to the next
    split = inner[holds[inner - 1] & holds[inner]]
    begin = np.union1d(np.flatnonzero(edges == 1), split)
    last = np.union1d(np.flatnonzero(edges == -1), split) - 1
    core = np.searchsorted(space.first, begin, side="right") - 1
    line = space.first[core]
    ranges = zip(core.tolist(), (begin - line).tolist(), (last - line).tolist(), strict=True)
    return _either([f"({_guard(space, *each)})" for each in ranges])


def _either(terms: Sequence[str]) -> str:
    if len(terms) <= 1:
        return terms[0] if terms else "false"
    half = len(terms) // 2
    return f"({_either(terms[:half])} |\n  {_either(terms[half:])})"


def _rewards(chain: Rewards, pieces: Sequence[_Piece]) -> Iterator[str]:
    """The reward structures; the items that hold in a state add up."""
    space, each = chain.space, f"unseen*{chain.space.mean!r}"
    known, left = space.known.tolist(), space.tokens.tolist()
    cores = range(1, len(known))
    yield from _structure("requests", [("true", "unseen"), *((f"core={core}", repr(known[core])) for core in cores)])
    yield from _structure("backlog", [("true", each), *((f"core={core}", repr(left[core])) for core in cores)])
    # The states of a piece share their moves, so seconds, tokens and what comes are those of its first state.
    at = [int(space.first[piece.core]) + piece.low for piece in pieces]
    seconds, tokens, coming = (values[at].tolist() for values in (chain.seconds, chain.batch_tokens, chain.coming))
    yield from _structure("seconds", _items(space, pieces, map(repr, seconds)))
    yield from _structure("tokens", _items(space, pieces, map(repr, tokens)))
    yield from _structure("idle", [(_guard(space, 0, 0, 0), "1")])
    lasting = list(zip(pieces, seconds, coming, strict=True))
    spent = (f"({known[piece.core]}+unseen)*{time!r}+{come!r}" for piece, time, come in lasting)
    yield from _structure("requests_seconds", _items(space, pieces, spent))
    # The lengths a batch draws tell its duration: only the unseen requests behind are worth the same each second.
    began = (chain.backlog - space.mean * space.unseen() * chain.seconds)[at].tolist()
    spent = (f"{fixed!r}+{space.mean * time!r}*unseen" for fixed, time in zip(began, seconds, strict=True))
    yield from _structure("backlog_seconds", _items(space, pieces, spent))


def _items(space: Space, pieces: Sequence[_Piece], values: Iterable[str]) -> Iterator[tuple[str, str]]:
    """A value for every piece, pieces that follow each other on a line taken together."""
    for (core, value), group in groupby(zip(pieces, values, strict=True), lambda each: (each[0].core, each[1])):
        same = [piece for piece, _ in group]
        yield _guard(space, core, same[0].low, same[-1].high), value


def _structure(name: str, items: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f'\nrewards "{name}"\n'
    yield from (f"  {guard} : {value};\n" for guard, value in items)
    yield "endrewards\n"


# ------------------------------------------------------------------------------------------ the explicit files of Storm


def _explicit(chain: Rewards, header: Sequence[str]) -> Iterator[_Writer]:
    """The content of each of `export_files`."""
    earned = rewards(chain)
    yield partial(_write, _transitions(chain))
    yield partial(_write, _labelling(labels(chain.space)))
    yield from (partial(_write, _values(earned[name])) for name in REWARDS)
    yield partial(_write, _description(chain.space, header))


def _transitions(chain: Rewards) -> Iterator[str]:
    matrix = chain.operator.matrix()
    matrix.eliminate_zeros()
    matrix.sort_indices()
    source = np.repeat(np.arange(len(chain.space), dtype=np.int32), np.diff(matrix.indptr))
    yield "dtmc\n"
    for start in range(0, matrix.nnz, _BLOCK):
        part = slice(start, start + _BLOCK)
        rows = zip(source[part].tolist(), matrix.indices[part].tolist(), matrix.data[part].tolist(), strict=True)
        yield "".join(f"{come} {go} {chance!r}\n" for come, go, chance in rows)


def _labelling(found: Mapping[str, Flags]) -> Iterator[str]:
    yield f"#DECLARATION\ninit {' '.join(found)}\n#END\n"
    some = np.flatnonzero(np.logical_or.reduce(list(found.values()))).tolist()
    for state in some:
        names = " ".join(name for name, holds in found.items() if holds[state])
        yield f"{state} {names}\n" if state else f"{state} init {names}\n"


def _values(values: Floats) -> Iterator[str]:
    for state in np.flatnonzero(values).tolist():
        yield f"{state} {float(values[state])!r}\n"


def _description(space: Space, header: Sequence[str]) -> Iterator[str]:
    yield from (f"{line}\n" for line in header)
    yield "\nThe states of a core have consecutive numbers, by unseen = 0, 1, ...\n"
    lines = zip(space.first[:-1].tolist(), space.room.tolist(), space.cores, strict=True)
    for core, (first, room, content) in enumerate(lines):
        yield f"core {core}: states {first} to {first + room}: {_content(content)}\n"


# ------------------------------------------------------------------------------------------------------------- in words


def _header(chain: Rewards, title: str, notes: Sequence[str], period: int) -> Iterator[str]:
    """What the model is and which properties give which numbers."""
    for text in (title, *notes):
        yield from text.splitlines()
    space = chain.space
    yield f"{len(space)} states, cut at a level of {space.level:g} tokens: an arrival that does not fit is refused."
    yield "A state is what is present at a batch boundary: core is the requests whose lengths the scheduler has seen,"
    yield "listed as prompt+decode tokens left, oldest first, * where it has been served; unseen counts the requests"
    yield "behind them."
    yield from _kinds(chain.law)
    yield "A mean over boundaries is a long-run average: in PRISM"
    yield '  R{"requests"}=? [ S ]   R{"backlog"}=? [ S ]   S=? [ "empty" ]'
    yield 'and in Storm R{"requests"}=? [ LRA ] and LRA=? [ "empty" ]. "full" is where an arrival may be refused.'
    if period > 1:
        yield f"The chain has period {period}: iterations for these averages, as PRISM's for S, need not converge."
    wait = float(space.durations[-1].seconds)
    if isinstance(chain.arrivals, SlottedArrivals):
        yield f"A step is one slot of {wait!r} s, counted at its start after the arrivals."
        return
    yield "A step is one batch, or the wait of the idle engine for a request. A mean over time is a ratio of two:"
    yield '  requests present: R{"requests_seconds"}=? [ S ] / R{"seconds"}=? [ S ]'
    yield '  tokens left: R{"backlog_seconds"}=? [ S ] / R{"seconds"}=? [ S ]'
    yield '  tokens per second: R{"tokens"}=? [ S ] / R{"seconds"}=? [ S ]'
    yield f'  share of idle time: R{{"idle"}}=? [ S ] * {wait!r} / R{{"seconds"}}=? [ S ]'


def _kinds(law: RequestLaw) -> Iterator[str]:
    """The decode lengths that the states do not count down, or not yet."""
    for number, kind in enumerate(law.kinds, 1):
        if kind.memoryless:
            what = f"of geometric law with mean {kind.mean}, so with mean {kind.mean} left while it lasts."
        else:
            least, *_, most = kind.values
            what = f"from {least} to {most} with mean {kind.mean:.6g}, drawn when its first token is served."
        yield f"d{number}: a decode length {what}"


def _content(core: State) -> str:
    """The requests of a core."""
    running = set(core.running)
    each = [f"{_left(left)}{'*' if position in running else ''}" for position, left in enumerate(core.left)]
    counted = [(text, len(list(same))) for text, same in groupby(each)]
    words = " ".join(text if count == 1 else f"{count}x({text})" for text, count in counted)
    in_turn = "" if list(core.running) == sorted(core.running) else f", served in order {core.running}"
    return (words or "no request") + in_turn


def _left(left: Left) -> str:
    prefill, decode = left
    return f"{prefill}+{decode}" if decode >= 0 else f"{prefill}+d{-decode}"


def _comment(lines: Iterable[str], before: str = "") -> Iterator[str]:
    """As comments in ASCII, which is all that the language is sure to take."""
    for line in lines:
        yield f"{before}// {line}".rstrip().encode("ascii", "backslashreplace").decode() + "\n"


def _write(lines: Iterable[str], file: IO[bytes]) -> None:
    for line in lines:
        file.write(line.encode())
