"""The embedded corpus: a generator of English-German sentence pairs, any number from a seed.

Real grammar, small vocabulary: three genders and cases, adjective endings, agreement, separable and
reflexive verbs, verb-second and verb-final order, two kinds of negation, numbers written the German
way. What English keeps in one place German moves, so that there is something to learn.
"""

from transformer_core.data.grammar.stream import CHUNK, generate, generate_chunk

__all__ = ["CHUNK", "generate", "generate_chunk"]
