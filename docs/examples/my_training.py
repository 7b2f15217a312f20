"""The training of byte_gpt.py as a study takes it: docs/own-training.md."""

from docs.examples import byte_gpt


def build(rank, world_size, seed, file=byte_gpt.__file__, width=byte_gpt.WIDTH):
    model = byte_gpt.GPT(width=width)

    def batches():
        # Each rank takes its rows of the same global batch.
        for x, y in byte_gpt.batches(byte_gpt.read(file), seed):
            yield x[rank::world_size], y[rank::world_size]

    return {
        "module": model,
        "batches": batches(),
        "loss": byte_gpt.loss_of,
        "optimizer": byte_gpt.optimizer_of,
        "clip_norm": 1.0,
    }
