"""The server: averages what clients send, and tests the average."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits import task
from fedsz.flower import FedSZGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging and print what it came to."""
    _, held_out = task.load_data(0, 1)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = task.test(arrays.to_numpy_ndarrays(), held_out)
        print(f"round {server_round}: accuracy {accuracy:.4f}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    grid = FedSZGrid(grid)  # fedsz, line 2 of 2
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    traffic = grid.take_traffic()
    print(
        f"up {traffic.sent_up:,} of {traffic.raw_up:,} bytes, "
        f"down {traffic.sent_down:,} of {traffic.raw_down:,} bytes"
    )
