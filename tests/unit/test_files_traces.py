"""Trace readers: every format, exact clocks, conventions, and one-line errors for whatever is not a trace."""

import json
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

import queuetheory_llm as qt
from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.traces.reader import FORMATS, read_trace
from queuetheory_llm.model.lengths import IndependentLengths

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109"
)
VIDUR = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n"
LENGTHS = b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n2015,156,2171,12.9\n"
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    b'{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n'
    b'{"timestamp": 3001, "input_length": 1, "output_length": 2, "hash_ids": [7]}\n'
)
BURSTGPT = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n"
)
VLLM = (
    b'{"input_toks": 2358, "output_toks": 531, "arrival_time": 1787267980.0827403, "queued_ts": 27}\n'
    b'{"input_toks": 1034, "output_toks": 769, "arrival_time": 1787267980.3478317, "queued_ts": 28}\n'
)
TRACELAB = (
    b'{"newly_append_tokens": 5055, "output_tokens": 931, "prefix_tokens": 9, "input_tokens_total": 5064, '
    b'"timing_events": [{"timestamp": "2026-06-01T05:40:20.151Z"}, {"timestamp": "2026-06-01T05:40:29.420Z"}]}\n'
    b'{"newly_append_tokens": null, "output_tokens": 3, "prefix_tokens": 100, "input_tokens_total": 150, '
    b'"timing_events": [{"timestamp": "2026-06-01T05:40:21Z"}]}\n'
    b'{"newly_append_tokens": 1, "output_tokens": null, "timing_events": [{"timestamp": "2026-06-01T05:40:21Z"}]}\n'
    b'{"newly_append_tokens": 1, "output_tokens": 2, "timing_events": []}\n'
    b'{"newly_append_tokens": null, "output_tokens": 2, "timing_events": [{"timestamp": "2026-06-01T05:40:21Z"}]}\n'
)
SERVEGEN = b"0,8.5,1.35,Gamma,0.54,0.21\n600,0,,,,\n1200,3.5,0.87,Weibull,1.3,0.07\n"
PLAIN = b"arrival,prefill,decode\n0,290,990\n0.4675,290,990\n"

SAMPLES = {
    "Azure": AZURE,
    "Vidur": VIDUR,
    "Vidur lengths": LENGTHS,
    "Mooncake": MOONCAKE,
    "BurstGPT": BURSTGPT,
    "vLLM bench": VLLM,
    "TraceLab": TRACELAB,
    "plain CSV": PLAIN,
}


@pytest.fixture
def read(tmp_path):
    def from_bytes(content, **options):
        path = tmp_path / "t.csv"
        path.write_bytes(content)
        return read_trace(path, **options)

    return from_bytes


@pytest.fixture
def fault(tmp_path, read):
    """The one fault of some content, without the name of the file, which must stand before it."""

    def of(content, **options):
        with pytest.raises(InvalidInput) as error:
            read(content, **options)
        (line,) = error.value.faults
        start = f"{tmp_path / 't.csv'}: "
        assert line.startswith(start)
        assert "\n" not in line
        return line.removeprefix(start)

    return of


def seconds(trace):
    return [int(tick) * trace.tick for tick in trace.arrivals]


def rows(trace):
    lengths = trace.require_rows()
    return list(zip(lengths.prefill.tolist(), lengths.decode.tolist(), strict=True))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_recognised(read, name):
    assert read(SAMPLES[name]).format == name


def test_the_samples_cover_every_format():
    assert {*SAMPLES, "ServeGen"} == set(FORMATS)


def test_azure_is_exact_to_100_ns(read):
    trace = read(AZURE)
    assert trace.tick == Fraction(1, 10**7)
    assert seconds(trace) == [0, Fraction(43145790, 10**7)]
    assert rows(trace) == [(374, 43), (396, 108)]
    assert any("shifted" in note for note in trace.notes)


@pytest.mark.parametrize("zone", ["", "+00:00", "Z", " UTC"])
def test_azure_zones(read, zone):
    content = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 23:59:59.5{zone},1,2\n2024-03-01 00:00:00,1,2\n"
    assert seconds(read(content.encode())) == [0, Fraction(1, 2)]


