"""A task of one's own in PyTorch: a small network on scikit-learn's digits. See README.md."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

TRAINING_EXAMPLES = 1500
pixels, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))


class Digits:
    def __init__(self, config):
        self.config = config  # the options of the run: --epochs, --learning-rate, --data-dir ...

    def build_model(self):
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def load_share(self, index, count):
        mine = Subset(digits, range(index, TRAINING_EXAMPLES, count))
        return DataLoader(mine, batch_size=self.config.batch_size, shuffle=True)

    def load_test(self):
        return digits[TRAINING_EXAMPLES:]

    def train(self, model, share):
        optimizer = torch.optim.SGD(
            model.parameters(), lr=self.config.learning_rate, momentum=self.config.momentum
        )
        for _ in range(self.config.epochs):
            for inputs, targets in share:
                loss = nn.functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return {"examples": len(share.dataset), "loss": loss}

    def evaluate(self, model, test):
        inputs, targets = test
        with torch.no_grad():
            outputs = model(inputs)
        right = (outputs.argmax(1) == targets).float().mean()
        return {"loss": nn.functional.cross_entropy(outputs, targets), "accuracy": right}
