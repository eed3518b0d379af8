"""``fedsz inspect``: what a stream holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsz.cli.options import Json


def command(
    stream: Annotated[Path, typer.Argument(help="A .fsz file.")], *, json: Json = False
) -> None:
    """Show the tensors of a stream, from its header alone."""
    import fedsz
    from fedsz.cli.files import read_bytes

    info = fedsz.inspect(read_bytes(stream))
    if json:
        import msgspec

        print(msgspec.json.encode(info).decode())
        return

    from rich.console import Console
    from rich.table import Table

    from fedsz.cli.table import size

    # No frame: names are long, and terminals have 80 columns.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("tensor", "dtype", "shape", "codec", "bound", "bytes", "ratio"):
        left = name in ("tensor", "dtype", "shape", "codec")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for tensor in info.tensors:
        table.add_row(
            tensor.name,
            tensor.dtype,
            "x".join(map(str, tensor.shape)) or "scalar",
            tensor.codec + ("" if tensor.transform == "values" else f" {tensor.transform}"),
            "-" if tensor.bound is None else f"{tensor.bound:.3g}",
            f"{tensor.nbytes:,.0f}",
            f"{tensor.ratio:.2f}" if tensor.nbytes else "-",
        )
    console = Console()
    console.print(table, markup=False)
    console.print(
        f"{len(info.tensors)} tensors, {size(info.raw_bytes)} in {size(info.nbytes)}:"
        f" {info.ratio:.2f}x smaller; header {size(info.header_bytes)}",
        highlight=False,
    )


command.__name__ = "inspect"