def test_a_zone_is_taken_off(read):
    content = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,1,2\n2024-05-10 02:00:01+02:00,1,2\n"
    assert seconds(read(content)) == [0, 1]


def test_vidur_keeps_its_zero(read):
    trace = read(VIDUR.replace(b"\n0.0", b"\n0.5"))
    assert seconds(trace) == [Fraction(1, 2), Fraction(4314579, 10**6)]
    assert trace.rate == 1 / (Fraction(4314579, 10**6) - Fraction(1, 2))


def test_lengths_only(read):
    trace = read(LENGTHS)
    assert trace.arrivals is None
    assert trace.rate is None
    with pytest.raises(InvalidInput, match="no arrival times"):
        trace.require_arrivals()


def test_mooncake(read):
    trace = read(MOONCAKE)
    assert seconds(trace) == [0, 0, Fraction(3001, 1000)]
    assert any(note.startswith("1 of 3 requests arrive at the same instant") for note in trace.notes)
    assert any("prefix" in note for note in trace.notes)


def test_burstgpt_counts_the_rows_without_output(read):
    trace = read(BURSTGPT)
    assert seconds(trace) == [5, Fraction(91, 2)]
    assert rows(trace) == [(472, 17), (1087, 0)]
    assert any(note.startswith("1 rows record 0 output tokens") for note in trace.notes)
    assert not any("0 output" in note for note in read(BURSTGPT, first_token="paper").notes)


def test_vllm_bench_uses_the_unix_clock(read):
    trace = read(VLLM)
    assert seconds(trace) == [0, Fraction(2650914, 10**7)]
    assert any("two clocks" in note for note in trace.notes)


def test_tracelab_mends_and_names_nulls(read):
    trace = read(TRACELAB)
    assert rows(trace) == [(5055, 930), (50, 2)]
    assert seconds(trace) == [0, Fraction(849, 1000)]
    notes = " | ".join(trace.notes)
    for line, what in ((2, "input_tokens_total - prefix_tokens"), (3, "output_tokens is null"), (4, "no timestamp")):
        assert what in notes
        assert f": line {line}" in notes
    assert "cannot be derived: line 5" in notes


def test_tracelab_with_nothing_left(fault):
    assert "holds no requests" in fault(TRACELAB.splitlines()[2])


def test_first_token_conventions(read):
    assert rows(read(VIDUR, first_token="paper")) == [(374, 44), (396, 109)]
    assert rows(read(VIDUR, first_token="engine")) == rows(read(VIDUR)) == [(374, 43), (396, 108)]
    plain = read(PLAIN, first_token="engine")
    assert rows(plain) == [(290, 990)] * 2
    assert plain.first_token == "as given"
    assert any("does not apply" in note for note in plain.notes)


def test_an_unknown_convention(read):
    with pytest.raises(InvalidInput, match="--first-token: 'papr' is not one of paper and engine"):
        read(PLAIN, first_token="papr")


def test_columns_in_another_order_and_among_others(read):
    trace = read(b"decode, note ,prefill,arrival\n5,x,10,0\n6,y,20,0.25\n")
    assert rows(trace) == [(10, 5), (20, 6)]
    assert trace.rate == 4


def test_a_byte_order_mark_trailing_blank_lines_and_spellings_of_numbers(read):
    trace = read(b"\xef\xbb\xbfarrival,prefill,decode\n1e-3, 10 ,5.0\n.5,+20,6\n1,30,7\n\n\n")
    assert seconds(trace) == [Fraction(1, 1000), Fraction(1, 2), 1]
    assert rows(trace) == [(10, 5), (20, 6), (30, 7)]


# Clocks.


def test_sixteen_digits_are_kept_where_they_fit(read):
    trace = read(b"arrival,prefill,decode\n5.8926549999999995,1,1\n11.836632999999999,1,1\n")
    assert seconds(trace) == [Fraction("5.8926549999999995"), Fraction("11.836632999999999")]
    assert trace.notes == ()


