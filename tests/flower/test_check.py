"""`fedsz check` tells what an app meets with the two lines, before its first round."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

import numpy as np
from safetensors.numpy import save_file

from fedsz.flower import FedSZMod
from fedsz.flower.check import FAILS, FINE, NOTE, check_app
from tests.cli.test_cli import call, refuse
from tests.flower import checked_apps
from tests.flower.checked_apps import initial, made


def findings(app: str) -> dict[str, list[str]]:
    found = check_app(getattr(checked_apps, app), initial())
    assert all(text.isprintable() for _, text in found)
    return {kind: [f.text for f in found if f.kind == kind] for kind in (FINE, NOTE, FAILS)}


def test_an_app_that_is_fine() -> None:
    found = findings("fine")

    assert found[FINE][:3] == [
        "mods: FedSZMod is the first",
        "the reply has all 5 tensors of the model",
        "3 of 5 tensors have an error bound",
    ]
    assert found[FINE][3].startswith("first reply ")
    assert "x smaller; first model " in found[FINE][3]
    assert found[NOTE] == [
        "1 exact, statistics of BatchNorm by rule 'shape': bn.running_var",
        "1 exact, int64 is no dtype for an error bound: bn.num_batches_tracked",
    ]
    assert not found[FAILS]


@pytest.mark.parametrize(
    ("app", "kind", "says"),
    [
        ("plain", NOTE, "mods: no FedSZMod; checked with it as the first one"),
        ("part", NOTE, "the reply has 4 of 5 tensors, not head.weight; if clients differ"),
        ("renamed", NOTE, "the reply renames tensors: it lacks conv.weight, conv.bias,"),
        ("renamed", NOTE, "3 exact, the model has no such tensor: module.conv.weight,"),
        ("stateful", NOTE, "the app reads context.state: it has the app's own"),
        ("listing", NOTE, "the app reads context.state: it has the app's own"),
        (
            "silent",
            FAILS,
            "the app fails without FedSZGrid: TypeError: the ClientApp returned",
        ),
        ("emptying", NOTE, "the app empties and reads context.state: it has the app's own"),
        ("text", NOTE, "arrays that pass unchanged, by their dtype: label (<U1)"),
        ("text", NOTE, "'head.weight' is float64 in the reply and float32 in the model"),
        ("failing", FAILS, r"the app fails without FedSZGrid: RuntimeError: no data\nhere"),
        ("diverging", FAILS, "with the two lines: DivergedUpdate: training made NaN"),
        ("wrong_order", FAILS, "mods: LocalDpMod before FedSZMod gets a stream in place of"),
        ("wrong_order", FAILS, "with the two lines: TypeError: Unsupported serialization type"),
        ("late", NOTE, "mods: message_size_mod before FedSZMod gets a stream in place of"),
        ("class_as_mod", FAILS, "the app fails without FedSZGrid: ConfigError: mods has the class"),
    ],
)
def test_what_an_app_meets(app: str, kind: str, says: str) -> None:
    found = findings(app)

    assert any(text.startswith(says) for text in found[kind]), found
    assert kind == FAILS or not found[FAILS]


@pytest.mark.parametrize("app", ["private", "emptying", "stateful"])
def test_an_app_that_keeps_its_own_state_or_clips_fails_nothing(app: str) -> None:
    found = findings(app)

    assert found[FINE][0] == "mods: FedSZMod is the first"
    assert not found[FAILS]
    assert not any("loses" in text for text in found[NOTE])


def test_a_real_clients_folder_is_not_touched(tmp_path: Path) -> None:
    mod = FedSZMod(state_dir=tmp_path / "state")
    check_app(made(mods=[mod]), initial())

    assert mod._state_dir == tmp_path / "state"  # for the app's own rounds
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = "tests.flower.checked_apps"
    done = call("check", f"{module}:fine", "--initial", f"{module}:initial")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fine   mods: FedSZMod is the first\n")

    save_file(initial(), tmp_path / "model.safetensors")
    done = call("check", f"{module}:wrong_order", "--initial", tmp_path / "model.safetensors")
    assert (done.returncode, done.stderr) == (1, "")
    assert "fails  mods: LocalDpMod" in done.stdout
    done = call("check", f"{module}:failing", "--initial", "model.safetensors")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("RuntimeError: no data\\nhere\n")

    config = '[tool.flwr.app.config]\nlr = 0.1\noptimizer.name = "sgd"\n'
    (tmp_path / "pyproject.toml").write_text(config)
    options = ("--run-config", "lr=0.5", "--node-config", "partition-id=7")
    options += ("--initial", f"{module}:initial")
    assert call("check", f"{module}:configured", *options).returncode == 0
    legacy = ("--node-config", "partition-id=0 num-partitions=50", "--initial", f"{module}:digits")
    done = call("check", f"{module}:legacy", *legacy)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "the reply has all 6 tensors of the model" in done.stdout

    initial_ = ("--initial", f"{module}:initial")
    assert refuse("check", "nowhere", *initial_) == "app 'nowhere' is not MODULE:NAME"
    assert "module tests.flower.checked_apps has no 'fin'" in refuse(
        "check", f"{module}:fin", *initial_
    )
    says = refuse("check", f"{module}:fine", "--initial", f"{module}:moved")
    assert says.startswith(
        "--initial 'tests.flower.checked_apps:moved', called without arguments: Type"
    )
    says = "the app is a function, not a ClientApp"
    assert refuse("check", f"{module}:made", *initial_) == says
    says = refuse("check", f"{module}:fine", *initial_, "--run-config", "lr")
    assert says == "a config is NAME=VALUE, not 'lr'"
    assert np.array_equal(initial()["conv.bias"], np.zeros(60))
