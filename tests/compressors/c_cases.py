"""What libfedsz and Python both write and read: input of compressors/library/*.c."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np

import fedsz
from fedsz.arrays import DTYPE_IDS
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import RESIDUAL, Update
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.stream.format import PREFIX
from tests import fuzz
from tests.codecs.test_golden import name_of
from tests.compressors.portable import FLOATS, special
from tests.golden.make import CASES, FOLDER, after, before, rest_before, state
from tests.hostile_headers import HOSTILE, header_of, sealed_header
from tests.strategies import LAYER, finite

State = Mapping[str, np.ndarray]
BOUNDS = ["rel:0.01", "abs:0.03", "std:0.5", "rel:0.0001", "abs:1e-09", "rel:0.3"]
KINDS = ("abs", "rel", "std")
LOSSLESS = {"raw": 0, "zstd": 2, "zlib": 3, "gzip": 4}
RULES = ("shape", "paper", "ndim", "parameters")
DECODED_BYTES = 1 << 24
# Longer than a message, whose end then may lie in a character; and what is no text.
NAMES = [
    *(("a" * n + "ä" * 150 + "\U0001f600" * 60).encode() for n in range(4)),
    *(b"\x80\xff\xc3", b"line\nbreak\x7f", b"\xed\xa0\x80"),
]


class Case(NamedTuple):
    """A state_dict, the model and the residuals beside it if there are any, and how to code it."""

    state: State
    bound: str
    effort: int = 5
    reference: State | None = None
    residuals: State | None = None
    weight: float = 1.0
    lossless: str = "raw"
    rule: str = "shape"
    threshold: int = 0

    def written(self) -> bytes:
        """As compressors/library/program.c reads it."""
        kind, _, value = self.bound.partition(":")
        codec, _, level = self.lossless.partition(":level=")
        head = struct.pack(
            "<8I2dQ", self.effort, KINDS.index(kind), LOSSLESS[codec], int(level or 6),
            RULES.index(self.rule), self.residuals is not None, self.reference is not None,
            len(self.state), float(value), self.weight, self.threshold,
        )  # fmt: skip
        return head + b"".join(self._tensor(name, x) for name, x in self.state.items())

    def _tensor(self, name: str, x: np.ndarray) -> bytes:
        residual = (self.residuals or {}).get(name)
        raw = name.encode()
        head = struct.pack("<4I", len(raw), DTYPE_IDS[x.dtype], x.ndim, residual is not None)
        arrays = (x, residual, None if self.reference is None else self.reference[name])
        elements = b"".join(a.tobytes() for a in arrays if a is not None)
        return head + np.array(x.shape, np.uint64).tobytes() + raw + elements

    def by_python(self) -> tuple[bytes, bytes]:
        """The stream, and what it leaves out of each tensor of floats."""
        settings = Settings.of(
            self.bound, codec=f"uniform:effort={self.effort}", lossless=self.lossless,
            rule=self.rule, threshold=self.threshold,
        )  # fmt: skip
        base = None if self.reference is None else Reference.of(self.reference)
        if self.residuals is None:
            return compress_measured(self.state, settings, base)[0], b""
        sent = base or Reference.of({name: np.zeros_like(x) for name, x in self.state.items()})
        states = {name: {RESIDUAL: r} for name, r in self.residuals.items()}
        update = Update(sent, states, self.weight)
        stream, report = compress_measured(self.state, settings, base, update=update)
        left = (
            report.states.get(name, {}).get(RESIDUAL, np.zeros_like(x)).tobytes()
            for name, x in self.state.items()
            if DTYPE_IDS[x.dtype] < len(FLOATS)
        )
        return stream, b"".join(left)


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


def encoder_cases(dtypes: list[type]) -> Iterator[Case]:
    """Small cases of one tensor, for an encoder alone too."""
    rng = np.random.default_rng(0)
    for dtype in dtypes:
        matrix, kernels = (
            finite(0.01 * LAYER[kind](rng, shape), dtype)
            for kind, shape in (("scaled rows", (60, 50)), ("correlated", (24, 12, 3, 3)))
        )
        for effort in (0, 1, 5, 9):
            yield Case({"w": matrix}, "rel:0.01", effort)
        yield Case({"w": kernels}, "std:0.3")
        yield Case({"w": special(matrix)}, "abs:0.001")
        sparse = np.where(rng.random(4000) < 0.01, 1.0, 0.0)
        yield Case({"w": finite(sparse, dtype)}, "rel:0.1")
        base = {"w": finite(matrix + 0.003 * rng.normal(size=matrix.shape), dtype)}
        yield Case({"w": matrix}, "std:1.0", reference=base)
        yield Case({"w": matrix}, "rel:0.0001", reference=base)
        if np.dtype(dtype).itemsize > 2:
            residual = {"w": finite(0.001 * rng.normal(size=matrix.shape), dtype)}
            yield Case({"w": matrix}, "std:1.0", reference=base, residuals=residual)
            yield Case({"w": special(matrix)}, "rel:0.01", residuals=residual)


def library_cases() -> Iterator[Case]:
    """Cases of many tensors, dtypes and settings, which need all of libfedsz."""
    yield from encoder_cases(FLOATS)
    lossless = ("raw", "zlib", "gzip", "zlib:level=9")
    for make in (state, layers, after, rest_before):
        for bound in BOUNDS:
            for n, (codec, rule) in enumerate(zip(lossless, RULES, strict=True)):
                yield Case(make(), bound, lossless=codec, rule=rule, threshold=1024 * (n % 2))
    near = {name: moved(x, 0.01) for name, x in layers().items()}
    for new, old in ((after(), before()), (layers(), near)):
        floats = {name: x for name, x in new.items() if x.dtype in FLOATS}
        residuals = {name: moved(np.zeros_like(x), 0.02) for name, x in floats.items()}
        for bound in (*BOUNDS, "std:2"):
            yield Case(new, bound, reference=old, residuals={})
            yield Case(new, bound, reference=old, residuals=residuals)
            yield Case(new, bound, residuals=residuals, weight=0.5)
    yield from _hard_for_workspaces()
    rng = np.random.default_rng(7)
    for scale in (1e-30, 1e-3, 1.0, 1e4, 1e37):  # a standard deviation is numpy's
        for _ in range(6):
            x = finite(scale * rng.standard_t(2, int(rng.integers(1, 1 << 18))), np.float32)
            x[rng.random(x.size) < 0.01] = np.nan
            yield Case({"x": x}, "std:0.5")


def _hard_for_workspaces() -> Iterator[Case]:
    """What takes most memory of its size."""
    rng = np.random.default_rng(0)
    made = {
        "half exceptions": rng.normal(size=70_000),
        "low rank": rng.normal(size=(300, 4)) @ rng.normal(size=(4, 280)),
        "wide": rng.normal(size=(4, 20_000)) * 1e6,
        "kernels": LAYER["correlated"](rng, (64, 32, 3, 3)),
        "sparse": np.where(rng.random((200, 300)) < 0.01, 1.0, 0.0),
        "small": rng.normal(size=2000),
    }
    for effort in (0, 1, 5, 9):
        for dtype in FLOATS[: 1 if effort == 9 else 4]:
            arrays = {name: finite(x, dtype) for name, x in made.items()}
            arrays["half exceptions"][::2] = np.nan
            yield Case(arrays, "rel:1e-4" if effort < 5 else "std:0.5", effort)
    # Small tensors share a payload; its differences of bits are coded at the end.
    shared = {f"t{i}": rng.integers(-128, 128, 60_000).astype(np.int8) for i in range(17)}
    other = {name: x[::-1].copy() for name, x in shared.items()}
    for lossless in ("raw", "zlib", "gzip"):
        yield Case(shared, "rel:0.01", reference=other, lossless=lossless, threshold=1024)


class Stream(NamedTuple):
    """Bytes that may be a stream, the model that it may refer to, and what may be decoded."""

    blob: bytes
    model: State | None = None
    decoded_bytes: int = DECODED_BYTES

    def written(self) -> bytes:
        """As compressors/library/reads.c reads it."""
        model = b""
        if self.model is not None:
            model = fedsz.compress(dict(self.model), lossless="raw", threshold=1 << 40)
        pieces = [self.blob, model]
        return struct.pack("<3Q", *map(len, pieces), self.decoded_bytes) + b"".join(pieces)


def streams() -> Iterator[Stream]:
    """Whole streams, and what is hostile, changed, cut or forged."""
    yield from _whole()
    rng = random.Random(11)  # noqa: S311 - a mutation is no secret
    yield from (Stream(make()) for name, make in HOSTILE.items() if "2^20" not in name)
    for name in NAMES:  # of a dtype that there is not
        kinds = [["@" * len(name), 77, [1]]]
        header = msgspec.msgpack.encode(header_of(kinds, []))
        yield Stream(sealed_header(header.replace(b"@" * len(name), name)))
    headers, blobs = fuzz.corpus("header"), fuzz.corpus("stream")
    for _ in range(1000):
        changed = fuzz.mutated(rng.choice(headers), headers, rng)
        yield Stream(sealed_header(changed, version=rng.randint(1, 3)))
    for n in range(300):
        blob = fuzz.mutated(rng.choice(blobs), blobs, rng)
        yield Stream(fuzz.resealed(blob) if n % 3 else blob)
    blob = fedsz.compress(layers(), 0.05, lossless="zlib")
    for at in [*range(40), *rng.choices(range(len(blob)), k=60)]:
        flipped = bytearray(blob)
        flipped[at] ^= 1 << rng.randrange(8)
        yield from map(Stream, (blob[:at], bytes(flipped)))
    made = _parts()
    for _ in range(1000):
        forgery = _forged(made, rng)
        yield Stream(forgery.sealed(), forgery.reference, 1 << 22)
    yield from map(_of_every_nan, (np.float16, ml_dtypes.bfloat16))


def _whole() -> Iterator[Stream]:
    for path in sorted(FOLDER.glob("*.fsz")):
        base = Reference.of(CASES[name_of(path)].reference())
        yield Stream(path.read_bytes(), base.arrays if base else None)
    new, old = layers(), {name: moved(x, 1e-3) for name, x in layers().items()}
    for lossless in ("raw", "zlib", "zstd"):
        yield Stream(fedsz.compress(new, 0.05, lossless=lossless))
        blob = fedsz.compress(new, 1e-3, lossless=lossless, reference=old, threshold=100)
        yield Stream(blob, old)
    far = {name: moved(x, 1.0) for name, x in old.items()}
    yield from (Stream(blob), Stream(blob, far))  # without its model, and with another
    zeros = fedsz.compress({"x": np.zeros(1000, np.float32)}, lossless="raw")
    yield from (Stream(zeros, None, limit) for limit in (100, 3999, 4000))
    # Tensors of 2^64 + 16 bytes in all, in a payload of 16: the sum of their sizes fits.
    kinds = [["before", 9, [4096]], ["small", 9, [16]]]
    kinds += [[f"c{i}", 9, [1 << 47, 512]] for i in range(255)]
    kinds += [["rest", 9, [(1 << 48) - 16, 256]]]
    payload = [0, 0, 16, zlib.crc32(bytes(16)), None, list(range(len(kinds)))]
    wraps = sealed_header(header_of(kinds, [payload]), bytes(16))
    yield Stream(wraps, None, (1 << 64) - 1)


class Forgery(NamedTuple):
    """The parts of a stream, to be changed and sealed again; what it refers to."""

    fields: dict[str, Any]
    payloads: list[bytes]
    version: int
    reference: State | None

    @classmethod
    def of(cls, blob: bytes, reference: State | None) -> Forgery:
        fields = msgspec.msgpack.decode(zlib.decompressobj().decompress(blob[PREFIX:]))
        rest, payloads = blob[PREFIX + int.from_bytes(blob[12:16], "little") :], []
        for payload in fields["payloads"]:
            payloads.append(rest[: payload[2]])
            rest = rest[payload[2] :]
        return cls(fields, payloads, int.from_bytes(blob[8:10], "little"), reference)

    def sealed(self) -> bytes:
        for payload, data in zip(self.fields["payloads"], self.payloads, strict=True):
            payload[2:4] = len(data), zlib.crc32(data)
        return sealed_header(self.fields, b"".join(self.payloads), version=self.version)


# A forged Zstandard frame is left out: what it decodes to is up to the release of that library.
WIRE_IDS = (0, 3, 4, 20)
FORGED_BOUNDS = (None, 0.0, 1e-3, 1, 5e-324, 1e300)


def _parts() -> list[Forgery]:
    """Golden streams, and others of all dtypes by each codec, with and without a reference."""
    made = [stream for stream in _whole() if stream.decoded_bytes == DECODED_BYTES]
    small = {name: x for name, x in layers().items() if x.size < 4000}
    old = {name: moved(x, 0.01) for name, x in small.items()}
    for bound in ("rel:0.01", "std:0.5", "abs:1e-9"):
        for base in (None, old):
            for lossless in ("raw", "zlib"):
                options: Any = {"lossless": lossless, "reference": base, "threshold": 100}
                made.append(Stream(fedsz.compress(small, bound, **options), base))
    found = []
    for blob, model, _ in made:
        if fedsz.inspect(blob).raw_bytes < 1 << 21 and blob[8:10] != b"\3\0":
            forgery = Forgery.of(blob, model)
            if {payload[0] for payload in forgery.fields["payloads"]} <= set(WIRE_IDS):
                found.append(forgery)
    return found


def _floats(rng: random.Random, count: int) -> bytes:
    """Numbers of float32: any bits, NaN of all kinds among them, or of one scale."""
    if rng.random() < 0.4:
        return rng.randbytes(4 * count)
    draws = np.random.default_rng(rng.getrandbits(32))
    scale = np.float32(10.0 ** rng.randint(-45, 37))
    return (draws.normal(size=count).astype(np.float32) * scale).tobytes()


def _cut(data: bytes, rng: random.Random) -> bytes:
    """Bytes with a few changed, more of them near the beginning."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(out), rng.choice([24, 64, 400, 1 << 30])) + 1)
        match rng.randrange(4):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + rng.randint(1, 4)]
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 3))
            case _:
                out[at : at + 4] = rng.randbytes(4)
    return bytes(out)


