"""libfedsz beside Python: the same bytes, the same elements, the same refusals."""

from __future__ import annotations

import ctypes as c
import random
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsz
from fedsz.core.coders import CodecCoder
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import UpdateCoder
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import (
    ChecksumMismatch,
    CodecUnavailable,
    ConfigError,
    CorruptStream,
    FedszError,
    LimitExceeded,
    ReferenceMismatch,
    UnsupportedStream,
)
from fedsz.stream import Limits
from tests import fuzz
from tests.codecs.test_golden import name_of
from tests.compressors import c_library
from tests.compressors.builds import native
from tests.compressors.c_library import Library, NoRoom, Tensor, layers, moved, verdict
from tests.compressors.portable import FLOATS
from tests.conftest import ROOT
from tests.golden.make import (
    CASES,
    FOLDER,
    after,
    before,
    bytes_of,
    rest_before,
    state,
)
from tests.hostile_headers import HOSTILE, header_of, sealed_header
from tests.strategies import LAYER, finite, seeds, weights

BOUNDS = ["rel:0.01", "abs:0.03", "std:0.5", "rel:0.0001", "abs:1e-09", "rel:0.3"]
FEW = Limits(decoded_bytes=1 << 24, expansion=0)

pytestmark = native


@pytest.fixture(scope="module")
def library() -> Library:
    return c_library.of_checkout()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("v[12]-*.fsz")), ids=lambda path: path.stem)
def test_golden_streams_decode(library: Library, path: Path) -> None:
    try:
        decoded = library.decompress(path.read_bytes(), CASES[name_of(path)].reference())
    except CodecUnavailable:
        known = {"raw", "zlib", "gzip", "uniform", *({"zstd"} & set(library.features))}
        coded = {tensor.codec for tensor in fedsz.inspect(path.read_bytes()).tensors}
        assert coded - known
        return

    with np.load(path.with_suffix(".npz")) as expected:
        assert {name: x.tobytes() for name, x in bytes_of(decoded).items()} == {
            name: expected[name].tobytes() for name in expected.files
        }


@pytest.mark.parametrize("error_bound", BOUNDS)
@pytest.mark.parametrize("made", [state, layers, after, rest_before])
def test_streams_are_pythons(
    library: Library, made: Callable[[], dict[str, np.ndarray]], error_bound: str
) -> None:
    lossless = ("raw", "zlib", "gzip", "zlib:level=9")
    for n, (codec, rule) in enumerate(zip(lossless, c_library.RULES, strict=True)):
        options = {"lossless": codec, "rule": rule, "threshold": 1024 * (n % 2)}

        stream = library.compress(made(), library.settings(error_bound, **options))

        assert stream == fedsz.compress(made(), error_bound, **options)  # type: ignore[arg-type]


@given(st.data(), st.sampled_from(FLOATS), st.integers(0, 9))
@settings(deadline=None, max_examples=90)
def test_any_tensor_is_coded_as_by_python(
    library: Library, data: st.DataObject, dtype: type, effort: int
) -> None:
    x, bound = data.draw(weights(dtype)), data.draw(st.sampled_from(BOUNDS))
    codec = f"uniform:effort={effort}"

    how = library.settings(bound, lossless="raw", threshold=0, effort=effort)
    stream = library.compress({"x": x}, how)

    assert stream == fedsz.compress({"x": x}, bound, codec=codec, lossless="raw", threshold=0)


