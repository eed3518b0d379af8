"""The model, the data and the training loop: nothing here knows of Flower or of fedsz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

SIZE = 16  # of an image, in pixels each way


class Net(nn.Module):
    """Two convolutions and two dense layers, some 150,000 parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, classes) of images (N, 1, SIZE, SIZE)."""
        return self.classifier(self.features(images))


def load_data(folder: str) -> tuple[Subset, Subset, int]:
    """Return images to train on, a fifth of them held out, and the number of classes."""
    images, labels = load_folder(Path(folder)) if folder else load_sklearn()
    data = TensorDataset(images, labels)
    held_out = len(data) // 5
    train, test = random_split(
        data, [len(data) - held_out, held_out], torch.Generator().manual_seed(0)
    )
    return train, test, int(labels.max()) + 1


def load_sklearn() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits: images (1797, 1, SIZE, SIZE) in [0, 1], labels (1797,)."""
    images, labels = load_digits(return_X_y=True)
    small = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return nn.functional.interpolate(small, (SIZE, SIZE)), torch.tensor(labels)


def load_folder(folder: Path) -> tuple[Tensor, Tensor]:
    """Return the grey images of FOLDER/CLASS/NAME.png, and the place of each CLASS as its label."""
    images, labels = [], []
    for label, kind in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        for path in sorted(kind.iterdir()):
            image = Image.open(path).convert("L").resize((SIZE, SIZE))
            images.append(np.asarray(image, dtype=np.float32)[None] / 255)
            labels.append(label)
    return torch.tensor(np.stack(images)), torch.tensor(labels)


def share(data: Subset, client: int, clients: int) -> Subset:
    """Return every ``clients``-th image, from number ``client`` on."""
    return Subset(data, range(client, len(data), clients))


def train(net: Net, data: Subset, epochs: int, rate: float, batch_size: int) -> float:
    """Train in place and return the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses: list[float] = []
    net.train()
    for _ in range(epochs):
        losses = []
        for images, labels in DataLoader(data, batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def test(net: Net, data: Subset) -> tuple[float, float]:
    """Return the mean loss and the accuracy in [0, 1]."""
    net.eval()
    loss = right = 0.0
    for images, labels in DataLoader(data, 256):
        logits = net(images)
        loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += (logits.argmax(1) == labels).sum().item()
    return loss / len(data), right / len(data)
