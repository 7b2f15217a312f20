"""The encoder-decoder: layers, attention, projections, loss and decoding.

:func:`transformer_core.models.registry.build_model` makes a model from its schema; every model
follows :class:`transformer_core.models.interface.Model`.

Shapes are written ``[b, t, d]``: b sentences, s source tokens, t target tokens, h heads, d elements
of the residual stream, k = d / h elements of a head, v tokens of the vocabulary.
"""
