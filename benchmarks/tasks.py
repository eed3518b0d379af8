"""Tasks that fedsz does not bring, for measurements: ``--task benchmarks.tasks:NAME``.

Each is a `fedsz.training.task.Task` over the data sets of ``--data-dir``.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from torch import Tensor, nn

from fedsz.training import datasets
from fedsz.training.examples import Examples
from fedsz.training.images import ImagesTask
from fedsz.training.options import RunConfig
from fedsz.training.text import TextTask, find_text

Metrics = Mapping[str, Any]

TOKENS: Final = 16  # of a sentence that `Questions` reads
CLASSES: Final = 10  # of images
_HELD_OUT_SEED: Final = 101  # never the run's: it would be tested on what another trained on


class Quickstart(ImagesTask):
    """Colour images by the small network of most tutorials: 62,006 parameters, SGD."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(dataclasses.replace(config, model="cnn"))  # in whose place comes its own

    def build_model(self) -> nn.Module:
        """Return two convolutions of 5x5 and three dense layers."""
        return nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


class ResNet8(ImagesTask):
    """Colour images by a residual network with batch normalisation: 174,274 parameters, SGD.

    That of He et al. (2016) for CIFAR-10, with n = 1, 24 channels at first and a first stride of 2.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(dataclasses.replace(config, model="cnn"))  # in whose place comes its own

    def build_model(self) -> nn.Module:
        """Return a convolution of stride 2, three residual blocks and a dense layer."""
        return nn.Sequential(
            *normalised(3, 24, 3, stride=2), nn.ReLU(),
            Residual(24, 24), Residual(24, 48, stride=2), Residual(48, 96, stride=2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
        )  # fmt: skip


class ResNet18(ImagesTask):
    """Colour images by ResNet-18 with group normalisation: 11,173,962 parameters, SGD.

    Its first convolution has 3x3 pixels and stride 1, as for images of 32 pixels and fewer. The
    normalisation is that of Hsieh et al. (2020), who find it better than that of batches where
    clients' shares differ.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(dataclasses.replace(config, model="cnn"))  # in whose place comes its own

    def build_model(self) -> nn.Module:
        """Return a convolution, eight residual blocks and a dense layer."""
        widths = (64, 128, 256, 512)
        blocks = [
            Residual(before if first else width, width, stride, groups=32)
            for before, width in zip((64, *widths), widths, strict=False)
            for first, stride in ((True, 1 if width == 64 else 2), (False, 1))
        ]
        return nn.Sequential(
            *normalised(3, 64, 3, groups=32), nn.ReLU(), *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return] # fmt: skip


class Vit(ImagesTask):
    """Colour images by a small vision transformer (Dosovitskiy et al., 2021).

    545,930 parameters, AdamW.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(dataclasses.replace(config, model="cnn"))  # in whose place comes its own
        self._adam = Adam.of(config)

    def build_model(self) -> nn.Module:
        """Return four blocks of width 128 over patches of 4x4 pixels."""
        return VisionTransformer(width=128, depth=4, heads=4, patch=4)

    def train(self, model: nn.Module, share: Examples) -> Metrics:
        """Train by AdamW."""

        def loss_of(rows: Tensor) -> Tensor:
            return F.cross_entropy(model(share.x[rows] / 64 - 2), share.y[rows])

        return self._adam.train(model, len(share), loss_of)


class VisionTransformer(nn.Module):
    """Patches, positions, blocks, and a linear layer of the mean over patches."""

    def __init__(self, *, width: int, depth: int, heads: int, patch: int, pixels: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((pixels // patch) ** 2, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, 3, H, W] to logits [N, CLASSES]."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.blocks(tokens).mean(1))
        return logits


class Residual(nn.Module):
    """Two convolutions of 3x3 around a shortcut, which is of 1x1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, groups: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *normalised(inputs, outputs, 3, stride, groups), nn.ReLU(),
            *normalised(outputs, outputs, 3, groups=groups),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(*normalised(inputs, outputs, 1, stride, groups))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, inputs, H, W] to [N, outputs, H / stride, W / stride]."""
        return F.relu(self.body(x) + self.shortcut(x))


def normalised(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 0
) -> tuple[nn.Module, ...]:
    """Return a convolution, and what normalises it: by batches, or in ``groups`` of channels."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return convolution, nn.GroupNorm(groups, outputs) if groups else nn.BatchNorm2d(outputs)


