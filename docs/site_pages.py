"""What the site makes of the program: a hook of MkDocs, which mkdocs.yml names.

The command line, the options, the notebook and the changelog become pages when the site is built.
Links to files of the repository that are no pages become the files' names. The search leads from
words that Flower's users type to the page that answers, also where that page has another word.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedsz.cli import app, report
from fedsz.cli.options import PREFIX
from fedsz.training.options import RunConfig, options

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "compare_codecs.ipynb"
MARKUP = re.compile(r"\[/?[a-z ]*\]")  # of Rich
CODE = re.compile(r"(?<!<pre>)<code>([^<\n]{1,28})</code>")  # that fits a line of a phone
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")

# What somebody may type into the search, by the page that it should lead to first.
SEARCHED = {
    "index.md": "federated learning, communication efficiency",
    "choosing.md": "compression, policy, auto, error bound, tolerance, compression ratio",
    "codecs.md": "benchmark, NNCodec, speed, throughput",
    "experiments.md": "bandwidth, sweep, grid search, report",
    "flower.md": (
        "FedAvg, FedProx, FedAdam, FedAvgM, Krum, strategies, secure aggregation, SecAgg, "
        "SecAgg+, SuperLink, SuperNode, simulation, NumPyClient, JAX, "
        "Keras, TensorFlow, XGBoost"
    ),
    "format.md": "bitstream, file format, decoder, specification",
    "methods.md": (
        "quantization, quantize, top-k, topk, sparsification, sparsify, sketch, low rank, "
        "PowerSGD, QSGD, signSGD, error feedback, gradient compression, FetchSGD"
    ),
    "monitoring.md": "TensorBoard, MLflow, wandb, Prometheus, Grafana, dashboard, metrics, logging",
    "privacy.md": "differential privacy, DP, DP-SGD, epsilon, Gaussian mechanism, gradient leakage",
    "limits.md": "limit, memory limit, largest message, LimitExceeded",
    "protocol.md": "wire format, frames, gRPC, client in another language",
    "security.md": "TLS, SSL, certificate, token, authentication",
    "threat-model.md": "attack, poisoning, Byzantine, robust",
    "guides/docker.md": "Docker, container, compose",
    "guides/fleet.md": "server, client, options, config, dataset, partition",
    "guides/kubernetes.md": "Kubernetes, k8s",
    "guides/nvflare.md": "NVFlare, NVIDIA FLARE, DXO, filter, hospital",
    "guides/raspberry-pi.md": "Raspberry Pi, ARM, aarch64, edge, IoT, systemd",
    "guides/replies.md": (
        "straggler, dropout, deadline, asynchronous, FedBuff, slow client, outlier, clipping"
    ),
    "guides/resuming.md": "checkpoint, checkpointing, resume, crash",
    "reference/codecs.md": "SZ2, SZ3, ZFP, SZx, zstd, blosc, lossless, int8, fp16, codec",
    "reference/measurements.md": "memory, RAM, latency, slow network, large model",
    "results/savings.md": "non-iid, Dirichlet, accuracy, results, momentum",
    "results/paper.md": "paper, FedSZ paper",
    "tutorials/compress-a-file.md": (
        "compress, decompress, safetensors, state_dict, pip install, install"
    ),
    "tutorials/flower-app.md": (
        "mod, mods, strategy, ClientApp, ServerApp, quickstart, PyTorch, FedSZMod, FedSZGrid"
    ),
    "tutorials/lora.md": "LoRA, PEFT, fine-tuning, LLM, transformer",
    "tutorials/own-task.md": "custom model, scikit-learn, own data",
}


def bound(end: float) -> str:
    """Return an end of an option's range, with large powers of two as such; "" for infinity."""
    if math.isinf(end):
        return ""
    power = math.frexp(end)[1] - 1
    return f"2^{power}" if end == 2**power > 10**4 else f"{end:,.10g}"


def plain(text: str) -> str:
    """Return a text of ``--help`` as the cell of a Markdown table."""
    return " ".join(MARKUP.sub("", text).split()).replace("|", "\\|").replace("<", "&lt;")


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command by its whole name, as it is typed."""
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", report.paper_command() if word == "paper" else command


def command_line() -> str:
    """Return the page of all commands and their options."""
    page = ["# Command line", "", "Every command, as `--help` shows it.", ""]
    for name, command in commands(app, "fedsz"):
        context = click.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        page += [f"## {name}", "", " ".join((command.help or "").split()), ""]
        page += ["```text", f"{name} {usage}", "```", ""]
        panels: dict[str, list[str]] = {}
        for option in command.params:
            if isinstance(option, click.Argument):  # which the command's help explains
                continue
            written = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            said = plain(getattr(option, "help", None) or "")
            panel = getattr(option, "panel", "")
            panels.setdefault(panel, []).append(f"| {written} | {said} |")
        for panel, lines in panels.items():
            page += [f"| {panel or 'option'} | |", "| --- | --- |", *lines, ""]
    return "\n".join(page)


def option_table() -> str:
    """Return the page of the options of a run, by subject."""
    page = [
        "# Options",
        "",
        "A name stands in a TOML file (`--config`) as it is here. The flag has dashes:",
        f"`error_bound` is `--error-bound`. The variable is `{PREFIX}ERROR_BOUND`. Flags win",
        "over variables, and variables over files. An unknown name in a file",
        "is an error. In the environment it is a warning.",
    ]
    defaults = {field.name: field.default for field in fields(RunConfig)}
    panel = ""
    for name, about in options().items():
        if about.panel != panel:
            panel = about.panel
            page += ["", f"## {panel}", "", "| name | meaning | default | range | commands |"]
            page += ["| --- | --- | --- | --- | --- |"]
        limits = f"{bound(about.low)} to {bound(about.high)}" if about.low > -math.inf else ""
        default = f"`{defaults[name]}`" if defaults[name] != "" else ""
        who = ", ".join(about.commands)
        page += [f"| `{name}` | {plain(about.says)} | {default} | {limits} | {who} |"]
    return "\n".join(page)


def notebook() -> str:
    """Return the page of the notebook: its text, its code, and what the code printed."""
    page = []
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            page += [source, ""]
            continue
        page += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            page += ["```text", "".join(output["text"]).rstrip(), "```", ""]
    page += [f"This page is `{NOTEBOOK.relative_to(ROOT)}`. Open it in Jupyter to run it.", ""]
    return "\n".join(page)


def changelog() -> str:
    """Return the changelog, whose links are those of the repository's root."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    return re.sub(r"\]\((?!https?:)", "](../../", text).replace("](../../docs/", "](../")


MADE = {
    "reference/command-line.md": command_line,
    "reference/options.md": option_table,
    "reference/changelog.md": changelog,
    "tutorials/compare-compressors.md": notebook,
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show a list of the versions where mike builds the site, which alone writes that list."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for path, make in MADE.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links to files outside docs/ into the names of these files; give the search its words.

    A link to a file that does not exist stays one, and MkDocs warns of it.
    """
    folder = (ROOT / "docs" / page.file.src_uri).parent
    page.meta["tags"] = SEARCHED.get(page.file.src_uri, "").split(
        ", "
    )  # the search puts tags first

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return link[0]
        return f"{link[1]} (`{target.relative_to(ROOT)}`)"

    return LINK.sub(shown, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep short code, such as an option, on one line; and show a pipe of a table as one."""
    return CODE.sub(lambda code: f'<code class="whole">{code[1]}</code>', html.replace("\\|", "|"))
