"""The models equal the published ones, their tiny versions train, and `load` reports mistakes."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from raddle import zoo
from raddle.errors import InputError

NAMES = zoo.names()
TINY = [name for name in NAMES if name.endswith("-tiny")]
FULL = [name for name in NAMES if not name.endswith("-tiny")]

# Numbers of parameters: from torchvision's table of weights ("num_params"), else from the source named.
PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "inception_v3": 27_161_264,
    "gpt": 124_439_808,  # GPT-2's checkpoint "gpt2" on the Hugging Face hub
    "unet": 31_037_698,  # milesial/Pytorch-UNet with bilinear=False, 3 channels, 2 classes
    "lenet": 61_706,  # 156 + 2,416 + 48,120 + 10,164 + 850: LeCun et al., all maps connected
    "mlp": 784 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10,
    # An LSTM layer of PyTorch has 4 gates, each with two matrices and two biases.
    "rnntc": 18765 * 1024 + 4 * 4 * (2 * 1024**2 + 2 * 1024) + 1024 * 2 + 2,
    "rnnlm": 10000 * 2048 + 2 * 4 * (2 * 2048**2 + 2 * 2048) + 2048 * 10000 + 10000,
    "nmt": 2 * 32000 * 1024 + 4 * 4 * (2 * 1024**2 + 2 * 1024) + 3 * 1024**2 + 1025 * 32000,
}

# Multiply-adds for one image, in 10^9; torchvision's table of weights calls them GFLOPS.
GMACS = {
    "alexnet": 0.71,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "inception_v3": 5.71,  # without the auxiliary head
}

_EXPORTS_LSTM = pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights")


def count(model):
    return sum(p.numel() for p in model.parameters())


def export(name):
    workload = zoo.load(name)
    program = torch.export.export(workload.model, workload.batch[:-1], strict=False)
    return [node for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name):
    assert count(zoo.load(name).model) == PARAMETERS[name]


def test_resnet1001_has_the_papers_10_2_million_weights_without_batch_norm():
    layers = zoo.load("resnet1001").model.modules()
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert round(sum(map(count, convolutions)) / 1e6, 1) == 10.2


@pytest.mark.parametrize(("name", "depth"), [("resnet110", 110), ("resnet1001", 1001)])
def test_depth_of_a_cifar_resnet(name, depth):
    layers = list(zoo.load(name).model.named_modules())
    deep = [
        layer
        for layer_name, layer in layers
        if isinstance(layer, nn.Conv2d | nn.Linear) and "shortcut" not in layer_name
    ]
    assert len(deep) == depth


@pytest.mark.parametrize("name", GMACS)
def test_multiply_adds_are_the_published_ones(name):
    workload = zoo.load(name, batch=1)
    counter = FlopCounterMode(display=False)
    with counter:
        workload.model.eval()(*workload.batch[:-1])
    assert counter.get_total_flops() / 2 / 1e9 == pytest.approx(GMACS[name], rel=0.01)


def test_weights_are_named_as_torchvisions():
    def some(name, count):
        return list(zoo.load(name).model.state_dict())[-count:]

    assert some("alexnet", 2) == ["classifier.6.weight", "classifier.6.bias"]
    assert some("vgg19", 2) == ["classifier.6.weight", "classifier.6.bias"]
    assert some("resnet101", 3)[0] == "layer4.2.bn3.num_batches_tracked"
    assert some("inception_v3", 8)[0] == "Mixed_7c.branch_pool.conv.weight"


def test_names_are_sorted_and_every_model_has_a_tiny_twin():
    names = zoo.names()
    assert names == sorted(names)
    assert {f"{name}-tiny" for name in FULL} == set(TINY)


@pytest.mark.parametrize("name", NAMES)
def test_one_step_on_meta(name):
    workload = zoo.load(name, batch=6)
    loss = workload.loss(workload.model, workload.batch)
    assert workload.name == name
    assert loss.shape == ()
    assert all(t.is_meta for t in workload.model.state_dict().values())
    assert all(t.is_meta and len(t) == 6 for t in workload.batch)


@pytest.mark.parametrize("name", TINY)
@_EXPORTS_LSTM
def test_tiny_models_export_small_graphs(name):
    assert len(export(name)) < 400


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "resnet1001" else ()) for n in FULL]
)
@_EXPORTS_LSTM
def test_full_models_export(name):
    assert export(name)


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_train(name):
    workload = zoo.load(name, device="cpu")
    optimizer = torch.optim.Adam(workload.model.parameters(), lr=0.01)

    def loss():
        torch.manual_seed(1)  # the same dropout at the start and at the end
        return workload.loss(workload.model, workload.batch)

    start = loss().item()
    for _ in range(20):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.95 * start
    assert all(p.grad is not None for p in workload.model.parameters())


def test_inception_has_a_second_output_in_training_alone():
    workload = zoo.load("inception_v3-tiny", batch=2)
    assert [y.shape for y in workload.model(*workload.batch[:-1])] == [(2, 5), (2, 5)]
    assert workload.model.eval()(*workload.batch[:-1]).shape == (2, 5)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_gpt_ties_its_embeddings(device):
    model = zoo.load("gpt-tiny", device=device, dtype=torch.float64).model
    assert model.lm_head.weight is model.wte.weight


def test_a_language_models_target_is_the_next_token():
    workload = zoo.load("rnnlm-tiny", device="cpu")
    assert torch.equal(workload.batch[0][:, 1:], workload.batch[-1][:, :-1])


def test_seed_decides_on_weights_and_examples():
    def tensors(seed):
        workload = zoo.load("nmt-tiny", device="cpu", seed=seed)
        return *workload.model.parameters(), *workload.batch

    same, again, other = tensors(0), tensors(0), tensors(1)
    assert all(torch.equal(a, b) for a, b in zip(same, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(same, other, strict=True))


def test_batch_does_not_change_the_weights():
    small, large = (zoo.load("mlp-tiny", device="cpu", batch=n).model for n in (1, 9))
    assert all(map(torch.equal, small.parameters(), large.parameters()))


def test_random_state_and_default_type_are_left_alone(tmp_path):
    before = torch.get_rng_state()
    zoo.load("lenet-tiny", device="cpu", seed=7)
    zoo.load(write(tmp_path, PAIR), device="cpu", dtype=torch.float64)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_default_dtype() is torch.float32


def test_dtype_is_that_of_weights_and_float_inputs():
    workload = zoo.load("lenet-tiny", device="cpu", dtype=torch.bfloat16)
    assert {p.dtype for p in workload.model.parameters()} == {torch.bfloat16}
    assert workload.batch[0].dtype is torch.bfloat16
    assert workload.batch[-1].dtype is torch.int64


def test_import_does_not_import_torch():
    script = "import sys, raddle.zoo; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path}; {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "False\n"


# The following tests load a user's file.

PAIR = """
import torch

