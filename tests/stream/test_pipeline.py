"""compress and decompress on whole state_dicts, of torch and of numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz import ErrorBound
from fedsz.codecs import CODECS
from fedsz.core.encode import compress_measured
from fedsz.core.partition import is_lossy
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from tests.codecs.test_codecs import every_codec
from tests.strategies import finite, seeds, specials, state_dicts

torch = pytest.importorskip("torch")

LOSSY = [codec for codec in CODECS if codec.lossy and not codec.missing()]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@every_codec
@given(state=state_dicts())
def test_every_state_dict_comes_back(codec: Any, state: dict[str, Any]) -> None:
    stream = fedsz.compress(state, 1e-2, codec=codec, threshold=16)
    back = fedsz.decompress(stream, as_numpy=True)
    stated = {tensor.name: tensor.bound for tensor in fedsz.inspect(stream).tensors}

    assert list(back) == list(state)
    for name, x in state.items():
        y = back[name]
        if is_lossy(name, x, rule="shape", threshold=16):
            assert (y.dtype, y.shape) == (x.dtype, x.shape)
            check_bound(x, y, ErrorBound.rel(1e-2) if codec.keeps_bound else stated[name])
        else:
            assert same_bits(x, y)
        assert y.flags.writeable


def check_bound(x: np.ndarray, y: np.ndarray, bound: ErrorBound | float | None) -> None:
    """Compare in float64 with a rule or, of a codec that keeps none, with what a stream states."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide, back = x.astype(np.float64), y.astype(np.float64)
        finite = np.isfinite(wide)
        assert x[~finite].tobytes() == y[~finite].tobytes()
        error = np.abs(wide[finite] - back[finite]).max(initial=0.0)
    assert error <= (bound.absolute(wide) if isinstance(bound, ErrorBound) else bound or 0.0)


@pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec.name)
@pytest.mark.parametrize("dtype", FLOATS)
@given(
    data=st.data(),
    rel=st.floats(1e-12, 0.3),
    kind=st.sampled_from(["none", "near", "itself", "noise", "specials"]),
    seed=seeds,
)
def test_the_bound_holds_in_the_tensors_own_dtype(
    codec: Any, dtype: type, data: st.DataObject, rel: float, kind: str, seed: int
) -> None:
    """With a reference of any ``kind``, too: the bound is of the tensor."""
    x, rng = data.draw(specials(dtype)), np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        base = {
            "none": lambda: None,
            "near": lambda: finite(x.astype(float) * (1 + 0.1 * rng.normal(size=x.shape)), dtype),
            "itself": x.copy,
            "noise": lambda: finite(rng.normal(size=x.shape), dtype),
            "specials": lambda: np.where(rng.random(x.shape) < 0.1, np.nan, x).astype(dtype),
        }[kind]()
        reference = None if base is None else {"weight": base}
        stream = fedsz.compress({"weight": x}, rel, codec=codec, threshold=0, reference=reference)
        y = fedsz.decompress(stream, reference=reference, as_numpy=True)["weight"]

    (info,) = fedsz.inspect(stream).tensors
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    check_bound(x, y, ErrorBound.rel(rel) if codec.keeps_bound else info.bound)


@pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec.name)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats_are_really_coded_and_nan_keeps_its_bits(codec: Any, dtype: type) -> None:
    x = np.random.default_rng(0).normal(size=(100, 100)).astype(dtype)
    spoilt = x.copy()
    spoilt[0, [3, 5]] = [np.nan, -np.inf]
    spoilt.view(f"u{x.itemsize}")[0, 3] += 1

    (info,) = fedsz.inspect(fedsz.compress({"weight": x}, 1e-2, codec=codec)).tensors
    stream = fedsz.compress({"weight": spoilt}, 0.05, codec=codec)
    y = fedsz.decompress(stream, as_numpy=True)["weight"]

    if codec.name in ("sz2", "uniform"):
        assert info.codec == codec.name
        assert info.ratio > 2
    assert spoilt[0, [3, 5]].tobytes() == y[0, [3, 5]].tobytes()
    if x.dtype in codec.dtypes:  # the others stay lossless for the sake of one NaN
        assert fedsz.inspect(stream).tensors[0].ratio > 2


def torch_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    weight = torch.randn(40, 50)
    return {
        "embed.weight": weight,
        "head.weight": weight,  # tied
        "transposed.weight": torch.randn(50, 40).t(),
        "strided.weight": torch.randn(80, 100)[::2, ::2],
        "half.weight": torch.randn(40, 50, dtype=torch.float16),
        "brain.weight": torch.randn(40, 50, dtype=torch.bfloat16),
        "double.weight": torch.randn(40, 50, dtype=torch.float64),
        "grad.weight": torch.randn(40, 50, requires_grad=True),
        "parameter.weight": torch.nn.Parameter(torch.randn(40, 50)),
        "conjugate.weight": torch.randn(40, 50, dtype=torch.complex64).conj(),
        "bn.weight": torch.rand(64),
        "bn.num_batches_tracked": torch.tensor(12345678901234),
        "mask": torch.tensor([True, False]),
        "ids": torch.arange(5, dtype=torch.int16),
        "float8": torch.randn(9).to(torch.float8_e5m2),
        "scalar": torch.tensor(1.5),
        "empty.weight": torch.empty(0, 3),
    }


@every_codec
def test_torch_tensors_come_back(codec: Any) -> None:
    """What was given has not changed, and equal state_dicts make equal streams."""
    state = torch_state()
    before = {name: tensor.detach().clone() for name, tensor in state.items()}

    stream = fedsz.compress(state, 1e-2, codec=codec)
    back = fedsz.decompress(stream)

    assert stream == fedsz.compress(before, 1e-2, codec=codec) or codec.name == "sz2"
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        if tensor.is_floating_point() and "weight" in name and tensor.numel() > 1024:
            wide = tensor.detach().double()
            bound = 1e-2 * float(wide.max() - wide.min())
            assert float((back[name].double() - wide).abs().max()) <= bound
        else:
            assert torch.equal(back[name].view(-1), tensor.resolve_conj().reshape(-1))
        if back[name].numel():
            back[name].zero_()  # writable, and its own: the next comparison would notice


