"""What NNCodec, the MPEG standard's reference coder, makes of the same tensors at the same bound.

    python -m venv peer
    peer/bin/pip install --no-deps nncodec==2.1.3
    peer/bin/pip install "numpy<2" safetensors
    peer/bin/python benchmarks/nncodec_peer.py ARRAYS.safetensors ... --bound rel:1e-2

NNCodec wants numpy 1, so it gets an environment of its own; this file imports nothing of fedsz. Its
wheel is compiled on the spot, which needs a C++ compiler. ``--no-deps`` leaves out torch,
torchvision, OpenCV and what else serves its training examples alone.

Coded are the float32 tensors that fedsz codes with loss: "weight" in the name and more than 1024
elements. NNCodec quantises to multiples of one step, so each tensor is divided by twice its bound
and coded at QP 0, whose step is 1: NNCodec's rounding to the nearest step then keeps the bound. Its
dependent quantisation, on by default, stays off, because it moves values by more than a step.
All else is as ``nncodec.nn.encode`` has it: DeepCABAC with its parameter optimisation and row
skipping.

Bytes are the whole NNC bitstream; the scales, a float a tensor, are not in it. Each time is given
twice, in seconds of one thread: ``encode`` and ``decode`` are NNCodec's public functions, from
floats to bytes and back, without the division and multiplication; ``cabac_encode`` and
``cabac_decode`` are its entropy coder alone, between integers and bytes. The public encoder also
decodes every tensor, and copies the whole set of them once for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from measuring import machine
from safetensors import safe_open

# NNCodec imports its loaders of models and data sets, and with them torch, torchvision and OpenCV,
# before anything else. Its coder calls none of them when it is given arrays.
framework = ModuleType("nncodec.framework")
framework.tensorflow_model = framework.pytorch_model = framework.use_case_init = None
sys.modules[framework.__name__] = framework

from nncodec import nnc  # noqa: E402
from nncodec.extensions.deepCABAC import Decoder, Encoder, HdspMode  # noqa: E402

Arrays = dict[str, np.ndarray]

THRESHOLD = 1024  # elements; fedsz keeps smaller tensors as they are
UNARY_LENGTH = 10  # ``cabac_unary_length_minus1``, NNCodec's default
ROUNDING = 1e-3  # of the bound: what float32 may add to the error

URQ = 0  # uniform quantisation, each value for itself
ROW_BY_ROW = 0
EDITION_2 = 1  # ``general_profile_idc``: what the public encoder writes
NO_PARENT = 0
NO_HISTORY = (HdspMode.AlwaysOff, np.zeros(2, np.int8))


def lossy(path: Path) -> Arrays:
    """Return the tensors that fedsz would code with loss."""
    with safe_open(path, framework="numpy") as file:
        names = [name for name in file.keys() if "weight" in name]  # noqa: SIM118 - not a dict
        slices = {name: file.get_slice(name) for name in names}
        return {
            name: file.get_tensor(name)
            for name, part in slices.items()
            if part.get_dtype() == "F32" and np.prod(part.get_shape()) > THRESHOLD
        }


def absolute_bound(x: np.ndarray, kind: str, value: float) -> float:
    """Return the bound of one tensor in its own unit."""
    spread = np.ptp(x.astype(np.float64)) if kind == "rel" else np.std(x, dtype=np.float64)
    return value * float(spread)


def step_of(x: np.ndarray, bound: float) -> float:
    """Return the step that keeps the bound; a constant tensor is one step, or none."""
    return 2 * bound or float(np.abs(x).max()) or 1.0


def unit_sizes(stream: bytes) -> Iterator[int]:
    """Yield the size in bytes of each unit of an NNC bitstream (ISO/IEC 15938-17, nnr_unit)."""
    start = 0
    while start < len(stream):
        long = stream[start] >> 7
        size = int.from_bytes(stream[start : start + (4 if long else 2)], "big")
        size &= (1 << (31 if long else 15)) - 1
        yield size
        start += size


def coded(scaled: Arrays) -> tuple[bytearray, Arrays, dict[str, float]]:
    """Return the bitstream of tensors in units of steps, what it decodes to, and the seconds."""
    start = time.perf_counter()
    stream = nnc.compress(
        scaled,
        bitstream_path=None,
        qp_per_tensor=dict.fromkeys(scaled, np.int32(0)),
        use_dq=False,
        row_skipping=True,
        cabac_unary_length_minus1=UNARY_LENGTH,
        return_bitstream=True,
    )
    middle = time.perf_counter()
    decoded = nnc.decompress(stream)
    end = time.perf_counter()
    return stream, decoded, {"encode": middle - start, "decode": end - middle}


def entropy_coded(levels: np.ndarray) -> tuple[int, float, float]:
    """Return the bytes that DeepCABAC makes of integers, and its seconds each way."""
    zero_rows = np.zeros(len(levels), np.int32)
    if levels.ndim > 1:
        zero_rows[:] = ~levels.reshape(len(levels), -1).any(axis=1)
    start = time.perf_counter()
    encoder = Encoder()
    encoder.initCtxModels(UNARY_LENGTH + 1, 1)
    encoder.encodeLayer(
        levels, URQ, ROW_BY_ROW, EDITION_2, NO_PARENT, 1, zero_rows, *NO_HISTORY, 0, 0
    )
    payload = encoder.finish()
    middle = time.perf_counter()
    back = np.zeros_like(levels)
    decoder = Decoder()
    decoder.setStream(payload)
    decoder.initCtxModels(UNARY_LENGTH + 1)
    decoder.decodeLayer(back, URQ, ROW_BY_ROW, EDITION_2, NO_PARENT, *NO_HISTORY, 0, 0)
    end = time.perf_counter()
    assert np.array_equal(back, levels)
    return len(payload), middle - start, end - middle


def measure(arrays: Arrays, bounds: Mapping[str, float], repeats: int) -> dict[str, Any]:
    """Return the bytes, seconds and errors of one set of tensors."""
    steps = {name: step_of(x, bounds[name]) for name, x in arrays.items()}
    scaled = {
        name: np.ascontiguousarray(x / np.float64(steps[name]), np.float32)
        for name, x in arrays.items()
    }
    runs = []
    for _ in range(repeats):
        stream, decoded, seconds = coded(scaled)
        runs.append(seconds)

    # The data units come last, in the order of the tensors; units of the whole model precede them.
    sizes = list(unit_sizes(stream))[-len(arrays) :]
    tensors = []
    for (name, x), size in zip(arrays.items(), sizes, strict=True):
        assert decoded[name].shape == x.shape
        restored = (decoded[name] * np.float64(steps[name])).astype(np.float32)
        error = float(np.abs(restored.astype(np.float64) - x).max())
        levels = np.rint(decoded[name]).astype(np.int32)
        timed = [entropy_coded(levels) for _ in range(repeats)]
        assert timed[0][0] < size <= timed[0][0] + len(name) + 64  # the rest is the unit's header
        tensors.append(
            {
                "name": name,
                "shape": x.shape,
                "raw_bytes": x.nbytes,
                "bound": bounds[name],
                "bytes": size,
                "max_error_over_bound": error / bounds[name] if error else 0.0,
                "cabac_encode": statistics.median(encode for _, encode, _ in timed),
                "cabac_decode": statistics.median(decode for _, _, decode in timed),
            }
        )
    seconds = {way: statistics.median(run[way] for run in runs) for way in ("encode", "decode")}
    for way in ("cabac_encode", "cabac_decode"):
        seconds[way] = sum(tensor[way] for tensor in tensors)
    raw = sum(tensor["raw_bytes"] for tensor in tensors)
    return {
        "raw_bytes": raw,
        "bytes": len(stream),
        "ratio": raw / len(stream),
        "seconds": seconds,
        "mb_per_second": {way: raw / 1e6 / value for way, value in seconds.items()},
        "max_error_over_bound": max(tensor["max_error_over_bound"] for tensor in tensors),
        "tensors": tensors,
    }


def bound_option(text: str) -> tuple[str, float]:
    """Read ``rel:X`` or ``std:X``."""
    kind, _, value = text.partition(":")
    if kind not in ("rel", "std"):
        raise argparse.ArgumentTypeError(f"no bound {text!r}; have rel:X, std:X")
    number = float(value)
    if not 0 < number < np.inf:
        raise argparse.ArgumentTypeError(f"a bound must be above 0, got {value}")
    return kind, number


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("arrays", type=Path, nargs="+", metavar="ARRAYS.safetensors")
    parser.add_argument(
        "--bound",
        type=bound_option,
        default=("rel", 1e-2),
        metavar="rel:X|std:X",
        help="X times the range, or the standard deviation, of each tensor (default rel:1e-2)",
    )
    parser.add_argument(
        "--range-of",
        type=Path,
        metavar="WEIGHTS.safetensors",
        help="take the range, or the deviation, from this file's tensor of the same name",
    )
    parser.add_argument("--repeats", type=int, default=1, help="the median of so many times")
    options = parser.parse_args()

    references = lossy(options.range_of) if options.range_of else None
    files = []
    for path in options.arrays:
        arrays = lossy(path)
        if not arrays:
            parser.error(f"{path} has no float32 weights of more than {THRESHOLD} elements")
        sources = references or arrays
        bounds = {name: absolute_bound(sources[name], *options.bound) for name in arrays}
        result = measure(arrays, bounds, options.repeats)
        files.append({"file": path.name, **result})
    report = {
        "machine": machine("nncodec", "numpy"),
        "bound": ":".join(map(str, options.bound)),
        "range_of": options.range_of and options.range_of.name,
        "files": files,
    }
    json.dump(report, sys.stdout, indent=2)
    print()
    worst = max(file["max_error_over_bound"] for file in files)
    if worst > 1 + ROUNDING:
        sys.exit(f"an error is {worst:.4f} times its bound")


if __name__ == "__main__":
    main()