@given(seed=seeds, scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4, 1e37]))
@settings(deadline=None, max_examples=40)
def test_a_bound_by_the_deviation_is_numpys(library: Library, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = finite(scale * rng.standard_t(2, int(rng.integers(1, 1 << 18))), np.float32)
    x[rng.random(x.size) < 0.01] = np.nan

    written: dict[str, c_library.Written] = {}
    library.compress({"x": x}, library.settings("std:0.5", threshold=0), written=written)

    assert written["x"].bound in (0.0, fedsz.ErrorBound.std(0.5).absolute(x))


@pytest.mark.parametrize("error_bound", [*BOUNDS, "std:2"])
@pytest.mark.parametrize("ends", [(after, before), (layers, None)], ids=["golden", "layers"])
def test_differences_and_feedback_are_pythons(
    library: Library, ends: tuple[Callable, Callable | None], error_bound: str
) -> None:
    new = ends[0]()
    old = ends[1]() if ends[1] else {name: moved(x, 0.01) for name, x in new.items()}
    sent = Reference.of(old)
    floats = {name: x for name, x in new.items() if x.dtype in FLOATS}
    for residual, weight, differs in (
        ({}, 1.0, True),
        ({name: moved(np.zeros_like(x), 0.02) for name, x in floats.items()}, 1.0, True),
        ({name: moved(np.zeros_like(x), 0.02) for name, x in floats.items()}, 0.5, False),
    ):
        assert sent is not None
        config = Settings.of(error_bound, lossless="raw", threshold=0)
        coder = UpdateCoder(CodecCoder(config), sent, residual, weight)
        expected = compress_measured(new, config, sent if differs else None, coder=coder)[0]
        left: dict[str, np.ndarray] = {}

        with library.reference(old if differs else None) as base:
            how = library.settings(
                error_bound, lossless="raw", threshold=0, reference=base, feedback=1,
                residual_weight=weight,
            )  # fmt: skip
            stream = library.compress(new, how, residual=residual, left=left)

        assert stream == expected
        for name, x in left.items():
            zeros = np.zeros_like(x)
            assert x.tobytes() == coder.residuals.get(name, zeros).tobytes(), name
        decoded = library.decompress(stream, old)
        for name, y in fedsz.decompress(stream, reference=old, as_numpy=True).items():
            assert decoded[name].tobytes() == y.tobytes()


def test_what_python_writes_is_read_and_inspected(library: Library) -> None:
    rest = rest_before()
    old = rest | {"more": np.arange(30_000.0)}
    new = {name: moved(x, 1e-3) for name, x in old.items()}
    blob = fedsz.compress(new, 1e-3, reference=old, lossless="zstd", threshold=100)

    if "zstd" in library.features:
        decoded = library.decompress(blob, old)
        expected = fedsz.decompress(blob, reference=old, as_numpy=True)
        assert all(decoded[name].tobytes() == y.tobytes() for name, y in expected.items())
        with library.reference(old) as base:
            own = library.compress(new, library.settings("rel:1e-3", reference=base, threshold=100))
        again = fedsz.decompress(own, reference=old, as_numpy=True)
        assert all(again[name].tobytes() == y.tobytes() for name, y in expected.items())
        assert {t.transform for t in fedsz.inspect(own).tensors} == {"delta", "bits"}
    assert library.digest(old) == Reference(old).digest
    with library.reader(blob) as (reader, count):
        assert count == len(fedsz.inspect(blob).tensors)
        for i, told in enumerate(fedsz.inspect(blob).tensors):
            info = library.info(reader, i)
            name, dtype, shape, size = c_library.described(info)
            assert (name, dtype.name, shape) == (told.name, told.dtype, told.shape)
            assert (size, info.bound if info.lossy else None) == (told.raw_bytes, told.bound)
            assert c.string_at(info.codec, info.codec_length).decode() == told.codec


@pytest.mark.parametrize("what", [name for name in HOSTILE if "2^20" not in name])
def test_hostile_headers_are_refused_as_by_python(library: Library, what: str) -> None:
    blob = HOSTILE[what]()

    def opened() -> None:
        with library.reader(blob):
            pass

    assert verdict(opened) == c_library.verdict_of(blob) != "read"


@pytest.mark.parametrize("target", ["header", "stream"])
def test_mutated_bytes_are_refused_as_by_python(library: Library, target: str) -> None:
    rng, corpus = random.Random(7), fuzz.corpus(target)  # noqa: S311
    seen: set[str] = set()
    for _ in range(1500 if target == "header" else 400):
        blob = fuzz.mutated(rng.choice(corpus), corpus, rng)
        if target == "header":
            blob = sealed_header(blob, version=rng.randint(1, 3))
        elif rng.random() < 0.7:
            blob = fuzz.resealed(blob)
        expected = c_library.verdict_of(blob, FEW)

        def opened(blob: bytes = blob) -> None:
            with library.reader(blob, FEW):
                pass

        assert verdict(opened) == expected, blob
        seen.add(expected)
        if target == "stream" and expected == "read":
            decoded = verdict(lambda blob=blob: library.decompress(blob, limits=FEW))
            if decoded != "CodecUnavailable":
                by_python = verdict(
                    lambda blob=blob: fedsz.decompress(blob, as_numpy=True, limits=FEW)
                )
                assert (decoded == "read") == (by_python == "read"), blob
                seen.add(decoded)
    assert {"read", "CorruptStream"} <= seen


@pytest.mark.parametrize("path", sorted(FOLDER.glob("v3-*.fsz")), ids=lambda path: path.stem)
def test_streams_of_chains_are_refused_at_their_version(library: Library, path: Path) -> None:
    with pytest.raises(UnsupportedStream, match="stream version 3 holds chains of methods") as err:
        library.decompress(path.read_bytes())

    assert err.value.offset == 8


def test_every_prefix_and_flipped_byte_is_refused_or_decodes(library: Library) -> None:
    blob = fedsz.compress(layers(), 0.05, lossless="zlib")
    rng = random.Random(3)  # noqa: S311

    for at in [*range(40), *rng.choices(range(len(blob)), k=60)]:
        with pytest.raises(CorruptStream):
            library.decompress(blob[:at])
        changed = bytearray(blob)
        changed[at] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptStream):
            library.decompress(bytes(changed))


