"""A client: trains the model it receives on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.flower import FedSZMod
from quickstart import task

app = ClientApp(mods=[FedSZMod()])  # fedsz, line 1 of 2


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model and reply with its new weights."""
    config = context.run_config
    net, data, _ = load(message, context)
    loss = task.train(
        net,
        data,
        int(config["local-epochs"]),
        float(config["learning-rate"]),
        int(config["batch-size"]),
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the model on this client's part of the held-out images."""
    net, _, held_out = load(message, context)
    loss, accuracy = task.test(net, held_out)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(held_out)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def load(message: Message, context: Context) -> tuple[task.Net, task.Subset, task.Subset]:
    """Return the model in a message, and this client's images to train and to test on."""
    train_data, test_data, classes = task.load_data(str(context.run_config["data-dir"]))
    net = task.Net(classes)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    place = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return net, task.share(train_data, *place), task.share(test_data, *place)
