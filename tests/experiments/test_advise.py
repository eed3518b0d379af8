"""Eqn 1: what is worth it, and what is best."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedsz.experiments.advise import UNCOMPRESSED, Choice, best, choices
from tests.cli.test_cli import call, refuse

torch = pytest.importorskip("torch")

ALEXNET = 228e6  # bytes, as Table I of the paper has it


def way(codec: str, sent: float, encode: float, decode: float = 0.0, raw: float = 1e6) -> Choice:
    exact = codec == UNCOMPRESSED
    bound = None if exact else "rel:0.01"
    return Choice(raw, sent, encode, decode, codec=codec, error_bound=bound, exact=exact)


def plain(raw: float = 1e6) -> Choice:
    return way(UNCOMPRESSED, raw, 0.0, raw=raw)


# AlexNet at 1e-2 in Table I: seconds to compress, and the ratio.
TABLE_1 = {
    "sz2": (3.22, 11.26),
    "sz3": (7.22, 9.827),
    "szx": (0.444, 4.804),
    "zfp": (1.89, 4.166),
}


def of_the_paper(codec: str, times: float = 1.0) -> Choice:
    seconds, ratio = TABLE_1[codec]
    return way(codec, ALEXNET / ratio, times * seconds, raw=ALEXNET)


@pytest.mark.parametrize(
    ("codec", "mbps"), [("sz2", 516), ("sz3", 227), ("zfp", 733), ("szx", 3253)]
)
def test_the_papers_own_crossovers(codec: str, mbps: float) -> None:
    without_t_d = of_the_paper(codec)

    assert without_t_d.worth_below / 1e6 == pytest.approx(mbps, abs=1)
    assert of_the_paper(codec, 2).worth_below == pytest.approx(without_t_d.worth_below / 2)


def test_eqn_1() -> None:
    choice = way("a", sent=2e5, encode=0.6, decode=0.2)

    assert choice.ratio == 5
    assert choice.seconds(8e6, latency=0.5) == pytest.approx(0.8 + 0.5 + 0.2)
    assert choice.worth_below == pytest.approx(8e6)
    assert choice.is_worth(7.9e6)
    assert not choice.is_worth(8.1e6)
    assert way("free", sent=2e5, encode=0.0).worth_below == math.inf
    for useless in (plain(), way("same", 1e6, 0.1), way("larger", 1.1e6, 0.1)):
        assert useless.worth_below == 0
        assert not useless.is_worth(1.0)
        assert best([plain(), useless], "rel:0.01", 1.0).codec == UNCOMPRESSED


def test_only_what_keeps_the_bound_is_advised() -> None:
    quick = partial(Choice, 1e6, encode_seconds=0.01, decode_seconds=0.01)
    loose = quick(1e4, codec="loose", error_bound="rel:0.1", exact=False)
    unbound = quick(1e3, codec="zfp:precision=4", exact=False)
    exact = quick(9e5, codec="zstd", exact=True)
    ways = [plain(), way("a", 2e5, 0.01), loose, unbound, exact]

    assert best(ways, "rel:0.01", 1e6).codec == "a"
    assert best(ways, "rel:0.1", 1e6).codec == "loose"
    assert best(ways, "rel:0.001", 1e6).codec == "zstd"
    assert best(ways, "rel:0.001", 1e12).codec == UNCOMPRESSED


def row(part: str, codec: str, **columns: Any) -> dict[str, Any]:
    return {
        "part": part, "codec": codec, "error_bound": None, "raw_bytes": 900, "coded_bytes": 90,
        "encode_seconds": 3.0, "decode_seconds": 1.0, "error": None,
    } | columns  # fmt: skip


def test_an_update_is_its_weights_and_its_rest() -> None:
    rows = [
        row("lossy", "szx", error_bound="rel:0.01"),
        row("lossy", "sz3", error="not here"),
        row("lossless part", "zstd", raw_bytes=100, coded_bytes=50, encode_seconds=0.5),
        row("everything", "zstd", raw_bytes=1000, coded_bytes=800),
        row("everything", "raw", raw_bytes=1000, coded_bytes=1000),
    ]
    first, szx, zstd = choices(rows, lossless="zstd", raw_bytes=1000)

    assert (first.codec, first.sent_bytes, first.coding_seconds) == (UNCOMPRESSED, 1000, 0)
    assert (szx.codec, szx.sent_bytes) == ("szx", 90 + 50)
    assert (szx.encode_seconds, szx.decode_seconds) == (3.5, 2.0)
    assert (zstd.sent_bytes, zstd.encode_seconds) == (800, 3.0)
    assert szx.raw_bytes == zstd.raw_bytes == 1000
    # Without a lossless codec, the rest is sent as it is.
    _, szx = choices(rows[:2], lossless="zstd", raw_bytes=1000)
    assert (szx.sent_bytes, szx.encode_seconds, szx.raw_bytes) == (190, 3.0, 1000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "net.pt"
    torch.save(torch.nn.Linear(100, 120).state_dict(), path)
    return path


QUICK = ("--codecs", "szx,zstd", "--repeats", 1, "--seconds", 1)


def test_the_last_line_is_the_answer(file: Path) -> None:
    slow = call("advise", file, *QUICK, "--bandwidth", "64kbps")
    fast = call("advise", file, *QUICK, "--bandwidth", "1e9 gbps")

    assert slow.returncode == fast.returncode == 0, (slow, fast)
    assert "net.pt: 48.5 kB, 6.06 s at 64 kbps" in slow.stdout
    assert slow.stdout.splitlines()[-1].startswith("At 64 kbps compress with szx at 0.01: ")
    assert "do not compress" in fast.stdout.splitlines()[-1]


def test_what_is_not_there_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsz.codecs.sz3 import Sz3

    monkeypatch.setattr(Sz3, "library", "no_such_package")
    options = ("--codecs", "szx,sz3", "--repeats", 1, "--seconds", 1, "--bandwidth", "1mbps")
    done = call("advise", file, *options)

    assert "no sz3 at 0.01 on net.pt: codec 'sz3' needs the package" in done.stdout
    assert "compress with szx" in done.stdout.splitlines()[-1]


def test_the_command_refuses_in_one_line(file: Path) -> None:
    for arguments, why in (
        (("--bandwidth", "1mbps"), "give a .pt or .safetensors file, or --model NAME"),
        ((file, "--model", "cnn", "--bandwidth", "1mbps"), "and not both"),
        ((file,), "Missing option '--bandwidth'"),
        ((file, "--bandwidth", "fast"), "'fast' is no bandwidth; write 10mbps"),
        ((file, "--bandwidth", "0mbps"), "a bandwidth must be above 0"),
        ((file, "--bandwidth", "1e999mbps"), "give a finite bandwidth, not '1e999mbps'"),
        ((file, "--bandwidth", "1mbps", "--codecs", "sz4"), "no codec 'sz4'"),
        ((file, "--bandwidth", "1mbps", "--lossless", "sz2"), "codec 'sz2' is not lossless"),
        (("--model", "vgg,cnn", "--bandwidth", "1mbps"), "no model 'vgg,cnn'; have cnn"),
    ):
        assert why in refuse("advise", *arguments)
