"""``fedsz inspect``: what a stream holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsz.cli.options import Json
from fedsz.cli.output import print_json, print_table, say
from fedsz.formatting import size


def command(
    stream: Annotated[Path, typer.Argument(help="A .fsz file.")], *, json: Json = False
) -> None:
    """Show the tensors of a stream, from its header alone."""
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