def make(batch=3):
    return torch.nn.Linear(4, 2), (torch.randn(batch, 4),)
"""


def write(folder, source, function="make"):
    path = folder / "model.py"
    path.write_text(source)
    return f"{path}:{function}"


def test_file_that_returns_a_module_and_its_inputs(tmp_path):
    spec = write(tmp_path, PAIR)
    assert zoo.load(spec).batch[0].is_meta
    workload = zoo.load(spec, batch=5, device="cpu", dtype=torch.float64)
    assert workload.name == spec
    assert workload.model.weight.dtype is torch.float64
    assert workload.batch[0].shape == (5, 4)
    workload.loss(workload.model, workload.batch).backward()
    assert workload.model.weight.grad.any()


def test_file_is_drawn_from_the_seed(tmp_path):
    spec = write(tmp_path, PAIR)
    a, b, c = (zoo.load(spec, device="cpu", seed=seed).model.weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_file_with_targets_and_a_loss(tmp_path):
    spec = write(
        tmp_path,
        """
import torch
from raddle import supervised

def make():
    x, y = torch.randn(3, 4), torch.randint(2, (3,))
    loss = supervised(torch.nn.CrossEntropyLoss(weight=torch.ones(2)))
    return torch.nn.Linear(4, 2), (x, y), loss