@pytest.mark.parametrize("span", [1000, 10**6], ids=["beyond after rescaling", "beyond in its own block"])
def test_sixteen_digits_are_rounded_to_ns_and_counted_where_they_do_not_fit(read, span):
    trace = read(b"arrival,prefill,decode\n5.8926549999999995,1,1\n7.25,1,1\n%d.0000000000000006,1,1\n" % span)
    assert trace.tick == Fraction(1, 10**9)
    assert seconds(trace) == [Fraction("5.892655"), Fraction("7.25"), span]
    assert any(note.startswith("2 of 3 arrival times") for note in trace.notes)


def test_digits_may_differ_from_block_to_block(read):
    times = [Fraction(k) for k in range(40_000)] + [Fraction(40_000) + Fraction(k, 1000) for k in range(40_000)]
    lines = "".join(f"{float(t):.3f},1,1\n" if t.denominator > 1 else f"{t},1,1\n" for t in times)
    assert seconds(read(b"arrival,prefill,decode\n" + lines.encode())) == times


def test_times_too_long_for_nanoseconds(fault):
    assert "check their unit" in fault(b"arrival,prefill,decode\n0,1,1\n1e15,1,1\n0.123456789012345678901,1,1\n")


def test_unsorted_rows_are_sorted_stably_and_counted(read, fault):
    content = b"arrival,prefill,decode\n0,1,1\n2,2,1\n1,3,1\n1,4,1\n3,5,1\n"
    trace = read(content)
    assert rows(trace) == [(1, 1), (3, 1), (4, 1), (2, 1), (5, 1)]
    assert any(note.startswith("2 of 5 rows stood after a later arrival (first: line 4)") for note in trace.notes)
    assert fault(content, strict=True).startswith("line 4: arrives before")
    assert read(b"arrival,prefill,decode\n0,1,1\n0,2,1\n", strict=True).notes


def test_the_first_row_need_not_be_the_earliest(read):
    content = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,1,2\n2023-11-16 18:15:45,3,2\n"
    trace = read(content)
    assert seconds(trace) == [0, Fraction(3, 2)]
    assert rows(trace) == [(3, 1), (1, 1)]


