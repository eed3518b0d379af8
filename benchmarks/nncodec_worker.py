"""NNCodec's encoder and decoder as a process, which ``nncodec_rounds.py`` starts and asks.

    peer/bin/python benchmarks/nncodec_worker.py '{"qp": -26, ...}'

The argument holds the settings, by NNCodec's own names. A request on stdin is a line of JSON, with
the client's number and the length of what follows, then float32 tensors as safetensors; the answer
on stdout has the size of the bitstream and the seconds, then the tensors as the server decodes
them.

The encoder does what ``encode`` of ``nncodec.fl`` does: NNCodec's sparsification, then
``nnc.compress``. That module wants Flower and torchvision, so its two steps are called here.
Client and server each keep their own state of the temporal contexts, which code a tensor by what it
was the last time; for these, and for error feedback, the client decodes its own bitstream in its
own time.

This runs in NNCodec's environment (see ``nncodec_peer.py``) and imports nothing of fedsz.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.machinery import PathFinder
from typing import Any

import numpy as np
from nncodec_peer import UNARY_LENGTH, Arrays, framework, nnc
from safetensors.numpy import load, save

# The folder of the package that `nncodec_peer` put an empty module for: its tools are needed here.
found = PathFinder.find_spec("framework", sys.modules["nncodec"].__path__)
framework.__path__ = list(found.submodule_search_locations or ())

from nncodec.framework.applications.utils import sparsification  # noqa: E402

QP_DENSITY = 2  # steps an octave are 2 to the power of it; NNCodec's default


def device_of(client: int) -> int:
    """Return what a bitstream calls a client; 0 is the server."""
    return client + 1


def no_history(client: int) -> dict[str, Any]:
    """Return NNCodec's state of a client that has sent nothing yet."""
    return {
        "parameters": {},
        "put_node_depth": {},
        "device_id": device_of(client),
        "parameter_id": {},
    }


class Link:
    """One client's encoder, and the server's decoder for it.

    Args:
        client: its number, from 0.
        settings: of the encoder; "feedback" says that the client must know what it has sent.
    """

    def __init__(self, client: int, settings: dict[str, Any]) -> None:
        self._device = device_of(client)
        self._settings = settings
        self._at_client, self._at_server = no_history(client), no_history(client)

    def send(self, tensors: Arrays) -> tuple[Arrays, dict[str, float]]:
        """Return what the server decodes, and the bytes and seconds that it took."""
        start = time.perf_counter()
        stream = self._encoded(tensors)
        own = None
        if self._settings["tca"] or self._settings["feedback"]:
            own = self._decoded(stream, self._at_client, tensors)
        middle = time.perf_counter()
        decoded = self._decoded(stream, self._at_server, tensors)
        end = time.perf_counter()
        if own is not None:
            assert all(np.array_equal(own[name], decoded[name]) for name in tensors)
        return decoded, {"bytes": len(stream), "encode": middle - start, "decode": end - middle}

    def _encoded(self, tensors: Arrays) -> bytearray:
        settings = self._settings
        if settings["sparsity"] > 0:
            tensors = sparsification.apply_unstruct_spars_v2(
                settings["qp"], tensors, settings["sparsity"], np.int32(QP_DENSITY)
            )
            if settings["struct_spars_factor"] > 0:
                tensors = sparsification.apply_struct_spars_v2(
                    tensors, settings["struct_spars_factor"]
                )
        names = ("qp", "nonweight_qp", "use_dq", "opt_qp", "row_skipping", "tca")
        return nnc.compress(
            dict(tensors),
            bitstream_path=None,
            qp_density=QP_DENSITY,
            cabac_unary_length_minus1=UNARY_LENGTH,
            approx_param_base=self._at_client,
            compress_differences=settings["differences"],
            device_id=self._device,
            return_bitstream=True,
            **{name: settings[name] for name in names},
        )

    def _decoded(self, stream: bytearray, history: dict[str, Any], like: Arrays) -> Arrays:
        decoded = nnc.decompress(stream, approx_param_base=history, update_base_param=True)
        # A tensor that became zero altogether is not in the bitstream of a difference.
        return {
            name: decoded[name] if name in decoded else np.zeros_like(x) for name, x in like.items()
        }


def main() -> None:
    """Answer requests until stdin ends."""
    settings = json.loads(sys.argv[1])
    # NNCodec prints; what is ours goes to a stdout that it does not have.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    links: dict[int, Link] = {}
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        loaded = load(sys.stdin.buffer.read(asked["nbytes"]))
        # A bitstream numbers tensors in their order, which a safetensors file does not keep.
        tensors = {name: loaded[name] for name in sorted(loaded)}
        client = asked["client"]
        link = links.setdefault(client, Link(client, settings))
        decoded, took = link.send(tensors)
        body = save({name: np.ascontiguousarray(x) for name, x in decoded.items()})
        out.write(json.dumps({**took, "nbytes": len(body)}).encode() + b"\n" + body)
        out.flush()


if __name__ == "__main__":
    main()
