"""The model, the text and the training loop: nothing here knows of Flower or of fedsz."""

from __future__ import annotations

import ast
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)

LENGTH = 48  # tokens of a line
LINES = 500  # of each kind

ADAPTERS = LoraConfig(
    task_type="SEQ_CLS", r=8, lora_alpha=32, target_modules=["query", "value"], lora_dropout=0.0
)


def build(pretrained: str) -> PeftModel:
    """Return a transformer with LoRA adapters, the same on every machine."""
    torch.manual_seed(0)
    base: PreTrainedModel
    if pretrained:
        base = AutoModelForSequenceClassification.from_pretrained(folder_of(pretrained))
    else:
        config = BertConfig(
            vocab_size=257,  # bytes, and the padding before them
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=LENGTH,
        )
        base = BertForSequenceClassification(config)
    return get_peft_model(base, ADAPTERS)


@cache
def folder_of(pretrained: str) -> Path:
    """Return the folder of a pretrained model; "minilm" is taken from its package."""
    if pretrained != "minilm":
        return Path(pretrained)
    from all_minilm_l6_v2 import extract_model

    return Path(extract_model(tempfile.mkdtemp()))


@cache
def load_data(pretrained: str) -> tuple[TensorDataset, TensorDataset]:
    """Return lines to train on and lines held out: tokens, attention mask, 1 where it is code."""
    code, prose = library_lines()
    order = np.random.default_rng(0).permutation(2 * LINES)
    lines = [(code + prose)[i] for i in order]
    labels = torch.tensor([int(i < LINES) for i in order])
    tokens, mask = tokenize(lines, pretrained)
    held_out = len(lines) // 5
    return (
        TensorDataset(tokens[held_out:], mask[held_out:], labels[held_out:]),
        TensorDataset(tokens[:held_out], mask[:held_out], labels[:held_out]),
    )


def library_lines() -> tuple[list[str], list[str]]:
    """Return lines of code, and lines of docstrings, from Python's own library."""
    code: list[str] = []
    prose: list[str] = []
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        docstrings = {
            line.strip()
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            for line in (ast.get_docstring(node) or "").splitlines()
        }
        for line in map(str.strip, text.splitlines()):
            if len(line) > 20 and not line.startswith("#"):
                (prose if line in docstrings else code).append(line)
    rng = np.random.default_rng(0)
    code, prose = (list(rng.permutation(lines)[:LINES]) for lines in (code, prose))
    return code, prose


def tokenize(lines: list[str], pretrained: str) -> tuple[Tensor, Tensor]:
    """Return tokens and attention masks, each (lines, LENGTH)."""
    if pretrained:
        tokenizer = AutoTokenizer.from_pretrained(folder_of(pretrained))
        found = tokenizer(
            lines, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        return found["input_ids"], found["attention_mask"]
    tokens = torch.zeros(len(lines), LENGTH, dtype=torch.long)
    for row, line in zip(tokens, lines, strict=True):
        data = line.encode()[:LENGTH]
        row[: len(data)] = torch.tensor(list(data)) + 1
    return tokens, (tokens > 0).long()


def share(data: TensorDataset, client: int, clients: int) -> Subset:
    """Return every ``clients``-th line, from number ``client`` on."""
    return Subset(data, range(client, len(data), clients))


def train(model: PeftModel, data: Subset, epochs: int, rate: float, batch_size: int) -> float:
    """Tune the adapters in place and return the mean loss of the last epoch."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    losses: list[float] = []
    model.train()
    for _ in range(epochs):
        losses = []
        for tokens, mask, labels in DataLoader(data, batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def test(model: PeftModel, data: TensorDataset | Subset) -> tuple[float, float]:
    """Return the mean loss and the accuracy in [0, 1]."""
    model.eval()
    loss = right = 0.0
    for tokens, mask, labels in DataLoader(data, 128):
        output = model(input_ids=tokens, attention_mask=mask, labels=labels)
        loss += output.loss.item() * len(labels)
        right += (output.logits.argmax(1) == labels).sum().item()
    return loss / len(data), right / len(data)
