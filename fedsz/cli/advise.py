"""``fedsz advise``: is compressing worth it on a link, and with what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsz.cli.bench import (
    Bounds,
    Codecs,
    Repeats,
    Seconds,
    Threads,
    grid,
    loaded,
    named_codecs,
    print_json,
    progress,
    show_errors,
    shown_bound,
)
from fedsz.cli.options import Json, configured
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedsz.experiments.advise import Answer, Choice
    from fedsz.experiments.bench import Row
    from fedsz.experiments.link_model import Link
    from fedsz.transport.probe import Probed


@configured("lossless", "threshold", "rule", "insecure", "tls_ca", "tls_cert", "tls_key")
def command(
    config: RunConfig,
    *,
    file: Annotated[
        Path | None, typer.Argument(help="A .pt or .safetensors file, such as clients send.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model with its initial weights instead, such as alexnet.")
    ] = "",
    bandwidth: Annotated[str, typer.Option(help="Of the link up, such as 10mbps.")] = "",
    server: Annotated[
        str, typer.Option(help="HOST:PORT of a running fedsz server to measure the link to.")
    ] = "",
    codecs: Codecs = "",
    error_bounds: Bounds = "1e-2",
    repeats: Repeats = 3,
    seconds: Seconds = 10.0,
    threads: Threads = 1,
    json: Json = False,
) -> None:
    """Say whether compressing is worth it on a link, which codec is best, and where that changes.

    Measures all codecs on this machine, compressing and decompressing, and sets both against the
    seconds that fewer bytes save.
    """
    from rich.console import Console

    from fedsz.codecs import get_lossless
    from fedsz.errors import ConfigError
    from fedsz.experiments.advise import answer, choices
    from fedsz.experiments.bench import initial_weights, measure, sizes, written
    from fedsz.experiments.sweep_plan import error_bounds as read_bounds

    chosen, bounds = named_codecs(codecs), read_bounds(error_bounds)
    lossless = str(get_lossless(config.lossless))
    if (file is None) == (not model):
        raise ConfigError("give a .pt or .safetensors file, or --model NAME, and not both")
    data, state = next(loaded([file], "")) if file else initial_weights(model)
    link, probed = _link(config, bandwidth, server)
    with progress(data, lambda _row: None) as tell:
        rows = measure(
            state,
            data=data,
            codecs=list(dict.fromkeys((*chosen, lossless))),
            bounds=bounds,
            repeats=repeats,
            seconds=seconds,
            threads=threads,
            rule=config.rule,
            threshold=config.threshold,
            on_row=tell,
        )
    raw_bytes, _ = sizes(state, rule=config.rule, threshold=config.threshold)
    ways = choices(rows, lossless=lossless, raw_bytes=raw_bytes)
    answers = [answer(ways, written(bound), link.bandwidth) for bound in bounds]
    if json:
        print_json(_as_dict(data, rows, ways, answers, link, probed))
    else:
        _show(Console(), data, rows, ways, answers, link, probed)


def _link(config: RunConfig, bandwidth: str, server: str) -> tuple[Link, Probed | None]:
    """Return the link up as it is said to be, or as a probe measures it.

    Raises:
        ConfigError: neither or both are given, or one is not usable.
        LinkError: the server cannot be measured.
    """
    from fedsz.errors import ConfigError
    from fedsz.experiments.link_model import Link
    from fedsz.experiments.link_model import bandwidth as read_bandwidth

    if bool(bandwidth) == bool(server):
        raise ConfigError("give --bandwidth such as 10mbps, or --server HOST:PORT to measure it")
    if bandwidth:
        link = Link(read_bandwidth(bandwidth))
        if math.isinf(link.bandwidth):
            raise ConfigError(f"give a finite bandwidth, not {bandwidth!r}")
        return link, None
    from fedsz.transport.probe import probe
    from fedsz.transport.tls import channel_credentials

    files = (config.tls_ca or None, config.tls_cert or None, config.tls_key or None)
    probed = probe(server, credentials=None if config.insecure else channel_credentials(*files))
    return Link(probed.up, probed.latency), probed


def _as_dict(
    data: str,
    rows: list[Row],
    ways: list[Choice],
    answers: list[Answer],
    link: Link,
    probed: Probed | None,
) -> dict[str, Any]:
    """Return everything for machines: seconds, bytes, bits a second; null is no bound or no end."""
    from dataclasses import asdict

    bandwidth = link.bandwidth

    def described(way: Choice) -> dict[str, Any]:
        return {
            **asdict(way),
            "ratio": way.ratio,
            "seconds": way.seconds(bandwidth),
            "worth": way.is_worth(bandwidth),
            "worth_below": way.worth_below,
        }

    return {
        "data": data,
        "machine": rows[0]["machine"],
        "threads": rows[0]["threads"],
        "bandwidth": bandwidth,
        "probe": probed._asdict() if probed else None,
        "choices": [described(way) for way in ways],
        "answers": [
            {
                "error_bound": answer.error_bound,
                "best": described(answer.best),
                "changes": [
                    {
                        "codec": stretch.choice.codec,
                        "error_bound": stretch.choice.error_bound,
                        "from": stretch.low,
                        "to": stretch.high if math.isfinite(stretch.high) else None,
                    }
                    for stretch in answer.stretches
                ],
            }
            for answer in answers
        ],
        "errors": [
            {name: row[name] for name in ("codec", "error_bound", "data", "part", "error")}
            for row in rows
            if row["error"]
        ],
    }


def _show(
    console: Console,
    data: str,
    rows: list[Row],
    ways: list[Choice],
    answers: list[Answer],
    link: Link,
    probed: Probed | None,
) -> None:
    """Print everything for people, the answer last."""
    from fedsz.cli.table import size
    from fedsz.experiments.link_model import shown

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    bandwidth = link.bandwidth
    if probed:
        delay = f"{1e3 * probed.latency:.3g} ms"
        say(f"the link: {shown(probed.up)} up, {shown(probed.down)} down, {delay} one way")
    plain = ways[0]
    say(f"{data}: {size(plain.raw_bytes)}, {_seconds(plain, bandwidth)} at {shown(bandwidth)}")
    console.print(_table(ways, bandwidth))
    show_errors(console, rows)
    threads = rows[0]["threads"]
    note = f"{rows[0]['machine']}, {threads} thread{'s' if threads != 1 else ''}, both ends"
    say(note, style="dim")
    parts = [way for way in ways if way.measured_bytes < way.raw_bytes]
    if parts:
        text = ", ".join(f"{way.codec} {size(way.measured_bytes)}" for way in parts)
        say(f"~ measured on a part, the rest taken to be like it: {text}", style="dim")
    for answer in answers:
        say(
            f"within {shown_bound(answer.error_bound)} of each tensor's range:"
            if answer.error_bound.startswith("rel:")
            else f"within {answer.error_bound}:"
        )
        for stretch in answer.stretches:
            where = f"from {shown(stretch.low)} on" if stretch.low else "on the slowest links"
            say(f"  {where}: {_named(stretch.choice)} is best")
    for answer in answers:
        say(_sentence(answer, plain, bandwidth), style="bold")


def _table(ways: list[Choice], bandwidth: float) -> Table:
    from fedsz.experiments.link_model import shown

    at = f"at\n{shown(bandwidth)}"
    numbers = ("ratio", "encode", "decode", at, "saved", "worth\nit", "worth it\nbelow")
    table = grid(("codec", "bound"), numbers)
    plain = ways[0].seconds(bandwidth)
    for way in ways[1:]:
        part = "~" if way.measured_bytes < way.raw_bytes else ""
        table.add_row(
            way.codec,
            "exact" if way.exact else shown_bound(way.error_bound),
            f"{part}{way.ratio:.3f}",
            f"{part}{_number(way.encode_seconds)}",
            f"{part}{_number(way.decode_seconds)}",
            f"{part}{_seconds(way, bandwidth)}",
            f"{100 * (1 - way.seconds(bandwidth) / plain):.1f} %",
            "yes" if way.is_worth(bandwidth) else "no",
            shown(way.worth_below) if way.worth_below else "never",
        )
    return table


def _sentence(answer: Answer, plain: Choice, bandwidth: float) -> str:
    from fedsz.experiments.link_model import shown

    before, after = plain.seconds(bandwidth), answer.best.seconds(bandwidth)
    where, within = shown(bandwidth), shown_bound(answer.error_bound)
    if answer.best is plain:
        return (
            f"At {where} do not compress: no codec within {within} is faster than the"
            f" {_number(before)} that an update takes as it is."
        )
    return (
        f"At {where} compress with {_named(answer.best)}: {_number(after)} an update instead of"
        f" {_number(before)}, {before / after:.3g} times as fast."
    )


def _named(way: Choice) -> str:
    if way.error_bound:
        return f"{way.codec} at {shown_bound(way.error_bound)}"
    return way.codec


def _seconds(way: Choice, bandwidth: float) -> str:
    return _number(way.seconds(bandwidth))


def _number(seconds: float) -> str:
    """Return a time for people, to three digits."""
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"
