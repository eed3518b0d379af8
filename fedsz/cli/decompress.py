"""``fedsz decompress``: a stream -> a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsz.formatting import size


def command(
    stream: Annotated[Path, typer.Argument(help="A .fsz file.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A .pt, .safetensors or .npz file; STREAM.pt by default."
        ),
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace OUTPUT.")] = False,
    max_bytes: Annotated[
        int, typer.Option(help="Refuse streams that decode to more; 0 for 1 GiB or 1024 x STREAM.")
    ] = 0,
) -> None:
    """Decompress a stream into a file of weights."""
    import fedsz
    from fedsz.cli.files import check_free, write_state_dict
    from fedsz.whole_files import read_bytes

    target = output or stream.with_suffix(".pt")
    check_free(target, force=force)
    limits = fedsz.Limits(decoded_bytes=max_bytes, expansion=0) if max_bytes else None
    state = fedsz.decompress(read_bytes(stream), as_numpy=True, limits=limits)
    write_state_dict(target, state)
    raw = sum(tensor.nbytes for tensor in state.values())
    print(f"{target}: {len(state)} tensors, {size(raw)}")
