"""Losses that people use, verified under plans that split samples and other dimensions.

Dice and focal losses are written as MONAI and torchvision write them, smoothing as timm does; contrastive
losses compare all pairs of samples, so that the sample dimension is also summed over.
"""

from __future__ import annotations

import pathlib
from functools import cache

import pytest

from raddle.clusters import cluster
from raddle.graph.capture import capture
from raddle.graph.graph import Graph
from raddle.plans import plan_file
from raddle.searches.planning import plan_for
from raddle.verification.verify_plan import verify
from raddle.zoo import load

MODULES = """
import torch
import torch.nn.functional as F
from torch import nn

N, C = 6, 4

def pixels(criterion, classes=C):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 1))
    target = torch.randint(classes, (N, 1, 6, 6))
    return model, (torch.randn(N, 3, 6, 6), target), lambda m, b: criterion(m(b[0]), b[1])

def one_hot(labels, classes, dtype):  # monai.networks.one_hot
    shape = list(labels.shape)
    shape[1] = classes
    return torch.zeros(size=shape, dtype=dtype).scatter_(dim=1, index=labels.long(), value=1)

def dice_loss(logits, labels, batch):  # monai.losses.DiceLoss(to_onehot_y=True, softmax=True)
    p = torch.softmax(logits, 1)
    target = one_hot(labels, logits.shape[1], p.dtype)
    axes = torch.arange(2, p.ndim).tolist()
    axes = [0, *axes] if batch else axes
    both = torch.sum(target * p, dim=axes)
    total = torch.sum(target, dim=axes) + torch.sum(p, dim=axes)
    return (1.0 - (2.0 * both + 1e-5) / (total + 1e-5)).mean()

def dice():
    return pixels(lambda x, t: dice_loss(x, t, False) + F.cross_entropy(x, t[:, 0]))

def batch_dice():  # the sums are over the samples too
    return pixels(lambda x, t: dice_loss(x, t, True))

def focal():  # torchvision.ops.sigmoid_focal_loss
    def loss(x, t):
        t = one_hot(t, C, x.dtype)
        p = torch.sigmoid(x)
        entropy = F.binary_cross_entropy_with_logits(x, t, reduction="none")
        p_t = p * t + (1 - p) * (1 - t)
        return ((0.25 * t + 0.75 * (1 - t)) * entropy * (1 - p_t) ** 2).mean()
    return pixels(loss)

def classes(criterion, width=C):
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, width))
    batch = torch.randn(N, 5), torch.randint(C, (N,))
    return model, batch, lambda m, b: criterion(m(b[0]), b[1])

def smooth():
    return classes(nn.CrossEntropyLoss(label_smoothing=0.1))

def smooth_by_gather():  # timm.loss.LabelSmoothingCrossEntropy
    def loss(x, t):
        logs = F.log_softmax(x, dim=-1)
        likelihood = -logs.gather(dim=-1, index=t.unsqueeze(1)).squeeze(1)
        return (0.9 * likelihood - 0.1 * logs.mean(dim=-1)).mean()
    return classes(loss)

def supervised_contrastive():
    def loss(x, t):
        x = F.normalize(x, dim=-1)
        logits = (x @ x.T / 0.5).masked_fill(torch.eye(N, dtype=torch.bool), -1e9)
        same = (t[:, None] == t[None, :]).to(x.dtype) * (1 - torch.eye(N, dtype=x.dtype))
        logs = logits - torch.logsumexp(logits, 1, keepdim=True)
        return -((same * logs).sum(1) / same.sum(1).clamp(min=1)).mean()
    return classes(loss, 8)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(5, 8), nn.Linear(3, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x, y):
        return self.left(x), self.right(y), self.scale

def pairs(criterion):
    batch = torch.randn(N, 5), torch.randn(N, 3)
    return Pair(), batch, lambda m, b: criterion(*m(*b))

def clip():  # both ways: each image among the texts, each text among the images
    def loss(x, y, scale):
        x, y = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
        logits = scale.exp() * x @ y.t()
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    return pairs(loss)

def two_views():  # NT-Xent of SimCLR: 2 N rows
    def loss(x, y, scale):
        z = F.normalize(torch.cat([x, y]), dim=-1)
        logits = (z @ z.t() * scale).masked_fill(torch.eye(2 * N, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(logits, torch.arange(2 * N).roll(N))
    return pairs(loss)

def distances():
    def loss(x, y, scale):
        near = F.triplet_margin_loss(x, y, y.roll(1, 0), margin=0.5)
        return near + torch.cdist(x, y).square().mean() - F.cosine_similarity(x, y).mean() * scale
    return pairs(loss)

class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.out = nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, x):  # [n t c] -> [t n c], as CTCLoss reads it
        return self.out(torch.tanh(self.linear(x))).log_softmax(-1).transpose(0, 1)

def ctc():
    lengths = torch.randint(6, 9, (N,)), torch.randint(1, 4, (N,))
    batch = torch.randn(N, 8, 4), torch.randint(1, 5, (N, 3)), *lengths
    return Recogniser(), batch, lambda m, b: F.ctc_loss(m(b[0]), *b[1:])

def ctc_of_lists():
    criterion = nn.CTCLoss(reduction="sum", zero_infinity=True)
    batch = torch.randn(N, 8, 4), torch.randint(1, 5, (N, 3))
    return Recogniser(), batch, lambda m, b: criterion(m(b[0]), b[1], [8] * N, [3] * N)
"""
# For each loss: a method that splits another dimension than the samples.
SPLITS = {
    "dice": "spatial", "batch_dice": "spatial", "focal": "spatial", "smooth": "model",
    "smooth_by_gather": "model", "supervised_contrastive": "model", "clip": "model",
    "two_views": "model", "distances": "model",
    "ctc": "model", "ctc_of_lists": "model",
}  # fmt: skip


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("losses") / "losses_of_users.py"
    path.write_text(MODULES)
    return path


@cache
def captured(model: str) -> Graph:
    work = load(model)
    return capture(work.model, work.batch, work.loss, name=work.name)


@pytest.mark.parametrize("loss", SPLITS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("split", ["data", "other"])
def test_it_holds(
    modules: pathlib.Path, tmp_path: pathlib.Path, loss: str, ranks: int, split: str
) -> None:
    name = f"{modules}:{loss}"
    graph = captured(name)
    assert not graph.opaque_ops
    method = "data" if split == "data" else SPLITS[loss]
    plan = plan_for(graph, cluster(f"local:{ranks}"), method, model=name)
    assert any(len(tiling.boxes) > 1 for tiling in plan.tiles.values())
    path = tmp_path / "plan.json"
    plan_file.save(plan, graph, path)
    result = verify(str(path), threads=True, steps=2)
    assert [check for check in result["checks"] if not check["holds"]] == []
    assert result["failure"] is None
    assert result["losses"] == pytest.approx(result["plain_losses"], rel=1e-9)
