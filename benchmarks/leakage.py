"""Gradient leakage: what a server rebuilds of a client's image from the update that it sees.

    python -m benchmarks.leakage docs/results/leakage.parquet --data-dir DIR
    python -m benchmarks.leakage docs/results/leakage.parquet --table

The first runs the attacks that the file lacks and draws docs/leakage.png; the second prints the
table of docs/privacy.md. A client takes one step of SGD on one image, the easiest case. The attacks
know the network, the learning rate and the label:

    linear  the input of a dense layer, from the gradients of its weights and biases: each row of
            the one is the input times an element of the other (Phong et al. 2017)
    dlg     the image whose gradient is nearest to the one seen, found by L-BFGS (Zhu et al. 2019)

An update is seen as `VIEWS` say: as it is, compressed, masked for a secure sum, or noised by the
client.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import nn

from benchmarks.error_laws import received
from fedsz.arrays import Layout
from fedsz.core.settings import Settings
from fedsz.flower.records import to_record, views_of
from fedsz.privacy.budget import multiplier_for
from fedsz.privacy.flower_client import LocalNoise
from fedsz.privacy.plans import layout_digest
from fedsz.privacy.quantizer import TokenCodec, TokenPlan
from fedsz.privacy.ring import Ring

Model = dict[str, np.ndarray]
Floats = np.ndarray

RATE: Final = 0.1  # of the client's step
SIDE: Final = 28  # pixels
IMAGES: Final = 4
STEPS: Final = 120  # of L-BFGS
CLIENTS: Final = 100  # of the secure sum
EPSILON: Final = 8.0  # of the one round, at a delta of 1e-5
ATTACKS: Final = ("linear", "dlg")
PICTURE: Final = Path("docs/leakage.png")
SCALE: Final = 2  # pixels of the picture for one of an image


def network(attack: str, seed: int) -> nn.Sequential:
    """Return a perceptron, or LeNet as Zhu et al. have it: smooth, with weights of some size."""
    torch.manual_seed(seed)
    if attack == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 64), nn.ReLU(), nn.Linear(64, 10))
    layers: list[nn.Module] = []
    for inputs, stride in ((1, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(inputs, 12, 5, stride, 2), nn.Sigmoid()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10))
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def gradient(net: nn.Module, image: torch.Tensor, label: int, *, graph: bool) -> list[torch.Tensor]:
    """Return the gradient of the cross-entropy on one image."""
    loss = nn.functional.cross_entropy(net(image), torch.tensor([label]))
    return list(torch.autograd.grad(loss, list(net.parameters()), create_graph=graph))


def plain(trained: Model, start: Model) -> Model:  # noqa: ARG001 - other views need it
    """Return an update as a server without any protection sees it."""
    return trained


def compressed(trained: Model, start: Model) -> Model:
    """Return it as `auto` has it sent in round 1."""
    return received(trained, start, Settings(update="delta", error_bound="step:0.5"))


def masked(trained: Model, start: Model) -> Model:
    """Return what one client's masked message of a secure sum says, read as if it were not."""
    layout = Layout.of(start)
    steps = {name: trained[name] - start[name] for name in start}
    plan = TokenPlan(
        layout=layout_digest(layout), clients=CLIENTS, bits=(2 * 127 * CLIENTS).bit_length(), cap=1,
        scales=tuple(float(np.sqrt(np.mean(s.astype(float) ** 2))) + 1e-12 for s in steps.values()),
    )  # fmt: skip
    codec, ring = TokenCodec(plan, layout), Ring(plan.bits)
    tokens = codec.encode(trained, start, 1, {}).tokens.copy()
    for _ in range(2):  # its own mask, and that of a neighbour
        ring.add_mask(tokens, os.urandom(32))
    ring.reduce(tokens)
    offset = tokens.astype(np.int64) - plan.most  # tokens are from 0 on
    seen, at = {}, 0
    for name, spacing in codec.sent.items():
        x = start[name]
        seen[name] = x + spacing * offset[at : at + x.size].reshape(x.shape)
        at += x.size
    for name in codec.exact:
        digits = offset[at :: plan.digits][: start[name].size]
        scale = plan.scales[list(layout.shapes).index(name)] / plan.most
        seen[name] = start[name] + scale * digits.reshape(start[name].shape)
        at += start[name].size * plan.digits
    return {name: seen[name].astype(np.float32) for name in start}


def noised(trained: Model, start: Model) -> Model:
    """Return it as a client sends it under local differential privacy, of its own norm."""
    norm = float(np.sqrt(sum(np.square(trained[n] - start[n]).sum() for n in start)))
    noise = LocalNoise(norm, 2 * multiplier_for(EPSILON, 1e-5, 1))
    return views_of(noise.added(to_record(dict(trained)), start))


VIEWS: Final[dict[str, Callable[[Model, Model], Model]]] = {
    "raw": plain,
    "auto": compressed,
    "SecAgg": masked,
    "DP": noised,
}


def seen_gradient(
    view: str, net: nn.Module, image: torch.Tensor, label: int
) -> Mapping[str, torch.Tensor]:
    """Return the gradient that a server works out from the update that it sees."""
    start = {name: p.detach().numpy().copy() for name, p in net.named_parameters()}
    found = gradient(net, image, label, graph=False)
    trained = {n: (x - RATE * g.numpy()).astype(np.float32) for (n, x), g in
               zip(start.items(), found, strict=True)}  # fmt: skip
    seen = VIEWS[view](trained, start)
    return {name: torch.from_numpy((start[name] - seen[name]) / RATE) for name in start}


