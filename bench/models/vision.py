"""The architectures of torchvision, timm and segmentation-models-pytorch, from their registries."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rows import Example, Row, first_tensor_loss

N, CLASSES = 2, 10

# One model of each file of torchvision.models, with the size of its images.
TORCHVISION = {
    "alexnet": 96, "convnext_tiny": 64, "deeplabv3_resnet50": 64, "densenet121": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "fcn_resnet50": 64, "googlenet": 96, "inception_v3": 299,
    "lraspp_mobilenet_v3_large": 64, "maxvit_t": 224, "mnasnet0_5": 64, "mobilenet_v2": 64,
    "mobilenet_v3_small": 64, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "resnet18": 64, "resnet50": 64,
    "resnext50_32x4d": 64, "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64,
    "vgg11_bn": 64, "vit_b_32": 64, "wide_resnet50_2": 64,
}  # fmt: skip
VIDEO = {
    "mc3_18": 32,
    "r2plus1d_18": 32,
    "r3d_18": 32,
    "s3d": 224,
    "mvit_v2_s": 224,
    "swin3d_t": 32,
}
DETECTION = (
    "fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip


def stand_in_for_torchvision_operators() -> None:
    """Declares the compiled operators that torchvision needs to be imported, where they cannot be loaded.

    torchvision's wheel has them for CUDA only. A model that calls them does not run here.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    stand_in_for_torchvision_operators.library = library  # type: ignore[attr-defined]


def import_torchvision() -> None:
    """Imports torchvision, with a stand-in for its compiled operators where they cannot be loaded."""
    try:
        import torchvision
    except RuntimeError:
        import sys

        for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        stand_in_for_torchvision_operators()
        import torchvision  # noqa: F401


def torchvision_rows() -> Iterator[Row]:
    import_torchvision()
    for name, size in TORCHVISION.items():
        yield Row("torchvision", name, partial(_torchvision, name, (3, size, size)))
    for name, size in VIDEO.items():
        frames = 16 if name in ("s3d", "mvit_v2_s") else 8
        yield Row("torchvision", name, partial(_torchvision, name, (3, frames, size, size)))
    for name in DETECTION:
        yield Row("torchvision", name, partial(_detection, name))
    yield Row("torchvision", "raft_small", _raft)


def _torchvision(name: str, shape: tuple[int, ...]) -> Example:
    from torchvision.models import get_model

    arguments: dict[str, Any] = {"num_classes": CLASSES, "weights": None}
    if name in ("deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large"):
        arguments["weights_backbone"] = None
    if name == "vit_b_32":
        arguments["image_size"] = shape[1]
    if name in ("googlenet", "inception_v3"):
        arguments["init_weights"] = False
    model = get_model(name, **arguments).train()
    x = torch.randn(N, *shape)
    segments = "deeplab" in name or "fcn" in name or "lraspp" in name
    target = torch.randint(CLASSES, (N, *shape[1:]) if segments else (N,))
    return Example(model, [x], [target], _vision_loss, name)


