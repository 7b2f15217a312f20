"""Models: layers, attention, projections, loss and decoding.

:func:`transformer_core.models.registry.build_model` builds a model from its schema. Encoder-decoders
implement the interfaces of :mod:`transformer_core.models.interface`; language models are
a :class:`transformer_core.models.decoding.LanguageModel`.

We write shapes as ``[b, t, d]``: b sentences, s source tokens, t target tokens, h heads, d elements
of the residual stream, k = d / h elements of a head, v tokens of the vocabulary.
"""