""",
    )
    workload = zoo.load(spec, device="cpu")
    assert workload.loss(workload.model, workload.batch) > 0
    assert zoo.load(spec).loss.criterion.weight.is_meta
    assert [t.shape for t in workload.batch] == [(3, 4), (3,)]


def test_file_that_returns_a_workload_and_imports_its_neighbour(tmp_path):
    (tmp_path / "zoo_neighbour.py").write_text("NAME = 'gpt-tiny'")
    spec = write(
        tmp_path,
        """
from raddle import zoo
from zoo_neighbour import NAME

def make(batch):
    return zoo.load(NAME, batch=batch, device="cpu")
""",
    )
    path = list(sys.path)
    workload = zoo.load(spec, batch=2)
    assert sys.path == path
    assert workload.name == "gpt-tiny"
    # It was created on the CPU and moved: the parameters must still be tied.
    assert workload.model.lm_head.weight is workload.model.wte.weight
    assert all(t.is_meta for t in workload.model.state_dict().values())


def test_loss_of_a_model_without_one_uses_every_output(tmp_path):
    spec = write(
        tmp_path,
        """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        return {"a": self.a(x), "b": [self.b(x), x.argmax()]}

def make():
    return Two(), torch.randn(3, 4)
""",
    )
    workload = zoo.load(spec, device="cpu")
    workload.loss(workload.model, workload.batch).backward()
    assert all(p.grad.any() for p in workload.model.parameters())


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("resnet51", {}, "no model 'resnet51' in the zoo: did you mean resnet50 or "),
        ("qqqq", {}, r"no model 'qqqq' in the zoo: it has alexnet, .*, or give path/to/file.py:"),
        ("mlp", {"batch": 0}, "the batch is 0: ask for at least 1 sample."),
        ("mlp", {"dtype": torch.int64}, "the weights cannot be torch.int64: ask for a float type"),
        ("no/model.py:make", {}, "no file no/model.py in .*: check the path."),
        ("no/model.py", {}, "no/model.py names no function: write no/model.py:FUNCTION."),
    ],
)
def test_error_in_what_is_asked_for(spec, options, message):
    with pytest.raises(InputError, match=message):
        zoo.load(spec, **options)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("def make(:", {}, r"model.py raised SyntaxError \(.*\): mend it"),
        ("import qqqq", {}, r"model.py raised ModuleNotFoundError \(No module named 'qqqq'\)"),
        ("def mak(): pass", {}, "model.py has no function 'make': it has mak."),
        ("make = 1", {}, "model.py has no function 'make': define it there."),
        ("def make(): 1 / 0", {}, r"model.py:make raised ZeroDivisionError \(division by zero\)"),
        ("def make(): assert 0", {}, r"model.py:make raised AssertionError \(no message\)"),
        ("def make(): return 1", {}, r"returned int: return \(module, batch, loss\) with "),
        ("def make(): return 1, [2]", {}, r"returned \(int, \(int\)\): return \(module, batch, "),
        (PAIR.replace("(torch.randn(batch, 4),)", "1"), {}, r"returned \(Linear, int\): return"),
        (PAIR.replace("),)", "),), 1, sum"), {}, r"the former contract: return \(module, "),
        (PAIR.replace("batch=3", ""), {"batch": 4}, "takes no batch, yet 4 samples were asked for"),
        (PAIR.replace("batch=3", "batch"), {}, "has no default batch: ask for one"),
    ],
)
def test_error_in_a_file(tmp_path, source, options, message):
    with pytest.raises(InputError, match=message):
        zoo.load(write(tmp_path, source), **options)
