"""Streams whose checksums fit and whose fields and payloads do not: C and Python say the same.

The values are compared too. A forged Zstandard frame is left out: what it decodes to is up to the
release of that library, and the two need not have the same one.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import pytest

import fedsz
from fedsz.core.reference import Reference
from fedsz.errors import FedszError
from fedsz.stream import Limits
from fedsz.stream.format import PREFIX
from tests.codecs.test_golden import name_of
from tests.compressors import c_library
from tests.compressors.builds import native
from tests.compressors.c_library import Library, layers, moved
from tests.golden.make import CASES, FOLDER
from tests.hostile_headers import sealed_header

pytestmark = native
FEW = Limits(decoded_bytes=1 << 22, expansion=0)
BOTH_HAVE = {"raw", "zlib", "gzip", "uniform"}
WIRE_IDS = (0, 3, 4, 20)
BOUNDS = (None, 0.0, 1e-3, 1, 5e-324, 1e300)
State = dict[str, np.ndarray]


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


def genuine() -> list[Forgery]:
    """Golden streams, and others of all dtypes by each codec, with and without a reference."""
    found = []
    for path in sorted(FOLDER.glob("*.fsz")):
        infos = fedsz.inspect(path.read_bytes())
        if {t.codec for t in infos.tensors} <= BOTH_HAVE and infos.raw_bytes < 1 << 21:
            base = Reference.of(CASES[name_of(path)].reference())
            found.append(Forgery.of(path.read_bytes(), base.arrays if base else None))
    small = {name: x for name, x in layers().items() if x.size < 4000}
    old = {name: moved(x, 0.01) for name, x in small.items()}
    for bound in ("rel:0.01", "std:0.5", "abs:1e-9"):
        for reference in (None, old):
            for lossless in ("raw", "zlib"):
                blob = fedsz.compress(
                    small, bound, lossless=lossless, reference=reference, threshold=100
                )
                forgery = Forgery.of(blob, reference)
                if all(payload[0] in WIRE_IDS for payload in forgery.fields["payloads"]):
                    found.append(forgery)
    return found


def floats(rng: random.Random, count: int) -> bytes:
    """Numbers of float32: any bits, NaN of all kinds among them, or of one scale."""
    if rng.random() < 0.4:
        return rng.randbytes(4 * count)
    draws = np.random.default_rng(rng.getrandbits(32))
    scale = np.float32(10.0 ** rng.randint(-45, 37))
    return (draws.normal(size=count).astype(np.float32) * scale).tobytes()


def cut(data: bytes, rng: random.Random) -> bytes:
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


def forged(made: list[Forgery], rng: random.Random) -> Forgery:
    """One with one to three of its parts changed or taken from another."""
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
                payload[4] = rng.choice(BOUNDS)
            case 3:
                tensor[1] = rng.randrange(14)
            case 4 if tensor[2]:
                tensor[2][rng.randrange(len(tensor[2]))] += rng.choice([-1, 1, 2])
            case 5:
                forgery.payloads[i] = rng.choice(rng.choice(made).payloads)
            case 6:  # floats without loss where a bound is
                of = fields["tensors"][payload[5][0]]
                count = int(np.prod([max(n, 0) for n in of[2]]))
                payload[0], data = rng.choice([0, 3]), floats(rng, min(count, 1 << 16))
                forgery.payloads[i] = zlib.compress(data, 1) if payload[0] else data
            case _:
                forgery.payloads[i] = cut(forgery.payloads[i], rng)
    return forgery


def read(decompress: Callable[[], State]) -> tuple[str, dict[str, bytes]]:
    try:
        return "read", {name: x.tobytes() for name, x in decompress().items()}
    except FedszError as err:
        return type(err).__name__, {}


@pytest.fixture(scope="module")
def library() -> Library:
    return c_library.of_checkout()


@pytest.mark.parametrize("seed", range(4))
def test_forged_streams_are_read_and_refused_alike(library: Library, seed: int) -> None:
    rng, made = random.Random(seed), genuine()  # noqa: S311 - a forgery is no secret
    seen = set()
    for _ in range(500):
        forgery = forged(made, rng)
        blob, base = forgery.sealed(), forgery.reference

        in_c = read(lambda: library.decompress(blob, base, FEW))  # noqa: B023
        in_python = read(
            lambda: fedsz.decompress(blob, as_numpy=True, limits=FEW, reference=base)  # noqa: B023
        )

        assert in_c == in_python, blob.hex()
        seen.add(in_c[0])
    assert {"read", "CorruptStream", "UnsupportedStream"} <= seen


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_nan_of_float32_is_the_same_nan_in_half_precision(
    library: Library, dtype: type
) -> None:
    """Their significands differ in which bits are set, of which half precision has the upper."""
    upper = np.arange(1 << 11, dtype=np.uint32) << 12
    bits = np.concatenate([0x7F800000 | upper | low for low in (0, 1, 0xFFF)])
    values = np.concatenate([bits, bits | 0x80000000]).astype(np.uint32).view(np.float32)
    values = values[np.isnan(values)]
    blob = fedsz.compress({"x": np.zeros(values.size, dtype)}, "abs:1", lossless="raw", threshold=0)
    forgery = Forgery.of(blob, None)
    forgery.fields["payloads"][0][0], forgery.fields["payloads"][0][4] = 0, 1.0
    forgery.payloads[0] = values.tobytes()
    blob = forgery.sealed()

    decoded = library.decompress(blob)["x"]

    assert np.isnan(decoded).all()
    assert decoded.tobytes() == fedsz.decompress(blob, as_numpy=True)["x"].tobytes()
