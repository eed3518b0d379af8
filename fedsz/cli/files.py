"""``fedsz compress``, ``decompress`` and ``inspect``: files of weights, and streams."""

from __future__ import annotations

import io
import json as json_text
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fedsz import extras
from fedsz.bounds import ErrorBound
from fedsz.cli.options import PATH, Command, configured, force_option, json_option
from fedsz.cli.output import print_json, print_table, say, warn
from fedsz.errors import ConfigError, cannot
from fedsz.formatting import size
from fedsz.training.options import COMPRESS, RunConfig

if TYPE_CHECKING:
    from fedsz.arrays import NDArray

SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npz")
INDEX: Final = ".safetensors.index.json"  # how the name of an index of shards ends
# Under which checkpoints have the model beside other things.
MODEL_KEYS: Final = ("state_dict", "model_state_dict", "model")
# Transformers refuses a .safetensors file that does not name its framework.
METADATA: Final = {"format": "pt"}
SHOWN: Final = 8  # names in an error


@click.command(COMPRESS, cls=Command)
@configured(COMPRESS)
@click.argument("model", type=PATH)
@click.option("--output", "-o", type=PATH, help="Stream to write; MODEL.fsz by default.")
@click.option(
    "--key", default="", help="Where the state_dict is in a checkpoint, such as net or ema.model."
)
@force_option
def compress(config: RunConfig, *, model: Path, output: Path | None, key: str, force: bool) -> None:
    """Compress a file of weights within an error bound.

    MODEL is a file of weights: .pt, .ckpt, .safetensors or .npz; or the folder of a Hugging Face
    model, or the .safetensors.index.json of its shards.
    """
    from fedsz.core.encode import compress_measured
    from fedsz.whole_files import write_whole

    target = output or _stream_of(model)
    check_free(target, force=force)
    if ErrorBound.of(config.error_bound).kind == "step":
        warn(f"{config.error_bound} bounds steps, and {model} holds weights: they stay exact")
    stream, report = compress_measured(read_state_dict(model, key), config.compression.require())
    write_whole(target, stream)
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
@click.option("--threads", default=1, help="Threads that decode tensors; 0 for one on each core.")
def decompress(
    stream: Path, *, output: Path | None, force: bool, max_bytes: int, threads: int
) -> None:
    """Decompress a stream into a file of weights.

    STREAM is a .fsz file.
    """
    import fedsz
    from fedsz.whole_files import read_bytes

    target = output or stream.with_suffix(".pt")
    blob = read_bytes(stream)
    fedsz.inspect(blob)  # what is no stream is said first, whatever lies at its target
    check_free(target, force=force)
    limits = fedsz.Limits(decoded_bytes=max_bytes, expansion=0) if max_bytes else None
    state = fedsz.decompress(blob, as_numpy=True, limits=limits, threads=threads)
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


def read_state_dict(path: Path, key: str = "") -> Mapping[str, Any]:
    """Return the state_dict in a file of tensors, or in a folder or index of shards.

    A ``.pt`` is read with ``weights_only=True``.

    Args:
        path: a file with one of `SUFFIXES`, a folder with one model in .safetensors files, or the
            ``.safetensors.index.json`` of its shards.
        key: where in the file the state_dict is, such as ``"net"`` or ``"ema.model"``; "" for the
            top, or one of `MODEL_KEYS`.

    Raises:
        ConfigError: it cannot be read, is of another kind, or holds no state_dict.
    """
    if path.is_dir():
        path = _model_in(path)
    if path.suffix not in SUFFIXES and not path.name.endswith(INDEX):
        raise ConfigError(f"{path}: a state_dict is a folder or a file in {', '.join(SUFFIXES)}")
    from fedsz.safetensors_file import read_safetensors

    readers = {".safetensors": read_safetensors, ".npz": _read_numpy, ".json": _read_shards}
    read: Callable[[Path], Any] = readers.get(path.suffix, _read_torch)
    with cannot(f"read {path}"):
        state = read(path)
    if key:
        state = _value_at(state, key, path)
    else:
        for name in MODEL_KEYS:
            if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
                state = state[name]
    if not isinstance(state, Mapping):
        where = f" under {key!r}" if key else ""
        raise ConfigError(f"{path} holds a {type(state).__name__}{where}, not a state_dict")
    if any(isinstance(value, Mapping) for value in state.values()):
        where = f" under {key!r}" if key else ""
        raise ConfigError(f"{path} holds{where} {_names(state)}: name the state_dict by --key")
    return state