def test_big_endian_and_fortran_arrays() -> None:
    x = np.asfortranarray(np.random.default_rng(0).normal(size=(30, 50)).astype(">f8"))

    back = fedsz.decompress(fedsz.compress({"x": x}, codec="zstd"), as_numpy=True)["x"]

    assert np.array_equal(x, back)


def test_a_tensor_hardly_grows() -> None:
    noise = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)

    assert len(fedsz.compress({"weight": noise}, 1e-7)) < noise.nbytes + 128


def test_small_lossless_tensors_share_a_payload() -> None:
    state = {f"bn{i}.bias": np.ones(64, np.float32) for i in range(100)}

    info = fedsz.inspect(fedsz.compress(state))

    assert info.ratio > 10
    assert info.tensors[0].nbytes == info.tensors[99].nbytes < 20


@pytest.mark.parametrize(
    ("rule", "lossy"),
    [
        ("paper", {"fc.weight", "bn.weight"}),
        ("ndim", {"fc.weight", "proj"}),
        ("parameters", {"fc.weight", "proj", "bn.weight"}),
    ],
)
def test_partition_rules(rule: str, lossy: set[str]) -> None:
    rng = np.random.default_rng(0)
    state = {
        "fc.weight": rng.normal(size=(40, 50)).astype(np.float32),
        "proj": rng.normal(size=(40, 50)).astype(np.float32),
        "bn.weight": rng.normal(size=2048).astype(np.float32),
        "bn.running_var": rng.exponential(size=2048).astype(np.float32),
        "at.threshold.weight": rng.normal(size=1024).astype(np.float32),
        "ints.weight": rng.integers(0, 9, (40, 50)),
    }

    info = fedsz.inspect(fedsz.compress(state, rule=rule))

    assert {tensor.name for tensor in info.tensors if tensor.bound is not None} == lossy


@pytest.mark.parametrize("bound", [ErrorBound.abs(0.05), ErrorBound.std(0.1), "std:0.1"])
def test_other_kinds_of_bounds(bound: ErrorBound | str) -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)

    y = fedsz.decompress(fedsz.compress({"weight": x}, bound), as_numpy=True)["weight"]

    check_bound(x, y, ErrorBound.of(bound))


def test_the_report_is_measured() -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    stream, report = compress_measured({"weight": x}, Settings.of(1e-2, codec="zfp"))

    y = fedsz.decompress(stream, as_numpy=True)["weight"]

    error = np.abs(y.astype(np.float64) - x.astype(np.float64)).max()
    assert report.max_error == pytest.approx(error / ErrorBound.rel(1e-2).absolute(x))
    assert (report.raw_bytes, report.nbytes) == (x.nbytes, len(stream))
    assert report.seconds > 0


@pytest.mark.parametrize(
    ("state", "options", "says"),
    [
        ({"x": [1, 2]}, {}, r"state_dict\['x'\] is a list"),
        ({3: np.zeros(2)}, {}, "keys must be strings, got 3"),
        ({"x": np.array(["a"])}, {}, "dtype <U1"),
        ({"x": np.array([None])}, {}, "dtype object"),
        ({"x": torch.zeros(2, 2).to_sparse()}, {}, "not a dense tensor"),
        ({"x": torch.zeros(2, device="meta")}, {}, "not a dense tensor"),
        ({"x": torch.nn.LazyLinear(2).weight}, {}, "not a dense tensor"),
        (
            {"x": torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))},
            {},
            "is a MaskedTensor",
        ),
        ({"x": torch.nested.nested_tensor([torch.ones(1)])}, {}, "more than one dense tensor"),
        ({"x": np.ma.masked_array([1.0, 2.0], [0, 1])}, {}, "is a MaskedArray, more than an array"),
        ({"x\ud800": np.zeros(2)}, {}, "name"),
        ({}, {"error_bound": 1}, r"in \(0, 1\)"),
        ({}, {"lossless": "sz2"}, "'sz2' is not lossless; have raw"),
        ({}, {"rule": "all"}, "no partition rule 'all'; have shape, paper, ndim, parameters"),
        ({}, {"threshold": "many"}, "threshold must be 0 or more elements, got 'many'"),
        (torch.nn.Linear(2, 2), {}, r"a Linear is not a state_dict: pass model.state_dict\(\)"),
        ({}, {"reference": torch.nn.Linear(2, 2)}, r"pass model.state_dict\(\)"),
        ([np.zeros(2)], {}, "a state_dict maps names to tensors or arrays, got a list"),
        (torch.zeros(2), {}, "got a Tensor"),
        (None, {}, "got a NoneType"),
    ],
)
def test_bad_requests(state: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fedsz.compress(state, **options)


@pytest.mark.parametrize("stream", ["model.fsz", Path("model.fsz"), {}, None])
def test_a_stream_is_bytes(stream: Any) -> None:
    for read in (fedsz.decompress, fedsz.inspect):
        with pytest.raises(ConfigError, match=r"a stream is bytes, got a \w+"):
            read(stream)


def test_numpy_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fedsz, numpy as np\n"
        "state = {'weight': np.linspace(0, 1, 5000, dtype=np.float32)}\n"
        "back = fedsz.decompress(fedsz.compress(state), as_numpy=True)\n"
        "assert np.abs(back['weight'] - state['weight']).max() <= 0.01\n"
        "assert 'flwr' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
