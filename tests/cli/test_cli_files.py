"""Commands on files of weights: compress, decompress and inspect."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsz
from tests.cli.test_cli import call, refuse
from tests.conftest import files_of_at_most
from tests.hostile_headers import header_of, sealed_header

torch = pytest.importorskip("torch")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.pt"
    layers = torch.nn.Sequential(torch.nn.Linear(50, 60), torch.nn.BatchNorm1d(60))
    torch.save(layers.state_dict(), path)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_model_there_and_back(model: Path, suffix: str) -> None:
    stream, back = model.with_suffix(".fsz"), model.with_name(f"back{suffix}")

    compressed = call("compress", model, "-o", stream, "--error-bound", "1e-2")
    decompressed = call("decompress", stream, "-o", back)

    assert compressed.returncode == decompressed.returncode == 0, (compressed, decompressed)
    said = re.search(r"([\d.]+) kB for .* largest error (0\.\d+) of its bound", compressed.stdout)
    assert said
    assert float(said[1]) == pytest.approx(stream.stat().st_size / 1e3, abs=0.05)
    assert 0 < float(said[2]) <= 1
    before = torch.load(model, weights_only=True)
    if suffix == ".pt":
        after = torch.load(back, weights_only=True)
    else:
        from safetensors.torch import load_file

        after = load_file(back)
        assert call("compress", back).returncode == 0  # under a name of its own
        assert call("decompress", back.with_suffix(".fsz")).returncode == 0
        again = torch.load(back.with_suffix(".pt"), weights_only=True)
        assert again["0.weight"].shape == (60, 50)
    bound = 1e-2 * float(before["0.weight"].max() - before["0.weight"].min())
    assert float((before["0.weight"] - after["0.weight"]).abs().max()) <= bound
    assert all(torch.equal(before[name], after[name]) for name in before if name != "0.weight")


def test_a_bound_by_the_step_of_a_file_of_weights_is_warned_of(model: Path) -> None:
    done = call("compress", model, "--error-bound", "step:1")

    says = f"warning: step:1 bounds steps, and {model} holds weights: they stay exact"
    assert done.stderr == f"fedsz: {says}\n"
    back = fedsz.decompress(model.with_suffix(".fsz").read_bytes())
    before = torch.load(model, weights_only=True)
    assert all(torch.equal(before[name], back[name]) for name in before)
    assert done.returncode == 0
    assert call("compress", model, "--error-bound", "std:1", "--force").stderr == ""


def test_a_checkpoint_with_more_than_the_model(model: Path) -> None:
    state = torch.load(model, weights_only=True)
    for key in ("state_dict", "model_state_dict", "model"):
        torch.save({"epoch": 3, key: state}, model)
        call("compress", model, "--force")
        assert len(fedsz.inspect(model.with_suffix(".fsz").read_bytes()).tensors) == len(state)


def test_a_checkpoint_whose_state_dict_has_another_name(model: Path) -> None:
    state = torch.load(model, weights_only=True)
    checkpoint = model.with_suffix(".ckpt")
    torch.save({"epoch": 3, "net": state, "ema": {"model.0": state, "decay": 0.9}}, checkpoint)

    for key in ("net", "ema.model.0"):
        assert call("compress", checkpoint, "--key", key, "--force").returncode == 0
        info = fedsz.inspect(checkpoint.with_suffix(".fsz").read_bytes())
        assert [tensor.name for tensor in info.tensors] == list(state)
    says = refuse("compress", checkpoint, "--force")
    holds = "epoch (int), net (OrderedDict), ema (dict)"
    assert says == f"{checkpoint} holds {holds}: name the state_dict by --key"
    says = refuse("compress", checkpoint, "--key", "model_state", "--force")
    assert says == f"--key model_state: {checkpoint} has no 'model_state', but {holds}"
    says = refuse("compress", checkpoint, "--key", "ema.net.x", "--force")
    has = "model.0 (OrderedDict), decay (float)"
    assert says == f"--key ema.net.x: {checkpoint} at 'ema' has no 'net', but {has}"
    says = refuse("compress", checkpoint, "--key", "epoch", "--force")
    assert says == f"{checkpoint} holds a int under 'epoch', not a state_dict"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in two shards, as Transformers saves it."""
    from safetensors.torch import save_file

    folder = tmp_path / "tiny-0.5B"
    folder.mkdir()
    shards = {"model-1.safetensors": ("a", "c"), "model-2.safetensors": ("b",)}
    for file, names in shards.items():
        tensors = {
            name: torch.full((40, 50), float(ord(name)), dtype=torch.bfloat16) for name in names
        }
        save_file(tensors, folder / file, {"format": "pt"})
    weight_map = {name: file for file, names in shards.items() for name in names}
    index = {"metadata": {"total_size": 12_000}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def test_a_hugging_face_folder_is_one_state_dict(folder: Path) -> None:
    from safetensors import safe_open

    index, stream = folder / "model.safetensors.index.json", folder.with_name("tiny-0.5B.fsz")
    assert call("compress", folder).returncode == 0
    assert call("compress", index).returncode == 0
    assert stream.read_bytes() == (folder / "model.fsz").read_bytes()
    assert [t.name for t in fedsz.inspect(stream.read_bytes()).tensors] == ["a", "b", "c"]

    back = folder / "back.safetensors"
    assert call("decompress", stream, "-o", back).returncode == 0
    with safe_open(back, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # without which Transformers refuses it
        assert float(file.get_tensor("c")[0, 0]) == 99
    assert f"{folder}: a folder has one" not in call("compress", folder, "--force").stderr
    index.unlink()
    says = refuse("compress", folder, "--force")
    files = "back.safetensors, model-1.safetensors, model-2.safetensors"
    assert says == f"{folder}: a folder has one model in .safetensors files; here: {files}"
    for file in files.split(", ")[1:]:
        (folder / file).unlink()
    assert call("compress", folder, "--force").returncode == 0


def test_shards_that_are_not_as_their_index_says(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    bad: dict[str, Any] = {"a path": {"a": "../x.safetensors"}, "no file": {"a": 3}, "a list": []}
    for weight_map in bad.values():
        index.write_text(json.dumps({"weight_map": weight_map}))
        says = refuse("compress", folder)
        assert says == f"{index} is no index of shards: a weight_map of tensors to files"
    index.write_text(json.dumps({"weight_map": whole["weight_map"] | {"d": "model-2.safetensors"}}))
    says = "model.safetensors.index.json and model-2.safetensors differ: the shard lacks 'd'"
    assert refuse("compress", folder) == says
    index.write_text(json.dumps(whole))
    (folder / "model-2.safetensors").unlink()
    assert "model-2.safetensors" in refuse("compress", folder)


def test_numpy_files_there_and_back_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"file": np.linspace(0, 1, 5000, dtype=np.float32), "layer/0": np.arange(3)}
    with (tmp_path / "model.npz").open("wb") as file:
        np.savez(file, **{"layer/0": arrays["layer/0"], "w": arrays["file"]})
    monkeypatch.setitem(sys.modules, "torch", None)  # so that importing it fails

    assert call("compress", tmp_path / "model.npz").returncode == 0
    assert call("decompress", tmp_path / "model.fsz", "-o", tmp_path / "back.npz").returncode == 0
    back = np.load(tmp_path / "back.npz")
    assert sorted(back) == ["layer/0", "w"]
    assert np.array_equal(back["layer/0"], arrays["layer/0"])
    assert np.abs(back["w"] - arrays["file"]).max() <= 1e-2

    says = "this needs the package 'torch': pip install 'fedsz[train]'"
    (tmp_path / "model.pt").touch()
    assert refuse("compress", tmp_path / "model.pt", "--force") == says
    assert refuse("decompress", tmp_path / "model.fsz", "-o", tmp_path / "back.pt") == says


def test_any_name_of_a_tensor_fits_a_numpy_file(tmp_path: Path) -> None:
    import ml_dtypes

    stream, back = tmp_path / "model.fsz", tmp_path / "back.npz"
    stream.write_bytes(fedsz.compress({"file": np.ones(3), "allow_pickle": np.float32(2)}))
    assert call("decompress", stream, "-o", back).returncode == 0
    assert sorted(np.load(back)) == ["allow_pickle", "file"]

    stream.write_bytes(fedsz.compress({"w": np.ones(3, ml_dtypes.bfloat16)}))
    says = refuse("decompress", stream, "-o", back, "--force")
    assert says == f"{back}: .npz cannot hold bfloat16, the dtype of 'w'"
    back.write_bytes(back.read_bytes()[:-30])
    assert "damaged, or holds other objects than arrays" in refuse("compress", back, "--force")


def test_names_stay_whole(model: Path) -> None:
    name = "encoder.layer.11.attention.self.query." * 4
    stream = model.with_suffix(".fsz")
    stream.write_bytes(fedsz.compress({name: np.ones((300, 300), np.float32)}))

    assert name in call("inspect", stream).stdout


def test_inspect(model: Path) -> None:
    call("compress", model)
    stream = model.with_suffix(".fsz")

    table, report = call("inspect", stream), call("inspect", stream, "--json")

    heads = "tensor dtype shape codec bound bytes ratio 0.weight 60x50"
    assert all(word in table.stdout for word in heads.split())
    parsed = json.loads(report.stdout)
    assert parsed["nbytes"] == stream.stat().st_size
    first = parsed["tensors"][0]
    assert (first["name"], first["dtype"], first["shape"]) == ("0.weight", "float32", [60, 50])
    assert first["bound"] > 0


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


def test_a_decompress_that_fails_leaves_no_file(tmp_path: Path) -> None:
    stream, cut = tmp_path / "model.fsz", tmp_path / "cut.fsz"
    stream.write_bytes(fedsz.compress({"w": np.zeros(100_000, np.float32)}))
    cut.write_bytes(stream.read_bytes()[:-1])
    target = tmp_path / "model.safetensors"

    with files_of_at_most(100_000):
        says = refuse("decompress", stream, "-o", target)
    assert says == f"cannot write {target}: File too large"
    assert "limit 1000" in refuse("decompress", stream, "-o", target, "--max-bytes", "1000")
    refuse("decompress", cut, "-o", target)
    assert sorted(tmp_path.iterdir()) == [cut, stream]
