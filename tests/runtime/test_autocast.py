"""Under autocast a step gives the plain module's loss, and saves no more for its backward."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import raddle
from raddle import zoo
from raddle.plans.notation import read_tiles
from raddle.plans.plan import Plan


def saved_bytes(run: Callable[[], object]) -> int:
    """Bytes of all tensors that autograd saves during `run`; tensors that share memory count once."""
    saved: list[Tensor] = []  # kept alive, so that no memory is used twice

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    return sum(storages.values())


@pytest.mark.parametrize("name", ["alexnet-tiny", "gpt-tiny", "resnet50-tiny", "unet-tiny"])
def test_a_step_is_the_plain_modules(name: str) -> None:
    work = zoo.load(name, device="cpu")
    assert work.loss is not None

    def plain() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(loss(model, work.batch))

    model, loss, losses = copy.deepcopy(work.model), work.loss, list[Tensor]()
    plain_bytes = saved_bytes(plain)
    graph = raddle.capture(work.model, work.batch, work.loss)
    tiles = read_tiles(graph, "".join(f"{op.name}: @0\n" for op in graph.ops))
    trainer = raddle.parallelize(
        work.model,
        lambda p: torch.optim.SGD(p, lr=0.1),
        plan=Plan(tiles, devices=1, bn="local"),
        graph=graph,
        loss=work.loss,
        device="cpu",
        precision="bf16",
        compile=False,
    )
    step_bytes = saved_bytes(lambda: losses.append(trainer.step(work.batch).loss))
    trainer.close()
    if not any(isinstance(module, nn.Dropout) for module in model.modules()):
        assert losses[0].detach() == losses[1]  # bit for bit: the same calls in the same dtypes
    assert 0 < step_bytes <= 1.02 * plain_bytes
