"""What a site does in each round: test the model that it received, train it, send it back."""

from __future__ import annotations

import argparse

import nvflare.client as flare
import torch
from nvflare.apis.dxo import MetaKey

from fedsz.training.options import RunConfig
from fedsz.training.task import load_task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--test-samples", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--sites", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = RunConfig(
        dataset=args.dataset, data_dir=args.data_dir, seed=args.seed, model="cnn",
        samples=args.samples, test_samples=args.test_samples, learning_rate=0.02,
    )  # fmt: skip
    task = load_task(config)
    model, test = task.build_model(), task.load_test()

    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2]) - 1  # site-1, site-2, ...
    share = task.load_share(site, args.sites)
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(x) for name, x in received.params.items()})
        score = task.evaluate(model, test)
        seed = 1_000_000 * args.seed + 1000 * received.current_round + site
        trained = task.train(model, share, seed)
        flare.send(
            flare.FLModel(
                params=model.state_dict(),
                metrics={"accuracy": score.accuracy, "loss": score.loss},
                meta={MetaKey.NUM_STEPS_CURRENT_ROUND: trained.examples},
            )
        )


if __name__ == "__main__":
    main()
