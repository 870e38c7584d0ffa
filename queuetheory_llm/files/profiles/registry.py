"""The known profile formats, and reading whichever one is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.paths import unreadable
from queuetheory_llm.files.profiles import (
    aiconfigurator,
    formulas,
    llmservingsim,
    plain,
    sarathi,
    splitwise,
    vidur,
)
from queuetheory_llm.files.profiles.selection import Selection
from queuetheory_llm.files.profiles.table import Head, read_head
from queuetheory_llm.model.profile import Profile


@attrs.frozen(kw_only=True)
class Format:
    """A kind of file that gives a profile.

    Attributes
    ----------
    title : str
        For messages.
    recognises : callable
        Whether a file is of this kind, by its header or content.
    read : callable
        From the files by kind and the user's selection to a profile.
    flags : frozenset of str
        Fields of `Selection` it uses.
    companions : tuple of str
        Kinds of file that complete it.
    most : int
        How many files of its own kind it takes.
    """

    title: str
    recognises: Callable[[Head], bool]
    read: Callable[[Mapping[str, Sequence[Path]], Selection], Profile]
    flags: frozenset[str] = frozenset()
    companions: tuple[str, ...] = ()
    most: int = 1


@attrs.frozen(kw_only=True)
class Companion:
    """A kind of file that completes another; ``needs`` names what to give with it."""

    title: str
    recognises: Callable[[Head], bool]
    needs: str


@attrs.frozen(kw_only=True)
class Refused:
    """A kind of file that is known and holds no law in tokens alone; ``instead`` says what to give."""

    title: str
    recognises: Callable[[Head], bool]
    instead: str


def _is_attention_csv(head: Head) -> bool:
    columns = set(head.columns)
    v0 = {"batch_size", "prefill_chunk_size", "kv_cache_size"} <= columns
    return v0 or {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"} <= columns


#: Kind -> what it is. A file is of the first kind that recognises it.
FORMATS: Mapping[str, Format | Companion | Refused] = {
    "vidur-mlp": Format(
        title="Vidur mlp.csv",
        recognises=vidur.is_mlp,
        read=vidur.read,
        flags=frozenset({"layers", "tp"}),
        companions=("vidur-all-reduce",),
    ),
    "vidur-all-reduce": Companion(
        title="Vidur all_reduce.csv", recognises=vidur.is_all_reduce, needs="the mlp.csv of a model"
    ),
    "splitwise": Format(
        title="splitwise perf_model.csv",
        recognises=splitwise.recognises,
        read=splitwise.read,
        flags=frozenset({"model", "hardware", "tp", "phase"}),
    ),
    "sarathi": Format(
        title="Sarathi-Serve figure-2 prefill.csv / decode.csv",
        recognises=sarathi.recognises,
        read=sarathi.read,
        flags=frozenset({"phase"}),
        most=2,
    ),
    "llmservingsim-v0": Format(
        title="LLMServingSim v0 layers.csv",
        recognises=llmservingsim.is_v0_layers,
        read=llmservingsim.read_v0,
        flags=frozenset({"layers", "tp"}),
    ),
    "llmservingsim-v1": Format(
        title="LLMServingSim v1 dense.csv",
        recognises=llmservingsim.is_v1_dense,
        read=llmservingsim.read_v1,
        flags=frozenset({"layers"}),
        companions=("llmservingsim-v1-per-sequence",),
    ),
    "llmservingsim-v1-per-sequence": Companion(
        title="LLMServingSim v1 per_sequence.csv",
        recognises=llmservingsim.is_v1_per_sequence,
        needs="the dense.csv beside it",
    ),
    "attention": Refused(
        title="an attention profile",
        recognises=_is_attention_csv,
        instead="mlp.csv (Vidur), layers.csv (LLMServingSim v0) or dense.csv (LLMServingSim v1)",
    ),
    "aiconfigurator": Format(
        title="aiconfigurator gemm_perf.parquet",
        recognises=aiconfigurator.is_gemm,
        read=aiconfigurator.read,
        flags=frozenset({"layers", "gemms", "dtype"}),
    ),
    "aiconfigurator-attention": Refused(
        title="an attention profile", recognises=aiconfigurator.is_attention, instead="gemm_perf.parquet"
    ),
    "distserve": Format(
        title="DistServe coefficients",
        recognises=formulas.is_distserve,
        read=formulas.read_distserve,
        flags=frozenset({"model", "tp", "phase", "context"}),
    ),
    "blis": Format(
        title="BLIS goldendataset.json",
        recognises=formulas.is_blis,
        read=formulas.read_blis,
        flags=frozenset({"phase", "test"}),
    ),
    "plain": Format(title="plain CSV", recognises=plain.recognises, read=plain.read),
}


def read_profile(paths: Sequence[Path | str], selection: Selection | None = None) -> Profile:
    """Read a profile from one file, or from several that complete each other.

    Parameters
    ----------
    paths : sequence of paths
        For example mlp.csv and all_reduce.csv; their kinds are recognised by header or content.
    selection : Selection, optional
        What the user chose.

    Raises
    ------
    InvalidInput
        If a file is of no known kind, the files do not belong together, or one of them cannot be used.
    """
    chosen = Selection() if selection is None else selection
    if not paths:
        raise InvalidInput("PROFILE: missing; give at least one profile file")
    try:
        return _read([Path(path) for path in paths], chosen)
    except OSError as error:  # of a file beside them, or one that went away
        raise unreadable(error, str(error.filename or paths[0])) from None


def _read(paths: Sequence[Path], chosen: Selection) -> Profile:
    by_kind: dict[str, list[Path]] = {}
    for path in paths:
        by_kind.setdefault(_kind(path), []).append(path)
    name, main = _main(by_kind)
    _refuse_strangers(by_kind, name, main)
    chosen.refuse_beyond(main.flags, main.title, str(by_kind[name][0]))
    return main.read(by_kind, chosen)


def _kind(path: Path) -> str:
    head = read_head(path)
    for name, kind in FORMATS.items():
        if kind.recognises(head):
            if isinstance(kind, Refused):
                raise InvalidInput(
                    f"line 1: {kind.title} depends on context lengths, so it is no law in tokens alone; "
                    f"give {kind.instead}",
                    source=str(path),
                )
            return name
    known = ", ".join(kind.title for kind in FORMATS.values() if isinstance(kind, Format))
    shown = f"the header {','.join(head.columns)[:80]!r}" if head.columns else "this JSON"
    raise InvalidInput(f"line 1: {shown} is of no known format; known: {known} (tokens,seconds)", source=str(path))


def _main(by_kind: Mapping[str, Sequence[Path]]) -> tuple[str, Format]:
    mains = [(name, kind) for name in by_kind if isinstance(kind := FORMATS[name], Format)]
    if not mains:
        name = next(iter(by_kind))
        kind = FORMATS[name]
        needs = kind.needs if isinstance(kind, Companion) else ""
        raise InvalidInput(
            f"line 1: {kind.title} alone is no batch time; give {needs} too", source=str(by_kind[name][0])
        )
    if len(mains) > 1:
        raise InvalidInput(
            f"line 1: {mains[1][1].title} does not go with {mains[0][1].title}; fit one profile at a time",
            source=str(by_kind[mains[1][0]][0]),
        )
    return mains[0]


def _refuse_strangers(by_kind: Mapping[str, Sequence[Path]], name: str, main: Format) -> None:
    faults = []
    for kind, files in by_kind.items():
        most = main.most if kind == name else 1
        if kind != name and kind not in main.companions:
            faults.append(f"{files[0]}: line 1: {FORMATS[kind].title} does not go with {main.title}; leave it out")
        elif len(files) > most:
            faults.append(f"{files[most]}: line 1: a further {FORMATS[kind].title}; give at most {most}")
    if faults:
        raise InvalidInput(faults)