class Characters(TextTask):
    """The next character of a text, as fedsz's task ``text`` has it, but trained by AdamW.

    A client holds all of its text and draws ``samples / clients`` pieces of it each round.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(dataclasses.replace(config, samples=0))
        self._adam = Adam.of(config)

    def train(self, model: nn.Module, share: Examples) -> Metrics:
        """Train by AdamW."""

        def loss_of(rows: Tensor) -> Tensor:
            return F.cross_entropy(model(share.x[rows]).flatten(0, 1), share.y[rows].flatten())

        return self._adam.train(model, len(share), loss_of)


class Questions:
    """Which sentences of Shakespeare are questions, without what ends them, by a pretrained MiniLM.

    The model is ``minilm``, all of it tuned, or ``minilm-lora``: the adapters are the model then,
    with the head, and the rest stays where it is.
    """

    def __init__(self, config: RunConfig) -> None:
        self._lora = config.model == "minilm-lora"
        self._adam = Adam.of(config)
        self._held_out = config.test_samples or None
        self._train, self._test = sentences(str(find_text(config.dataset, config.data_dir)))

    def build_model(self) -> Any:
        """Return the pretrained transformer with a new head, or its adapters."""
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=2)
        return Adapters(model) if self._lora else model

    def load_share(self, index: int, count: int) -> Examples:
        """Return every ``count``-th sentence."""
        return Examples(self._train.x[index::count], self._train.y[index::count])

    def load_test(self) -> Examples:
        """Return the sentences held out, or so many of them."""
        return self._test.first(self._held_out)

    def train(self, model: Any, share: Examples) -> Metrics:
        """Train by AdamW."""
        network = model.network if self._lora else model

        def loss_of(rows: Tensor) -> Tensor:
            return F.cross_entropy(logits(network, share.x[rows]), share.y[rows])

        return self._adam.train(network, len(share), loss_of)

    def evaluate(self, model: Any, test: Examples) -> Metrics:
        """Return the mean cross-entropy and the accuracy."""
        network = model.network if self._lora else model
        network.eval()
        with torch.inference_mode():
            found = torch.cat([logits(network, x) for x in test.x.split(64)])
        right = (found.argmax(1) == test.y).float().mean()
        return {"loss": F.cross_entropy(found, test.y), "accuracy": right}


class Adapters:
    """A transformer of which the adapters of LoRA (Hu et al., 2021) and the head are trained."""

    def __init__(self, model: Any) -> None:
        from peft import LoraConfig, get_peft_model

        settings = LoraConfig(
            task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"]
        )
        self.network = get_peft_model(model, settings)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the adapters and the head."""
        from peft import get_peft_model_state_dict

        state: dict[str, Tensor] = get_peft_model_state_dict(self.network)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take other adapters and another head."""
        from peft import set_peft_model_state_dict

        tensors = {name: torch.as_tensor(x) for name, x in state.items()}
        set_peft_model_state_dict(self.network, tensors)


class Clothes:
    """Fashion-MNIST by scikit-learn's logistic regression: 7,850 parameters in a dict."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def build_model(self) -> dict[str, Any]:
        """Return zeros."""
        return {
            "coef": np.zeros((CLASSES, 28 * 28), np.float32),
            "intercept": np.zeros(CLASSES, np.float32),
        }

    def load_share(self, index: int, count: int) -> tuple[Any, Any]:
        """Return a client's images as rows of numbers, and their classes."""
        config = self._config
        division = datasets.Division.of(config, count)
        shares = datasets.open_shares(config.dataset, division, data_dir=Path(config.data_dir))
        return flat(shares(index))

    def load_test(self) -> tuple[Any, Any]:
        """Return the held-out images."""
        config = self._config
        return flat(datasets.load_test(
            config.dataset, data_dir=Path(config.data_dir), samples=config.test_samples or None
        ))  # fmt: skip

    def train(self, model: dict[str, Any], share: tuple[Any, Any]) -> Metrics:
        """Make one pass over the share."""
        rate = self._config.learning_rate
        classifier = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate)
        classifier.coef_, classifier.intercept_ = model["coef"], model["intercept"]
        classifier.partial_fit(*share, classes=np.arange(CLASSES))
        model.update(coef=classifier.coef_, intercept=classifier.intercept_)
        return {"examples": len(share[0])}

    def evaluate(self, model: dict[str, Any], test: tuple[Any, Any]) -> Metrics:
        """Return the mean cross-entropy and the accuracy."""
        pixels, classes = test
        scores = torch.as_tensor(pixels @ model["coef"].T + model["intercept"])
        shares = scores.double().softmax(1).numpy()
        loss = log_loss(classes, shares, labels=range(CLASSES))
        return {"loss": loss, "accuracy": (shares.argmax(1) == classes).mean()}