def _vision_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of every output: some models have auxiliary ones in training."""
    if isinstance(output, dict):
        output = list(output.values())
    outputs = output if isinstance(output, (list, tuple)) else [output]
    losses = [F.cross_entropy(o, target) for o in outputs if isinstance(o, torch.Tensor)]
    total = losses[0]
    for loss in losses[1:]:
        total = total + 0.4 * loss
    return total


def _detection(name: str) -> Example:
    from torchvision.models import get_model

    model = get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES).train()
    targets = [
        {"boxes": torch.tensor([[4.0, 4.0, 30.0, 40.0]]), "labels": torch.tensor([1])}
        for _ in range(N)
    ]
    images = [torch.randn(3, 64, 64) for _ in range(N)]
    return Example(model, [images, targets], [], lambda out: sum(out.values()), name)


def _raft() -> Example:
    from torchvision.models.optical_flow import raft_small

    model = raft_small(weights=None).train()
    pair = [torch.randn(N, 3, 128, 128) for _ in range(2)]
    return Example(
        model, pair, [], lambda out: sum(first_tensor_loss(o) for o in out), "raft_small"
    )


# -- timm ------------------------------------------------------------------------------


def timm_rows() -> Iterator[Row]:
    """Yields one row for each file of timm.models: the smallest model of the file."""
    import_torchvision()
    import timm

    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            yield Row("timm", module, partial(_timm, module, tuple(names)))


# Files whose smallest model is large: with two blocks it has every kind of layer.
FEW_BLOCKS = (
    "beit",
    "deepseek_vit",
    "gemma4_vit",
    "naflexvit",
    "qwen3_vit",
    "vision_transformer_sam",
)
# Files whose models need images of their full size.
FULL_SIZE = ("byoanet", "convit")


def _timm(module: str, names: tuple[str, ...]) -> Example:
    import timm

    _, name = min((_timm_parameters(name), name) for name in _small_first(names)[:12])
    options: dict[str, Any] = {"num_classes": CLASSES}
    if module in FEW_BLOCKS:
        options["depth"] = 2
    if _timm_parameters(name, drop_path_rate=0.1) < UNKNOWN:
        options["drop_path_rate"] = 0.1
    model = timm.create_model(name, **options).train()
    configuration = timm.get_pretrained_cfg(name)
    channels, *size = configuration.input_size
    if not configuration.fixed_input_size and module not in FULL_SIZE:
        size = [min(s, 128) for s in size]
    x, target = torch.randn(N, channels, *size), torch.randint(CLASSES, (N,))
    return Example(model, [x], [target], _vision_loss, name)


def _small_first(names: tuple[str, ...]) -> list[str]:
    """Returns the names with those that speak of large models last."""
    large = ("large", "huge", "giant", "_xl", "xxl", "so400m", "_l_")
    return sorted(names, key=lambda name: any(tag in name for tag in large))


UNKNOWN = 2**60  # more parameters than any model has: it cannot be made with these arguments


def _timm_parameters(name: str, **options: Any) -> int:
    """Returns how many parameters a model has, or UNKNOWN."""
    import timm

    with torch.device("meta"):
        try:
            model = timm.create_model(name, **options)
        except (TypeError, RuntimeError, NotImplementedError, ValueError, AssertionError):
            return UNKNOWN
    return sum(p.numel() for p in model.parameters())


# -- segmentation-models-pytorch -------------------------------------------------------


def smp_rows() -> Iterator[Row]:
    import_torchvision()
    import segmentation_models_pytorch as smp

    for decoder in smp.MODEL_ARCHITECTURES_MAPPING:
        yield Row("segmentation-models-pytorch", decoder, partial(_smp, decoder, "resnet18"))
    for encoder in (
        "efficientnet-b0",
        "mit_b0",
        "mobilenet_v2",
        "densenet121",
        "vgg11_bn",
        "timm-regnetx_002",
    ):
        yield Row("segmentation-models-pytorch", f"unet {encoder}", partial(_smp, "unet", encoder))


def _smp(decoder: str, encoder: str) -> Example:
    import segmentation_models_pytorch as smp

    if decoder == "dpt":
        model = smp.create_model(
            "dpt",
            encoder_name="tu-vit_tiny_patch16_224",
            encoder_weights=None,
            classes=CLASSES,
            dynamic_img_size=True,
        )
    else:
        model = smp.create_model(
            decoder, encoder_name=encoder, encoder_weights=None, classes=CLASSES
        )
    size = 128 if decoder == "pan" else 64
    x, target = torch.randn(N, 3, size, size), torch.randint(CLASSES, (N, size, size))
    return Example(
        model.train(), [x], [target], smp.losses.DiceLoss("multiclass"), f"{decoder} {encoder}"
    )
