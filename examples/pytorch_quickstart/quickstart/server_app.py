"""The server: averages what clients send, and tests the average."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid
from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging and print what it came to."""
    config = context.run_config
    _, held_out, classes = task.load_data(str(config["data-dir"]))
    torch.manual_seed(0)
    net = task.Net(classes)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = task.test(net, held_out)
        print(f"round {server_round}: accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    grid = FedSZGrid(grid)  # fedsz, line 2 of 2
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    traffic = grid.take_traffic()
    print(
        f"up {traffic.sent_up:,} of {traffic.raw_up:,} bytes, "
        f"down {traffic.sent_down:,} of {traffic.raw_down:,} bytes"
    )
