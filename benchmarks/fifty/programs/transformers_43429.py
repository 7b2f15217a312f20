"""The configuration ties the head to the embedding, and the model has two tensors.

https://github.com/huggingface/transformers/pull/43429
"""

from types import SimpleNamespace

import torch
from common import FAULTY, Model, train


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


model = Tied()
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
