"""The model and the data: nothing here knows of Flower or of fedsz."""

from __future__ import annotations

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import SGDClassifier

CLASSES = 10
FEATURES = 1000

Share = tuple[np.ndarray, np.ndarray]  # features (n, FEATURES) of float32, labels (n,)


@cache
def load_data(client: int, clients: int) -> tuple[Share, Share]:
    """Return a client's images to train on, and the fifth of all images that nobody trains on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    # The same features everywhere: kernel regression, made linear by Rahimi and Recht's method.
    sampler = RBFSampler(gamma=0.5, n_components=FEATURES, random_state=0)
    features = sampler.fit_transform(images[order] / 16).astype(np.float32) * 5
    held_out = len(labels) // 5
    labels = labels[order]
    mine = slice(held_out + client, None, clients)
    return (features[mine], labels[mine]), (features[:held_out], labels[:held_out])


def initial() -> list[np.ndarray]:
    """Return a model that knows nothing: coefficients and intercepts, float32."""
    return [np.zeros((CLASSES, FEATURES), np.float32), np.zeros(CLASSES, np.float32)]


def classifier(weights: list[np.ndarray], rate: float = 0.1) -> SGDClassifier:
    """Return scikit-learn's own model with these coefficients and intercepts."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, alpha=1e-6)
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = (np.array(x, dtype=np.float32) for x in weights)
    return model


def train(weights: list[np.ndarray], data: Share, epochs: int, rate: float) -> list[np.ndarray]:
    """Return the model after some epochs on a share."""
    model = classifier(weights, rate)
    for _ in range(epochs):
        model.partial_fit(*data, classes=model.classes_)
    return [model.coef_.astype(np.float32), model.intercept_.astype(np.float32)]


def test(weights: list[np.ndarray], data: Share) -> float:
    """Return the accuracy in [0, 1]."""
    return float(classifier(weights).score(*data))
