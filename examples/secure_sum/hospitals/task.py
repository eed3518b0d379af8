"""The model and the data: nothing here knows of Flower or of fedsz."""

import numpy as np
from sklearn.datasets import load_breast_cancer

HIDDEN = 64
RATE = 0.5


def load_data(hospital, hospitals):
    """Return a hospital's records to train on, and the fifth that nobody trains on."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = ((x - x.mean(0)) / x.std(0))[order].astype(np.float32), y[order]
    held_out = len(y) // 5
    mine = slice(held_out + hospital, None, hospitals)
    return (x[mine], y[mine]), (x[:held_out], y[:held_out])


def initial():
    """Return a network with one hidden layer: weights and biases, float32."""
    rng = np.random.default_rng(0)
    first = rng.normal(0, 0.2, (30, HIDDEN)).astype(np.float32)
    last = rng.normal(0, 0.2, (HIDDEN, 1)).astype(np.float32)
    return [first, np.zeros(HIDDEN, np.float32), last, np.zeros(1, np.float32)]


def predict(weights, x):
    """Return the hidden layer, and the probability that a tumour is benign."""
    first, first_bias, last, last_bias = weights
    hidden = np.tanh(x @ first + first_bias)
    return hidden, 1 / (1 + np.exp(-(hidden @ last + last_bias)[:, 0]))


def train(weights, data, epochs=5):
    """Return the weights after gradient descent on all records at once."""
    first, first_bias, last, last_bias = (w.copy() for w in weights)
    x, y = data
    for _ in range(epochs):
        hidden, found = predict((first, first_bias, last, last_bias), x)
        error = (found - y)[:, None] / len(y)
        back = error @ last.T * (1 - hidden**2)
        last -= RATE * hidden.T @ error
        last_bias -= RATE * error.sum(0)
        first -= RATE * x.T @ back
        first_bias -= RATE * back.sum(0)
    return [w.astype(np.float32) for w in (first, first_bias, last, last_bias)]


def test(weights, data):
    """Return the share of records that the model tells right."""
    x, y = data
    return float(((predict(weights, x)[1] > 0.5) == y).mean())
