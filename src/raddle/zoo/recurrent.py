"""The recurrent networks of FlexFlow: Jia et al. 2019, "Beyond data and model parallelism".

The paper gives the layers, the hidden sizes and the 40 steps, but not the vocabularies and the dropout. The
values here and in the registry are the usual ones for its data sets.
"""

# n: sample, s: source step, t: (target) step, c: hidden channel, v: vocabulary

import torch
from torch import Tensor, nn


class TextClassifier(nn.Module):
    """RNNTC (text classification): classifies a sentence by the last step of a stack of LSTMs."""

    def __init__(
        self, *, vocabulary: int = 18765, hidden: int = 1024, layers: int = 4, classes: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(tokens))  # (n, t, c)
        logits: Tensor = self.output(x[:, -1])  # (n, classes)
        return logits


class LanguageModel(nn.Module):
    """RNNLM (language model): predicts the next token at each step."""

    def __init__(
        self,
        *,
        vocabulary: int = 10000,
        hidden: int = 2048,
        layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=dropout)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(tokens))  # (n, t, c)
        logits: Tensor = self.output(x)  # (n, t, v)
        return logits


class Translator(nn.Module):
    """NMT (machine translation): an encoder and a decoder with attention.

    The attention is the global one with "general" score of Luong et al. 2015, "Effective approaches to
    attention-based neural machine translation".
    """

    def __init__(
        self,
        *,
        vocabulary: int = 32000,
        hidden: int = 1024,
        layers: int = 2,  # in the encoder, and again in the decoder
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, hidden)
        self.target_embedding = nn.Embedding(vocabulary, hidden)
        self.encoder = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=dropout)
        self.decoder = nn.LSTM(hidden, hidden, layers, batch_first=True, dropout=dropout)
        self.score = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.source_embedding(source))  # (n, s, c)
        # torch 2.11 exports the states with one dimension too many; otherwise reshape changes nothing.
        start = tuple(s.reshape(self.decoder.num_layers, -1, s.shape[-1]) for s in state)
        x, _ = self.decoder(self.target_embedding(target), start)  # (n, t, c)
        attention = (self.score(x) @ memory.transpose(1, 2)).softmax(dim=-1)  # (n, t, s)
        context = attention @ memory  # (n, t, c)
        x = torch.tanh(self.combine(torch.cat((context, x), dim=-1)))  # (n, t, c)
        logits: Tensor = self.output(x)  # (n, t, v)
        return logits
