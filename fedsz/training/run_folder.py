"""The folder a run leaves behind: config.toml, rounds.jsonl, model.safetensors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, FedszError
from fedsz.training.events import from_json, to_json
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig
from fedsz.update.config import CompressionConfig

CONFIG = "config.toml"
ROUNDS = "rounds.jsonl"
MODEL = "model.safetensors"


class RunFolder:
    """Where a run's results go, each as soon as it is there.

    Raises:
        ConfigError: the folder holds another run, or cannot be written.
    """

    def __init__(self, config: RunConfig) -> None:
        self.path = Path(config.run_dir or _fresh())
        if (self.path / ROUNDS).exists():
            raise ConfigError(f"{self.path} holds another run; name an empty folder by run_dir")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Everything but the folder itself: a repetition wants one of its own.
            options = {name: x for name, x in config.as_dict().items() if name != "run_dir"}
            text = f"# fedsz run --config {CONFIG}\n\n{tomli_w.dumps(options)}"
            (self.path / CONFIG).write_text(text, encoding="utf-8")
            (self.path / ROUNDS).touch()
        except OSError as err:
            raise ConfigError(f"cannot write to {self.path}: {err.strerror}") from err

    def add(self, done: RoundRecord) -> None:
        """Append a round."""
        with (self.path / ROUNDS).open("a", encoding="utf-8") as lines:
            lines.write(to_json(done) + "\n")

    def save(self, model: Any) -> None:
        """Write the model; that of the round before stays until it is there."""
        from safetensors.numpy import save_file

        part = self.path / f".{MODEL}.part"
        save_file(arrays_of(model), part)
        part.replace(self.path / MODEL)


def read_rounds(folder: Path, base: CompressionConfig) -> Iterator[RoundRecord]:
    """Yield the rounds that a run's folder holds, in order, but for a line that a crash cut short.

    The run may be of an older release; ``base`` is how it compresses.

    Raises:
        ConfigError: they cannot be read.
    """
    path = folder / ROUNDS
    try:
        lines = path.read_text("utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {getattr(err, 'strerror', err)}") from err
    for number, line in enumerate(lines, 1):
        try:
            event = from_json(line, base)
        except FedszError as err:
            if not line.endswith("\n"):
                return
            what = f"{path}, line {number}, is no round: {line[:80]!r}"
            raise ConfigError(f"cannot read rounds: {what}") from err
        if isinstance(event, RoundRecord):
            yield event


def _fresh() -> str:
    """Return a name under runs/ that does not exist yet."""
    base = time.strftime("runs/%Y%m%d-%H%M%S")
    names = itertools.chain([base], (f"{base}-{i}" for i in itertools.count(1)))
    return next(name for name in names if not Path(name).exists())
