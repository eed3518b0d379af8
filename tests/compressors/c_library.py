"""libfedsz by ctypes: compressors/library/include/fedsz.h, as a test sees it."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedsz.arrays import DTYPE_IDS, DTYPES
from fedsz.errors import (
    ChecksumMismatch,
    CodecUnavailable,
    ConfigError,
    CorruptStream,
    FedszError,
    LimitExceeded,
    ReferenceMismatch,
    TruncatedStream,
    UnsupportedStream,
)
from fedsz.stream import Limits, Reader
from fedsz.stream.format import MAGIC, PREFIX
from tests.compressors.builds import built
from tests.compressors.portable import FLOATS, special
from tests.strategies import LAYER, finite

KINDS = ("abs", "rel", "std")
LOSSLESS = {"raw": 0, "zstd": 2, "zlib": 3, "gzip": 4}
RULES = ("shape", "paper", "ndim", "parameters")


class NoRoom(Exception):
    """A buffer, a workspace or the heap is too small."""


# By status, what Python raises; the first two are its own.
ERRORS: Sequence[type[Exception]] = (
    AssertionError, ConfigError, NoRoom, NoRoom, CorruptStream, TruncatedStream, ChecksumMismatch,
    UnsupportedStream, LimitExceeded, ReferenceMismatch, CodecUnavailable,
)  # fmt: skip


class Error(c.Structure):
    _fields_ = (("status", c.c_int), ("offset", c.c_uint64), ("message", c.c_char * 200))


class Tensor(c.Structure):
    _fields_ = (
        ("name", c.POINTER(c.c_char)), ("name_length", c.c_size_t), ("dtype", c.c_int),
        ("shape", c.POINTER(c.c_uint64)), ("dimensions", c.c_size_t),
    )  # fmt: skip

    @classmethod
    def of(cls, name: str, x: np.ndarray) -> Tensor:
        raw = name.encode()
        shape = (c.c_uint64 * x.ndim)(*x.shape)
        return cls(c.create_string_buffer(raw), len(raw), DTYPE_IDS[x.dtype], shape, x.ndim)


class Settings(c.Structure):
    _fields_ = (
        ("bound_kind", c.c_int), ("bound", c.c_double), ("effort", c.c_uint),
        ("threads", c.c_uint), ("lossless", c.c_int),
        ("lossless_level", c.c_int), ("rule", c.c_int), ("threshold", c.c_uint64),
        ("reference", c.c_void_p),
        ("feedback", c.c_int), ("residual_weight", c.c_double),
        ("workspace", c.c_void_p), ("workspace_size", c.c_size_t),
    )  # fmt: skip


class Written(c.Structure):
    _fields_ = (
        ("lossy", c.c_int), ("bound", c.c_double), ("max_error", c.c_double), ("size", c.c_size_t)
    )  # fmt: skip


class CLimits(c.Structure):
    _fields_ = tuple((name, c.c_uint64) for name in Limits.__dataclass_fields__)


class Info(c.Structure):
    _fields_ = (
        ("tensor", Tensor), ("size", c.c_size_t), ("codec", c.c_void_p),
        ("codec_length", c.c_size_t), ("transform", c.c_int), ("lossy", c.c_int),
        ("bound", c.c_double), ("payload", c.c_size_t), ("payload_offset", c.c_size_t),
        ("payload_size", c.c_size_t),
    )  # fmt: skip


def shared() -> Path:
    """Return the shared library; skip the test without what compiles it."""
    return next((built("library") / "compressors" / "library").glob("libfedsz.so*"))


def of_checkout() -> Library:
    """Return libfedsz as this checkout has it; skip the test without what it needs."""
    return Library(shared())


def verdict(read: Callable[[], object]) -> str:
    """Return the name of the error that a call raises, or "read"."""
    try:
        read()
    except FedszError as err:
        return type(err).__name__
    return "read"


def verdict_of(blob: bytes, limits: Limits | None = None) -> str:
    """Return what libfedsz is to say of a header: what Python does, but that it has no chains."""
    found = verdict(lambda: Reader(blob, limits))
    magic = blob[:8] == MAGIC and len(blob) >= PREFIX
    return "UnsupportedStream" if magic and blob[8:10] == b"\3\0" else found


def address(x: np.ndarray | None) -> int | None:
    return None if x is None else x.ctypes.data


class Library:
    """The functions of a libfedsz, each raising what Python raises."""

    def __init__(self, path: Path) -> None:
        self._c = c.CDLL(str(path))
        for name in ("fedsz_encoder_workspace", "fedsz_tensor_size", "fedsz_reader_count",
                     "fedsz_reader_find", "fedsz_dtype_size"):  # fmt: skip
            getattr(self._c, name).restype = c.c_size_t
        for name in ("fedsz_version", "fedsz_features"):
            getattr(self._c, name).restype = c.c_char_p
        self.features = self._c.fedsz_features().decode().split()
        self.version = self._c.fedsz_version().decode()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function, whose last argument is an error."""
        error = Error()
        status = getattr(self._c, name)(*arguments, c.byref(error))
        assert status == error.status
        if status:
            what = error.message.decode(errors="replace")
            raised = ERRORS[status]
            if issubclass(raised, CorruptStream):
                raise raised(what, offset=error.offset)
            raise raised(what)

    def settings(self, error_bound: str = "rel:0.01", **fields: Any) -> Settings:
        """Return settings as `fedsz.compress` takes them."""
        settings = Settings()
        self._c.fedsz_settings_init(c.byref(settings))
        kind, _, value = error_bound.rpartition(":")
        settings.bound_kind, settings.bound = KINDS.index(kind or "rel"), float(value)
        for name, value in fields.items():
            if name == "lossless":
                codec, _, level = value.partition(":level=")
                settings.lossless = LOSSLESS[codec]
                settings.lossless_level = int(level or {"zstd": 3}.get(codec, 6))
            elif name == "rule":
                settings.rule = RULES.index(value)
            else:
                setattr(settings, name, value)
        return settings

    @contextmanager
    def reference(self, state: Mapping[str, np.ndarray] | None) -> Iterator[c.c_void_p | None]:
        """A model that differences are from, within the block."""
        if state is None:
            yield None
            return
        made = c.c_void_p()
        tensors = (Tensor * len(state))(*(Tensor.of(name, x) for name, x in state.items()))
        data = (c.c_void_p * len(state))(*(address(x) for x in state.values()))
        self.call("fedsz_reference_create", tensors, data, c.c_size_t(len(state)), c.byref(made))
        try:
            yield made
        finally:
            self._c.fedsz_reference_destroy(made)

    def digest(self, state: Mapping[str, np.ndarray]) -> bytes:
        digest = c.create_string_buffer(16)
        with self.reference(state) as made:
            self._c.fedsz_reference_digest(made, digest)
        return digest.raw

    def compress(
        self,
        state: Mapping[str, np.ndarray],
        settings: Settings,
        *,
        residual: Mapping[str, np.ndarray] | None = None,
        left: dict[str, np.ndarray] | None = None,
        written: dict[str, Written] | None = None,
    ) -> bytes:
        """Return a stream; into ``left`` goes what it leaves out."""
        writer, size = c.c_void_p(), c.c_size_t()
        self.call("fedsz_writer_create", c.byref(settings), c.byref(writer))
        try:
            for name, x in state.items():
                out, done = None, Written()
                if left is not None and DTYPE_IDS[x.dtype] < 4:
                    out = left[name] = np.full_like(x, 7)
                before = (residual or {}).get(name)
                self.call(
                    "fedsz_writer_add", writer, c.byref(Tensor.of(name, x)),
                    *(c.c_void_p(address(a)) for a in (x, before, out)), c.byref(done),
                )  # fmt: skip
                if written is not None:
                    written[name] = done
            self.call("fedsz_writer_finish", writer, c.byref(size))
            stream = c.create_string_buffer(size.value)
            self.call("fedsz_writer_copy", writer, stream, size)
            return stream.raw
        finally:
            self._c.fedsz_writer_destroy(writer)

    def workspace(self, state: Mapping[str, np.ndarray], settings: Settings) -> int:
        tensors = (Tensor * len(state))(*(Tensor.of(name, x) for name, x in state.items()))
        wanted: int = self._c.fedsz_encoder_workspace(
            c.byref(settings), tensors, c.c_size_t(len(state))
        )
        return wanted

    @contextmanager
    def reader(self, stream: bytes, limits: Limits | None = None) -> Iterator[tuple[Any, int]]:
        """An open stream and its number of tensors."""
        reader = c.c_void_p()
        allowed = None
        if limits is not None:
            fields = (min(getattr(limits, f), 2**64 - 1) for f in Limits.__dataclass_fields__)
            allowed = c.byref(CLimits(*fields))
        self.call("fedsz_reader_open", stream, c.c_size_t(len(stream)), allowed, c.byref(reader))
        try:
            yield reader, self._c.fedsz_reader_count(reader)
        finally:
            self._c.fedsz_reader_close(reader)

    def info(self, reader: Any, index: int) -> Info:
        info = Info()
        self.call("fedsz_reader_info", reader, c.c_size_t(index), c.byref(info))
        return info

    def decompress(
        self,
        stream: bytes,
        reference: Mapping[str, np.ndarray] | None = None,
        limits: Limits | None = None,
    ) -> dict[str, np.ndarray]:
        """Return a stream's tensors, each decoded by itself."""
        decoded = {}
        with self.reference(reference) as base, self.reader(stream, limits) as (reader, count):
            for i in range(count):
                name, dtype, shape, size = described(self.info(reader, i))
                x = np.empty(shape, dtype)
                self.call("fedsz_reader_decode", reader, c.c_size_t(i), base,
                          c.c_void_p(address(x)), c.c_size_t(size))  # fmt: skip
                decoded[name] = x
        return decoded


