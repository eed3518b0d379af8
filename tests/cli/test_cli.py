"""The command line as people and machines use it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fedsz
from fedsz.cli import COMMANDS, main
from fedsz.experiments.sweep_plan import SweepConfig
from fedsz.training.options import RunConfig, options
from tests.certificates import Authority
from tests.fleets import PLACE, TASK

torch = pytest.importorskip("torch")


def call(*arguments: Any) -> subprocess.CompletedProcess[str]:
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
    code = int(ended.value.code or 0)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


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
    with mock.patch("fedsz.cli.codecs.print_table", side_effect=failure):
        assert refuse("codecs") == line


def refuse(*arguments: Any) -> str:
    """Return the one line that a mistake is answered with."""
    done = call(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("fedsz: ")


def test_help_is_of_every_command_and_no_mistake_to_tell() -> None:
    assert call("--version").stdout.startswith("fedsz ")
    assert all(command in call("--help").stdout for command in (*COMMANDS, "keys", "paper"))
    for words in (*([command, "--help"] for command in (*COMMANDS, "keys")), [], ["keys"]):
        done = call(*words)
        assert "Usage" in done.stdout
        assert done.stderr == ""
        assert done.returncode == 0 or "--help" not in words


def test_a_command_is_suggested_once() -> None:
    assert refuse("comprss") == (
        "No such command 'comprss'. (Did you mean one of: 'compress', 'decompress'?)"
    )


def test_codecs_are_listed() -> None:
    lines = call("codecs").stdout.splitlines()[1 : 1 + len(fedsz.codecs.CODECS)]

    assert [line.split()[0] for line in lines] == [codec.name for codec in fedsz.codecs.CODECS]


def test_an_unknown_variable_warns_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets some for a service that is called fedsz."""
    monkeypatch.setenv("FEDSZ_RONDS", "3")

    done = call("codecs")

    hint = "(did you mean 'FEDSZ_ROUNDS'?)"
    says = f"no option is called FEDSZ_RONDS, which is in the environment {hint}"
    assert done.stderr == f"fedsz: warning: {says}\n"
    assert done.returncode == 0
    assert "uniform" in done.stdout


def test_what_kubernetes_sets_for_a_service_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSZ_PORT", "tcp://10.96.0.1:8080")

    warning, error = call("server", "--min-clients", 0).stderr.splitlines()

    assert warning.startswith("fedsz: warning: FEDSZ_PORT=tcp://10.96.0.1:8080 in the environment")
    assert "min_clients must be a whole number from 1" in error


def test_every_variable_that_is_read_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RunConfig, SweepConfig):
        for name in options(kind):
            monkeypatch.setenv(f"FEDSZ_{name.upper()}", "")  # as good as absent
    monkeypatch.setenv("FEDSZ_TEST_DATA", "anywhere")

    assert call("codecs").returncode == 0


@pytest.mark.parametrize(("typed", "offered"), [("sw", "sweep"), ("run --error", "--error-bound")])
def test_shells_complete_commands_and_options(typed: str, offered: str) -> None:
    words = f"fedsz {typed}"
    asked = {"_FEDSZ_COMPLETE": "bash_complete", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    script = "import sys; sys.argv[0] = 'fedsz'; from fedsz.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **asked}
    )

    assert done.stdout.split() == [f"plain,{offered}"], done.stderr


