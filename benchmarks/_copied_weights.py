"""Weights of transformers' GPT-2 and Llama under this project's names and in its layouts."""

from collections.abc import Mapping

import torch
from torch import Tensor

_GPT2_PARTS = {
    "attention_norm": "ln_1",
    "feed_forward_norm": "ln_2",
    "self_attention.project.linear": "attn.c_attn",
    "self_attention.output": "attn.c_proj",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
}


def gpt2_weights(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Translates the weights, or gradients, of a GPT2LMHeadModel with so many layers."""
    found = {
        "embedding.weight": state["transformer.wte.weight"],
        "places.weight": state["transformer.wpe.weight"],
    }
    for kind in ("weight", "bias"):
        found[f"norm.{kind}"] = state[f"transformer.ln_f.{kind}"]
        for i in range(layers):
            for own, other in _GPT2_PARTS.items():
                tensor = state[f"transformer.h.{i}.{other}.{kind}"]
                # The library's Conv1D holds the transposed matrix.
                found[f"layers.{i}.{own}.{kind}"] = tensor.T if tensor.dim() == 2 else tensor
    return found


def llama_weights(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Translates the weights, or gradients, of a LlamaForCausalLM with so many layers, not tied."""
    found = {
        "embedding.weight": state["model.embed_tokens.weight"],
        "output.weight": state["lm_head.weight"],
        "norm.weight": state["model.norm.weight"],
    }
    for i in range(layers):

        def together(*names: str, number: int = i) -> Tensor:
            return torch.cat([state[f"model.layers.{number}.{name}.weight"] for name in names])

        parts = {
            "attention_norm": ("input_layernorm",),
            "feed_forward_norm": ("post_attention_layernorm",),
            "self_attention.project.linear": tuple(f"self_attn.{part}_proj" for part in "qkv"),
            "self_attention.output": ("self_attn.o_proj",),
            "feed_forward.inner": ("mlp.gate_proj", "mlp.up_proj"),
            "feed_forward.outer": ("mlp.down_proj",),
        }
        found |= {f"layers.{i}.{own}.weight": together(*names) for own, names in parts.items()}
    return found