@dataclass(frozen=True)
class Adam:
    """One client's round of AdamW."""

    drawn: int  # examples, drawn anew each round
    rate: float
    batch: int

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Take what a run's options say."""
        return cls(-(-config.samples // config.clients), config.learning_rate, config.batch_size)

    def train(self, model: nn.Module, size: int, loss_of: Callable[[Tensor], Tensor]) -> Metrics:
        """Train in place; ``loss_of`` takes numbers of examples, below ``size``."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.rate)
        model.train()
        losses, drawn = [], torch.randperm(size)[: self.drawn]
        for rows in drawn.split(self.batch):
            optimizer.zero_grad()
            loss = loss_of(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        return {"loss": float(np.mean(losses)), "examples": len(drawn)}


def logits(network: nn.Module, tokens: Tensor) -> Tensor:
    """Return the logits [N, 2] of tokens [N, TOKENS], of which 0 is padding."""
    found: Tensor = network(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
    return found


def flat(images: Examples) -> tuple[Any, Any]:
    """Return images as float32 rows in [0, 1], and their classes."""
    return images.x[:].flatten(1).numpy().astype(np.float32) / 255, images.y.numpy()


@cache
def minilm() -> Path:
    """Return the folder of the pretrained MiniLM, out of its package."""
    from all_minilm_l6_v2 import extract_model

    return Path(extract_model(tempfile.mkdtemp()))


@cache
def sentences(path: str) -> tuple[Examples, Examples]:
    """Return sentences to train on and a tenth held out: tokens [N, TOKENS], 1 for a question.

    There are as many questions as others.
    """
    from transformers import AutoTokenizer

    text = re.sub(r"^[A-Z][A-Za-z ]+:$", "", Path(path).read_text(encoding="utf-8"), flags=re.M)
    found = re.findall(r"([^.?!:;]{20,})([.?])", text)
    asked = [words for words, end in found if end == "?"]
    said = [words for words, end in found if end == "."]
    shuffled = torch.Generator().manual_seed(_HELD_OUT_SEED)
    said = [said[i] for i in torch.randperm(len(said), generator=shuffled)[: len(asked)]]
    tokens = AutoTokenizer.from_pretrained(minilm())(
        [" ".join(words.split()) for words in asked + said], truncation=True, max_length=TOKENS,
        padding="max_length", return_tensors="pt",
    )["input_ids"]  # fmt: skip
    kinds = torch.tensor([1] * len(asked) + [0] * len(said))
    order = torch.randperm(len(kinds), generator=shuffled)
    test, train = order.tensor_split([len(kinds) // 10])
    return Examples(tokens[train], kinds[train]), Examples(tokens[test], kinds[test])
