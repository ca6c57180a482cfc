"""Checks the private behaviour of PyTorch on which private_torch.py relies, with any version."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raddle.sync.private_torch import BackwardEnd, default_store, has_step_hooks


class Watched:
    """Records gradients and ends of backwards, in their order."""

    def __init__(self, *parameters: nn.Parameter) -> None:
        self.seen: list[str] = []
        end = BackwardEnd(lambda: self.seen.append("end"))
        for number, p in enumerate(parameters):

            def hook(p: Tensor, number: int = number) -> None:
                assert p.grad is not None
                end.watch()
                self.seen.append(str(number))

            p.register_post_accumulate_grad_hook(hook)


@pytest.fixture
def three() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2)) for _ in range(3)]


def test_it_comes_once_and_after_all_gradients(three: list[nn.Parameter]) -> None:
    watched = Watched(*three)
    (three[0] * three[1] * three[2]).sum().backward()
    assert sorted(watched.seen[:3]) == ["0", "1", "2"]
    assert watched.seen[3:] == ["end"]


def test_it_does_not_wait_for_what_is_not_used(three: list[nn.Parameter]) -> None:
    watched = Watched(*three)
    three[1].sum().backward()
    three[2].sum().backward(inputs=[three[2]])
    assert watched.seen == ["1", "end", "2", "end"]


def test_it_has_come_when_backward_returns(three: list[nn.Parameter]) -> None:
    watched = Watched(*three)
    for count in range(1, 4):
        three[0].sum().backward()
        assert watched.seen == ["0", "end"] * count


def test_a_gradient_that_goes_elsewhere_is_none_of_it(three: list[nn.Parameter]) -> None:
    watched = Watched(*three)
    torch.autograd.grad((three[0] * three[1]).sum(), three[:2])
    assert watched.seen == []


def test_a_backward_that_raises_does_not_spoil_the_next(three: list[nn.Parameter]) -> None:
    watched = Watched(*three)

    def refuse(gradient: Tensor) -> None:
        raise KeyError("no")

    late = three[0] * 1
    handle = late.register_hook(refuse)
    with pytest.raises(KeyError):
        (late * three[1]).sum().backward()
    handle.remove()
    watched.seen.clear()
    three[2].sum().backward()
    assert watched.seen == ["2", "end"]


def test_a_backward_inside_of_another_has_an_end_of_its_own(three: list[nn.Parameter]) -> None:
    watched = Watched(*three)

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            with torch.enable_grad():
                three[1].sum().backward()
            return gradient

    (Nested.apply(three[0]) * three[2]).sum().backward()  # type: ignore[no-untyped-call]
    ends = [at for at, what in enumerate(watched.seen) if what == "end"]
    assert len(ends) in (2, 3)  # one may end for each that the inner one interrupts
    assert watched.seen.index("1") < ends[0]
    assert watched.seen[-1] == "end"
    assert sorted(w for w in watched.seen if w != "end") == ["0", "1", "2"]


def test_the_jobs_store_is_found(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        default_store().set("raddle/test", "here")
        assert default_store().check(["raddle/test"])
        assert not default_store().check(["raddle/nothing"])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_a_step_are_seen(three: list[nn.Parameter], register: str) -> None:
    optimizer = torch.optim.SGD(three, lr=0.1)
    assert not has_step_hooks(optimizer)
    handle = getattr(optimizer, register)(lambda *_: None)
    assert has_step_hooks(optimizer)
    handle.remove()
    assert not has_step_hooks(optimizer)
