"""What benchmarks/codecs.py codes, and who codes it."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsz.arrays import as_arrays
from fedsz.bounds import ErrorBound
from fedsz.cli.files import read_state_dict
from fedsz.codecs import _uniform, sz2
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.codecs.sz2 import Sz2
from fedsz.codecs.sz3 import Sz3
from fedsz.codecs.szx import Szx
from fedsz.codecs.uniform import Uniform, matrix_shape
from fedsz.codecs.zfp import Zfp
from fedsz.core.partition import is_lossy
from fedsz.errors import FedszError
from fedsz.experiments.codec_measurement import Coder, Item, coder_of

Array = npt.NDArray[np.float32]

THRESHOLD = 1024
SEED = 0
FLOAT32 = 0  # what `_uniform` calls it
EFFORTS = (0, 1, 5, 9)
SIMD = {
    "baseline": "uniform (no SIMD)",
    "avx2": "uniform (AVX2)",
    "avx512": "uniform (AVX-512)",
}


@dataclass
class DataSet:
    """Tensors, and for each named rule the bound of each tensor in its own unit."""

    name: str
    tensors: dict[str, Array]
    bounds: dict[str, dict[str, float]]

    @property
    def raw(self) -> int:
        """Bytes of all tensors."""
        return sum(x.nbytes for x in self.tensors.values())

    def items(self, rule: str, coder: Coder) -> list[Item]:
        """Return all tensors as a coder gets them."""
        bounds = self.bounds[rule]
        return [Item(name, x, bounds[name], coder) for name, x in self.tensors.items()]


def relative(tensors: dict[str, Array], rules: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return bounds by rules as the CLI takes them."""
    return {
        f"rel {rule}" if ":" not in rule else rule.replace(":", " "): {
            name: ErrorBound.of(rule).absolute(x) for name, x in tensors.items()
        }
        for rule in rules
    }


