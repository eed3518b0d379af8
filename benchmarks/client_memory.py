"""The memory of one `fedsz client` that trains `cnn` on CIFAR-10, beside a real `fedsz server`.

    python -m benchmarks.client_memory --data-dir DIR [--images 5000] [--rounds 3]

Prints JSON: the client's peak after joining and after each round (VmHWM, in MB); how much of the
last one were pages of libraries, which the kernel may drop (RssFile); and the bytes of each round
on the wire. Linux only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.load import PATIENCE
from benchmarks.measuring import machine, memory
from fedsz.child_process import Child
from fedsz.control.record import RoundRecord
from fedsz.training.events import Client, Failed, Listening, from_json

ALIVE: Final = ("joined", "received")  # what a client waits after; a received reply, once trained


def measure(data_dir: Path, images: int, rounds: int) -> dict[str, Any]:
    """Return the peaks of a client, in MB."""
    data = ("--insecure", "--dataset=cifar10", f"--data-dir={data_dir.resolve()}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-")))
        run = ("--port=0", "--json", "--min-clients=1", f"--rounds={rounds}", "--model=cnn")
        run += (f"--samples={images}", "--test-samples=100", f"--run-dir={folder / 'run'}")
        log = folder / "server.log"
        server = stack.enter_context(Child("fedsz", "server", *data, *run, log=log))
        client, peak, files, peaks, up, down = None, 0.0, 0.0, [], [], []
        for line in server.lines():
            event = from_json(line)
            if isinstance(event, Failed):
                raise SystemExit(event.error)
            if isinstance(event, Listening):
                place = f"--server=127.0.0.1:{event.port}"
                log = folder / "client.log"
                client = Child("fedsz", "client", *data, place, "--partition=0/1", log=log)
                stack.enter_context(client)
            if isinstance(event, Client) and event.what in ALIVE and client:
                with suppress(StopIteration, OSError):  # it has ended: its last peak is known
                    peak = memory("VmHWM", client.pid)
                    files = memory("RssFile", client.pid)
            if isinstance(event, RoundRecord):
                peaks.append(round(peak, 1))
                up.append(event.wire_up)
                down.append(event.wire_down)
        assert client is not None
        if client.wait(PATIENCE) or server.wait(PATIENCE):
            raise SystemExit(f"client: {client.last_words()}; server: {server.last_words()}")
        return {
            "images": images,
            "peaks_MB": peaks,
            "peak_MB": peaks[-1],
            "files_MB": round(files, 1),
            "bytes_up": up[1:],
            "bytes_down": down[1:],
            "machine": machine("grpcio", "flwr"),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(json.dumps(measure(asked.data_dir, asked.images, asked.rounds)))


if __name__ == "__main__":
    main()