# What is not a trace.


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b,c\n1,2,3\n", "line 1: 'a,b,c' is the start of no known format"),
        (b"arrival,prefill\n1,2\n", "(plain CSV lacks the column decode)"),
        (b"3,4,5\n", "line 1: "),
        (b"x" * (1 << 21), "line 1: is longer than 1 MiB"),
        (b"arrival,prefill,decode\n" + b"1" * (1 << 21), "line 2: is longer than 1 MiB"),
        (b"\x1f\x8b\x08\x00\x00", "line 1: holds a zero byte"),
        (b"arrival,prefill,decode\n0,1,1\n1,\x00,2\n", "line 3: holds a zero byte"),
        (b"arrival,prefill,decode\n0,1,1\n1,\xff,2\n", "line 3: is not UTF-8"),
        (b"arrival,prefill,decode\n0,1,1\n\n2,1,1\n", "line 3: is blank"),
        (b"{]\n", "line 1: is no JSON object"),
        (b"[1]\n", "line 1: '[1]' is the start of no known format"),
        (b'{"a": 1}\n', "line 1: "),
        (b'{"a": ' + b"[" * 100_000, "line 1: is no JSON object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_content_of_no_format(fault, content, what):
    assert what in fault(content)


def test_unknown_headers_list_the_formats(fault):
    message = fault(b"a,b,c\n")
    assert all(form.header in message for form in FORMATS.values())


CSV_BAD = [
    ("{time},-1,5", "is negative"),
    ("{time},10,-5", "is negative"),
    ("{time},nan,5", "is not a finite number"),
    ("{time},10,inf", "is not a finite number"),
    ("{time},10,5.5", "not a whole number"),
    ("{time},1_0,5", "is not a finite number"),
    ("{time},99999999999,5", "is above 2147483647"),
    ("{time},99999999999999999999999,5", "is above 2147483647"),
    ("{time},1e40,5", "outside"),
    ("{time},,5", "is empty"),
    ("{time},ten,5", "is not a finite number"),
    ("{time},\u0663,5", "is not a finite number"),
    ("{time},10", "has 2 fields, the header has 3"),
    ("{time},10,5,6", "has 4 fields, the header has 3"),
    ("{time},0,0", "0 input and 0 output"),
    ("nan,10,5", ""),
    ("inf,10,5", ""),
    ("-1,10,5", ""),
    (",10,5", ""),
    ("soon,10,5", ""),
    (".,10,5", ""),
    ("1e99,10,5", ""),
]


@pytest.mark.parametrize(("row", "what"), CSV_BAD)
@pytest.mark.parametrize("name", ["Azure", "Vidur", "plain CSV"])
@pytest.mark.parametrize("line", [2, 4])
def test_bad_rows_of_csv_name_their_line(fault, name, row, what, line):
    header, *good = SAMPLES[name].splitlines()
    time = good[-1].split(b",")[0].decode()
    good = [good[-1]] * 3
    good.insert(line - 2, row.format(time=time).encode())
    message = fault(b"\n".join([header, *good]))
    assert message.startswith(f"line {line}: ")
    assert what in message


@pytest.mark.parametrize(
    "time", ["2023-13-16 18:15:46", "2023-02-30 00:00:00", "2023-11-16", "1969-01-01 00:00:00.5", "5"]
)
def test_bad_calendar_times(fault, time):
    assert fault(AZURE + f"\n{time},1,2".encode()).startswith("line 4: TIMESTAMP: ")


def test_bad_rows_of_burstgpt_and_lengths(fault):
    assert fault(BURSTGPT + b"50,GPT-4,10,x,10,API log\n").startswith("line 4: Response tokens: ")
    assert fault(LENGTHS + b"10,-2,8,1\n").startswith("line 4: num_decode_tokens: ")


def test_decimals_without_end(fault):
    assert "more than 30 decimals" in fault(b"arrival,prefill,decode\n0." + b"1" * 40 + b",1,1\n")


JSON_BAD = [
    ("{", "is no JSON object"),
    ("3", "is JSON but no object"),
    ("{}", "has no "),
    ('{"%s": 1, "%s": 2}', "has no "),
    ("null", "is JSON but no object"),
]


@pytest.mark.parametrize(("row", "what"), JSON_BAD)
@pytest.mark.parametrize("name", ["Mooncake", "vLLM bench", "TraceLab"])
def test_bad_rows_of_jsonl_name_their_line(fault, name, row, what):
    first = SAMPLES[name].splitlines()[0]
    message = fault(b"\n".join([first, row.encode(), first]))
    assert message.startswith("line 2: ")
    assert what in message


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("Mooncake", "6758", "-1", "input_length: -1 is negative"),
        ("Mooncake", "6758", '"6758x"', "input_length: '6758x' is not a finite number"),
        ("Mooncake", "6758", "true", "input_length: "),
        ("Mooncake", "6758", "NaN", "is no JSON object: NaN is not a finite number"),
        ("Mooncake", "6758", "1.5", "input_length: 1.5 is not a whole number"),
        ("Mooncake", "6758", "null", "input_length: is null"),
        ("Mooncake", "6758", "[1]", "input_length: [1] is not a number"),
        ("Mooncake", '"timestamp": 0', '"timestamp": 0.5', "timestamp: 0.5 is not a whole number of milliseconds"),
        ("Mooncake", '"timestamp": 0', '"timestamp": -5', "timestamp: -5 is negative"),
        ("vLLM bench", "2358", "1e400", "input_toks: "),
        ("vLLM bench", "1787267980.0827403", '"now"', "arrival_time: 'now' is not a finite number"),
        ("TraceLab", "5055", '"x"', "newly_append_tokens: 'x' is not a finite number"),
        ("TraceLab", "2026-06-01T05:40:20.151Z", "yesterday", "timing_events.timestamp: 'yesterday' is not a time"),
    ],
)
def test_bad_values_of_jsonl(fault, name, old, new, what):
    first = SAMPLES[name].splitlines()[0]
    assert old in first.decode()
    message = fault(b"\n".join([first, first.replace(old.encode(), new.encode())]))
    assert message.startswith("line 2: ")
    assert what in message