def _stream_of(model: Path) -> Path:
    """Return the file beside a model that its stream is written to by default."""
    if model.is_dir():  # the name of a folder may have dots
        folder = model.resolve() if model.name in ("", "..") else model
        return folder.with_name(f"{folder.name}.fsz")
    if model.name.endswith(INDEX):
        return model.with_name(f"{model.name.removesuffix(INDEX)}.fsz")
    return model.with_suffix(".fsz")


def _model_in(folder: Path) -> Path:
    """Return the index of shards in a folder, or else its one .safetensors file."""
    for suffix in (INDEX, ".safetensors"):
        found = sorted(folder.glob(f"*{suffix}"))
        if len(found) == 1:
            return found[0]
        if found:
            break
    names = ", ".join(path.name for path in found[:SHOWN]) or "none"
    raise ConfigError(f"{folder}: a folder has one model in .safetensors files; here: {names}")


def _read_shards(index: Path) -> dict[str, NDArray]:
    """Return the tensors that an index of shards names, in its order.

    Raises:
        ConfigError: it is no such index, or the shards beside it have other tensors.
    """
    from fedsz.safetensors_file import read_safetensors

    try:
        shard_of = json_text.loads(index.read_bytes())["weight_map"]
        shards = sorted(set(shard_of.values()))
        # Each is a file of the folder: no path leads out of it.
        is_index = all(
            Path(shard).name == shard and shard.endswith(".safetensors") and shard.isprintable()
            for shard in shards
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_index = False
    if not is_index:
        raise ConfigError(f"{index} is no index of shards: a weight_map of tensors to files")
    tensors: dict[str, NDArray] = {}
    for shard in shards:
        found = read_safetensors(index.with_name(shard))
        named = {name for name, file in shard_of.items() if file == shard}
        if differing := sorted(named ^ found.keys()):
            lacks = "lacks" if differing[0] in named else "has"
            raise ConfigError(
                f"{index.name} and {shard} differ: the shard {lacks} {differing[0]!r}"
            )
        tensors |= found
    return {name: tensors[name] for name in shard_of}


def _value_at(state: Any, key: str, path: Path) -> Any:
    """Return what a checkpoint has at a dotted path; a key may have dots itself."""
    value, rest = state, key
    while rest:
        parts = rest.split(".")
        heads = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
        names = value if isinstance(value, Mapping) else {}
        head = next((head for head in heads if head in names), None)
        if head is None:
            where = f"{path} at {key.removesuffix(rest).rstrip('.')!r}" if rest != key else path
            raise ConfigError(f"--key {key}: {where} has no {parts[0]!r}, but {_names(value)}")
        value, rest = value[head], rest[len(head) + 1 :]
    return value


def _names(value: Any) -> str:
    """Return the names in a part of a checkpoint with their types, for an error."""
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    shown = [f"{name} ({type(x).__name__})" for name, x in list(value.items())[:SHOWN]]
    more = len(value) - len(shown)
    return (", ".join(shown) or "nothing") + (f" and {more} more" if more else "")


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
            data = save(state, METADATA)
        except SafetensorError as err:
            raise ConfigError(f"{path}: safetensors cannot hold it: {err}") from err
        write_whole(path, data)
        return
    import torch

    from fedsz.arrays import as_tensor

    torch.save({name: as_tensor(x) for name, x in state.items()}, buffer)
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
