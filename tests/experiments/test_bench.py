"""Codecs measured: what rows hold, what is refused, and what becomes of codecs that fail."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fedsz.arrays import DTYPE_IDS
from fedsz.bounds import ErrorBound
from fedsz.codecs import CODECS, parse
from fedsz.codecs.uniform import Uniform
from fedsz.errors import CodecError, ConfigError
from fedsz.experiments.bench import Row, digest, initial_weights, measure, written
from fedsz.experiments.bench_worker import BenchJob, measured
from fedsz.experiments.codec_measurement import Item, coder_of
from fedsz.experiments.results import BENCH, Results, read
from tests.cli.test_cli import call, refuse

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


def alone(state: Mapping[str, np.ndarray], codec: str, bound: ErrorBound | None = REL) -> Row:
    """What the codec's process would tell, without the process."""
    tensors = [(name, DTYPE_IDS[x.dtype], x.shape) for name, x in state.items()]
    job = BenchJob(codec, written(bound), 1, 1, 1.0, tensors)
    return measured(job, list(state.values()))


@pytest.mark.parametrize("codec", AVAILABLE)
def test_every_codec_there_is(codec: str, state: dict[str, Any]) -> None:
    of = parse(codec)
    row = alone({n: x for n, x in state.items() if x.size > 64 or not of.lossy}, codec)

    assert row["raw_bytes"] == sum(x.nbytes for x in state.values() if x.size > 64 or not of.lossy)
    assert row["ratio"] == row["raw_bytes"] / row["coded_bytes"]
    for way in ("encode", "decode"):
        least, median, most = (row[f"{way}_seconds{which}"] for which in ("_least", "", "_most"))
        assert 0 < least <= median <= most
    if of.keeps_bound:
        assert 0 <= row["max_error"] <= 1
    else:
        assert row["max_error"] is None
    assert (row["rmse"] > 0) == of.lossy


def test_a_row_for_each_part_and_bound(state: dict[str, Any], tmp_path: Path) -> None:
    told: list[Row] = []
    bounds = [REL, ErrorBound.abs(1e-3)]
    rows = quick(
        state, "uniform:effort=3", "zfp:precision=14", "zstd", bounds=bounds, on_row=told.append
    )

    assert rows == told
    assert [(row["codec"], row["part"], row["error_bound"]) for row in rows] == [
        ("uniform:effort=3", "lossy", "rel:0.01"),
        ("uniform:effort=3", "lossy", "abs:0.001"),
        ("zfp:precision=14", "lossy", None),  # no bound steers it
        ("zstd", "lossless part", None),
        ("zstd", "everything", None),
    ]
    assert rows[0]["codec_settings"] == "effort=3"
    whole = sum(x.nbytes for x in state.values())
    lossy = state["a.weight"].nbytes + state["b.weight"].nbytes
    assert [row["raw_bytes"] for row in rows] == [lossy, lossy, lossy, whole - lossy, whole]
    for row in rows:
        assert row.keys() == BENCH.columns.keys()
        assert row["error"] is None
        assert (row["data"], row["data_digest"]) == ("net", digest(state))
    path = tmp_path / "bench.parquet"
    with Results(path, BENCH) as results:
        results.add(rows)
    assert read(path, BENCH).to_pylist() == rows


def test_errors_are_those_of_the_decoded_numbers(state: dict[str, Any]) -> None:
    row = alone({name: state[name] for name in ("a.weight", "b.weight")}, "uniform:effort=3")

    codec, squares, worst, count, coded = Uniform(effort=3), 0.0, 0.0, 0, 0
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


@pytest.mark.parametrize("codec", ["sz2", "zfp", "szx", "uniform"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_numbers_of_any_dtype_and_those_that_are_not_finite(codec: str, dtype: Any) -> None:
    x = weights().astype(dtype)
    x[3, 5:9] = [math.nan, math.inf, -math.inf, math.nan]
    row = alone({"weight": x}, codec)

    assert row["raw_bytes"] == x.nbytes
    assert 0 <= row["max_error"] <= 1  # none if all is packed for want of a codec of this dtype
    assert math.isfinite(row["rmse"])


def test_constant_tensors_are_left_out_as_compress_leaves_them_out(state: dict[str, Any]) -> None:
    lossy = {name: state[name] for name in ("a.weight", "b.weight")}
    ones = {"norm.weight": np.ones(2048, np.float32)}

    assert alone({**lossy, **ones}, "szx")["raw_bytes"] == alone(lossy, "szx")["raw_bytes"]
    with pytest.raises(CodecError, match="all these tensors are empty or constant"):
        alone(ones, "szx")


def test_a_state_dict_of_torch_without_lossy_tensors() -> None:
    rows = quick({"bias": torch.ones(10)}, "sz2", "zstd")

    assert [row["error"] for row in rows] == ["none of these tensors may be lossy", None, None]
    assert [row["raw_bytes"] for row in rows] == [None, 40, 40]


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
        ({"threads": -1}, "threads must be from"),
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


def test_a_process_that_dies_costs_its_row(
    state: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    (row,) = quick(state, "szx")

    assert row["error"] == "the codec's process ended with status 1"


@pytest.mark.parametrize(
    ("bound", "codec", "says"),
    [
        (1e-3, "uniform", r"an element of a\.weight moved by 100 times its bound"),
        (1e3, "uniform", r"a NaN or infinity of a\.weight did not come back"),
        (None, "raw", "did not come back bit for bit"),
    ],
)
def test_a_broken_promise_is_told(bound: float | None, codec: str, says: str) -> None:
    x = weights()
    x[0, 0] = math.nan if bound == 1e3 else 0.0
    item = Item("a.weight", x, bound, coder_of(parse(codec)))
    back = np.nan_to_num(x)
    back[1, 1] += 0.1

    with pytest.raises(CodecError, match=says):
        item.check(back if bound else bytearray(back.tobytes()))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc to ask")
def test_memory_is_that_of_the_codec(state: dict[str, Any]) -> None:
    big = {"weight": weights((2000, 1000))}  # 8 MB
    row = quick(big, "raw")[-1]
    assert 8_000_000 <= row["peak_bytes"] < 16_000_000

    # In a process of its own: in this one, others free and take memory meanwhile.
    program = (
        "import numpy as np; from fedsz.experiments.codec_measurement import Growth;"
        "growth = Growth()\nwith growth.watched(): kept = np.ones(64 << 20, np.uint8)\n"
        "print(growth.most / kept.nbytes)"
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
    results = tmp_path / "bench.parquet"
    quickly = ("--seconds", 1, "--repeats", 1, "--results", results)
    done = call("bench", file, "--codecs", "uniform,zstd", *quickly)

    assert done.returncode == 0, done
    assert "net.pt: 51.5 kB, of which 264 B are never lossy" in done.stdout
    assert read(results, BENCH).column("codec").to_pylist() == ["uniform", "zstd", "zstd"]

    bounds = ("--codecs", "szx", "--error-bounds", "1e-3..1e-2")
    call("bench", "--model", "cnn", *bounds, *quickly)

    rows = read(results, BENCH).to_pylist()[3:]
    assert [(row["data"], row["codec"], row["error_bound"], row["part"]) for row in rows] == [
        ("cnn, initial weights", "szx", bound, "lossy") for bound in ("rel:0.001", "rel:0.01")
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
