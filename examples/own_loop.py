"""A training loop of one's own for a CNN or a transformer.

It has a DataLoader, a scheduler, clipping, weight decay by name, validation and a checkpoint.

Lines marked - are plain PyTorch only, + raddle only: six lines change.

python examples/own_loop.py cnn --plain                      plain PyTorch
python examples/own_loop.py cnn                              raddle, one process
torchrun --nproc-per-node 2 examples/own_loop.py transformer raddle, two processes
"""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import raddle


class Transformer(nn.Module):
    """A causal transformer with one block; predicts the next token."""

    def __init__(self, tokens=13, width=16, context=6):
        super().__init__()
        self.embedding, self.position = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.norm1, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.norm2, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 32),
            nn.Linear(32, width),
        )
        self.out = nn.Linear(width, tokens)

    def forward(self, ids):  # ids[n t]
        x = self.embedding(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(x + self.down(F.gelu(self.up(self.norm2(x)))))  # [n t tokens]


def cnn():
    """Returns a CNN for images[n 2 8 8]."""
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3, padding=1),
        nn.GroupNorm(3, 12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 5),
    )  # fmt: skip


def loss(model, batch):
    """Returns the loss of a batch, and the share of right predictions."""
    x, y = batch
    scores = model(x).flatten(0, -2)
    right = (scores.argmax(-1) == y.flatten()).double().mean()
    return F.cross_entropy(scores, y.flatten()), {"accuracy": right}


def weight_decay_groups(model):
    """Returns two groups of parameters: vectors (biases, norms) have no weight decay."""
    named = list(model.named_parameters())
    return [
        {"params": [(n, p) for n, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [(n, p) for n, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", choices=("cnn", "transformer"))
parser.add_argument("--plain", action="store_true")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument(
    "--folder", default="", help="of the checkpoint; goes on from it if there is one"
)
parser.add_argument("--autocast", action="store_true", help="bfloat16 instead of float64")
options = parser.parse_args()
torch.manual_seed(0)
if options.model == "cnn":
    model, x, y = cnn(), torch.randn(60, 2, 8, 8), torch.randint(5, (60,))
else:
    model, x = Transformer(), torch.randint(13, (60, 6))
    y = x.roll(-1, 1)
if not options.autocast:
    model, x = model.double(), x.double() if x.is_floating_point() else x
precision = "bf16" if options.autocast else None
train = DataLoader(TensorDataset(x[:48], y[:48]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(x[48:], y[48:]), batch_size=12)
optimizer = torch.optim.AdamW(weight_decay_groups(model), lr=0.01)
file, start = os.path.join(options.folder, "plain.pt"), 0

if not options.plain:
    trainer = raddle.parallelize(model, optimizer, loss=loss, example=(x[:16], y[:16]), clip_norm=1.0, precision=precision, budget=2, tune=False)  # fmt: skip  # noqa: E501  # +
    optimizer = trainer.optimizer  # +
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
if options.folder and os.path.exists(os.path.join(options.folder, "checkpoint.safetensors")):
    trainer.load(options.folder)  # +
    start = trainer.steps // len(train)
    scheduler.last_epoch = start
for epoch in range(start, start + options.epochs):
    for batch in train:
        if options.plain:
            optimizer.zero_grad()  # -
            with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):  # -
                out, _ = loss(model, batch)  # -
            out.backward()  # -
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # -
            optimizer.step()  # -
        else:
            out = trainer.step(batch)  # +
    scheduler.step()
    for batch in valid:
        if options.plain:
            with (
                torch.no_grad(),
                torch.autocast("cpu", torch.bfloat16, enabled=options.autocast),
            ):  # -
                value, metrics = loss(model.eval(), batch)  # -
            model.train()  # -
        else:
            value, metrics = (result := trainer.evaluate(batch)).loss, result.metrics  # +
    if os.environ.get("RANK", "0") == "0":
        accuracy = float(metrics["accuracy"])
        print(f"epoch {epoch}: loss {float(out):.12f} valid {float(value):.12f} {accuracy:.6f}")
if not options.plain and options.folder:
    trainer.save(options.folder)  # +