def lossy(tensors: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return what fedsz codes with loss by default."""
    return {
        name: x
        for name, x in tensors.items()
        if is_lossy(name, x, rule="paper", threshold=THRESHOLD)
    }


def tame(tensors: dict[str, npt.NDArray[Any]], what: str) -> dict[str, Array]:
    """Return finite, not constant tensors as float32: what every codec can be asked to code."""
    kept = {}
    for name, x in tensors.items():
        y = np.ascontiguousarray(x, np.float32)
        if np.isfinite(y).all() and np.ptp(y) > 0:
            kept[name] = y
        else:
            print(f"{what}: {name} is constant or not finite, and left out", file=sys.stderr)
    return kept


def model_sets(model: str, folder: Path, rules: tuple[str, ...]) -> Iterator[DataSet]:
    """Yield a model's weights and one client's update of them."""
    import arrays

    def load(kind: str) -> dict[str, Array]:
        return tame(lossy(arrays.load(model, kind, folder)), f"{model} {kind}")

    weights = load("weights")
    yield DataSet(f"{model} weights", weights, relative(weights, rules))
    of_weights = {name: ErrorBound.rel(1e-2).absolute(x) for name, x in weights.items()}
    del weights
    update = {name: x for name, x in load("update").items() if name in of_weights}
    bounds = relative(update, ["std:1"])
    bounds["1e-2 of weights"] = {name: of_weights[name] for name in update}
    yield DataSet(f"{model} update", update, bounds)


def drawn_sets(side: int, rules: tuple[str, ...]) -> Iterator[DataSet]:
    """Yield square matrices of independent numbers."""
    rng = np.random.default_rng(SEED)
    draws: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "Gaussian": lambda: rng.standard_normal((side, side), np.float32),
        "Laplace": lambda: rng.laplace(size=(side, side)),
        "Student t, 3 degrees": lambda: rng.standard_t(3, (side, side)),
    }
    for name, draw in draws.items():
        tensors = tame({name: draw()}, name)
        yield DataSet(name, tensors, relative(tensors, rules))


def file_set(path: Path, rules: tuple[str, ...]) -> DataSet:
    """Return what fedsz would code with loss of a file."""
    if path.suffix in (".npy", ".npz"):
        loaded = np.load(path)
        named = {path.stem: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        chosen = {
            name: x
            for name, x in named.items()
            if np.issubdtype(x.dtype, np.floating) and x.size > THRESHOLD
        }
    else:
        try:
            chosen = lossy(as_arrays(read_state_dict(path)))
        except FedszError as err:
            sys.exit(str(err))
    tensors = tame(chosen, path.name)
    if not tensors:
        sys.exit(f"{path} holds nothing that fedsz would code with loss")
    return DataSet(path.name, tensors, relative(tensors, rules))


def matrix(nbytes: int) -> Array:
    """Return a Gaussian matrix of about so many bytes, and about square."""
    rows = 1 << (max(nbytes // 4, 1).bit_length() // 2)
    shape = rows, max(nbytes // 4 // rows, 1)
    return np.random.default_rng(SEED).standard_normal(shape, np.float32)


class BareSz2(Sz2):
    """SZ 2 without the two copies that fedsz makes of what it decodes."""

    def decompress(self, native: bytes, n: int) -> Array:  # noqa: D102
        pointer = sz2.library().SZ_decompress(sz2.FLOAT, native, len(native), 0, 0, 0, 0, n)
        buffer = (ctypes.c_float * n).from_address(pointer)
        weakref.finalize(buffer, sz2.libc().free, pointer)
        return np.asarray(buffer)


def foreign(codec: EnvelopeCodec) -> Coder:
    """Return a foreign codec alone, without what makes it keep its bound."""
    return Coder(
        str(codec),
        lambda x, bound: codec.compress(x.reshape(-1), bound),
        lambda payload, x: codec.decompress(payload, math.prod(x.shape)).reshape(x.shape),
        keeps_bound=False,
    )


def uniform(codec: Uniform, room: Array, level: str = "", name: str = "") -> Coder:
    """Return uniform, with the instructions of ``level``; as `Uniform` calls it.

    Args:
        codec: its settings.
        room: memory for the largest tensor, to decode into and to add to.
        level: of `_uniform.levels()`; "" for the best.
        name: what tables call it, if not by its settings.
    """

    def octets(y: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        return y.reshape(-1).view(np.uint8)

    def encode(x: npt.NDArray[Any], bound: float) -> bytes:
        shape = matrix_shape(x.shape)
        return _uniform.encode(
            octets(x), FLOAT32, *shape, bound, codec.effort, codec.threads, level
        )[0]  # fmt: skip

    def decode(payload: bytes, x: npt.NDArray[Any]) -> Array:
        y = np.empty(x.shape, np.float32)
        _uniform.decode(payload, FLOAT32, octets(y), codec.threads, level)
        return y

    def decode_into(payload: bytes, x: npt.NDArray[Any]) -> None:
        _uniform.decode(payload, FLOAT32, octets(room[: x.size]), codec.threads, level)

    def accumulate(payload: bytes, x: npt.NDArray[Any]) -> None:
        _uniform.accumulate(
            payload, FLOAT32, 0.25, octets(room[: x.size]), codec.threads, level
        )  # fmt: skip

    label = name or str(dataclasses.replace(codec, threads=0))
    others = {"decompress_into": decode_into, "accumulate": accumulate}
    return Coder(label, encode, decode, others=others if room.size else {})


def memcpy(room: Array) -> Coder:
    """Return copies, into memory in use and into new arrays."""
    return Coder(
        "memcpy",
        lambda x, _bound: np.copyto(room[: x.size], x.reshape(-1)),
        lambda _payload, x: x.reshape(-1).copy(),
    )


def contestants(level: str, room: Array) -> list[Coder]:
    """Return every lossy codec that this machine has, SZ 2 first."""
    return [
        *(foreign(codec) for codec in (BareSz2(), Sz3(), Zfp()) if not codec.missing()),
        coder_of(Szx()),
        *(uniform(Uniform(effort=effort, threads=1), room, level) for effort in EFFORTS),
    ]


def extra_contestants(room: Array) -> list[Coder]:
    """Return what is measured on one set only: foreign codecs in fedsz, and less SIMD."""
    here = (codec for codec in (Sz2(), Sz3(), Zfp()) if not codec.missing())
    return [
        *(dataclasses.replace(coder_of(codec), name=f"{codec} (in fedsz)") for codec in here),
        *(
            uniform(Uniform(threads=1), room, level, SIMD.get(level, level))
            for level in _uniform.levels()[:-1]
        ),
    ]
