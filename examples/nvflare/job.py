"""A job of federated averaging whose models go compressed, both ways."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv

from fedsz.nvflare import add_fedsz
from fedsz.training.options import RunConfig
from fedsz.training.task import load_task


def make_recipe(args: argparse.Namespace) -> FedAvgRecipe:
    """Return the job without compression."""
    task = load_task(RunConfig(dataset=args.dataset, model="cnn", seed=args.seed))
    initial = Path(args.workspace).resolve() / "initial.pt"
    initial.parent.mkdir(parents=True, exist_ok=True)
    model = task.build_model()
    torch.save(model.state_dict(), initial)
    options = {"dataset": args.dataset, "samples": args.samples, "seed": args.seed}
    options |= {"test-samples": args.test_samples, "sites": args.sites}
    if args.data_dir:
        options["data-dir"] = str(Path(args.data_dir).resolve())
    channels, classes = model.features[0].in_channels, model.classifier.out_features
    return FedAvgRecipe(
        name=args.name,
        model={
            "class_path": "fedsz.training.models.Cnn",
            "args": {"num_classes": classes, "in_channels": channels},
        },
        initial_ckpt=str(initial),
        min_clients=args.sites,
        num_rounds=args.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
        train_args=" ".join(f"--{name} {value}" for name, value in options.items()),
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits", help="digits, cifar10 or fashion_mnist")
    parser.add_argument("--data-dir", default="", help="folder of the data set's files")
    parser.add_argument("--samples", type=int, default=0, help="images in all; 0 for all there are")
    parser.add_argument("--test-samples", type=int, default=0, help="likewise, to test on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--processes", action="store_true", help="NVFlare's POC, not its simulator")
    parser.add_argument("--workspace", default="workspace", help="folder for what the job leaves")
    parser.add_argument("--name", default="fedsz")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    recipe = make_recipe(args)
    add_fedsz(recipe)
    if args.processes:
        env = PocEnv(num_clients=args.sites)
    else:
        env = SimEnv(num_clients=args.sites, workspace_root=args.workspace)
    print(recipe.execute(env).get_result(clean_up=False))


if __name__ == "__main__":
    main()
