"""The server: averages the adapters that clients send, and tests the average."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from fedsz.flower import FedSZGrid
from lora import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging and print what it came to."""
    pretrained = str(context.run_config["pretrained"])
    model = task.build(pretrained)
    _, held_out = task.load_data(pretrained)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        set_peft_model_state_dict(model, arrays.to_torch_state_dict())
        loss, accuracy = task.test(model, held_out)
        print(f"round {server_round}: accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    grid = FedSZGrid(grid)  # fedsz, line 2 of 2
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(get_peft_model_state_dict(model)),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    traffic = grid.take_traffic()
    print(
        f"up {traffic.sent_up:,} of {traffic.raw_up:,} bytes, "
        f"down {traffic.sent_down:,} of {traffic.raw_down:,} bytes"
    )
