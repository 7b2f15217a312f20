"""The configuration ties the head to the embedding, and the model has two tensors.

https://github.com/huggingface/transformers/pull/43429
"""

from types import SimpleNamespace

import torch
from common import FAULTY, STEPS, Model, next_token, optimize, tokens


class Tied(Model):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=True)
        if not FAULTY:
            self.head.weight = self.embedding.weight

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head


torch.manual_seed(1)
model = Tied()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(STEPS):
    row = tokens(8, 17)
    optimize(next_token(model(row[:, :-1]), row[:, 1:]), optimizer)
