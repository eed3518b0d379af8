"""Run the arm64 client image under qemu against the amd64 server image, over TLS.

    python docker/try_arm64.py FOLDER [--rounds 3]

FOLDER has server-amd64 and client-arm64, as docker/build.sh leaves them. Needs root, crun, and
qemu-aarch64-static registered with binfmt_misc with flag F. Then the model of the run is compressed
and decompressed in both images, and the bytes are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

from containers import FEDSZ, Container, events, folder, free_port, wait_for

CODECS = ("uniform", "szx", "zfp")


def digest(path: Path) -> str:
    """Return the beginning of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def train(images: Path, work: Path, rounds: int) -> Path:
    """Run a server and one emulated client; return the model that they have trained."""
    keys, trust, runs, state = (folder(work, name) for name in ("keys", "trust", "runs", "state"))
    script = ("python3", "/usr/lib/fedsz/first_start.py", "/keys", "/trust", "localhost")
    server_root, mounts = images / "server-amd64", {"/keys": keys, "/trust": trust}
    Container(server_root, "keys", script, mounts, work / "keys.log").wait()
    port, log = free_port(), work / "server.log"
    command = (
        *(*FEDSZ, "server", "--json", "--port", str(port), "--run-dir", "/runs/run"),
        *("--rounds", str(rounds), "--min-clients", "1", "--dataset", "digits", "--model", "cnn"),
        *("--tls-cert", "/keys/server.pem", "--tls-key", "/keys/server.key"),
    )
    server = Container(server_root, "server", command, {"/keys": keys, "/runs": runs}, log)
    link = ("--server", f"localhost:{port}", "--tls-ca", "/trust/ca.pem")
    command = (*FEDSZ, "client", "--partition", "auto", "--state-dir", "/state", *link)
    mounts = {"/trust": trust, "/state": state}
    told = work / "client.log"
    client = Container(images / "client-arm64", "client", command, mounts, told)
    wait_for(log, "client", what="joined")
    print(f"client: joined {time.monotonic() - client.begun:.0f} s after its start")
    peak = 0
    while client.process.poll() is None:
        peak = max(peak, client.peak_bytes)
        time.sleep(0.2)
    print(f"client: exit status {client.wait()}, server: {server.wait(60)}")
    print(f"client: at most {peak / 1e6:.0f} MB of memory, the emulator included")
    for event in events(log):
        if event["event"] == "round":
            print("round {round}: {replies} replies, accuracy {accuracy:.4f}".format(**event))
    print(told.read_text().strip())
    return runs / "run" / "model.safetensors"


def compare(images: Path, work: Path, model: Path) -> None:
    """Compress and decompress a model in both images."""
    shared = folder(work, "shared")
    shutil.copy(model, shared / "model.safetensors")
    made: dict[str, dict[str, str]] = {"amd64": {}, "arm64": {}}
    for arch, image in (("amd64", "server-amd64"), ("arm64", "client-arm64")):

        def do(*command: str, arch: str = arch, image: str = image) -> None:
            name, log = f"compare-{arch}", work / f"compare-{arch}.log"
            everything = (*FEDSZ, *command)
            status = Container(images / image, name, everything, {"/runs": shared}, log).wait()
            if status:
                sys.exit(log.read_text())

        for codec in CODECS:
            stream = f"{codec}-{arch}.fsz"
            options = ("--codec", codec, "--error-bound", "1e-2")
            do("compress", "model.safetensors", "-o", stream, *options)
            made[arch][codec] = digest(shared / stream)
            if arch == "arm64":  # what the other machine has made
                do("decompress", f"{codec}-amd64.fsz", "-o", f"{codec}-there.safetensors")
            else:
                do("decompress", stream, "-o", f"{codec}-here.safetensors")
    for codec in CODECS:
        here, there = (digest(shared / f"{codec}-{at}.safetensors") for at in ("here", "there"))
        print(
            f"{codec}: stream {made['amd64'][codec]} on amd64, {made['arm64'][codec]} on arm64;"
            f" decoded {here} on amd64, {there} on arm64"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    place = Path(tempfile.mkdtemp(prefix="fedsz-arm64-"))
    compare(given.folder, place, train(given.folder, place, given.rounds))
    shutil.rmtree(place)
