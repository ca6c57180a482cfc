"""The precision of a plan: the dtypes in which operators compute, and in which parameters are sent.

`plan.precision` names a kind, with options:

    float32    as PyTorch's switches have it. On GPUs since Ampere, convolutions compute in TF32 and
               products in float32.
    tf32       convolutions and products compute in TF32 where the device has it. Values stay float32.
    bf16       autocast to bfloat16: products compute in bfloat16, losses and norms in float32
               (plans/value_dtypes.py). Parameters, their gradients and optimizer states stay float32.
    fp16       the same with float16, and with a scaled loss: small gradients are not rounded to zero.
    bf16:pure  parameters, values and gradients are bfloat16. The optimizer updates a float32 copy of the
               parameters, the master weights; its states are float32.

Two options are for the sync kinds that shard parameters (ZeRO). They mean what `param_dtype` and
`reduce_dtype` of PyTorch's FSDP2 mean:

    gather=D   the dtype in which parameters are gathered; by default their own
    reduce=D   the dtype in which gradients are summed; by default their own, which is the parameter's

D is one of float32, bf16 and fp16, as in "bf16,gather=bf16,reduce=float32". Only values in float32 are
changed: a float64 model computes in float64 with every precision, as it does under autocast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from raddle.errors import InputError, quote
from raddle.plans.sync import split_sync

DEFAULT = "float32"
PURE = "pure"  # the option that makes parameters bfloat16, with master weights
GATHER, REDUCE = "gather=", "reduce="
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
KINDS = ("float32", "tf32", "bf16", "fp16")
EXAMPLES = "float32, tf32, bf16, fp16, bf16:pure, bf16,gather=bf16,reduce=float32"


@dataclass(frozen=True)
class Precision:
    """A precision with its options, as parsed from a plan."""

    kind: str = DEFAULT  # one of KINDS
    pure: bool = False  # parameters are in the low dtype, with float32 master weights
    gather: torch.dtype | None = None  # in which ZeRO gathers parameters; None: their own
    reduce: torch.dtype | None = None  # in which ZeRO sums gradients; None: their own

    @property
    def low_dtype(self) -> torch.dtype | None:
        """The 16-bit dtype in which products compute; None: there is none."""
        return DTYPES[self.kind] if self.kind in ("bf16", "fp16") else None

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of torch.autocast; None: autocast is off."""
        return None if self.pure else self.low_dtype

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled before the backward, and gradients are scaled back after it."""
        return self.kind == "fp16"

    @property
    def tf32_products(self) -> bool:
        """Whether float32 products (not only convolutions) compute in TF32 where the device has it."""
        return self.kind == "tf32"

    def parameter_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype in which a parameter of the captured dtype is held, and its gradient."""
        return self.low_dtype if self.pure and self.low_dtype and dtype == torch.float32 else dtype

    def master_dtype(self, dtype: torch.dtype) -> torch.dtype | None:
        """Returns the dtype of the separate master weights of a parameter; None: it has none.

        dtype: of the parameter in the captured graph. Under autocast the parameter is the master.
        """
        return None if self.parameter_dtype(dtype) == dtype else dtype

    def gather_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype in which ZeRO gathers a parameter. dtype: in which it is held."""
        return _narrowed(dtype, self.gather)

    def reduce_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype in which ZeRO sums the gradients of a parameter. dtype: of the gradient."""
        return _narrowed(dtype, self.reduce)


def _narrowed(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """Returns the wanted dtype for a parameter of float32 or 16 bits, and otherwise its own."""
    return wanted if wanted is not None and dtype in DTYPES.values() else dtype


FLOAT32 = Precision()


@lru_cache(maxsize=1024)
def read_precision(text: str) -> Precision:
    """Parses `plan.precision`. Raises InputError if it is not a precision.

    >>> read_precision("bf16").autocast
    torch.bfloat16
    >>> read_precision("bf16:pure,reduce=float32").reduce
    torch.float32
    """
    kind, options = split_sync(text)
    if kind not in KINDS:
        raise _unreadable(text, kind)
    pure, dtypes = False, dict[str, torch.dtype]()
    for option in options:
        name, _, value = option.partition("=")
        if option == PURE and kind == "bf16" and not pure:
            pure = True
        elif f"{name}=" in (GATHER, REDUCE) and value in DTYPES and name not in dtypes:
            dtypes[name] = DTYPES[value]
        else:
            raise _unreadable(text, option)
    return Precision(kind, pure, dtypes.get("gather"), dtypes.get("reduce"))


def _unreadable(text: str, option: str) -> InputError:
    detail = "" if option == text else f", which has {quote(option)}"
    return InputError(f"precision is {quote(text)}{detail}: choose as in {EXAMPLES}.")
