"""The model, the data and the training loop: nothing here knows of Flower or of fedsz."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

Parameters = dict[str, dict[str, jax.Array]]  # "kernel" (inputs, outputs), "bias" (outputs,)
Share = tuple[np.ndarray, np.ndarray]  # images (n, 64) of float32 in [0, 1], labels (n,)

LAYERS = {"hidden": (64, 512), "second": (512, 256), "head": (256, 10)}


def load_data(client: int, clients: int) -> tuple[Share, Share]:
    """Return a client's images to train on, and the fifth of all images that nobody trains on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    held_out = len(labels) // 5
    mine = slice(held_out + client, None, clients)
    return (images[mine], labels[mine]), (images[:held_out], labels[:held_out])


def initial() -> Parameters:
    """Return a model that has learned nothing, the same in every run."""
    parameters = {}
    keys = jax.random.split(jax.random.key(0), len(LAYERS))
    for key, (name, (inputs, outputs)) in zip(keys, LAYERS.items(), strict=True):
        kernel = jax.random.normal(key, (inputs, outputs)) * jnp.sqrt(2 / inputs)
        parameters[name] = {"kernel": kernel, "bias": jnp.zeros(outputs)}
    return parameters


def logits(parameters: Parameters, images: jax.Array) -> jax.Array:
    """Return the logits (n, 10) of images (n, 64)."""
    x = images
    for name in LAYERS:
        x = x @ parameters[name]["kernel"] + parameters[name]["bias"]
        if name != "head":
            x = jax.nn.relu(x)
    return x


def loss(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy, a scalar."""
    picked = jax.nn.log_softmax(logits(parameters, images))[jnp.arange(len(labels)), labels]
    return -picked.mean()


@jax.jit
def step(parameters: Parameters, images: jax.Array, labels: jax.Array, rate: float) -> Parameters:
    """Return the parameters after one step of gradient descent."""
    gradient = jax.grad(loss)(parameters, images, labels)
    return jax.tree.map(lambda x, slope: x - rate * slope, parameters, gradient)


def train(
    parameters: Parameters, data: Share, epochs: int, rate: float, batch_size: int
) -> Parameters:
    """Return the parameters after some epochs on a share."""
    images, labels = data
    for _ in range(epochs):
        order = np.random.default_rng().permutation(len(labels))
        # Batches of one size alone: JAX compiles the step anew for each size.
        for batch in order[: len(order) // batch_size * batch_size].reshape(-1, batch_size):
            parameters = step(parameters, images[batch], labels[batch], rate)
    return parameters


def test(parameters: Parameters, data: Share) -> tuple[float, float]:
    """Return the mean loss and the accuracy in [0, 1]."""
    images, labels = data
    right = logits(parameters, images).argmax(axis=1) == labels
    return float(loss(parameters, images, labels)), float(right.mean())