@pytest.mark.parametrize("value", ["9" * 900_000, "0." + "1" * 900_000, "1e" + "9" * 5000, "9" * 4000])
def test_numbers_of_thousands_of_digits_are_refused_at_once(fault, value):
    for old, name in (("374", "Vidur"), ("4.314579", "Vidur"), ("6758", "Mooncake"), ("472", "BurstGPT")):
        message = fault(SAMPLES[name].replace(old.encode(), value.encode()))
        assert "set_int_max_str_digits" not in message
        assert len(message) < 300


@pytest.mark.parametrize("digits", [31, 5000])
def test_fractions_of_a_second_are_bounded(fault, digits):
    message = fault(AZURE.replace(b"6805900", b"1" * digits))
    assert message.startswith("line 2: TIMESTAMP: ")
    assert "has more than 30 decimals; round it" in message


def test_thirty_fractional_digits_are_read(read):
    assert len(read(AZURE.replace(b"6805900", b"1" * 30))) == 2


def test_names_that_no_file_can_have(tmp_path):
    for name in ("t" * 300, "a\0b"):
        with pytest.raises(InvalidInput, match="cannot be read") as error:
            read_trace(tmp_path / name)
        assert len(error.value.faults) == 1


def test_a_name_too_long_for_the_dataset_beside_it(tmp_path):
    path = tmp_path / f"{'c' * 245}-trace.csv"
    path.write_bytes(SERVEGEN)
    with pytest.raises(InvalidInput, match="File name too long") as error:
        read_trace(path)
    assert len(error.value.faults) == 1


@pytest.mark.parametrize("name", SAMPLES)
def test_a_header_alone(fault, name):
    if SAMPLES[name][:1] != b"{":
        assert "holds no requests" in fault(SAMPLES[name].splitlines()[0] + b"\n")


def test_zero_token_rows_say_what_keeps_them(read, fault):
    content = VIDUR + b"5,0,1\n"
    message = fault(content)
    assert message.startswith("line 4: 0 input and 1 output")
    assert "--first-token paper keeps the row" in message
    assert rows(read(content, first_token="paper"))[-1] == (0, 1)


