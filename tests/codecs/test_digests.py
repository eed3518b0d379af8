"""XXH3 as its authors have it, whatever the instruction set and however the input comes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import _stream

# Of xxHash 0.8.3, tests/sanity_test_vectors.h, seed 0: by length of `published`.
OF_64 = {
    0: 0x2D06800538D394C2, 1: 0xC44BDFF4074EECDB, 6: 0x27B56A84CD2D7325, 12: 0xA713DAF0DFBB77E7,
    24: 0xA3FE70BF9D3510EB, 48: 0x397DA259ECBA1F11, 80: 0xBCDEFBBB2C47C90A,
    195: 0xCD94217EE362EC3A, 403: 0xCDEB804D65C6DEA4, 512: 0x617E49599013CB6B,
    2048: 0xDD59E2C3A5F038E0, 2240: 0x6E73A90539CF2948, 2367: 0xCB37AEB9E5D361ED,
}  # fmt: skip
OF_128 = {
    0: 0x99AA06D3014798D86001C324468D497F, 1: 0xA6CD5E9392000F6AC44BDFF4074EECDB,
    6: 0x082AFE0B8162D12A3E7039BDDA43CFC6, 12: 0x6E3EFD8FC7802B18061A192713F69AD9,
    24: 0x0CE966E4678D37611E7044D28B1B901D, 48: 0xA002AC4E5478227EF942219AED80F67B,
    81: 0x4952F58181AB00425E8BAFB9F95FB803, 222: 0x337E09641B948717F1AEBD597CEC6B3A,
    403: 0x1B6DE21E332DD73DCDEB804D65C6DEA4, 512: 0x18D2D110DCC9BCA1617E49599013CB6B,
    2048: 0xF736557FD47073A5DD59E2C3A5F038E0, 2240: 0xCCB134FBFA7CE49D6E73A90539CF2948,
    2367: 0xE89C0F6FF369B427CB37AEB9E5D361ED,
}  # fmt: skip


def published(length: int) -> bytes:
    """What xxHash's own tests hash."""
    out, state = bytearray(), 0x9E3779B1
    for _ in range(length):
        out.append(state >> 56)
        state = state * 0x9E3779B185EBCA8D % (1 << 64)
    return bytes(out)


BYTES = published(5000)


def test_hashes_are_the_published_ones() -> None:
    assert {n: _stream.xxh3_64(BYTES[:n]) for n in OF_64} == OF_64
    assert {n: int.from_bytes(_stream.xxh3(BYTES[:n]), "big") for n in OF_128} == OF_128


def test_hashes_of_all_short_lengths_are_those_of_xxhash() -> None:
    """A hash over all of them, which the package xxhash 4.1.0 (XXH 0.8.4) gave."""
    digests = b"".join(_stream.xxh3(BYTES[:n]) for n in range(1300))
    keys = b"".join(_stream.xxh3_64(BYTES[:n]).to_bytes(8, "big") for n in range(1300))

    assert _stream.xxh3(digests).hex() == "9afba35e4661c2d3c2f786a14e79b491"
    assert _stream.xxh3(keys).hex() == "68dbe580fcca0474a522e7d94483b456"


@pytest.mark.parametrize("level", _stream.levels())
@given(lengths=st.lists(st.sampled_from([0, 1, 63, 64, 65, 255, 256, 257, 1024, 1300]), max_size=9))
def test_pieces_hash_as_the_whole(level: str, lengths: list[int]) -> None:
    hashed, at = _stream.Xxh3(level), 0
    for n in lengths:
        hashed.update(memoryview(BYTES)[at % 997 :][:n])
        at += n
    whole = b"".join(BYTES[sum(lengths[:i]) % 997 :][:n] for i, n in enumerate(lengths))

    assert hashed.digest() == _stream.xxh3(whole)
    assert hashed.digest() == hashed.digest()


def test_a_level_that_is_not_here_is_refused() -> None:
    with pytest.raises(ValueError, match="no such level here: abacus"):
        _stream.Xxh3("abacus")


@pytest.mark.parametrize("what", [7, "text", None, np.zeros((4, 4))[:, ::2]])
def test_what_has_no_contiguous_bytes_is_refused(what: object) -> None:
    for hash_ in (_stream.xxh3, _stream.xxh3_64, _stream.Xxh3().update):
        with pytest.raises((TypeError, ValueError, BufferError)):
            hash_(what)  # type: ignore[arg-type]


def test_threads_that_share_a_hash_add_whole_pieces() -> None:
    """Without the GIL, pieces of one value come in any order."""
    piece, hashed = bytes(1 << 20), _stream.Xxh3()
    threads = [threading.Thread(target=hashed.update, args=(piece,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert hashed.digest() == _stream.xxh3(8 * piece)
