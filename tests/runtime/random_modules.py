"""Generates random small modules as Python source, so that a failing module is its own reproduction.

A line such as `v3 = self.m3(v1)` is tried on an example and kept if it runs, so no shapes are computed
here. A line may read any earlier value, so there are branches. Values that no line reads go to the loss,
or sometimes stay unused.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LARGEST = 800  # elements of a value

Names = dict[str, Any]


class Case:
    """A module with its loss and an example batch, made from source code."""

    def __init__(self, source: str, seed: int, inputs: list[Tensor], targets: list[Tensor]) -> None:
        names: Names = {"torch": torch, "nn": nn, "F": F}
        exec(compile(source, f"<module {seed}>", "exec"), names)
        torch.manual_seed(seed)
        self.source, self.inputs, self.targets = source, inputs, targets
        self.model: nn.Module = names["Net"]().double()
        self.loss: Callable[..., Tensor] = names["loss"]

    def __repr__(self) -> str:
        shapes = [f"{list(t.shape)} {t.dtype}" for t in (*self.inputs, *self.targets)]
        return f"{self.source}\n# inputs and targets: {', '.join(shapes)}"


def random_case(seed: int) -> Case:
    return _ModuleWriter(seed).case()


class _ModuleWriter:
    """Writes one random module and runs each line on an example."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed % 2**63)
        self.init: list[str] = []  # lines of __init__
        self.forward: list[str] = []  # lines of forward
        self.inputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.net = nn.Module()  # has the layers so far
        self.values: dict[str, Tensor] = {}  # variables of forward, with their example values
        self.unread: dict[str, None] = {}  # variables that no line has read so far
        self.count = 0  # layers and variables so far
        self.n = self.rng.choice([1, 2, 3, 3, 4, 4, 5, 6])
        torch.manual_seed(seed)

    # -- a module ------------------------------------------------------------------------------------

    def case(self) -> Case:
        for number in range(self.rng.choice([1, 1, 1, 2])):
            self._input(f"x{number}")
        wanted, tries = self.rng.randint(2, 8), 0
        while len(self.forward) < wanted and tries < 60:
            tries += 1
            self._line()
        terms = [self._term(v) for v in list(self.unread)[-3:]]
        if not any(p.requires_grad for p in self.net.parameters()) or not self._learns(terms):
            self.seed += 10**9  # nothing to train: try another seed
            return _ModuleWriter(self.seed).case()
        return Case(self._source(terms), self.seed, self.inputs, self.targets)

    def _learns(self, terms: list[str]) -> bool:
        names = {"F": F, "torch": torch, **self.values, **self._named_targets()}
        total = eval(" + ".join(terms), names)
        return bool(total.requires_grad and total.isfinite())

    def _named_targets(self) -> Names:
        return {f"t{i}": t for i, t in enumerate(self.targets)}

    def _source(self, terms: list[str]) -> str:
        ends = [v for v in self.unread if any(v in term for term in terms)]
        targets = "".join(f", t{i}" for i in range(len(self.targets)))
        single = len(ends) == 1
        names = ends[0] if single else f"({', '.join(ends)})"
        lines = [
            "class Net(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        {line}" for line in self.init),
            f"    def forward(self, {', '.join(f'x{i}' for i in range(len(self.inputs)))}):",
            *(f"        {line}" for line in self.forward),
            f"        return {names}",
            f"def loss({names if single else 'ends'}{targets}):",
            *([] if single else [f"    {names} = ends"]),
            f"    return {' + '.join(terms)}",
        ]
        return "\n".join(lines)

    def _input(self, name: str) -> None:
        kind, pick = (
            self.rng.choice(["image", "image", "image", "tokens", "series", "flat"]),
            self._int,
        )
        if kind == "tokens":
            rows, s = pick(4, 11), pick(2, 6)
            tensor = torch.randint(rows, (self.n, s), generator=self.generator)
            self._given(name, tensor)
            more = self.rng.choice(["", "", f", padding_idx={pick(0, rows - 1)}"])
            table = f"self.m{self._number()}"
            lines = [f"{table} = nn.Embedding({rows}, {pick(2, 6)}{more})"]
            self._try(lines, f"{table}({name})", name)
            return
        shape = {
            "image": (self.n, pick(1, 5), pick(2, 9), pick(2, 9)),
            "series": (self.n, pick(2, 6), pick(2, 7)),
            "flat": (self.n, pick(2, 9)),
        }[kind]  # fmt: skip
        tensor = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        self._given(name, tensor)

    def _given(self, name: str, tensor: Tensor) -> None:
        self.inputs.append(tensor)
        self.values[name] = tensor
        if tensor.is_floating_point():
            self.unread[name] = None

    # -- lines -----------------------------------------------------------------------------------------

    def _int(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def _line(self) -> None:
        able = [v for v, t in self.values.items() if t.is_floating_point()]
        fresh = [v for v in self.unread if v in able]
        x = self.rng.choice(fresh if fresh and self.rng.random() < 0.75 else able)
        value = self.values[x]
        table = {2: FLAT, 3: SERIES, 4: IMAGE}.get(value.ndim)
        if table is None:
            return
        makers = table + ANY
        if self.rng.random() < 0.2:
            lines = self._pair(x)
        else:
            lines = self.rng.choice(makers)(self, x, *value.shape[1:])
        if lines is not None:
            *init, expression = lines
            self._try(init, expression, x)

    def _try(self, init: list[str], expression: str, *read: str) -> None:
        """Adds lines if they run. A layer may stay unused; this does no harm."""
        names = {"torch": torch, "nn": nn, "F": F, "self": self.net, **self.values}
        before = set(self.net._modules) | set(self.net._parameters) | set(self.net._buffers)
        try:
            for line in init:
                exec(line, names)
            self.net.double().train()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = eval(expression, names)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            result = None
        if not isinstance(result, Tensor) or not self._good(result):
            after = set(self.net._modules) | set(self.net._parameters) | set(self.net._buffers)
            for name in after - before:
                delattr(self.net, name)
            return
        name = f"v{self._number()}"
        self.init += init
        self.forward.append(f"{name} = {expression}")
        for v in list(self.unread):
            if v in read or f"{v})" in expression or f"{v}," in expression:
                del self.unread[v]
        self.values[name] = result
        self.unread[name] = None

    @staticmethod
    def _good(result: Tensor) -> bool:
        return (
            0 < result.numel() <= LARGEST
            and bool(result.isfinite().all())
            and 2 <= result.ndim <= 4
        )

    def _number(self) -> int:
        self.count += 1
        return self.count

    def _pair(self, x: str) -> tuple[str, ...] | None:
        """An operator on two existing values."""
        shape = self.values[x].shape
        others = [v for v, t in self.values.items() if t.shape == shape and v != x]
        others = [v for v in others if self.values[v].is_floating_point()]
        if others:
            y = self.rng.choice(others)
            form = self.rng.choice(
                ["{x} + {y}", "{x} * {y}", "torch.cat([{x}, {y}], 1)", "torch.where({x} > 0, {x}, {y})",
                 "torch.cat([{y}, {x}, {y}], -1)", "torch.maximum({x}, {y})", "torch.stack([{x}, {y}], 1)",
                 "{x} - 0.5 * {y}.detach()", "torch.cat([{x}, {y}], 0)[: len({x})]"]
            )  # fmt: skip
            return (form.format(x=x, y=y),)
        same_rank = [
            v for v, t in self.values.items() if t.shape[:1] == shape[:1] and t.ndim == len(shape)
        ]
        y = self.rng.choice([v for v in same_rank if self.values[v].is_floating_point()])
        return (f"torch.cat([{x}, {y}], 1)",)

    def _layer(self, text: str) -> tuple[str, str]:
        """A new layer or, sometimes, an existing one with the same text: then parameters are shared."""
        same_layers = [line for line in self.init if line.endswith(f"= {text}")]
        if same_layers and self.rng.random() < 0.7:
            return "", same_layers[0].split(" ")[0]
        name = f"self.m{self._number()}"
        return f"{name} = {text}", name

    def call(self, text: str, form: str = "{m}({x})", *, x: str) -> tuple[str, ...]:
        line, name = self._layer(text)
        lines = [line] if line else []
        if line and "bias" not in text and "Linear" in text and self.rng.random() < 0.1:
            lines.append(f"{name}.bias.requires_grad_(False)")
        return (*lines, form.format(m=name, x=x))

    # -- the loss ----------------------------------------------------------------------------------------

    def _term(self, v: str) -> str:
        value = self.values[v]
        d = value.shape[1]
        forms = [
            "{v}.square().mean()", "{v}.abs().mean()", "{v}.sum() / {v}.numel()",
            "F.smooth_l1_loss({v}, torch.zeros_like({v}))", "{v}.logsumexp(1).mean()",
            "({v} - 0.3).square().sum(1).mean()", "F.mse_loss({v}, {f})",
            "F.binary_cross_entropy_with_logits({v}, {f}.sigmoid())", "0.1 * {v}.square().sum()",
        ]  # fmt: skip
        if d > 1:
            more = self.rng.choice(
                ["", "", ", label_smoothing=0.1", ", ignore_index=0", ", reduction='sum'"]
            )
            forms += [f"F.cross_entropy({{v}}, {{c}}{more})"] * 4
            forms += ["F.nll_loss({v}.log_softmax(1), {c})"]
        form = self.rng.choice(forms)
        target = f"t{len(self.targets)}"
        if "{f}" in form:
            made = torch.randn(value.shape, generator=self.generator, dtype=torch.float64)
            self.targets.append(made)
        elif "{c}" in form:
            shape = (value.shape[0], *value.shape[2:])
            low = 1 if "ignore" in form else 0
            self.targets.append(
                torch.randint(low, max(d, low + 1), shape, generator=self.generator)
            )
            if low:
                self.targets[-1].view(-1)[1:][self._some(self.targets[-1].numel() - 1)] = 0
        weight = self.rng.choice(["", "", "0.5 * "])
        return weight + form.format(v=v, f=target, c=target)

    def _some(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator) < 0.3


Maker = Callable[..., "tuple[str, ...] | None"]


# -- any value -----------------------------------------------------------------------------------------

FUNCTIONS = (
    "torch.relu({x})", "torch.tanh({x})", "torch.sigmoid({x})", "F.gelu({x})", "F.silu({x})",
    "F.leaky_relu({x}, 0.1)", "F.elu({x})", "F.softplus({x})", "{x} * 2 - 1", "{x}.square()",
    "torch.exp(-{x}.abs())", "{x}.clamp(-1, 1)", "{x}.softmax(1)", "{x}.log_softmax(-1)",
    "{x}.softmax(-1)", "{x} - {x}.mean(0, keepdim=True)",
    "{x} / (1 + {x}.abs().sum(1, keepdim=True))", "F.normalize({x}, dim=1)", "{x}.flip(1)",
    "{x}.roll(1, -1)", "{x}[:, 1:]", "{x}[..., ::2]", "{x}[..., :-1]", "{x}.cumsum(1)",
    "{x} + {x}.amax(1, keepdim=True)", "{x} * {x}.std(1, keepdim=True)",
    "{x}.repeat_interleave(2, 1)", "torch.where({x} > 0.1, {x}, 0.3 * {x})", "{x}.detach() * {x}",
    "torch.sin({x})", "{x}[:, [0, 1, 0]]", "{x}.index_select(1, torch.tensor([1, 0, 1]))",
    "{x}.mean(1, keepdim=True).expand_as({x})", "{x} * torch.arange({x}.shape[-1])", "{x}.tril()",
    "{x}.masked_fill({x} > 1, 0.5)", "{x}.split([1, {x}.shape[1] - 1], 1)[1]",
    "{x} / {x}.pow(2).mean(-1, keepdim=True).add(0.1).sqrt()", "{x}.gather(1, {x}.argsort(1))",
    "{x}.movedim(1, -1)",
)  # fmt: skip


def function(w: _ModuleWriter, x: str, *_: int) -> tuple[str, ...]:
    return (w.rng.choice(FUNCTIONS).format(x=x),)


def scale(w: _ModuleWriter, x: str, c: int, *sizes: int) -> tuple[str, ...]:
    """A parameter or buffer of the module itself."""
    shape = [c, *(1 for _ in sizes)]
    if sizes and w.rng.random() < 0.5:
        shape = [1] * len(sizes) + [sizes[-1]]
    name = f"self.m{w._number()}"
    if w.rng.random() < 0.2:
        buffer = f"self.register_buffer('{name[5:]}', torch.rand({shape}) + 0.5)"
        return buffer, f"{x} * {name}"
    sign = w.rng.choice("*+")
    return f"{name} = nn.Parameter(torch.rand({shape}) + 0.5)", f"{x} {sign} {name}"


def dropped(w: _ModuleWriter, x: str, *_: int) -> tuple[str, ...]:
    """Half of the features gate the others."""
    return (f"{x}.chunk(2, 1)[0] * {x}.chunk(2, 1)[1].sigmoid()",)


def prelu(w: _ModuleWriter, x: str, c: int, *_: int) -> tuple[str, ...]:
    return w.call(f"nn.PReLU({w.rng.choice([1, c])})", x=x)


def counted(w: _ModuleWriter, x: str, *_: int) -> tuple[str, ...]:
    """A buffer that the forward writes."""
    name = f"self.m{w._number()}"
    buffer = f"self.register_buffer('{name[5:]}', torch.ones(()))"
    form = w.rng.choice(["{x} * {b}.mul_(0.9)", "{x} + 0 * {b}.add_({x}.detach().mean())"])
    return buffer, form.format(x=x, b=name)


ANY: list[Maker] = [function] * 5 + [scale, dropped, prelu, counted]


# -- [n d] -----------------------------------------------------------------------------------------------


def linear(w: _ModuleWriter, x: str, *shape: int) -> tuple[str, ...]:
    d, wide = shape[-1], w._int(2, 8)
    same_shape = [m for m in w.init if f"nn.Linear({d}, " in m or f"nn.Embedding({wide}, {d}" in m]
    embeddings = [m for m in same_shape if "Embedding" in m]
    if embeddings:
        return (f"F.linear({x}, {embeddings[0].split(' ')[0]}.weight)",)
    if same_shape and w.rng.random() < 0.5:
        name = w.rng.choice(same_shape).split(" ")[0]
        if name.endswith(".bias.requires_grad_(False)"):
            return (f"{x} + 1",)
        if w.rng.random() < 0.3:  # tied parameter: one parameter with two names
            line = next(m for m in same_shape if m.startswith(name + " "))
            other = f"self.m{w._number()}"
            tie = f"{other}.weight = {name}.weight"
            return f"{other} = {line.split(' = ')[1]}", tie, f"{other}({x})"
        return (f"{name}({x})",)
    return w.call(f"nn.Linear({d}, {wide}{w.rng.choice(['', '', ', bias=False'])})", x=x)


def square_linear(w: _ModuleWriter, x: str, *shape: int) -> tuple[str, ...]:
    form = w.rng.choice(["{x} + {m}({x})", "{m}(torch.tanh({m}({x})))", "{m}({x}) * {x}"])
    return w.call(f"nn.Linear({shape[-1]}, {shape[-1]})", form, x=x)


def layer_norm(w: _ModuleWriter, x: str, *shape: int) -> tuple[str, ...]:
    last = list(shape[-w._int(1, len(shape)) :])
    return w.call(f"nn.LayerNorm({last}{w.rng.choice(['', ', elementwise_affine=False'])})", x=x)


def positions(w: _ModuleWriter, x: str, s: int, d: int) -> tuple[str, ...]:
    return w.call(
        f"nn.Embedding({s + w._int(0, 2)}, {d})", f"{{x}} + {{m}}(torch.arange({s}))", x=x
    )


def masked(w: _ModuleWriter, x: str, s: int, d: int) -> tuple[str, ...]:
    mask = f"torch.ones({s}, {s}).tril() == 0"
    form = f"({{x}} @ {{m}}({{x}}).mT).masked_fill({mask}, float('-inf')).softmax(-1) @ {{x}}"
    return w.call(f"nn.Linear({d}, {d})", form, x=x)


def rms_norm(w: _ModuleWriter, x: str, *shape: int) -> tuple[str, ...]:
    return w.call(f"nn.RMSNorm({shape[-1]})", x=x)


def batch_norm(w: _ModuleWriter, x: str, c: int, *sizes: int) -> tuple[str, ...]:
    more = w.rng.choice(
        ["", "", "", ", affine=False", ", momentum=0.4", ", track_running_stats=False"]
    )
    return w.call(f"nn.BatchNorm{max(1, len(sizes))}d({c}{more})", x=x)


def outer(w: _ModuleWriter, x: str, d: int) -> tuple[str, ...]:
    form = ["{x}.unsqueeze(2) * {x}.unsqueeze(1)", "{x} @ {x}.t()", "{x}.unsqueeze(1)",
            "torch.einsum('nc,nd->ncd', {x}, {x})", "torch.outer({x}[:, 0], {x}[0])"]  # fmt: skip
    return (w.rng.choice(form).format(x=x),)


def parts(w: _ModuleWriter, x: str, d: int) -> tuple[str, ...] | None:
    sizes = [a for a in range(1, d + 1) if d % a == 0]
    return (f"{x}.view(-1, {(a := w.rng.choice(sizes))}, {d // a})",)


FLAT: list[Maker] = [
    linear,
    linear,
    linear,
    square_linear,
    layer_norm,
    rms_norm,
    batch_norm,
    outer,
    parts,
]


# -- [n s d] ---------------------------------------------------------------------------------------------


def attention(w: _ModuleWriter, x: str, s: int, d: int) -> tuple[str, ...]:
    form = w.rng.choice(
        [
            "(({m}({x}) @ {x}.transpose(1, 2)) / 2).softmax(-1) @ {x}",
            "F.scaled_dot_product_attention({m}({x}), {x}, {x})",
            "F.scaled_dot_product_attention({m}({x}), {x}, {m}({x}), is_causal=True)",
            "torch.bmm({m}({x}), {x}.transpose(1, 2))",
        ]
    )
    return w.call(f"nn.Linear({d}, {d}, bias=False)", form, x=x)


def heads(w: _ModuleWriter, x: str, s: int, d: int) -> tuple[str, ...] | None:
    sizes = [a for a in range(1, d + 1) if d % a == 0]
    h = w.rng.choice(sizes)
    cut = f".view(-1, {s}, {h}, {d // h}).transpose(1, 2)"
    form = (
        f"F.scaled_dot_product_attention({{m}}({{x}}){cut}, {{x}}{cut}, {{x}}{cut})"
        f".transpose(1, 2).reshape(-1, {s}, {d})"
    )
    return w.call(f"nn.Linear({d}, {d})", form, x=x)


def recurrent(w: _ModuleWriter, x: str, s: int, d: int) -> tuple[str, ...]:
    kind = w.rng.choice(["LSTM", "GRU", "RNN"])
    more = w.rng.choice(["", "", ", bidirectional=True", ", num_layers=2"])
    return w.call(f"nn.{kind}({d}, {w._int(2, 4)}, batch_first=True{more})", "{m}({x})[0]", x=x)


def convolution1(w: _ModuleWriter, x: str, c: int, l: int) -> tuple[str, ...]:
    k = w._int(1, 3)
    more = f"stride={w._int(1, 2)}, padding={w._int(0, k // 2)}, dilation={w._int(1, 2)}"
    return w.call(f"nn.Conv1d({c}, {w._int(1, 5)}, {k}, {more})", x=x)


def flat(w: _ModuleWriter, x: str, *shape: int) -> tuple[str, ...]:
    forms = [
        "{x}.flatten(1)", "{x}.mean(1)", "{x}[:, -1]", "{x}.amax(1)", "{x}.sum(-1)",
        "{x}.transpose(1, 2)", "{x}.unsqueeze(1)", "{x}.logsumexp(-1)", "{x}.prod(1)",
        "{x}.mean((0,), keepdim=True) + {x}",
    ]  # fmt: skip
    return (w.rng.choice(forms).format(x=x),)


def pool1(w: _ModuleWriter, x: str, c: int, l: int) -> tuple[str, ...]:
    k = w._int(1, 3)
    return (
        f"F.{w.rng.choice(['max', 'avg'])}_pool1d({x}, {k}, {w._int(1, 2)}, {w._int(0, k // 2)})",
    )


SERIES: list[Maker] = [
    linear, linear, square_linear, layer_norm, rms_norm, batch_norm, attention, attention, heads, recurrent,
    convolution1, flat, flat, pool1, positions, masked,
]  # fmt: skip


# -- [n c h w] -------------------------------------------------------------------------------------------


def convolution(w: _ModuleWriter, x: str, c: int, height: int, width: int) -> tuple[str, ...]:
    k = [w._int(1, 3), w._int(1, 3)]
    groups = w.rng.choice([g for g in range(1, c + 1) if c % g == 0]) if w.rng.random() < 0.3 else 1
    more = [
        f"stride={w.rng.choice([1, 1, 2, (2, 1)])}",
        f"padding={tuple(w._int(0, size // 2) for size in k)}",
        f"dilation={w.rng.choice([1, 1, 1, 2, (1, 2)])}",
        f"groups={groups}",
        *(["bias=False"] if w.rng.random() < 0.3 else []),
    ]
    return w.call(f"nn.Conv2d({c}, {groups * w._int(1, 3)}, {k}, {', '.join(more)})", x=x)


def residual(w: _ModuleWriter, x: str, c: int, *_: int) -> tuple[str, ...]:
    form = w.rng.choice(
        ["{x} + {m}({x})", "torch.cat([{x}, {m}({x})], 1)", "{m}(torch.relu({m}({x})))"]
    )
    return w.call(f"nn.Conv2d({c}, {c}, 3, padding=1)", form, x=x)


def transposed(w: _ModuleWriter, x: str, c: int, *_: int) -> tuple[str, ...]:
    s = w._int(1, 2)
    more = f"stride={s}, padding={w._int(0, 1)}, output_padding={w._int(0, s - 1)}"
    return w.call(f"nn.ConvTranspose2d({c}, {w._int(1, 4)}, {w._int(2, 3)}, {more})", x=x)


def group_norm(w: _ModuleWriter, x: str, c: int, *_: int) -> tuple[str, ...]:
    groups = w.rng.choice([g for g in range(1, c + 1) if c % g == 0])
    return w.call(w.rng.choice([f"nn.GroupNorm({groups}, {c})", f"nn.InstanceNorm2d({c})"]), x=x)


def pool(w: _ModuleWriter, x: str, *_: int) -> tuple[str, ...]:
    k = w._int(2, 3)
    s, p, ceil = w._int(1, 3), w._int(0, k // 2), w.rng.random() < 0.3
    both = f"{x}, {k}, {s}, {p}, ceil_mode={ceil}"
    forms = [
        f"F.max_pool2d({both})", f"F.max_pool2d({x}, {k}, {s}, {p}, dilation=2)",
        f"F.avg_pool2d({both}, count_include_pad={w.rng.random() < 0.5})",
        f"F.adaptive_avg_pool2d({x}, ({w._int(1, 4)}, {w._int(1, 4)}))", f"F.max_pool2d({both})",
        f"F.adaptive_max_pool2d({x}, {w._int(1, 3)})",
    ]  # fmt: skip
    return (w.rng.choice(forms),)


def resample(w: _ModuleWriter, x: str, c: int, height: int, width: int) -> tuple[str, ...]:
    forms = [
        "F.interpolate({x}, scale_factor=2)",
        "F.interpolate({x}, scale_factor=2, mode='bilinear', align_corners=False)",
        f"F.interpolate({{x}}, size=({w._int(2, 8)}, {w._int(2, 8)}), mode='bilinear', align_corners=True)",
        f"F.interpolate({{x}}, size=({w._int(2, 8)}, {w._int(2, 8)}))",
        "F.pad({x}, (1, 0, 2, 1))", "F.pad({x}, (1, 1, 1, 1), mode='reflect')", "F.pad({x}, (0, -1, 1, 0))",
        "F.pixel_shuffle({x}, 2)", "F.pixel_unshuffle({x}, 2)", "{x}.transpose(2, 3)",
    ]  # fmt: skip
    return (w.rng.choice(forms).format(x=x),)


def smaller(w: _ModuleWriter, x: str, *_: int) -> tuple[str, ...]:
    forms = ["{x}.flatten(1)", "{x}.mean((2, 3))", "{x}.flatten(2).transpose(1, 2)", "{x}.flatten(2)",
             "{x}.amax((2, 3))", "{x}.sum(1)", "{x}.permute(0, 2, 3, 1).flatten(1, 2)"]  # fmt: skip
    return (w.rng.choice(forms).format(x=x),)


IMAGE: list[Maker] = [
    convolution, convolution, convolution, convolution, residual, transposed, batch_norm, batch_norm,
    group_norm, layer_norm, pool, pool, resample, resample, smaller, smaller, linear,
]  # fmt: skip
