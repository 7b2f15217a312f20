"""No recomputation: activations that the script checkpoints are kept, where memory allows."""

from typing import TYPE_CHECKING, Any

from transformer_core.tune.techniques.technique import Technique

if TYPE_CHECKING:
    from transformer_core.tune.facts import Watch


class KeptActivations(Technique):
    name = "kept_activations"
    words = "activations kept instead of computed again"
    group = "recomputation"
    rounding = "float32"

    def obstacle(self, facts: dict[str, Any]) -> str | None:
        if not facts["counts"].get("checkpoint"):
            return "the script recomputes nothing"
        return None

    def prepare(self, watch: "Watch") -> None:
        import torch

        own = {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state"}

        def kept(function: Any, *args: Any, **kwargs: Any) -> Any:
            watch.counts["kept"] += 1
            return function(*args, **{k: v for k, v in kwargs.items() if k not in own})

        torch.utils.checkpoint.checkpoint = kept

    def without_effect(self, watch: "Watch") -> str | None:
        return None if watch.counts["kept"] else "the script recomputes by other means"

    def lines(self, facts: dict[str, Any]) -> list[str]:
        return ["Call the blocks directly, not through torch.utils.checkpoint."]


ALL = [KeptActivations()]
