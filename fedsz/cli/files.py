"""``fedsz compress``, ``decompress`` and ``inspect``: files of weights, and streams."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fedsz import extras
from fedsz.cli.options import PATH, Command, configured, force_option, json_option
from fedsz.cli.output import print_json, print_table, say
from fedsz.errors import ConfigError, cannot
from fedsz.formatting import size
from fedsz.training.options import COMPRESS, RunConfig

if TYPE_CHECKING:
    from fedsz.arrays import NDArray

SUFFIXES: Final = (".pt", ".pth", ".bin", ".safetensors", ".npz")
# Under which checkpoints have the model beside other things.
MODEL_KEYS: Final = ("state_dict", "model_state_dict", "model")


@click.command(COMPRESS, cls=Command)
@configured(COMPRESS)
@click.argument("models", nargs=-1, required=True, type=PATH)
@click.option(
    "--output", "-o", type=PATH, help="Stream to write, of one file; MODEL.fsz by default."
)
@force_option
@json_option
def compress(
    config: RunConfig, *, models: tuple[Path, ...], output: Path | None, force: bool, json: bool
) -> None:
    """Compress files of weights within an error bound.

    MODELS are files of weights: .pt, .safetensors or .npz.
    """
    from fedsz.core.encode import compress_measured
    from fedsz.whole_files import write_whole

    targets = [model.with_suffix(".fsz") for model in models]
    if output:
        if len(models) > 1:
            raise ConfigError(f"--output names one stream; there are {len(models)} files")
        targets = [output]
    for i, target in enumerate(targets):
        if target in targets[:i]:
            raise ConfigError(f"{models[targets.index(target)]} and {models[i]} would be {target}")
        check_free(target, force=force)
    for model, target in zip(models, targets, strict=True):
        stream, report = compress_measured(read_state_dict(model), config.compression.require())
        write_whole(target, stream)
        if json:
            print_json({"output": str(target), **vars(report)})
            continue
        click.echo(
            f"{target}: {size(report.nbytes)} for {size(report.raw_bytes)},"
            f" {report.raw_bytes / report.nbytes:.2f}x smaller in {report.seconds:.2f} s,"
            f" largest error {report.max_error:.4f} of its bound"
        )


@click.command("decompress")
@click.argument("stream", type=PATH)
@click.option(
    "--output", "-o", type=PATH, help="A .pt, .safetensors or .npz file; STREAM.pt by default."
)
@force_option
@click.option(
    "--max-bytes",
    default=0,
    help="Refuse streams that decode to more; 0 for 1 GiB or 1024 x STREAM.",
)
def decompress(stream: Path, *, output: Path | None, force: bool, max_bytes: int) -> None:
    """Decompress a stream into a file of weights.

    STREAM is a .fsz file.
    """
    import fedsz
    from fedsz.whole_files import read_bytes

    target = output or stream.with_suffix(".pt")
    check_free(target, force=force)
    limits = fedsz.Limits(decoded_bytes=max_bytes, expansion=0) if max_bytes else None
    state = fedsz.decompress(read_bytes(stream), as_numpy=True, limits=limits)
    write_state_dict(target, state)
    raw = sum(tensor.nbytes for tensor in state.values())
    click.echo(f"{target}: {len(state)} tensors, {size(raw)}")


@click.command("inspect")
@click.argument("stream", type=PATH)
@json_option
def inspect(stream: Path, *, json: bool) -> None:
    """Show the tensors of a stream, from its header alone.

    STREAM is a .fsz file.
    """
    import fedsz
    from fedsz.whole_files import read_bytes

    info = fedsz.inspect(read_bytes(stream))
    if json:
        print_json(info)
        return
    heads = ("tensor", "dtype", "shape", "codec", ">bound", ">bytes", ">ratio")
    rows = []
    for tensor in info.tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        codec = tensor.codec + ("" if tensor.transform == "values" else f" {tensor.transform}")
        bound = "-" if tensor.bound is None else f"{tensor.bound:.3g}"
        sizes = (f"{tensor.nbytes:,.0f}", f"{tensor.ratio:.2f}" if tensor.nbytes else "-")
        rows.append((tensor.name, tensor.dtype, shape, codec, bound, *sizes))
    print_table(heads, rows)
    say(
        f"{len(info.tensors)} tensors, {size(info.raw_bytes)} in {size(info.nbytes)}:"
        f" {info.ratio:.2f}x smaller; header {size(info.header_bytes)}"
    )


def check_free(path: Path, *, force: bool) -> None:
    """Refuse to write over a file that nobody said may go.

    Raises:
        ConfigError: it exists.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; --force writes over it")


def read_state_dict(path: Path) -> Mapping[str, Any]:
    """Return the state_dict in a file of tensors; a ``.pt`` is read with ``weights_only=True``.

    Raises:
        ConfigError: it cannot be read, is of another kind, or holds no state_dict.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a state_dict is a file in {', '.join(SUFFIXES)}")
    from fedsz.safetensors_file import read_safetensors

    readers = {".safetensors": read_safetensors, ".npz": _read_numpy}
    read: Callable[[Path], Any] = readers.get(path.suffix, _read_torch)
    with cannot(f"read {path}"):
        state = read(path)
    for key in MODEL_KEYS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ConfigError(f"{path} holds a {type(state).__name__}, not a state_dict")
    return state


def write_state_dict(path: Path, state: dict[str, NDArray]) -> None:
    """Write arrays as a file of tensors, of the kind that its suffix says; over one that is there.

    Raises:
        ConfigError: the suffix is another, or its format lacks one of the dtypes.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a state_dict is a file in {', '.join(SUFFIXES)}")
    import numpy as np

    from fedsz.whole_files import write_whole

    buffer = io.BytesIO()
    if path.suffix == ".npz":
        for name, x in state.items():
            if x.dtype.kind == "V":  # what numpy has through ml_dtypes alone comes back as bytes
                raise ConfigError(f"{path}: .npz cannot hold {x.dtype}, the dtype of {name!r}")
        # As numpy.savez does, which takes some names for its own arguments.
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, x in state.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, x, allow_pickle=False)
        write_whole(path, buffer.getvalue())
        return
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import save

        try:
            buffer.write(save(state))
        except SafetensorError as err:
            raise ConfigError(f"{path}: safetensors cannot hold it: {err}") from err
    else:
        import torch

        from fedsz.arrays import as_tensor

        tensors = {name: as_tensor(x) for name, x in state.items()}
        torch.save(tensors, buffer)
    write_whole(path, buffer.getvalue())


def _read_numpy(path: Path) -> dict[str, NDArray]:
    import numpy as np

    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except Exception as err:  # of any kind: numpy, zipfile and zlib have their own
            what = "it is damaged, or holds other objects than arrays"
            raise ConfigError(f"{path} is not a .npz file: {what}") from err


def _read_torch(path: Path) -> Any:
    with extras.explained():
        import torch

    with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as err:  # of any kind, whose text may advise to run what the file holds
            what = "it is damaged, or holds other objects than tensors"
            raise ConfigError(f"{path} is not a file of tensors: {what}") from err
