"""``fedsz compress``: a file of weights -> a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsz.cli.options import Json, configured
from fedsz.cli.output import print_json
from fedsz.formatting import size
from fedsz.training.options import COMPRESS, RunConfig


@configured(COMPRESS)
def command(
    config: RunConfig,
    *,
    model: Annotated[Path, typer.Argument(help="A .pt or .safetensors file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Stream to write; MODEL.fsz by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace OUTPUT.")] = False,
    json: Json = False,
) -> None:
    """Compress a file of weights within an error bound."""
    from fedsz.cli.files import check_free, read_state_dict
    from fedsz.update.compress import compress_measured
    from fedsz.whole_files import write_whole

    target = output or model.with_suffix(".fsz")
    check_free(target, force=force)
    stream, report = compress_measured(read_state_dict(model), config.compression.require())
    write_whole(target, stream)
    if json:
        print_json({"output": str(target), **vars(report)})
        return
    print(
        f"{target}: {size(report.nbytes)} for {size(report.raw_bytes)},"
        f" {report.raw_bytes / report.nbytes:.2f}x smaller in {report.seconds:.2f} s,"
        f" largest error {report.max_error:.4f} of its bound"
    )
