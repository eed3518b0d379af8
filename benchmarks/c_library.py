"""The C library's encoder beside Python's: python -m benchmarks.c_library, after its tests.

Both write whole streams of one tensor on one core, in turns, from build/library as
tests/test_c_library.py compiles it. Checks that streams are equal and that the bound holds, then
prints the CPU time of the C library over that of `fedsz.compress`, the least of each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

import fedsz
from tests.c_library import Library

ROOT: Final = Path(__file__).parents[1]
LIBRARY: Final = ROOT / "build" / "library" / "compressors" / "library" / "libfedsz.so"
SHAPES: Final = ((2048, 2048), (256, 256, 3, 3), (64, 50))
CODEC: Final = "uniform:threads=1"


def least(
    encode: Callable[[], bytes], other: Callable[[], bytes], turns: int
) -> tuple[float, float]:
    """Return the least CPU time of two functions in seconds, called in turns."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(turns):
        for function, spent in zip((encode, other), times, strict=True):
            start = time.process_time()
            function()
            spent.append(time.process_time() - start)
    return min(times[0]), min(times[1])


def main() -> None:
    """Print a row for each tensor."""
    if not LIBRARY.exists():
        sys.exit("run tests/test_c_library.py first: it compiles the library")
    library, rng = Library(LIBRARY), np.random.default_rng(0)
    for shape in SHAPES:
        x = rng.laplace(size=shape).astype(np.float32)
        base = (x + 0.1 * rng.normal(size=shape)).astype(np.float32)
        for error_bound, reference in (("rel:0.01", None), ("std:0.5", {"x": base})):
            with library.reference(reference) as given:
                how = library.settings(error_bound, lossless="raw", reference=given)
                options = {"codec": CODEC, "lossless": "raw", "reference": reference}

                def by_python(x=x, error_bound=error_bound, options=options) -> bytes:  # type: ignore[no-untyped-def]
                    return fedsz.compress({"x": x}, error_bound, **options)

                def by_c(x=x, how=how) -> bytes:  # type: ignore[no-untyped-def]
                    return library.compress({"x": x}, how)

                stream = by_c()
                if stream != by_python():
                    sys.exit(f"streams differ: {shape}, {error_bound}")
                y = fedsz.decompress(stream, reference=reference, as_numpy=True)["x"]
                info = fedsz.inspect(stream).tensors[0]
                if np.abs(y.astype(np.float64) - x).max() > (info.bound or 0.0):
                    sys.exit(f"the bound does not hold: {shape}, {error_bound}")
                ours, theirs = least(by_c, by_python, 12 if x.size > 1 << 16 else 300)
                kind = "difference" if reference else "values"
                print(f"{shape} {kind} {error_bound}: C / Python {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