def test_paths_that_are_no_file(tmp_path):
    for path, what in (
        (tmp_path, "is a directory"),
        (tmp_path / "none.csv", "No such file"),
        ("/dev/null", "is not a regular file"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(InvalidInput, match=what) as error:
            read_trace(path)
        assert len(error.value.faults) == 1


def test_lengths_beside_a_file_that_has_its_own(fault):
    assert "has its own lengths" in fault(PLAIN, lengths=IndependentLengths(1, 1))


# ServeGen.


@pytest.fixture
def servegen(tmp_path):
    def write(windows=SERVEGEN, dataset=None):
        path = tmp_path / "chunk-3-trace.csv"
        path.write_bytes(windows)
        if dataset is not None:
            (tmp_path / "chunk-3-dataset.json").write_text(dataset)
        return path

    return write


DATASET = """{"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{1: 0.25, 5: 0.75}", "reason_ratio": "x"},
"1200": {"input_tokens": "{40: 1.0}", "output_tokens": "{9: 1.0}"}}"""


def test_servegen_rates_and_lengths(servegen):
    trace = read_trace(servegen(dataset=DATASET))
    assert trace.rate == Fraction(12, 3)  # (8.5 + 0 + 3.5) over three windows
    share = Fraction(17, 24)  # 8.5 of 12 requests come in windows of the first dataset
    assert trace.lengths.mean_prefill == 15 * share + 40 * (1 - share)
    assert trace.lengths.mean_decode == 3 * share + 8 * (1 - share)
    paper = read_trace(servegen(dataset=DATASET), first_token="paper")
    assert paper.lengths.mean_decode == trace.lengths.mean_decode + 1
    assert any("1 of them empty" in note and "8.5 requests/s" in note for note in trace.notes)
    assert len(trace) == 0
    assert trace
    with pytest.raises(InvalidInput, match="no requests of its own"):
        trace.require_rows()


def test_servegen_without_its_dataset(servegen):
    with pytest.raises(InvalidInput, match=r"chunk-3-dataset.json .* --prefill N --decode N"):
        read_trace(servegen())
    trace = read_trace(servegen(), lengths=IndependentLengths(100, 10))
    assert (trace.rate, trace.lengths.mean_decode) == (4, 10)


@pytest.mark.parametrize(
    ("windows", "what"),
    [
        (SERVEGEN + b"1800,1\n", "line 4: has 2 fields"),
        (SERVEGEN + b"1800,nan,1,Gamma,1,1\n", "line 4: rate: 'nan' is not a finite number"),
        (SERVEGEN + b"1800,-1,1,Gamma,1,1\n", "line 4: the window start and the rate must not be negative"),
        (SERVEGEN + b"600,1,1,Gamma,1,1\n", "line 4: window 600 s does not come after 1200 s"),
        (b"0,0,0,,0,0\n600,0,0,,0,0\n", "every window has rate 0"),
    ],
)
def test_bad_servegen_windows(servegen, windows, what):
    with pytest.raises(InvalidInput) as error:
        read_trace(servegen(windows, DATASET))
    assert what in str(error.value)


@pytest.mark.parametrize(
    "dataset",
    [
        "",
        "[]",
        "{}",
        '{"0": 3}',
        '{"zero": {"input_tokens": "{1: 1.0}", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{1: -1.0, 2: 2.0}", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{-1: 1.0}", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{1: nan}", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "open(1)", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{", "output_tokens": "{1: 1.0}"}}',
        '{"0": {"input_tokens": "{}", "output_tokens": "{1: 1.0}"}}',
    ],
)
def test_bad_servegen_datasets(servegen, dataset):
    with pytest.raises(InvalidInput, match=r"dataset chunk-3-dataset\.json") as error:
        read_trace(servegen(dataset=dataset))
    assert len(error.value.faults) == 1


def test_servegen_gaps_are_said(servegen):
    trace = read_trace(servegen(SERVEGEN + b"6000,4,1,Gamma,1,1\n", DATASET))
    assert any(note.startswith("1 windows do not start 600 s after") for note in trace.notes)


# Streaming.


def test_memory_stays_near_24_bytes_a_row(tmp_path):
    n = 150_000
    rng = np.random.default_rng(7)
    prefill, decode = rng.integers(1, 4000, n), rng.integers(0, 900, n)
    ticks = np.cumsum(rng.integers(0, 10**6, n))
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write("arrival,prefill,decode\n")
        for t, p, d in zip(ticks.tolist(), prefill.tolist(), decode.tolist(), strict=True):
            file.write(f"{t // 10**6}.{t % 10**6:06d},{p},{d}\n")
    read_trace(path)  # imports and caches are not the file's memory
    tracemalloc.start()
    trace = read_trace(path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 25 * n
    assert peak < 40 * n + 12e6  # a column is held twice while it is joined; a block of lines is parsed at a time
    assert np.array_equal(trace.arrivals, ticks)
    assert np.array_equal(trace.lengths.prefill, prefill)
    assert np.array_equal(trace.lengths.decode, decode)


def test_public_name():
    assert qt.read_trace is read_trace


def test_servegen_probabilities_of_many_digits(servegen):
    """Their common denominator has dozens of digits; the weights do not grow with it."""
    laws = [{n: 2 * n / (most * (most + 1)) for n in range(1, most + 1)} for most in (49, 52)]
    dataset = {
        start: {"input_tokens": str(law), "output_tokens": "{1: 1}"}
        for start, law in zip(("0", "1200"), laws, strict=True)
    }
    trace = read_trace(servegen(dataset=json.dumps(dataset)))
    share = 17 / 24  # as above; sum of n^2 over sum of n is (2 most + 1)/3
    assert trace.lengths.mean_prefill == pytest.approx(33 * share + 35 * (1 - share), rel=1e-12)
