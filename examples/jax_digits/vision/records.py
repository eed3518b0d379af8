"""A pytree of parameters as Flower's ArrayRecord, and back."""

import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord

from vision.task import Parameters


def to_record(parameters: Parameters) -> ArrayRecord:
    """Return a record whose names are the paths of the parameters, such as "head/bias"."""
    return ArrayRecord(
        {
            f"{layer}/{name}": Array(np.asarray(x))
            for layer, arrays in parameters.items()
            for name, x in arrays.items()
        }
    )


def to_parameters(record: ArrayRecord) -> Parameters:
    """Return the parameters in a record."""
    parameters: Parameters = {}
    for path, array in record.items():
        layer, name = path.split("/")
        parameters.setdefault(layer, {})[name] = jnp.asarray(array.numpy())
    return parameters