def linear(seen: Mapping[str, torch.Tensor]) -> Floats:
    """Return the input of the first dense layer, by least squares over its rows."""
    weight, bias = seen["1.weight"].double(), seen["1.bias"].double()
    return (bias @ weight / (bias @ bias).clamp_min(1e-300)).reshape(SIDE, SIDE).numpy()


def dlg(net: nn.Sequential, seen: Mapping[str, torch.Tensor], label: int) -> Floats:
    """Return the image whose gradient is nearest to what is seen, from a drawn one on."""
    wanted = list(seen.values())
    guess = torch.rand(1, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    guess.requires_grad_()
    search = torch.optim.LBFGS(
        [guess], max_iter=STEPS, history_size=50, line_search_fn="strong_wolfe"
    )

    def distance() -> torch.Tensor:
        search.zero_grad()
        found = gradient(net, guess, label, graph=True)
        total = sum(((f - w) ** 2).sum() for f, w in zip(found, wanted, strict=True))
        assert isinstance(total, torch.Tensor)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(distance)
    return guess.detach().reshape(SIDE, SIDE).numpy()


def rebuilt(attack: str, view: str, image: Floats, label: int, seed: int) -> Floats:
    """Return what an attack makes of an image, within 0 and 1."""
    net = network(attack, seed)
    seen = seen_gradient(view, net, torch.from_numpy(image)[None, None], label)
    found = linear(seen) if attack == "linear" else dlg(net, seen, label)
    return np.clip(np.nan_to_num(found), 0, 1).astype(np.float32)


def psnr(image: Floats, other: Floats) -> float:
    """Return the peak signal-to-noise ratio of images from 0 to 1, in dB; 100 at most."""
    return float(min(100.0, -10 * np.log10(np.mean((image - other) ** 2) + 1e-10)))


def images(data_dir: Path) -> Iterator[tuple[Floats, int]]:
    """Yield test images of Fashion-MNIST from 0 to 1, of different classes, and their labels."""
    import io

    rows = pq.read_table(data_dir / "test.parquet").slice(0, 200).to_pylist()
    seen: set[int] = set()
    for row in rows:
        label, data = row["label"], next(v for v in row.values() if isinstance(v, dict))
        if label not in seen and len(seen) < IMAGES:
            seen.add(label)
            picture = Image.open(io.BytesIO(data["bytes"])).convert("L")
            yield np.asarray(picture, np.float32) / 255, label


def attacked(data_dir: Path) -> Iterator[tuple[dict[str, Any], Floats]]:
    """Yield a row for each attack on each view of each image, and the image that it rebuilt."""
    for number, (image, label) in enumerate(images(data_dir)):
        for attack in ATTACKS:
            for view in VIEWS:
                found = rebuilt(attack, view, image, label, seed=number)
                error = float(np.mean((image - found) ** 2))
                row = {"attack": attack, "view": view, "image": number, "label": label}
                print(row, psnr(image, found), flush=True)
                yield row | {"mse": error, "psnr": psnr(image, found)}, found


def draw(originals: list[Floats], found: Mapping[tuple[str, str], list[Floats]]) -> None:
    """Draw originals on the left, and a column of rebuilt images for each attack and view."""
    columns = [originals, *(found[attack, view] for attack in ATTACKS for view in VIEWS)]
    gap = np.ones((SIDE, 4), np.float32)
    rows = [
        np.hstack([part for column in columns for part in (column[i], gap)][:-1])
        for i in range(len(originals))
    ]
    space = np.ones((4, rows[0].shape[1]), np.float32)
    whole = np.vstack([part for row in rows for part in (row, space)][:-1])
    picture = Image.fromarray((255 * whole).round().astype(np.uint8))
    size = (SCALE * picture.width, SCALE * picture.height)
    picture.resize(size, Image.Resampling.NEAREST).save(PICTURE, optimize=True)


def medians(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the median ratio over images, in dB, by attack and view."""
    return {
        (attack, view): median(
            row["psnr"] for row in rows if (row["attack"], row["view"]) == (attack, view)
        )
        for attack in ATTACKS
        for view in VIEWS
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/privacy.md."""
    found = medians(rows)
    lines = ["| attack | " + " | ".join(VIEWS) + " |", "| --- |" + " ---: |" * len(VIEWS)]
    lines += [
        f"| {attack} | " + " | ".join(f"{found[attack, view]:.1f}" for view in VIEWS) + " |"
        for attack in ATTACKS
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the attacks, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--data-dir", type=Path, default=Path(os.environ.get("FEDSZ_TEST_DATA", ""))
    )
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table(pq.read_table(given.file).to_pylist()))
        return
    torch.set_num_threads(1)
    rows, found = [], dict[tuple[str, str], list[Floats]]()
    for row, image in attacked(given.data_dir):
        rows.append(row)
        found.setdefault((row["attack"], row["view"]), []).append(image)
    pq.write_table(pa.Table.from_pylist(rows), given.file, compression="zstd")
    draw([image for image, _ in images(given.data_dir)], found)


if __name__ == "__main__":
    main()
