"""torch.compile keeps what it has compiled apart for each generated function, in old versions too."""

from __future__ import annotations

import inspect
import traceback

import pytest
import torch
from torch import Tensor

from raddle.graph.box import Box
from raddle.runtime.function_writer import FunctionWriter, GeneratedCode, Piece

BOX = Box.full((3,))


def generated(number: int) -> GeneratedCode:
    """A function that adds a number, or fails for the number 0."""

    def add(x: Tensor) -> tuple[Tensor]:
        if number == 0:
            raise ZeroDivisionError
        return (x + number,)

    writer = FunctionWriter(lambda tensor_id: [BOX])
    variable = writer.region_variable("x", BOX)
    writer.add_call(add, variable, [("y", BOX)], key=number)
    return writer.build(
        "segment", "segment of device 0", lambda piece: "nondifferentiable",
        [(Piece("y", BOX), writer.computed["y"][0][1])],
    )  # fmt: skip


def test_more_functions_are_compiled_than_one_code_object_may_be() -> None:
    limit = torch._dynamo.config.recompile_limit
    for number in range(1, limit + 3):
        function = generated(number).function
        run = torch.compile(function, fullgraph=True, dynamic=False, backend="eager")
        torch.testing.assert_close(run(torch.zeros(3))[0], torch.full((3,), float(number)))


def test_python_finds_the_source() -> None:
    code = generated(0)
    assert inspect.getsource(code.function).strip() == code.source.strip()
    with pytest.raises(ZeroDivisionError) as error:
        code.function(torch.zeros(3))
    assert "f1(a0)" in "".join(traceback.format_exception(error.value))