BAD = {
    "no command": (["nothing"], "No such command 'nothing'"),
    "no option": (["run", "--speed", "9"], "No such option '--speed'"),
    "no number": (["run", "--rounds", "many"], "'many' is not a valid integer"),
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
    "rounds": (["run", "--rounds", "0"], "rounds must be a whole number from 1 to 1000000, got 0"),
    "no config": (["run", "--config", "none.toml"], "cannot read none.toml: No such file"),
    "partition": (["client", "--insecure", "--partition", "4/4"], "I/N with I from 0 to N-1"),
    "plaintext": (["server"], "--insecure"),
    "no process": (
        ["run", "--clients", "0"],
        "clients must be a whole number from 1 to 1000",
    ),
    "few shares": (
        ["server", "--insecure", "--min-clients", "3", "--shares", "2"],
        "--shares 2 is less than --min-clients 3",
    ),
    "half of tls": (["server", "--tls-cert", "x"], "--tls-key"),
    "server": (["client", "--insecure", "--server", "nowhere"], "host:port, got 'nowhere'"),
    "no argument": (["compress"], "Missing argument 'MODEL'"),
    "no value": (["client", "--task"], "'--task' requires an argument"),
    "no file": (["compress", "none.pt"], "cannot read none.pt: No such file"),
    "no stream": (["inspect", "none.fsz"], "cannot read none.fsz: No such file"),
    "suffix": (["compress", "model.h5"], "a state_dict is a folder or a file in .pt"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line(case: str) -> None:
    arguments, says = BAD[case]

    assert says in refuse(*arguments)


@pytest.mark.parametrize("end", ["server", "client"])
def test_certificates_and_keys_that_must_not_be_used(tmp_path: Path, end: str) -> None:
    """tests/transport/test_tls.py has what else is checked of them."""
    ours = Authority(tmp_path, "ours")
    old, shown = ours.issue("old", days=(-9, -2)), ours.issue("shown")
    shown[1].chmod(0o644)
    place = {"server": ("--port", 0), "client": ("--server", "127.0.0.1:1", "--tls-ca", ours.ca)}
    for (cert, key), says in (
        (old, f"{old[0]} expired on "),
        (shown, f"{shown[1]} holds a secret and has mode 0644: chmod 600 {shown[1]}"),
    ):
        files = ("--tls-cert", cert, "--tls-key", key)
        assert refuse(end, *place[end], "--task", TASK, *files).startswith(says)


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = call("server", *PLACE, "--port", port)

    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert line.startswith("fedsz: ")
    assert f"127.0.0.1:{port}" in line


def test_a_data_folder_without_the_files(tmp_path: Path) -> None:
    for command in (["server", "--insecure", "--port", "0"], ["client", "--insecure"]):
        says = refuse(*command, "--dataset", "cifar10", "--data-dir", tmp_path)
        assert "of cifar10 in" in says
        assert str(tmp_path) in says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rouns = 3", "no option 'rouns' (did you mean 'rounds'?)"),
        ("rounds = 'three'", "rounds must be a whole number from 1 to 1000000, got 'three'"),
        ("rounds = 2.5", "rounds must be a whole number from 1 to 1000000, got 2.5"),
        ("rounds = true", "rounds must be a whole number from 1 to 1000000, got True"),
        ("codec = 3", "codec must be text in quotes, got 3"),
        ("rounds = ", "is not TOML"),
        ("error_bound = 7", "in (0, 1), got 7"),
        ("error_bound = [1e-2]", "error_bound must be a number or text in quotes, got [0.01]"),
        ("error_bound = {rel = 1}", "must be a number or text in quotes, got {'rel': 1}"),
        ("error_bound = true", "must be a number or text in quotes, got True"),
        ("clients = [4]", "clients must be a whole number from 1 to 1000, got [4]"),
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


@pytest.mark.parametrize("command", ["codecs", "methods", "run --help"])
def test_a_closed_pipe_is_quiet(command: str) -> None:
    words = [sys.executable, "-m", "fedsz", *command.split()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() in (0, 1)


THREADS, LINES = 8, 100
PRINT = f"""
import sys, threading
from fedsz.cli.output import print_event, print_json
from fedsz.training.events import Client

sys.setswitchinterval(1e-6)
LONG = 5000 * "x"  # two of these fill the buffer of a stream of text

def tell():
    for _ in range({LINES}):
        print_event(Client(LONG, "joined", ""))
        print_json([LONG])

threads = [threading.Thread(target=tell) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_lines_of_several_threads_stay_apart() -> None:
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, check=True)

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == 2 * THREADS * LINES