def layers() -> dict[str, np.ndarray]:
    """Tensors of all dtypes that may be lossy, large ones that may not, and names that decide."""
    rng = np.random.default_rng(3)
    made = {
        f"{np.dtype(dtype)}.weight": finite(0.05 * rng.laplace(size=(60, 50)), dtype)
        for dtype in FLOATS
    }
    made["conv"] = LAYER["correlated"](rng, (20, 10, 3, 3)).astype(np.float32)
    made["ugly"] = special(made["float32.weight"])
    for name in ("12", "bn.running_var", "batch_stats.x", "vector"):
        made[name] = rng.normal(size=3000).astype(np.float32)
    return made | {"counts": rng.integers(0, 5, 20_000), "step": np.array(3)}


def moved(x: np.ndarray, by: float, seed: int = 1) -> np.ndarray:
    """A tensor of the same dtype, some way off; what is no float stays."""
    if x.dtype.kind in "iubc":
        return x
    noise = np.random.default_rng(seed).normal(size=x.shape)
    return np.asarray((x.astype(np.float64) + by * noise).astype(x.dtype))


def described(info: Info) -> tuple[str, np.dtype, tuple[int, ...], int]:
    """Return name, dtype, shape and size of a tensor in a stream."""
    tensor = info.tensor
    name = c.string_at(tensor.name, tensor.name_length)
    return name.decode(), DTYPES[tensor.dtype], tuple(tensor.shape[: tensor.dimensions]), info.size
