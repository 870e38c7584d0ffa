"""Readers of batch-time profiles, on small files written by hand."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.profiles import FORMATS, Gemm, Selection, read_profile
from queuetheory_llm.model.profile import Profile

MS, US = Fraction(1, 1000), Fraction(1, 10**6)
OPERATORS = (
    "emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm", "mlp_up_proj",
    "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip


def notes_of(profile: Profile) -> str:
    return "\n".join(profile.notes)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def points(profile: Profile) -> dict[int, Fraction]:
    return dict(zip(profile.tokens, profile.seconds, strict=True))


# Vidur


def mlp(path: Path, rows: list[tuple[int, int, str]], operators=OPERATORS, width: int = 1024) -> Path:
    """Rows of (tokens, degree, median of every operator in ms); the other statistics are decoys."""
    header = [f"time_stats.{op}.{stat}" for op in operators for stat in ("min", "median", "mean")]
    lines = [",".join([*header, "n_embd", "num_tokens", "num_tensor_parallel_workers"])]
    for tokens, degree, median in rows:
        lines.append(",".join([*(["0.001", median, "99"] * len(operators)), str(width), str(tokens), str(degree)]))
    return write(path, "\n".join(lines) + "\n")


def all_reduce(path: Path, rows: list[tuple[int, int, int, str]]) -> Path:
    lines = [",time_stats.all_reduce.min,time_stats.all_reduce.median,num_workers,size,collective,devices_per_node"]
    lines += [f"{i},0,{ms},{workers},{size},all_reduce,{node}" for i, (workers, node, size, ms) in enumerate(rows)]
    return write(path, "\n".join(lines) + "\n")


def test_vidur_sums_medians_times_layers_and_embedding_once(tmp_path):
    path = mlp(tmp_path / "mlp.csv", [(16, 1, "0.2"), (8, 1, "0.1"), (8, 1, "0.3"), (8, 1, "0.11"), (8, 2, "7")])
    profile = read_profile([path], Selection(layers=10, tp=1))
    # 9 operators a layer, embedding once; descending rows are sorted, repeated ones give their median.
    assert points(profile) == {8: Fraction("0.11") * 91 * MS, 16: Fraction("0.2") * 91 * MS}
    assert "1 token counts are in several rows (8)" in notes_of(profile)
    assert "no attention" in profile.includes


def test_vidur_parallel_block_lacks_a_norm(tmp_path):
    operators = [op for op in OPERATORS if op not in ("post_attention_layernorm", "emb")]
    profile = read_profile([mlp(tmp_path / "mlp.csv", [(1, 1, "1")], operators)], Selection(layers=2))
    assert profile.seconds == (16 * MS,)
    assert "no post_attention_layernorm" in notes_of(profile)


def test_vidur_all_reduce_twice_a_layer_of_one_full_node(tmp_path):
    main = mlp(tmp_path / "mlp.csv", [(1, 2, "0.1"), (2, 2, "0.1"), (3, 2, "0.1")])
    rows = [(2, 1, 4096, "50"), (4, 2, 4096, "60"), (4, 4, 4096, "70"), (2, 2, 2048, "1"), (2, 2, 6144, "3")]
    network = all_reduce(tmp_path / "all_reduce.csv", rows)
    profile = read_profile([network, main], Selection(layers=5, tp=2))
    base = Fraction("0.1") * (9 * 5 + 1)
    # 2 bytes x 1024 x tokens: 2048 and 6144 are measured, 4096 lies half way.
    assert points(profile) == {b: (base + 2 * 5 * ms) * MS for b, ms in ((1, 1), (2, 2), (3, 3))}
    assert "1 of 3 lie between measured sizes" in notes_of(profile)


def test_vidur_without_all_reduce_says_so(tmp_path):
    path = mlp(tmp_path / "mlp.csv", [(1, 2, "0.1")])
    assert "without all-reduce" in notes_of(read_profile([path], Selection(layers=1)))


@pytest.mark.parametrize(
    ("selection", "network", "fault"),
    [
        (Selection(tp=1), None, "--layers: missing; mlp.csv is per layer: give --layers N"),
        (Selection(layers=2), None, "--tp: missing; the file holds 1, 2: choose one"),
        (Selection(layers=2, tp=4), None, "--tp: 4 is not in the file; it holds 1, 2"),
        (Selection(layers=2, tp=1), [(2, 2, 2048, "1")], "one shard .* leave the file out"),
        (Selection(layers=2, tp=2), [(4, 4, 2048, "1")], "no all-reduce among 2 devices of one node; the file holds 4"),
        (Selection(layers=2, tp=2), [(2, 2, 1024, "1")], "size: ends at 1024 bytes, below the 2048 bytes of 1 tokens"),
        (Selection(layers=2, tp=1, phase="decode"), None, "--phase: does not apply to the Vidur mlp.csv format"),
        (Selection(layers=2, tp=1, gemms=(Gemm(n=1, k=1),)), None, "--gemm: does not apply"),
    ],
)
def test_vidur_faults(tmp_path, selection, network, fault):
    paths = [mlp(tmp_path / "mlp.csv", [(1, 1, "0.1"), (1, 2, "0.1")])]
    if network:
        paths.append(all_reduce(tmp_path / "all_reduce.csv", network))
    with pytest.raises(InvalidInput, match=fault):
        read_profile(paths, selection)


# Splitwise

SPLITWISE = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,tensor_parallel\n"


def splitwise(path: Path, rows: list[tuple[object, ...]]) -> Path:
    """Rows of (hardware, prompt, batch, output, prompt ms, token ms, tp)."""
    body = [f"llama,{hw},{p},{b},{out},{pt},{tt},1,{tp}" for hw, p, b, out, pt, tt, tp in rows]
    return write(path, SPLITWISE + "\n".join(body) + "\n")


CROSS = [
    ("a100", 128, 1, 128, 81, 53, 2),
    ("a100", 512, 1, 128, 190, 54, 2),
    ("a100", 512, 1, 128, 200, 56, 2),
    ("a100", 512, 1, 128, 190, 54, 2),  # an exact copy
    ("a100", 512, 1, 4096, 999, 99, 2),  # another output length
    ("a100", 512, 8, 128, 1600, 61, 2),
    ("a100", 512, 32, 128, 6600, 72, 2),
    ("a100", 512, 64, 128, 794, 67, 2),  # faster than batch 8: impossible
]


def test_splitwise_cross(tmp_path):
    profile = read_profile([splitwise(tmp_path / "perf.csv", CROSS)])
    assert points(profile) == {1: 55 * MS, 8: 61 * MS, 32: 72 * MS, 128: 81 * MS, 512: 195 * MS}
    text = notes_of(profile)
    assert "1 bad rows dropped (lines 9): batch 64 of prompt 512 has prompt_time 794 ms, below the 1600 ms" in text
    assert "1 rows are exact copies" in text
    assert "1 rows with outputs other than 128 tokens" in text


@pytest.mark.parametrize(("phase", "tokens"), [("prefill", (128, 512)), ("decode", (1, 8, 32))])
def test_splitwise_one_phase(tmp_path, phase, tokens):
    path = splitwise(tmp_path / "perf.csv", CROSS)
    assert read_profile([path], Selection(phase=phase)).tokens == tokens


def test_splitwise_power_capped_rows_are_not_measured(tmp_path):
    path = splitwise(tmp_path / "perf.csv", [*CROSS, ("a100-pcap", 128, 1, 128, 105, 53, 2)])
    assert "1 rows dropped: a100-pcap is not measured" in notes_of(read_profile([path]))
    with pytest.raises(InvalidInput, match=r"--hardware: a100-pcap is not measured.*; choose a100"):
        read_profile([path], Selection(hardware="a100-pcap"))


def test_splitwise_asks_for_what_is_ambiguous(tmp_path):
    path = splitwise(tmp_path / "perf.csv", [*CROSS, ("h100", 128, 1, 128, 48, 37, 2)])
    with pytest.raises(InvalidInput, match="--hardware: missing; the file holds a100, h100: choose one"):
        read_profile([path])
    with pytest.raises(InvalidInput, match="--model: opt is not in the file; it holds llama"):
        read_profile([path], Selection(model="opt"))


# Sarathi

SARATHI = (
    ",batch_num_tokens,batch_num_decode_tokens,batch_num_prefill_tokens,operation,Batch Id,batch_execution_time,"
    "inter_batch_delay\n"
)


def sarathi(path: Path, rows: list[tuple[int, int, str, str, str]]) -> Path:
    body = [f"{i},{n},{d},{n - d},x,{batch},{t},{gap}" for i, (n, d, batch, t, gap) in enumerate(rows)]
    return write(path, SARATHI + "\n".join(body) + "\n")


def test_sarathi_drops_the_warm_up_and_keeps_the_longer_of_two_phases(tmp_path):
    prefill = sarathi(
        tmp_path / "prefill.csv",
        [(128, 0, "2.0", "0.048", "0.1"), (256, 0, "0.0", "0.121", ""), (512, 0, "4.0", "0.106", "0.1")],
    )
    decode = sarathi(tmp_path / "decode.csv", [(1, 1, "4.0", "0.047", "0.1"), (128, 128, "5.5", "0.189", "0.1")])
    both = read_profile([prefill, decode])
    assert points(both) == {1: 47 * MS, 128: 189 * MS, 512: 106 * MS}
    assert "prefill.csv line 3 dropped: 256 tokens in 121 ms" in notes_of(both)
    assert "128 tokens take 48 ms as prefill and 189 ms as decode: the longer is kept" in notes_of(both)
    alone = read_profile([prefill, decode], Selection(phase="prefill"))
    assert points(alone) == {128: 48 * MS, 512: 106 * MS}
    with pytest.raises(InvalidInput, match="--phase: no decode rows"):
        read_profile([prefill], Selection(phase="decode"))


def test_sarathi_first_batch_with_a_delay_is_kept(tmp_path):
    path = sarathi(tmp_path / "prefill.csv", [(256, 0, "0.0", "0.121", "0.2")])
    assert read_profile([path]).tokens == (256,)


# LLMServingSim

V0 = (
    "embedding", "input_layernorm", "q_proj", "k_proj", "v_proj", "rope", "attn", "o_proj", "post_layernorm",
    "gate_proj", "up_proj", "act_fn", "down_proj", "final_layernorm", "lm_head",
)  # fmt: skip
V1 = (
    "act_fn", "down_proj", "embedding", "final_layernorm", "gate_up_proj", "layernorm", "o_proj", "qkv_proj",
    "rotary_emb",
)  # fmt: skip


def layers_csv(path: Path, names=V0, sizes=(1, 2)) -> Path:
    rows = [f"{name},{b},0,1,{1000 * b}" for name in names for b in sizes]
    return write(path, "layer_name,input,kv_cache,tp_size,latency(ns)\n" + "\n".join(rows) + "\n")


def test_llmservingsim_v0_counts_ends_once(tmp_path):
    profile = read_profile([layers_csv(tmp_path / "layers.csv")], Selection(layers=32))
    assert points(profile) == {b: (12 * 32 + 3) * b * US for b in (1, 2)}
    assert "lm_head is evaluated for all b tokens" in notes_of(profile)


def test_llmservingsim_v0_names_a_missing_layer(tmp_path):
    path = layers_csv(tmp_path / "layers.csv", [name for name in V0 if name != "attn"])
    with pytest.raises(InvalidInput, match="layer: no rows of attn"):
        read_profile([path], Selection(layers=32))


def dense_csv(path: Path, names=V1, sizes=(1, 4, 8)) -> Path:
    return write(path, "layer,tokens,time_us\n" + "".join(f"{name},{b},{b}.5\n" for name in names for b in sizes))


def test_llmservingsim_v1_with_its_siblings(tmp_path):
    folder = tmp_path / "tp1"
    folder.mkdir()
    path = dense_csv(folder / "dense.csv")
    head = [(name, n, t) for name, base in (("lm_head", 100), ("sampler", 10)) for n, t in ((1, base), (4, base + 1))]
    write(folder / "per_sequence.csv", "layer,sequences,time_us\n" + "".join(f"{a},{n},{t}\n" for a, n, t in head))
    write(tmp_path / "meta.yaml", "gpu: RTX\nengine_effective:\n  enforce_eager: true\n  max_num_seqs: 4\n")
    profile = read_profile([path], Selection(layers=32))
    # 7 operators and the norm twice a layer, embedding and final norm once; head of min(b, 4) sequences.
    dense = {b: (8 * 32 + 2) * (b + Fraction(1, 2)) for b in (1, 4, 8)}
    assert points(profile) == {1: (dense[1] + 110) * US, 4: (dense[4] + 112) * US, 8: (dense[8] + 112) * US}
    text = notes_of(profile)
    assert "layernorm counts twice a layer" in text
    assert "meta.yaml: gpu RTX, enforce_eager true, max_num_seqs 4" in text
    assert "gaps on the CPU come on top" in text
    assert "per_sequence.csv" in profile.source
    assert read_profile([path, folder / "per_sequence.csv"], Selection(layers=32)) == profile


def test_llmservingsim_v1_alone(tmp_path):
    profile = read_profile([dense_csv(tmp_path / "dense.csv")], Selection(layers=1))
    assert profile.seconds[0] == Fraction("1.5") * 10 * US
    assert "give per_sequence.csv too" in notes_of(profile)
    assert "no meta.yaml" in notes_of(profile)


def test_llmservingsim_v1_unknown_layer(tmp_path):
    with pytest.raises(InvalidInput, match="layer: router is unknown"):
        read_profile([dense_csv(tmp_path / "dense.csv", (*V1, "router"))], Selection(layers=1))


def test_sizes_not_every_layer_has_are_dropped(tmp_path):
    path = dense_csv(tmp_path / "dense.csv")
    write(path, path.read_text() + "act_fn,16,3\n")
    profile = read_profile([path], Selection(layers=1))
    assert profile.tokens == (1, 4, 8)
    assert "1 token counts that not every layer has are dropped" in notes_of(profile)


# aiconfigurator


def parquet(path: Path, columns: dict[str, list[object]]) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow.parquet import write_table

    write_table(pa.table(columns), path)
    return path


def gemm_table(path: Path) -> Path:
    rows = [(d, m, n, k, m * n / 1000) for d in ("bfloat16", "fp8") for m in (8, 1) for n, k in ((10, 5), (20, 5))]
    names = ("gemm_dtype", "m", "n", "k", "latency")
    return parquet(path, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def test_aiconfigurator_sums_the_shapes(tmp_path):
    gemms = (Gemm(n=10, k=5), Gemm(n=20, k=5), Gemm(n=20, k=5))
    profile = read_profile([gemm_table(tmp_path / "g.parquet")], Selection(layers=3, gemms=gemms, dtype="fp8"))
    assert points(profile) == {b: 3 * b * Fraction(50, 1000) * MS for b in (1, 8)}
    assert "lower bounds" in notes_of(profile)


@pytest.mark.parametrize(
    ("selection", "fault"),
    [
        (Selection(layers=3), "--gemm: missing"),
        (Selection(gemms=(Gemm(n=10, k=5),)), "--layers: missing"),
        (Selection(layers=3, gemms=(Gemm(n=10, k=5),)), "--dtype: missing; the file holds bfloat16, fp8"),
        (Selection(layers=3, gemms=(Gemm(n=11, k=5),), dtype="fp8"), "--gemm 11:5: not in the table; .* 10:5"),
    ],
)
def test_aiconfigurator_faults(tmp_path, selection, fault):
    with pytest.raises(InvalidInput, match=fault):
        read_profile([gemm_table(tmp_path / "g.parquet")], selection)


def test_parquet_without_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "g.parquet"
    path.write_bytes(b"PAR1 whatever PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInput, match=r"pip install 'queuetheory-llm\[parquet\]'"):
        read_profile([path])


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = tmp_path / "g.parquet"
    path.write_bytes(b"PAR1 whatever PAR1")
    with pytest.raises(InvalidInput, match="damaged parquet file"):
        read_profile([path])


def test_attention_parquet_is_no_law_in_tokens(tmp_path):
    columns = {name: [1] for name in ("batch_size", "isl", "num_heads", "num_key_value_heads", "latency")}
    with pytest.raises(InvalidInput, match=r"no law in tokens alone; give gemm_perf\.parquet"):
        read_profile([parquet(tmp_path / "a.parquet", columns)])


# Formulas

DISTSERVE = {
    "opt": {
        "1": {
            "decoding_large_small_bs_threshold": 4,
            "prefill": [20.0, 0.5, 0.01],
            "decoding_smallbs": [10.0, 0.001, 1.0],
            "decoding_largebs": [8.0, 0.002, 2.0],
        }
    }
}


def as_json(path: Path, content: object) -> Path:
    return write(path, json.dumps(content))


def test_distserve_prefill_of_one_prompt(tmp_path):
    profile = read_profile([as_json(tmp_path / "d.json", DISTSERVE)], Selection(phase="prefill", b_max=100))
    assert profile.tokens[-1] == 100
    assert points(profile)[100] == (20 + 50 + 100) * MS
    assert "evaluated for one prompt" in notes_of(profile)


def test_distserve_decode_has_two_regimes(tmp_path):
    selection = Selection(phase="decode", context=100, b_max=8)
    at = points(read_profile([as_json(tmp_path / "d.json", DISTSERVE)], selection))
    assert at[3] == (10 + Fraction("0.1") * 3 + 3) * MS
    assert at[4] == (8 + Fraction("0.2") * 4 + 8) * MS


@pytest.mark.parametrize(
    ("selection", "fault"),
    [
        (Selection(), "--phase: missing"),
        (Selection(phase="decode"), "--context: missing"),
        (Selection(phase="prefill", context=3), "--context: only the decode formula has it"),
        (Selection(phase="prefill", tp=2), "--tp: 2 is not in the file; it holds 1"),
        (Selection(phase="prefill", model="x"), "--model: x is not in the file; it holds opt"),
    ],
)
def test_distserve_faults(tmp_path, selection, fault):
    with pytest.raises(InvalidInput, match=fault):
        read_profile([as_json(tmp_path / "d.json", DISTSERVE)], selection)


@pytest.mark.parametrize("bad", [[1, 2], [1, 2, "x"], [1, 2, float("nan")], "no"])
def test_distserve_bad_coefficients(tmp_path, bad):
    content = {"opt": {"1": {**DISTSERVE["opt"]["1"], "prefill": bad}}}
    with pytest.raises(InvalidInput, match=r"d\.json: opt\.1\.prefill: "):
        read_profile([as_json(tmp_path / "d.json", content)], Selection(phase="prefill"))


BLIS = {"tests": [{"model": "m", "hardware": "H100", "tp": 1, "beta-coeffs": [5000.0, 17.5, 6.0]}]}


@pytest.mark.parametrize(("phase", "slope"), [("prefill", "17.5"), ("decode", "6")])
def test_blis_is_affine(tmp_path, phase, slope):
    profile = read_profile([as_json(tmp_path / "b.json", BLIS)], Selection(phase=phase))
    assert all(t == (5000 + Fraction(slope) * b) * US for b, t in points(profile).items())
    assert profile.tokens[-1] == 2048


def test_blis_asks_which_test(tmp_path):
    path = as_json(tmp_path / "b.json", {"tests": BLIS["tests"] * 2})
    with pytest.raises(InvalidInput, match="--test: missing; the file holds 2 tests: choose one of 1 = m on H100"):
        read_profile([path], Selection(phase="decode"))
    with pytest.raises(InvalidInput, match="--test: 3 is not in the file"):
        read_profile([path], Selection(phase="decode", test=3))


# Plain CSV and everything that is no profile


def test_plain_is_exact_sorted_and_merged(tmp_path):
    path = write(tmp_path / "p.csv", "\ufefftokens,seconds\r\n8,0.3\r\n1,0.1\r\n8,0.2\r\n\r\n8,0.25")
    profile = read_profile([path])
    assert points(profile) == {1: Fraction(1, 10), 8: Fraction(1, 4)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: the file is empty"),
        ("tokens,seconds\n", "line 2: no rows below the header"),
        ("tokens,seconds\n0,1\n", "line 2: tokens: 0 is below 1"),
        ("tokens,seconds\n-1,1\n", "line 2: tokens: -1 is below 1"),
        ("tokens,seconds\n1.5,1\n", "line 2: tokens: 1.5 is not a whole number"),
        ("tokens,seconds\n1e25,1\n", "tokens: .* (above|beyond) 2147483647"),
        (f"tokens,seconds\n{2**63},1\n", "tokens: .* (above|beyond) 2147483647"),
        ("tokens,seconds\n1,0\n", "line 2: seconds: 0 is not a positive time"),
        ("tokens,seconds\n1,-2\n", "line 2: seconds: -2 is not a positive time"),
        ("tokens,seconds\n1,nan\n", "line 2: seconds: nan is not finite"),
        ("tokens,seconds\n1,inf\n", "line 2: seconds: inf is not finite"),
        ("tokens,seconds\n1,\n", "line 2: seconds: empty; fill it in or drop the row"),
        ("tokens,seconds\n1,abc\n", "line 2: seconds: 'abc' is not a number"),
        ("tokens,seconds\n1,1\n2\n", "line 3: 1 fields for 2 columns"),
        ("a,b\n1,2\n", "line 1: the header 'a,b' is of no known format; known: Vidur mlp.csv"),
        ('{"a": 1}', "line 1: this JSON is of no known format"),
        ('{"a": ', "line 1: not JSON"),
        ('{"a": %s}' % ("9" * 5000), "holds a number of thousands of digits"),
        ("tokens," * 20_000, "line 1: longer than 64 KiB"),
        ("[" * 100_000, "not UTF-8 JSON of a sane depth|not JSON"),
        ("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,9\n", "no law in tokens alone; give mlp.csv"),
        ("batch_size,prefill_chunk_size,kv_cache_size,is_prefill\n", "no law in tokens alone"),
    ],
)
def test_malformed(tmp_path, text, fault):
    path = write(tmp_path / "p.csv", text)
    with pytest.raises(InvalidInput, match=fault) as caught:
        read_profile([path])
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in caught.value.faults)


def test_every_bad_row_is_named_up_to_ten(tmp_path):
    path = write(tmp_path / "p.csv", "tokens,seconds\n" + "1,x\n" * 13)
    with pytest.raises(InvalidInput) as caught:
        read_profile([path])
    assert len(caught.value.faults) == 11
    assert "3 more rows with faults" in caught.value.faults[-1]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x89PNG\x00\x01", "binary file"),
        (b"tokens,seconds\n1,\xff\xfe\n", "not UTF-8"),
        (b"\xff\xfe,a\n", "not UTF-8"),
    ],
)
def test_binary(tmp_path, data, fault):
    path = tmp_path / "p.csv"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=fault):
        read_profile([path])


def test_no_file(tmp_path):
    with pytest.raises(InvalidInput, match="is a directory"):
        read_profile([tmp_path])
    with pytest.raises(InvalidInput, match=r"cannot be read: No such file"):
        read_profile([tmp_path / "absent.csv"])
    for name in ("p" * 300, "a\0b"):
        with pytest.raises(InvalidInput, match="cannot be read") as caught:
            read_profile([tmp_path / name])
        assert len(caught.value.faults) == 1
    with pytest.raises(InvalidInput, match="PROFILE: missing"):
        read_profile([])


def test_files_that_do_not_belong_together(tmp_path):
    plain = write(tmp_path / "p.csv", "tokens,seconds\n1,1\n")
    network = all_reduce(tmp_path / "all_reduce.csv", [(2, 2, 2048, "1")])
    with pytest.raises(InvalidInput, match=r"all_reduce\.csv does not go with plain CSV"):
        read_profile([plain, network])
    with pytest.raises(InvalidInput, match=r"alone is no batch time; give the mlp\.csv of a model too"):
        read_profile([network])
    with pytest.raises(InvalidInput, match="a further plain CSV; give at most 1"):
        read_profile([plain, plain])
    with pytest.raises(InvalidInput, match=r"LLMServingSim v0 layers\.csv does not go with plain CSV"):
        read_profile([plain, layers_csv(tmp_path / "layers.csv")])


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        ({"layers": 0}, "--layers: 0 is below 1"),
        ({"tp": -1}, "--tp: -1 is below 1"),
        ({"phase": "both"}, "--phase: 'both' is unknown"),
        ({"context": -1}, "--context: -1 is below 0"),
    ],
)
def test_selection_faults(choice, fault):
    with pytest.raises(InvalidInput, match=fault):
        Selection(**choice)


def test_formats_are_named_once():
    titles = [kind.title for name, kind in FORMATS.items() if "attention" not in name]
    assert len(titles) == len(set(titles))


# The plain data


def made(tokens=(1, 2, 4), seconds=(1, 2, 3)) -> Profile:
    return Profile(
        tokens=tokens, seconds=tuple(map(Fraction, seconds)), source="s", format="f", includes="i", statistic="m"
    )


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [
        ((), ()),
        ((1, 2**31), (1, 1)),
        ((1,), (1, 2)),
        ((0, 1), (1, 1)),
        ((2, 2), (1, 1)),
        ((2, 1), (1, 1)),
        ((1,), (0,)),
    ],
)
def test_profile_faults(tokens, seconds):
    with pytest.raises(InvalidInput, match=r"^s: "):
        made(tokens, seconds)


def test_profile_up_to_keeps_the_point_that_covers_the_budget():
    assert made().up_to(3).tokens == (1, 2, 4)
    assert made().up_to(2).tokens == (1, 2)
    assert "1 points above 2 tokens" in made().up_to(2).notes[-1]
    assert made().up_to(99) == made()
    with pytest.raises(InvalidInput, match="--b-max: 0 is below 1"):
        made().up_to(0)
