"""The command line as people and machines use it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import fedsz
from fedsz.cli import main
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.paper.options import PaperConfig
from fedsz.training.options import RunConfig, options
from tests.hostile_headers import header_of, sealed_header

torch = pytest.importorskip("torch")


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def call(*arguments: Any) -> Done:
    """Run a command in this process, which saves it from importing torch once more."""
    out, err, argv = io.StringIO(), io.StringIO(), ["fedsz", *map(str, arguments)]
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            mock.patch.object(sys, "argv", argv),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


PANIC = type("PanicException", (BaseException,), {})  # as pyo3 has it


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (MemoryError(), "out of memory"),
        (MemoryError("unable to allocate 8 GiB"), "out of memory: unable to allocate 8 GiB"),
        (PANIC("x"), "a library has failed, most likely for want of memory: x"),
    ],
)
def test_a_want_of_memory_is_one_line(failure: BaseException, line: str) -> None:
    with mock.patch("fedsz.cli.codecs.print_json", side_effect=failure):
        assert refuse("codecs", "--json") == line


def refuse(*arguments: Any) -> str:
    """Return the one line that a mistake is answered with."""
    done = call(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("fedsz: ")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    torch.save(
        torch.nn.Sequential(torch.nn.Linear(50, 60), torch.nn.BatchNorm1d(60)).state_dict(), path
    )
    return path


def test_help_names_every_command() -> None:
    assert "decompress" in call("--help").stdout


@pytest.mark.parametrize(
    "command",
    [
        *("run", "server", "client", "sweep", "bench", "advise", "report", "paper"),
        *("compress", "decompress", "inspect", "codecs", "keys"),
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    done = call(command, "--help")

    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_version() -> None:
    assert call("--version").stdout.startswith("fedsz ")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_model_there_and_back(model: Path, suffix: str) -> None:
    stream, back = model.with_suffix(".fsz"), model.with_name(f"back{suffix}")

    compressed = call("compress", model, "-o", stream, "--error-bound", "1e-2", "--json")
    decompressed = call("decompress", stream, "-o", back)

    assert compressed.returncode == decompressed.returncode == 0, (compressed, decompressed)
    report = json.loads(compressed.stdout)
    assert report["nbytes"] == stream.stat().st_size
    assert 0 < report["max_error"] <= 1
    before = torch.load(model, weights_only=True)
    if suffix == ".pt":
        after = torch.load(back, weights_only=True)
    else:
        from safetensors.torch import load_file

        after = load_file(back)
    bound = 1e-2 * float(before["0.weight"].max() - before["0.weight"].min())
    assert float((before["0.weight"] - after["0.weight"]).abs().max()) <= bound
    assert all(torch.equal(before[name], after[name]) for name in before if name != "0.weight")


def test_safetensors_in_and_default_names(model: Path) -> None:
    from safetensors.torch import save_file

    source = model.with_suffix(".safetensors")
    save_file(torch.load(model, weights_only=True), source)
    model.unlink()

    assert call("compress", source).returncode == 0
    assert call("decompress", model.with_suffix(".fsz")).returncode == 0
    assert torch.load(model, weights_only=True)["0.weight"].shape == (60, 50)


def test_a_checkpoint_with_more_than_the_model(model: Path) -> None:
    state = torch.load(model, weights_only=True)
    torch.save({"epoch": 3, "state_dict": state}, model)

    call("compress", model)

    assert len(fedsz.inspect(model.with_suffix(".fsz").read_bytes()).tensors) == len(state)


def test_inspect(model: Path) -> None:
    call("compress", model)
    stream = model.with_suffix(".fsz")

    table, report = call("inspect", stream), call("inspect", stream, "--json")

    for word in (
        "tensor",
        "dtype",
        "shape",
        "codec",
        "bound",
        "bytes",
        "ratio",
        "0.weight",
        "60x50",
    ):
        assert word in table.stdout
    parsed = json.loads(report.stdout)
    assert parsed["nbytes"] == stream.stat().st_size
    first = parsed["tensors"][0]
    assert (first["name"], first["dtype"], first["shape"]) == ("0.weight", "float32", [60, 50])
    assert first["bound"] > 0


def test_codecs_are_listed() -> None:
    names = [row["name"] for row in json.loads(call("codecs", "--json").stdout)]

    assert names == [codec.name for codec in fedsz.codecs.CODECS]
    assert all(name in call("codecs").stdout for name in names)


def test_nothing_is_written_over(model: Path) -> None:
    stream = model.with_suffix(".fsz")
    stream.write_text("precious")

    assert refuse("compress", model) == f"{stream} exists; --force writes over it"
    assert stream.read_text() == "precious"
    assert call("compress", model, "--force").returncode == 0
    assert refuse("decompress", stream) == f"{model} exists; --force writes over it"


def test_pickles_are_not_run(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "owned",)

    (tmp_path / "model.pt").write_bytes(pickle.dumps({"weight": Evil()}))

    assert "model.pt is not a file of tensors" in refuse("compress", tmp_path / "model.pt")
    assert not (tmp_path / "owned").exists()


def test_a_damaged_file_of_tensors_is_one_plain_line(model: Path) -> None:
    whole = model.read_bytes()
    changed = bytearray(whole)
    start = whole.index(b"data.pkl") + len(b"data.pkl")
    changed[start : start + 40] = b"\x1b[1m" * 10
    for damaged in (b"", whole[: len(whole) // 2], bytes(changed), b"hello\x1b[1m\n", whole[9:]):
        model.write_bytes(damaged)
        says = refuse("compress", model)
        assert says.endswith("it is damaged, or holds other objects than tensors")
        assert says.isprintable()
    torch.save(torch.nn.Linear(2, 2), model)
    assert "weights_only" not in refuse("compress", model)
    odd = model.with_name("\x1b[1mmodel.pt")
    assert f"cannot read {model}: No such file" in refuse("compress", odd)


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSZ_RONDS", "3")

    says = refuse("codecs")

    hint = "(did you mean 'FEDSZ_ROUNDS'?)"
    assert says == f"no option is called FEDSZ_RONDS, which is in the environment {hint}"


def test_every_variable_that_is_read_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RunConfig, SweepConfig, PaperConfig):
        for name in options(kind):
            monkeypatch.setenv(f"FEDSZ_{name.upper()}", "")  # as good as absent
    monkeypatch.setenv("FEDSZ_TEST_DATA", "anywhere")

    assert call("codecs").returncode == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("sw", "sweep"), ("run --error", "--error-bound"), ("codecs --js", "--json")],
)
def test_shells_complete_commands_and_options(typed: str, offered: str) -> None:
    words = f"fedsz {typed}"
    asked = {"_FEDSZ_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    script = "import sys; sys.argv[0] = 'fedsz'; from fedsz.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **asked}
    )

    assert done.stdout.split() == [offered], done.stderr


def test_a_damaged_stream_is_one_line(model: Path) -> None:
    call("compress", model)
    stream = model.with_suffix(".fsz")
    data = bytearray(stream.read_bytes())
    data[-1] ^= 1
    stream.write_bytes(data)

    assert "checksum of payload" in refuse("decompress", stream, "--force")
    stream.write_bytes(data[:100])
    assert "ends within its header" in refuse("inspect", stream)
    stream.write_bytes(b"something else altogether")
    assert "not a fedsz stream" in refuse("inspect", stream)
    tensor, payload = ["x", 0, [0, 2**47, 2**47]], [0, 0, 0, 0, None, [0]]
    stream.write_bytes(sealed_header(header_of([tensor], [payload])))
    assert "of 'x', which no array has (at byte 20)" in refuse("decompress", stream, "--force")


def test_decompress_is_limited(model: Path) -> None:
    call("compress", model)

    says = refuse("decompress", model.with_suffix(".fsz"), "--force", "--max-bytes", "1000")

    assert "limit 1000" in says


BAD = {
    "no command": (["nothing"], "No such command 'nothing'"),
    "no option": (["run", "--speed", "9"], "No such option '--speed'"),
    "no number": (["run", "--rounds", "many"], "'many' is not a valid int"),
    "bound 0": (["run", "--error-bound", "0"], "above 0, got 0"),
    "bound negative": (["run", "--error-bound", "-0.1"], "above 0, got -0.1"),
    "bound nan": (["run", "--error-bound", "nan"], "finite and above 0, got nan"),
    "bound 1": (["run", "--error-bound", "1"], "in (0, 1), got 1"),
    "no bound": (["run", "--error-bound", "small"], "'small' is no error bound"),
    "codec": (["server", "--insecure", "--codec", "sz4"], "no codec 'sz4'; have raw, blosclz"),
    "lossless": (
        ["server", "--insecure", "--lossless", "zfp"],
        "codec 'zfp' is not lossless; have raw",
    ),
    "data set": (
        ["server", "--insecure", "--dataset", "mnist"],
        "no data set 'mnist'; have digits, cifar10",
    ),
    "model": (["server", "--insecure", "--model", "vgg"], "no model 'vgg'; have cnn, alexnet"),
    "partitioner": (["server", "--insecure", "--partitioner", "skew"], "'skew'"),
    "rule": (
        ["run", "--rule", "all"],
        "no partition rule 'all'; have shape, paper, ndim, parameters",
    ),
    "rounds": (["run", "--rounds", "0"], "rounds must lie in 1..1e+06, got 0"),
    "no config": (["run", "--config", "none.toml"], "cannot read none.toml: No such file"),
    "partition": (["client", "--insecure", "--partition", "4/4"], "I/N with I from 0 to N-1"),
    "plaintext": (["server"], "--insecure"),
    "no process": (["run", "--clients", "0"], "clients must lie in 1..1000"),
    "half of tls": (["server", "--tls-cert", "x"], "--tls-key"),
    "server": (["client", "--insecure", "--server", "nowhere"], "host:port, got 'nowhere'"),
    "no file": (["compress", "none.pt"], "cannot read none.pt: No such file"),
    "no stream": (["inspect", "none.fsz"], "cannot read none.fsz: No such file"),
    "suffix": (["compress", "model.h5"], "a state_dict is a file in .pt"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line(case: str) -> None:
    arguments, says = BAD[case]

    assert says in refuse(*arguments)


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is free is known on Linux alone")
def test_more_clients_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = ("run", "--clients", 2, "--min-replies", 3)  # which is refused next: nothing starts
    monkeypatch.setattr("fedsz.training.local_fleet.CLIENT_BYTES", 1)
    assert len(call(*crowd).stderr.splitlines()) == 1
    monkeypatch.setattr("fedsz.training.local_fleet.CLIENT_BYTES", 10**15)
    warning, _ = call(*crowd).stderr.splitlines()
    assert warning.startswith("fedsz: warning: 2 clients are as many processes")


def test_a_data_folder_without_the_files(tmp_path: Path) -> None:
    for command in (["server", "--insecure", "--port", "0"], ["client", "--insecure"]):
        says = refuse(*command, "--dataset", "cifar10", "--data-dir", tmp_path)
        assert "of cifar10 in" in says
        assert str(tmp_path) in says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rouns = 3", "no option 'rouns' (did you mean 'rounds'?)"),
        ("rounds = 'three'", "rounds must be a whole number, got 'three'"),
        ("rounds = 2.5", "rounds must be a whole number, got 2.5"),
        ("rounds = true", "rounds must be a whole number, got True"),
        ("codec = 3", "codec must be text in quotes, got 3"),
        ("rounds = ", "is not TOML"),
        ("error_bound = 7", "in (0, 1), got 7"),
    ],
)
def test_mistakes_in_a_config_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)

    line = refuse("run", "--config", path)

    assert str(path) in line
    assert says in line


def test_an_unreachable_server_is_one_line() -> None:
    done = call("client", "--insecure", "--server", "127.0.0.1:9", "--max-wait", "1")

    assert done.returncode == 2
    warning, error = done.stderr.splitlines()
    assert warning.startswith("fedsz: warning: plaintext to 127.0.0.1:9: ")
    assert error.startswith("fedsz: no link to 127.0.0.1:9 for 1 s: UNAVAILABLE: ")
    connecting, waiting = done.stdout.splitlines()
    assert connecting == "connecting to 127.0.0.1:9"
    assert waiting.startswith("no link to 127.0.0.1:9: UNAVAILABLE: Connection refused; next try")


def test_numpy_checkpoints_are_not_mistaken(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))

    assert "a state_dict is a file in" in refuse("compress", tmp_path / "x.npy")