def test_limits_hold(library: Library) -> None:
    blob = fedsz.compress({"x": np.zeros(1000, np.float32)}, lossless="raw")

    with pytest.raises(LimitExceeded, match="tensors of 4000 bytes; limit 100"):
        library.decompress(blob, limits=Limits(decoded_bytes=100, expansion=0))
    assert library.decompress(blob, limits=Limits(decoded_bytes=4000, expansion=0))


def test_differences_need_their_model(library: Library) -> None:
    blob = fedsz.compress(after(), 0.01, reference=before(), lossless="raw", threshold=0)
    other = {name: moved(x, 1.0) for name, x in before().items()}

    for given_, why in ((None, "pass it"), (other, "another model")):
        with pytest.raises(ReferenceMismatch, match=why):
            library.decompress(blob, given_)


def test_a_payload_that_changed_is_refused_where_it_lies(library: Library) -> None:
    blob = bytearray(fedsz.compress({"x": np.arange(5000.0)}))
    blob[-1] ^= 1

    with pytest.raises(ChecksumMismatch) as refused:
        library.decompress(bytes(blob))
    assert refused.value.offset == len(blob) - fedsz.inspect(bytes(blob)).tensors[0].nbytes


def test_what_is_not_taken_is_said(library: Library) -> None:
    x = np.arange(4096, dtype=np.float32)
    shifted = np.frombuffer(bytearray(x.nbytes + 1), np.uint8)[1:].view(np.float32)
    surrogate = Tensor.of("x", x)
    surrogate.name, surrogate.name_length = c.create_string_buffer(b"\xed\xa0\x80"), 3
    lib = library

    def add(tensor: Tensor, data: np.ndarray | None, how: c_library.Settings | None = None) -> None:
        writer = c.c_void_p()
        lib.call("fedsz_writer_create", c.byref(how or lib.settings()), c.byref(writer))
        try:
            none = c.c_void_p()
            pointer = c.c_void_p(c_library.address(data))
            lib.call("fedsz_writer_add", writer, c.byref(tensor), pointer, none, none, none)
        finally:
            lib._c.fedsz_writer_destroy(writer)

    for refused, why in (
        (lambda: add(Tensor.of("x", x), shifted), "data must be aligned to 4 bytes, and is 1 off"),
        (lambda: add(Tensor.of("x", x), None), "data must not be NULL"),
        (lambda: add(surrogate, x), "is not text"),
        (lambda: lib.compress({}, lib.settings("rel:1.5")), "below 1 of a range"),
        (lambda: lib.compress({}, lib.settings("abs:nan")), "finite and above 0"),
        (lambda: lib.compress({}, lib.settings(effort=10)), "effort must lie in 0..9"),
        (lambda: lib.compress({}, lib.settings(threads=0)), "threads must lie in 1..1024"),
        (lambda: lib.call("fedsz_writer_create", None, None), "settings must not be NULL"),
        (lambda: lib.call("fedsz_reader_open", None, c.c_size_t(9), None, c.byref(c.c_void_p())),
         "stream must not be NULL"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            refused()
    with lib.reference({"y": x}) as base, pytest.raises(ConfigError, match="reference has no 'x'"):
        lib.compress({"x": x}, lib.settings(reference=base))
    with lib.reader(fedsz.compress({"x": x})) as (reader, _), pytest.raises(NoRoom, match="16384"):
        lib.call("fedsz_reader_decode", reader, c.c_size_t(0), None, None, c.c_size_t(5))


def test_sizes_that_wrap_are_refused_whatever_the_limits(library: Library) -> None:
    """Tensors of 2^64 + 16 bytes in all, in a payload of 16: the sum of their sizes fits."""
    kinds = [["before", 9, [4096]], ["small", 9, [16]]]
    kinds += [[f"c{i}", 9, [1 << 47, 512]] for i in range(255)]
    kinds += [["rest", 9, [(1 << 48) - 16, 256]]]
    data = bytes(16)
    payload = [0, 0, 16, zlib.crc32(data), None, list(range(len(kinds)))]
    stream = sealed_header(header_of(kinds, [payload]), data)
    endless = Limits(decoded_bytes=1 << 64, expansion=1 << 64)

    with pytest.raises(FedszError, match="limit"), library.reader(stream, endless):
        pass


@pytest.mark.parametrize("lossless", ["raw", "zlib", "gzip"])
def test_a_workspace_is_enough_for_small_tensors_beside_a_reference(
    library: Library, lossless: str
) -> None:
    """They share a payload, whose bits differ from the reference's and are coded at the end."""
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.integers(-128, 128, 60_000).astype(np.int8) for i in range(17)}
    with library.reference({name: x[::-1].copy() for name, x in arrays.items()}) as base:
        how = library.settings(lossless=lossless, reference=base)
        expected, wanted = library.compress(arrays, how), library.workspace(arrays, how)
        memory = np.zeros(wanted, np.uint8)
        how.workspace, how.workspace_size = c_library.address(memory), wanted

        assert library.compress(arrays, how) == expected


@pytest.mark.parametrize("effort", [0, 1, 5, 9])
def test_a_workspace_is_enough_or_too_small_and_never_left(library: Library, effort: int) -> None:
    """As much as is asked for is enough, whatever the values; less is an error, and no more."""
    rng = np.random.default_rng(effort)
    made = {
        "half exceptions": np.where(rng.random(70_000) < 0.5, np.nan, rng.normal(size=70_000)),
        "low rank": (rng.normal(size=(300, 4)) @ rng.normal(size=(4, 280))),
        "wide": rng.normal(size=(4, 20_000)) * 1e6,
        "kernels": LAYER["correlated"](rng, (64, 32, 3, 3)),
        "sparse": np.where(rng.random((200, 300)) < 0.01, 1.0, 0.0),
        "small": rng.normal(size=2000),
    }
    for dtype in FLOATS[: 1 if effort == 9 else 4]:
        arrays = {name: finite(x, dtype) for name, x in made.items()}
        arrays["half exceptions"][::2] = np.nan
        how = library.settings("rel:1e-4" if effort < 5 else "std:0.5", effort=effort,
                               lossless="raw", threshold=0)  # fmt: skip
        expected = library.compress(arrays, how)
        wanted = library.workspace(arrays, how)
        memory = np.full(wanted + 128, 0xA5, np.uint8)
        how.workspace, how.workspace_size = c_library.address(memory[61:]), wanted

        assert library.compress(arrays, how) == expected
        assert (memory[:61] == 0xA5).all()
        assert (memory[61 + wanted :] == 0xA5).all()

        for size in (0, 100, 5000, *(int(wanted * rng.random() / 2) for _ in range(2))):
            how.workspace_size = size
            try:
                assert library.compress(arrays, how) == expected
            except NoRoom:
                assert size < wanted


def test_the_library_shows_its_functions_alone() -> None:
    if not (nm := shutil.which("nm")):
        pytest.skip("needs nm")
    listed = subprocess.run(
        [nm, "--dynamic", "--defined-only", c_library.shared()],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    header = (ROOT / "compressors" / "library" / "include" / "fedsz.h").read_text()
    functions = {line.split()[-1] for line in listed if line}

    assert functions
    assert all(name.startswith("fedsz_") and f"{name}(" in header for name in functions)


def test_the_version_is_pythons(library: Library) -> None:
    assert library.version == fedsz.__version__.partition("+")[0]
