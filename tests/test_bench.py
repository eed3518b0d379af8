"""Codecs measured: what rows hold, what is refused, and what becomes of codecs that fail."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.bounds import ErrorBound
from fedsz.codecs import CODECS, Codec, Encoded, Raw
from fedsz.codecs.sz3 import Sz3
from fedsz.errors import CodecError, ConfigError
from fedsz.experiments.bench import Row, digest, initial_weights, measure
from fedsz.experiments.bench_worker import middle
from fedsz.experiments.codec_measurement import Item, coder_of
from tests.test_cli import call, refuse

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

AVAILABLE = [codec.name for codec in CODECS if not codec.missing()]
REL = ErrorBound.rel(1e-2)


def weights(shape: tuple[int, ...] = (64, 128), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


@pytest.fixture
def state() -> dict[str, Any]:
    return {
        "a.weight": weights(),
        "a.bias": weights((64,), 1),
        "b.weight": weights((32, 16, 3, 3), 2),
        "steps": np.array(7, np.int64),
    }


def quick(state: Mapping[str, Any], *codecs: str, **options: Any) -> list[Row]:
    wanted = {"data": "net", "bounds": [REL], "repeats": 1, "seconds": 1.0} | options
    return measure(state, codecs=codecs, **wanted)


def test_every_codec_there_is(state: dict[str, Any], tmp_path: Path) -> None:
    from fedsz.experiments.results import BENCH, Results, read

    told: list[Row] = []
    rows = quick(state, *AVAILABLE, on_row=told.append)

    assert rows == told
    assert [row["error"] for row in rows] == [None] * len(rows)
    lossy_bytes = state["a.weight"].nbytes + state["b.weight"].nbytes
    whole = sum(x.nbytes for x in state.values())
    sizes = {"lossy": lossy_bytes, "lossless part": whole - lossy_bytes, "everything": whole}
    for codec in (codec for codec in CODECS if codec.name in AVAILABLE):
        own = [row for row in rows if row["codec"] == codec.name]
        assert {row["part"] for row in own} == (
            {"lossy"} if codec.lossy else {"lossless part", "everything"}
        )
        for row in own:
            assert row.keys() == BENCH.columns.keys()
            assert row["raw_bytes"] == sizes[row["part"]]
            assert row["data"] == "net"
            assert row["ratio"] == row["raw_bytes"] / row["coded_bytes"]
            steered = codec.lossy and codec.keeps_bound
            assert row["error_bound"] == ("rel:0.01" if steered else None)
            for way in ("encode", "decode"):
                least, median, most = (
                    row[f"{way}_seconds{which}"] for which in ("_least", "", "_most")
                )
                assert 0 < least <= median <= most
            if codec.keeps_bound:
                assert 0 <= row["max_error"] <= 1
            else:
                assert row["max_error"] is None
            assert (row["rmse"] > 0) == codec.lossy
            assert row["data_digest"] == digest(state)

    path = tmp_path / "bench.parquet"
    with Results(path, BENCH) as results:
        results.add(rows)
    assert read(path, BENCH).to_pylist() == rows


def test_errors_are_those_of_the_decoded_numbers(state: dict[str, Any]) -> None:
    (row,) = quick(state, "uniform:effort=3")

    codec, squares, worst, count, coded = next(c for c in CODECS if c.name == "uniform"), 0, 0, 0, 0
    codec = type(codec)(effort=3, threads=1)
    for name in ("a.weight", "b.weight"):
        x = state[name]
        bound = REL.absolute(x)
        payload = codec.encode(x, bound)
        error = codec.decode(payload, x.shape).astype(np.float64) - x
        squares += (error**2).sum()
        worst = max(worst, np.abs(error).max() / bound)
        count += x.size
        coded += len(payload)
    assert row["rmse"] == pytest.approx(math.sqrt(squares / count))
    assert row["max_error"] == pytest.approx(worst)
    assert (row["coded_bytes"], row["elements"]) == (coded, count)
    assert (row["codec"], row["codec_settings"]) == ("uniform:effort=3", "effort=3,threads=1")


def test_a_row_for_each_bound(state: dict[str, Any]) -> None:
    bounds = [REL, ErrorBound.abs(1e-3), ErrorBound.std(0.1)]
    rows = quick(state, "szx", "zstd", bounds=bounds)

    bounds_of = [(row["codec"], row["error_bound"]) for row in rows]
    lossless = [("zstd", None)] * 2
    assert bounds_of == [("szx", "rel:0.01"), ("szx", "abs:0.001"), ("szx", "std:0.1"), *lossless]


def test_a_codec_that_no_bound_steers_has_one_row(state: dict[str, Any]) -> None:
    (row,) = quick(state, "zfp:precision=14", bounds=[REL, ErrorBound.rel(1e-3)])

    assert row["error_bound"] is None
    assert row["max_error"] is None
    assert row["rmse"] > 0


@pytest.mark.parametrize("codec", ["sz2", "uniform"])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_dtypes_a_codec_takes_or_does_not(codec: str, dtype: Any) -> None:
    x = weights().astype(dtype)
    (row,) = quick({"weight": x}, codec)

    assert row["error"] is None
    assert row["raw_bytes"] == x.nbytes
    assert 0 < row["max_error"] <= 1


@pytest.mark.parametrize("codec", ["sz2", "zfp", "szx", "uniform"])
def test_what_is_not_finite_comes_back(codec: str) -> None:
    x = weights()
    x[3, 5:9] = [math.nan, math.inf, -math.inf, math.nan]
    (row,) = quick({"weight": x}, codec)

    assert row["error"] is None
    assert row["max_error"] <= 1
    assert math.isfinite(row["rmse"])


def test_tensors_of_torch() -> None:
    rows = quick(torch.nn.Linear(50, 60).state_dict(), "szx", "raw")

    assert [row["raw_bytes"] for row in rows] == [12_000, 240, 12_240]


def test_constant_tensors_are_left_out_as_compress_leaves_them_out(state: dict[str, Any]) -> None:
    ones = {"norm.weight": np.ones(2048, np.float32)}
    with_ones, without = (quick(s, "szx")[0] for s in ({**state, **ones}, state))
    (alone,) = quick(ones, "szx")

    assert with_ones["raw_bytes"] == without["raw_bytes"]
    assert alone["error"] == "all these tensors are empty or constant"


def test_a_state_dict_without_lossy_tensors() -> None:
    rows = quick({"bias": weights((10,))}, "sz2", "zstd")

    assert [row["error"] for row in rows] == ["none of these tensors may be lossy", None, None]


@pytest.mark.parametrize("state", [{}, {"a": np.empty((0, 3), np.float32)}])
def test_nothing_to_measure(state: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="net holds no tensors"):
        quick(state, "zstd")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"codecs": ["sz4"]}, "no codec 'sz4'; have raw"),
        ({"repeats": 0}, "repeats must be 1 or more, got 0"),
        ({"seconds": -1.0}, "seconds must be 0 or more"),
        ({"threads": -1}, "threads must lie in"),
        ({"rule": "none"}, "no partition rule 'none'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    state: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    told: list[Row] = []
    wanted = {"data": "net", "codecs": ["raw"], "bounds": [REL]} | options
    with pytest.raises(ConfigError, match=why):
        measure(state, on_row=told.append, **wanted)
    assert not told


def test_a_codec_whose_library_is_missing_has_rows_that_say_so(
    state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sz3, "library", "no_such_package")
    missing, there = quick(state, "sz3", "szx")

    assert "codec 'sz3' needs the package 'no_such_package'" in missing["error"]
    assert missing["ratio"] is None
    assert there["error"] is None


def test_a_process_that_dies_costs_its_row(
    state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    (row,) = quick(state, "szx")

    assert row["error"] == "the codec's process ended with status 1"


@dataclass(frozen=True)
class Careless(Codec):
    """A codec that halves what it is given."""

    name = "careless"
    wire_id = 255
    lossy = True

    def encode_measured(self, x: Any, bound: float) -> Encoded:
        return Encoded((x / 2).tobytes(), 0.0)

    def decode(self, payload: Any, shape: Any) -> Any:
        return np.frombuffer(payload, np.float32).reshape(shape)


def test_a_broken_bound_is_told() -> None:
    item = Item("a.weight", weights(), 1e-3, coder_of(Careless()))

    with pytest.raises(CodecError, match=r"an element of a.weight moved by \d+\.\d+ times"):
        item.check(item.decode(item.encode()))


def test_a_lost_nan_is_told() -> None:
    x = weights()
    x[0, 0] = math.nan
    item = Item("a.weight", x, 1e3, coder_of(Careless()))

    with pytest.raises(CodecError, match=r"a NaN or infinity of a\.weight did not come back"):
        item.check(np.nan_to_num(x))


def test_bits_that_changed_are_told() -> None:
    x = weights()
    data = bytearray(x.tobytes())
    item = Item("", x, None, coder_of(Raw()))
    data[77] ^= 1

    with pytest.raises(CodecError, match="did not come back bit for bit"):
        item.check(data)


def test_a_codec_that_is_too_slow_takes_part_of_the_data_and_says_so() -> None:
    big = weights((1500, 1000))
    (row,) = [r for r in quick({"weight": big}, "xz", seconds=0.2) if r["part"] == "everything"]

    assert 1 << 20 <= row["raw_bytes"] < big.nbytes
    assert row["elements"] == row["raw_bytes"] / 4
    assert row["ratio"] > 1


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    itemsizes=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=6, max_size=6),
    share=st.floats(0, 1),
)
def test_the_middle_is_contiguous_and_whole_elements(
    sizes: list[int], itemsizes: list[int], share: float
) -> None:
    data, blocks, coder = bytearray(), [], coder_of(Raw())
    for n, itemsize in zip(sizes, itemsizes, strict=False):
        part = bytes(np.random.default_rng(len(data)).integers(0, 256, n * itemsize, np.uint8))
        data += part
        blocks.append(Item("", np.frombuffer(part, f"V{itemsize}"), None, coder))
    wanted = int(share * len(data))
    cut = middle(blocks, wanted)

    joined = b"".join(item.x.tobytes() for item in cut)
    assert joined in bytes(data)
    assert abs(len(joined) - wanted) < 8
    if wanted == len(data):
        assert joined == data


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc to ask")
def test_memory_is_that_of_the_codec(state: dict[str, Any]) -> None:
    big = {"weight": weights((2000, 1000))}  # 8 MB
    row = quick(big, "raw")[-1]
    assert 8_000_000 <= row["peak_bytes"] < 16_000_000

    # In a process of its own: in this one, others free and take memory meanwhile.
    program = (
        "import numpy as np; from fedsz.experiments.codec_measurement import Memory;"
        "memory = Memory(); memory.mark(); kept = np.ones(64 << 20, np.uint8); memory.look();"
        "print(memory.growth / kept.nbytes)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert float(done.stdout) >= 0.9


def test_a_model_before_any_training() -> None:
    data, state = initial_weights("cnn")

    assert data == "cnn, initial weights"
    assert sum(x.numel() for x in state.values()) == 113_962
    with pytest.raises(ConfigError, match="no model 'vgg'; have cnn, alexnet"):
        initial_weights("vgg")


@pytest.fixture
def file(state: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "net.pt"
    torch.save({name: torch.from_numpy(x) for name, x in state.items()}, path)
    return path


def test_the_command_prints_tables_and_keeps_rows(file: Path, tmp_path: Path) -> None:
    from fedsz.experiments.results import BENCH, read

    results = tmp_path / "bench.parquet"
    options = ("--codecs", "uniform,zstd", "--seconds", 1, "--repeats", 1, "--results", results)
    done = call("bench", file, *options)

    assert done.returncode == 0, done
    assert "net.pt: 51.5 kB, of which 264 B are never lossy" in done.stdout
    assert read(results, BENCH).column("codec").to_pylist() == ["uniform", "zstd", "zstd"]
    assert call("bench", "--model", "cnn", *options).returncode == 0
    assert read(results, BENCH).num_rows == 6


def test_the_command_prints_a_line_a_row_for_machines(file: Path) -> None:
    done = call(
        "bench", file, "--codecs", "szx,raw", "--error-bounds", "1e-3..1e-2", "--json",
        "--seconds", 1, "--repeats", 1,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]

    assert {row["data"] for row in rows} == {"net.pt"}
    assert [(row["codec"], row["error_bound"], row["part"]) for row in rows] == [
        ("szx", "rel:0.001", "lossy"),
        ("szx", "rel:0.01", "lossy"),
        ("raw", None, "lossless part"),
        ("raw", None, "everything"),
    ]


def test_the_command_refuses_in_one_line(file: Path, tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.pt", tmp_path / "text.safetensors"
    empty.touch()
    text.write_text("no tensors")
    other = tmp_path / "other.parquet"
    other.write_text("no table")

    for arguments, why in (
        ((), "give a .pt or .safetensors file, or --model NAME"),
        ((tmp_path / "absent.pt",), "no such file"),
        ((file, tmp_path), "no such file"),
        ((empty,), "is not a file of tensors"),
        ((text,), "is not a safetensors file"),
        (("--model", "vgg"), "no model 'vgg'; have cnn, alexnet, mobilenetv2, resnet50"),
        ((file, "--codecs", "sz2,sz4"), "no codec 'sz4'; have raw, blosclz"),
        ((file, "--error-bounds", "tiny"), "'tiny' is no error bound"),
        ((file, "--repeats", "0"), "repeats must be 1 or more"),
        ((file, "--results", other), "is no Parquet file"),
    ):
        assert why in refuse("bench", *arguments)
