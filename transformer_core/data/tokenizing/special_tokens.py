"""The special tokens, which have the same ids in every vocabulary."""

PAD = 0  # fills the rows of a batch up to the longest
BOS = 1  # begins the decoder's input
EOS = 2  # ends a source sentence and a target sentence
UNK = 3  # stands for text without a token; byte-level vocabularies never need it
SPECIAL_NAMES = ("<pad>", "<s>", "</s>", "<unk>")  # names of the special tokens, by id
