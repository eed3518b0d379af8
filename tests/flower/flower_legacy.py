"""Apps as users of Flower wrote them before its Message API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import Context, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import Strategy
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid

from tests.flower.flower_apps import Weights, held_out, initial, learned, tested
from tests.flower.flower_runs import CLIENTS, Score, ServerSide


class DigitsClient(NumPyClient):
    """A client with a share of the digits."""

    def __init__(self, context: Context) -> None:
        self.own = context

    def fit(self, parameters: Weights, config: dict[str, Any]) -> tuple[Weights, int, dict]:
        weights, loss = learned(parameters, self.own)
        return weights, 1, {"train_loss": loss}

    def evaluate(self, parameters: Weights, config: dict[str, Any]) -> tuple[float, int, dict]:
        client, clients = (int(self.own.node_config[k]) for k in ("partition-id", "num-partitions"))
        accuracy, loss = tested(parameters, *(x[client::clients] for x in held_out()))
        return loss, 1, {"accuracy": accuracy}


def legacy_app(mods: Sequence[Any] = ()) -> ClientApp:
    def client_fn(context: Context) -> Client:
        return DigitsClient(context).to_client()

    return ClientApp(client_fn=client_fn, mods=list(mods))


Serve = Callable[[Grid, Context, Strategy, ServerConfig], None]


def _server(strategy: Callable[..., Strategy], serve: Serve) -> ServerSide:
    def run(grid: Grid, rounds: int, seed: int) -> Score:
        scores: list[Score] = []

        def evaluate(number: int, weights: Weights, config: dict) -> tuple[float, dict]:
            scores.append(tested(weights, *held_out()))
            return scores[-1][1], {}

        chosen = strategy(
            initial_parameters=ndarrays_to_parameters(initial(seed)),
            evaluate_fn=evaluate,
            min_available_clients=CLIENTS,
        )
        context = Context(grid.run.run_id, 1, {}, RecordDict(), {})
        serve(grid, context, chosen, ServerConfig(num_rounds=rounds))
        return scores[-1]

    return run


def workflow(strategy: Callable[..., Strategy], fit: Callable[[], Any] | None = None) -> ServerSide:
    """A server with a main of its own: Flower's DefaultWorkflow, with another way to fit."""

    def serve(grid: Grid, context: Context, chosen: Strategy, config: ServerConfig) -> None:
        DefaultWorkflow(fit_workflow=fit and fit())(
            grid, LegacyContext(context, config=config, strategy=chosen)
        )

    return _server(strategy, serve)


def server_fn(strategy: Callable[..., Strategy]) -> ServerSide:
    """A server that gives Flower its strategy, and is asked from a thread per client."""

    def serve(grid: Grid, context: Context, chosen: Strategy, config: ServerConfig) -> None:
        components = ServerAppComponents(strategy=chosen, config=config)
        ServerApp(server_fn=lambda _: components)(grid, context)

    return _server(strategy, serve)
