"""``fedsz compress``: files of weights -> streams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsz.cli.options import Json, configured
from fedsz.cli.output import print_json
from fedsz.errors import ConfigError
from fedsz.formatting import size
from fedsz.training.option import COMPRESS
from fedsz.training.options import RunConfig


@configured(COMPRESS)
def command(
    config: RunConfig,
    *,
    models: Annotated[
        list[Path], typer.Argument(help="Files of weights: .pt, .safetensors or .npz.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Stream to write, of one file; MODEL.fsz by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace OUTPUT.")] = False,
    json: Json = False,
) -> None:
    """Compress files of weights within an error bound."""
    from fedsz.cli.files import check_free, read_state_dict
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
        print(
            f"{target}: {size(report.nbytes)} for {size(report.raw_bytes)},"
            f" {report.raw_bytes / report.nbytes:.2f}x smaller in {report.seconds:.2f} s,"
            f" largest error {report.max_error:.4f} of its bound"
        )
