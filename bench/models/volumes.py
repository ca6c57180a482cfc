# ruff: noqa: E501 (tables of arguments)
"""The networks of MONAI and the models of diffusers, with reduced sizes.

Their constructors have no common names for sizes, so every row says its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rows import Example, Row, first_tensor_loss

N = 2
PLANE = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
LEVELS = {"channels": (4, 8, 16), "strides": (2, 2)}

# name of the class: (its arguments, the shape of an image, whether its output are segments of 2 classes)
MONAI: dict[str, tuple[dict[str, Any], tuple[int, ...], bool]] = {
    "AHNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 2}, (1, 128, 128), True),
    "AttentionUnet": ({**PLANE, **LEVELS}, (1, 32, 32), True),
    "AutoEncoder": ({**PLANE, "channels": (4, 8), "strides": (2, 2)}, (1, 32, 32), True),
    "BasicUNet": ({**PLANE, "features": (4, 4, 8, 8, 16, 4)}, (1, 32, 32), True),
    "BasicUNetPlusPlus": ({**PLANE, "features": (4, 4, 8, 8, 16, 4)}, (1, 32, 32), True),
    "Classifier": ({"in_shape": (1, 32, 32), "classes": 2, "channels": (4, 8), "strides": (2, 2)}, (1, 32, 32), False),
    "DAF3D": ({"in_channels": 1, "out_channels": 2}, (1, 64, 64, 64), False),
    "DenseNet": ({**PLANE, "init_features": 8, "growth_rate": 4, "block_config": (2, 2)}, (1, 32, 32), False),
    "DiffusionModelUNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "channels": (8, 16),
                            "num_res_blocks": 1, "attention_levels": (False, True), "norm_num_groups": 4,
                            "num_head_channels": 8}, (1, 16, 16), False),
    "DynUNet": ({**PLANE, "kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2),
                 "filters": (4, 8, 16)}, (1, 32, 32), True),
    "EfficientNetBN": ({"model_name": "efficientnet-b0", "pretrained": False, "spatial_dims": 2, "in_channels": 1,
                        "num_classes": 2}, (1, 64, 64), False),
    "FlexibleUNet": ({**PLANE, "backbone": "efficientnet-b0"}, (1, 64, 64), True),
    "FullyConnectedNet": ({"in_channels": 16, "out_channels": 2, "hidden_channels": (8, 8), "dropout": 0.1}, (16,), False),
    "HighResNet": (PLANE, (1, 32, 32), True),
    "HoVerNet": ({"in_channels": 3, "out_classes": 0, "mode": "fast"}, (3, 256, 256), False),
    "LocalNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "num_channel_initial": 4,
                  "extract_levels": (0, 1)}, (1, 32, 32), True),
    "MaskedAutoEncoderViT": ({"in_channels": 1, "img_size": (32, 32), "patch_size": (8, 8), "hidden_size": 24,
                              "mlp_dim": 32, "num_layers": 2, "num_heads": 2, "spatial_dims": 2,
                              "decoder_hidden_size": 24, "decoder_mlp_dim": 32, "decoder_num_layers": 2,
                              "decoder_num_heads": 2}, (1, 32, 32), False),
    "MedNeXt": ({"spatial_dims": 2, "init_filters": 4, "in_channels": 1, "out_channels": 2}, (1, 32, 32), True),
    "QuickNAT": ({"num_classes": 2, "num_channels": 1, "num_filters": 8}, (1, 64, 64), True),
    "RegUNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "num_channel_initial": 4, "depth": 2}, (1, 32, 32), True),
    "ResNet": ({"block": "basic", "layers": (1, 1, 1, 1), "block_inplanes": (4, 8, 16, 16), "spatial_dims": 2,
                "n_input_channels": 1, "num_classes": 2}, (1, 32, 32), False),
    "SEResNet50": ({"spatial_dims": 2, "in_channels": 1, "num_classes": 2}, (1, 64, 64), False),
    "SegResNet": ({**PLANE, "init_filters": 8}, (1, 32, 32), True),
    "SegResNetDS": ({**PLANE, "init_filters": 8}, (1, 32, 32), True),
    "SegResNetVAE": ({"input_image_size": (32, 32), **PLANE, "init_filters": 8}, (1, 32, 32), False),
    "SwinUNETR": ({**PLANE, "feature_size": 12}, (1, 64, 64), True),
    "UNet": ({**PLANE, **LEVELS, "num_res_units": 2}, (1, 32, 32), True),
    "UNETR": ({**PLANE, "img_size": (32, 32), "feature_size": 4, "hidden_size": 24, "mlp_dim": 32, "num_heads": 2}, (1, 32, 32), True),
    "VNet": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 2}, (1, 32, 32), True),
    "VQVAE": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "channels": (8, 8), "num_res_channels": 8,
               "num_res_layers": 1, "embedding_dim": 8, "num_embeddings": 16,
               "downsample_parameters": ((2, 4, 1, 1),) * 2, "upsample_parameters": ((2, 4, 1, 1, 0),) * 2}, (1, 32, 32), False),
    "VarAutoEncoder": ({"spatial_dims": 2, "in_shape": (1, 32, 32), "out_channels": 1, "latent_size": 4, "channels": (4, 8), "strides": (2, 2)}, (1, 32, 32), False),
    "ViT": ({"in_channels": 1, "img_size": (32, 32), "patch_size": (8, 8), "hidden_size": 24, "mlp_dim": 32,
             "num_layers": 2, "num_heads": 2, "spatial_dims": 2, "classification": True, "num_classes": 2}, (1, 32, 32), False),
    "ViTAutoEnc": ({"in_channels": 1, "img_size": (32, 32), "patch_size": (16, 16), "hidden_size": 24, "mlp_dim": 32,
                    "num_layers": 2, "num_heads": 2, "spatial_dims": 2}, (1, 32, 32), False),
    "VoxelMorphUNet": ({"spatial_dims": 2, "in_channels": 2, "unet_out_channels": 8, "channels": (8, 8, 8, 8, 8, 8), "final_conv_channels": (4, 4)}, (2, 32, 32), False),
    "AutoencoderKL": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 1, "channels": (8, 8), "num_res_blocks": 1,
                       "attention_levels": (False, True), "latent_channels": 4, "norm_num_groups": 4}, (1, 32, 32), False),
    "PatchDiscriminator": ({"spatial_dims": 2, "in_channels": 1, "channels": 8, "num_layers_d": 2}, (1, 32, 32), False),
}  # fmt: skip


def monai_rows() -> Iterator[Row]:
    from vision import import_torchvision

    import_torchvision()
    import monai.networks.nets  # noqa: F401

    for name, (arguments, shape, segments) in MONAI.items():
        yield Row("MONAI", name, partial(_monai, name, arguments, shape, segments))


def _monai(name: str, arguments: dict[str, Any], shape: tuple[int, ...], segments: bool) -> Example:
    from monai.losses import DiceCELoss
    from monai.networks import nets

    model = getattr(nets, name if name != "QuickNAT" else "Quicknat")(**arguments).train()
    inputs = [torch.randn(N, *shape)]
    if name == "DiffusionModelUNet":
        inputs.append(torch.randint(10, (N,)))
    if not segments:
        return Example(model, inputs, [], _sum_of_squares, name)
    target = torch.randint(2, (N, 1, *shape[1:]))
    return Example(
        model, inputs, [target], Segmentation(DiceCELoss(to_onehot_y=True, softmax=True)), name
    )


class Segmentation(torch.nn.Module):
    """MONAI's Dice loss with cross entropy, of the first output of a network."""

    def __init__(self, loss: torch.nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        while isinstance(output, (list, tuple)):
            output = output[0]
        loss: torch.Tensor = self.loss(output, target)
        return loss


def _sum_of_squares(output: Any) -> torch.Tensor:
    return first_tensor_loss(output)


# -- diffusers -------------------------------------------------------------------------

CONDITIONED = {
    "block_out_channels": (8, 16), "layers_per_block": 1, "sample_size": 16, "cross_attention_dim": 8,
    "attention_head_dim": 4, "norm_num_groups": 4,
}  # fmt: skip
IMAGE, STEP, PROMPT = (4, 16, 16), "timestep", (6, 8)

# name of the class: (its arguments, its inputs: shapes of tensors, or STEP for a step of the diffusion)
DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UNet1DModel": ({"block_out_channels": (8, 8, 8), "sample_size": 32, "in_channels": 4, "out_channels": 4,
                     "extra_in_channels": 8, "norm_num_groups": 4} , {"sample": (4, 32), "timestep": STEP}),
    "UNet2DModel": ({"block_out_channels": (8, 16), "layers_per_block": 1, "sample_size": 16, "norm_num_groups": 4,
                     "attention_head_dim": 4, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                     "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}, {"sample": (3, 16, 16), "timestep": STEP}),
    "UNet2DConditionModel": ({**CONDITIONED, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                              "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
                             {"sample": IMAGE, "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "UNet3DConditionModel": ({**CONDITIONED, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                              "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
                             {"sample": (4, 4, 16, 16), "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "ControlNetModel": ({**{k: v for k, v in CONDITIONED.items() if k != "sample_size"},
                         "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                         "conditioning_embedding_out_channels": (4, 8)},
                        {"sample": IMAGE, "timestep": STEP, "encoder_hidden_states": PROMPT, "controlnet_cond": (3, 32, 32)}),
    "AutoencoderKL": ({"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4,
                       "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}, {"sample": (3, 32, 32)}),
    "AsymmetricAutoencoderKL": ({"down_block_out_channels": (8,), "up_block_out_channels": (8,), "norm_num_groups": 4}, {"sample": (3, 32, 32)}),
    "AutoencoderTiny": ({"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
                         "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}, {"sample": (3, 32, 32)}),
    "AutoencoderDC": ({"encoder_block_out_channels": (8, 16), "decoder_block_out_channels": (8, 16), "latent_channels": 4,
                       "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1), "attention_head_dim": 4,
                       "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
                       "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,)),
                       "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu"}, {"sample": (3, 32, 32)}),
    "VQModel": ({"block_out_channels": (8,), "norm_num_groups": 4, "num_vq_embeddings": 16}, {"sample": (3, 16, 16)}),
    "DiTTransformer2DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 16, "num_embeds_ada_norm": 10},
                              {"hidden_states": IMAGE, "timestep": STEP, "class_labels": STEP}),
    "PixArtTransformer2DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 16,
                                  "cross_attention_dim": 16, "caption_channels": 8, "use_additional_conditions": False},
                                 {"hidden_states": IMAGE, "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "SD3Transformer2DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 16,
                               "joint_attention_dim": 8, "caption_projection_dim": 16, "pooled_projection_dim": 8, "in_channels": 4, "out_channels": 4},
                              {"hidden_states": IMAGE, "timestep": STEP, "encoder_hidden_states": PROMPT, "pooled_projections": (8,)}),
    "SanaTransformer2DModel": ({"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
                                "num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16,
                                "caption_channels": 8, "sample_size": 16},
                               {"hidden_states": IMAGE, "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "AuraFlowTransformer2DModel": ({"sample_size": 16, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8,
                                    "num_attention_heads": 2, "joint_attention_dim": 8, "caption_projection_dim": 16, "pos_embed_max_size": 64},
                                   {"hidden_states": IMAGE, "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "CogVideoXTransformer3DModel": ({"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "time_embed_dim": 8,
                                     "text_embed_dim": 8, "num_layers": 2, "sample_width": 8, "sample_height": 8, "sample_frames": 9,
                                     "max_text_seq_length": 6},
                                    {"hidden_states": (3, 4, 8, 8), "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "WanTransformer3DModel": ({"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "text_dim": 8,
                               "freq_dim": 16, "ffn_dim": 32, "num_layers": 2},
                              {"hidden_states": (4, 3, 8, 8), "timestep": STEP, "encoder_hidden_states": PROMPT}),
    "UVit2DModel": ({"hidden_size": 16, "cond_embed_dim": 8, "micro_cond_encode_dim": 4, "micro_cond_embed_dim": 20, "encoder_hidden_size": 8,
                     "vocab_size": 20, "codebook_size": 16, "block_out_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                     "in_channels": 16, "intermediate_size": 32, "block_num_heads": 2, "sample_size": 8},
                    {"input_ids": "codes", "encoder_hidden_states": PROMPT, "pooled_text_emb": (8,), "micro_conds": (5,)}),
}  # fmt: skip


def diffusers_rows() -> Iterator[Row]:
    from vision import import_torchvision

    import_torchvision()
    import diffusers  # noqa: F401

    for name, (arguments, inputs) in DIFFUSERS.items():
        yield Row("diffusers", name, partial(_diffusers, name, arguments, inputs))


def _diffusers(name: str, arguments: dict[str, Any], inputs: dict[str, Any]) -> Example:
    import diffusers

    model = getattr(diffusers, name)(**arguments).train()
    tensors = {key: _diffusers_input(value) for key, value in inputs.items()}
    return Example(model, tensors, [], _mean_square_error, name)


def _diffusers_input(value: Any) -> torch.Tensor:
    if value == STEP:
        return torch.randint(10, (N,))
    if value == "codes":
        return torch.randint(16, (N, 8, 8))
    return torch.randn(N, *value)


def _mean_square_error(output: Any) -> torch.Tensor:
    """The loss of diffusion models: how far the output is from a target, here 0.5 everywhere."""
    sample = output.sample if hasattr(output, "sample") else first_sample(output)
    return F.mse_loss(sample, torch.full_like(sample, 0.5))


def first_sample(output: Any) -> torch.Tensor:
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values())) if hasattr(output, "values") else output[0]
    return output
