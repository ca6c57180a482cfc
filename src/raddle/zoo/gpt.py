"""GPT-2: Radford et al. 2019, "Language models are unsupervised multitask learners".

Parameter names are those of GPT-2: wte and wpe embed tokens and positions, h has the blocks, ln are layer
norms, c_attn, c_fc and c_proj are linear layers.
"""

# n: sample, t: time step, c: channel, h: head, v: vocabulary

import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    """A transformer that predicts the next token at each step; context: the largest number of steps."""

    def __init__(
        self,
        *,
        vocabulary: int = 50257,
        context: int = 1024,
        layers: int = 12,
        heads: int = 12,
        width: int = 768,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(TransformerBlock(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self._initialise(layers)
        self.lm_head.weight = self.wte.weight  # tied: one parameter under two names

    def forward(self, tokens: Tensor) -> Tensor:
        # A slice of the table instead of a lookup with arange(t), which would add a constant to the graph.
        positions = self.wpe.weight[: tokens.shape[1]]  # (t, c)
        x = self.drop(self.wte(tokens) + positions)  # (n, t, c)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))  # (n, t, v)
        return logits

    def _initialise(self, layers: int) -> None:
        """Sets the weights as the GPT-2 paper does (section 2.3); layers: the number of blocks."""
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # The residual stream sums 2 * layers projections: smaller weights keep its variance.
                is_projection = name.endswith("c_proj.weight")
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if is_projection else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network; each has a layer norm before it and a residual around it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Attention(nn.Module):
    """Causal self-attention; one linear layer computes queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.c_attn(x).chunk(3, dim=-1)  # three of (n, t, c)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)  # (n, h, t, c/h)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: Tensor = self.drop(self.c_proj(y.transpose(1, 2).flatten(2)))  # (n, t, c)
        return out


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them; the inner one is four times as wide."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.c_proj(self.gelu(self.c_fc(x))))
        return out