def _forged(made: list[Forgery], rng: random.Random) -> Forgery:
    """One with one to three of its parts changed or taken from another; its checksums fit."""
    chosen = rng.choice(made)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(chosen.fields))
    forgery = chosen._replace(fields=fields, payloads=list(chosen.payloads))
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(forgery.payloads))
        payload, tensor = fields["payloads"][i], rng.choice(fields["tensors"])
        match rng.randrange(8):
            case 0:
                payload[0] = rng.choice(WIRE_IDS)
            case 1:
                payload[1] = rng.randrange(3)
            case 2:
                payload[4] = rng.choice(FORGED_BOUNDS)
            case 3:
                tensor[1] = rng.randrange(14)
            case 4 if tensor[2]:
                tensor[2][rng.randrange(len(tensor[2]))] += rng.choice([-1, 1, 2])
            case 5:
                forgery.payloads[i] = rng.choice(rng.choice(made).payloads)
            case 6:  # floats without loss where a bound is
                shape = fields["tensors"][payload[5][0]][2]
                count = int(np.prod([max(n, 0) for n in shape]))
                payload[0], data = rng.choice([0, 3]), _floats(rng, min(count, 1 << 16))
                forgery.payloads[i] = zlib.compress(data, 1) if payload[0] else data
            case _:
                forgery.payloads[i] = _cut(forgery.payloads[i], rng)
    return forgery


def _of_every_nan(dtype: type) -> Stream:
    """Every NaN of float32 for a tensor in half precision, which has only their upper bits."""
    upper = np.arange(1 << 11, dtype=np.uint32) << 12
    bits = np.concatenate([0x7F800000 | upper | low for low in (0, 1, 0xFFF)])
    values = np.concatenate([bits, bits | 0x80000000]).astype(np.uint32).view(np.float32)
    values = values[np.isnan(values)]
    zeros: np.ndarray = np.zeros(values.size, dtype)
    blob = fedsz.compress({"x": zeros}, "abs:1", lossless="raw", threshold=0)
    forgery = Forgery.of(blob, None)
    forgery.fields["payloads"][0][0], forgery.fields["payloads"][0][4] = 0, 1.0
    forgery.payloads[0] = values.tobytes()
    return Stream(forgery.sealed())
