"""A client: tunes the adapters it receives on its own text."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from fedsz.flower import FedSZMod
from lora import task

app = ClientApp(mods=[FedSZMod()])  # fedsz, line 1 of 2


@app.train()
def train(message: Message, context: Context) -> Message:
    """Tune the adapters and reply with them."""
    config = context.run_config
    model, data, _ = load(message, context)
    loss = task.train(
        model,
        data,
        int(config["local-epochs"]),
        float(config["learning-rate"]),
        int(config["batch-size"]),
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    adapters = ArrayRecord(get_peft_model_state_dict(model))
    return Message(RecordDict({"arrays": adapters, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the adapters on this client's part of the held-out lines."""
    model, _, held_out = load(message, context)
    loss, accuracy = task.test(model, held_out)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(held_out)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def load(message: Message, context: Context) -> tuple[PeftModel, task.Subset, task.Subset]:
    """Return the model with a message's adapters, and this client's lines to tune and test on."""
    pretrained = str(context.run_config["pretrained"])
    model = task.build(pretrained)
    set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
    train_data, test_data = task.load_data(pretrained)
    place = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return model, task.share(train_data, *place), task.share(test_data, *place)
