"""The task `text`: the next character of a text, by a small GPT or an LSTM."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from fedsz.errors import DataError, cannot
from fedsz.training import loop
from fedsz.training.examples import Examples
from fedsz.training.options import RunConfig
from fedsz.training.task import require_plain

MODELS: Final = ("gpt", "lstm")
PARTITIONERS: Final = ("iid",)
LENGTH: Final = 64  # characters that a model sees at a time
_WIDTH: Final = 64  # of a character's embedding
_LAYERS, _HEADS, _LSTM_WIDTH = 2, 4, 128
_HOLD_OUT: Final = 10  # one part in so many is tested on: the end of the text

# Nobody can know which characters others' texts have. Printable ASCII and the newline are what
# there is; the first symbol stands for everything else.
_ALPHABET: Final = "\n" + "".join(map(chr, range(32, 127)))
SYMBOLS: Final = len(_ALPHABET) + 1


class TextTask(loop.TorchTask):
    """A `fedsz.training.task.Task`: predict each character of a text from those before it.

    The text is ``<dataset>.txt``, in the data folder or in its folder ``text``. The last tenth is
    held out. An example is `LENGTH` characters. Shares are pieces of the text.

    Raises:
        ConfigError: a model, partitioner or device that does not exist.
        DataError: the text is not there, or too short.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, "text", model=MODELS, partitioner=PARTITIONERS)
        text = _read(config.dataset, config.data_dir)
        end = len(text) - len(text) // _HOLD_OUT
        self._train, self._test = text[:end], text[end:]
        if len(self._test) <= LENGTH:
            raise DataError(f"{config.dataset}.txt is too short: it has {len(text)} characters")

    def build_model(self) -> nn.Module:
        """Return the network that `RunConfig.model` names."""
        kind = {"gpt": Gpt, "lstm": Lstm}[self._config.model]
        return kind().to(self._device)

    def load_share(self, index: int, count: int) -> Examples:
        """Return a client's part of the text."""
        config = self._config
        everything = _windows(self._train)
        size = len(everything) // count
        mine = everything.rows(slice(index * size, (index + 1) * size))
        if not len(mine):
            raise DataError(f"share {index} of {count} is shorter than {LENGTH} characters")
        wanted = -(-config.samples // count) if config.samples else len(mine)
        return mine.first(wanted)

    def load_test(self) -> Examples:
        """Return the text's last tenth, or so many examples of it."""
        test = _windows(self._test)
        return test.first(self._config.test_samples or len(test))


class Gpt(nn.Module):
    """A causal transformer as GPT-2 is (Radford et al., 2019), with 116,705 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, _WIDTH)
        self.places = nn.Embedding(LENGTH, _WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, SYMBOLS)
        for embedding in (self.symbols, self.places):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols int64 [N, T] to logits [N, T, SYMBOLS]."""
        h = self.symbols(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(self.norm(h))
        return logits


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(_WIDTH)
        self.queries_keys_values = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.attended = nn.Linear(_WIDTH, _WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )  # fmt: skip

    def forward(self, h: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.before_attention(h)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.attended(mixed.transpose(1, 2).flatten(2))
        after: Tensor = h + self.feed_forward(h)
        return after


class Lstm(nn.Module):
    """One LSTM layer (Hochreiter and Schmidhuber, 1997), with 118,049 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, _WIDTH)
        self.lstm = nn.LSTM(_WIDTH, _LSTM_WIDTH, batch_first=True)
        self.head = nn.Linear(_LSTM_WIDTH, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols int64 [N, T] to logits [N, T, SYMBOLS]."""
        logits: Tensor = self.head(self.lstm(self.symbols(x))[0])
        return logits


def find_text(name: str, data_dir: str) -> Path:
    """Return the file that holds a text.

    Raises:
        ConfigError: it is no name: a server may not lead its clients out of their data folder.
        DataError: there is no folder, or it does not hold it.
    """
    require_plain(name)
    if not data_dir:
        raise DataError(f"the task text needs --data-dir, a folder with {name}.txt")
    for folder in (Path(data_dir), Path(data_dir) / "text"):
        path = folder / f"{name}.txt"
        if path.is_file():
            return path
    raise DataError(f"no {name}.txt in {data_dir} or {Path(data_dir) / 'text'}")


def _read(name: str, data_dir: str) -> str:
    path = find_text(name, data_dir)
    with cannot(f"read {path}", DataError):
        return path.read_text("utf-8", errors="replace")


def _windows(text: str) -> Examples:
    """Return a text as rows of `LENGTH` characters, and for each character the one after it."""
    table = {character: i for i, character in enumerate(_ALPHABET, 1)}
    symbols = torch.tensor([table.get(character, 0) for character in text])
    rows = max(len(symbols) - 1, 0) // LENGTH
    x, y = (symbols[shift : shift + rows * LENGTH].view(rows, LENGTH) for shift in (0, 1))
    return Examples(x, y)
