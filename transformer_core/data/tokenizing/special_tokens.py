"""The special tokens, which have the same ids in every vocabulary."""

PAD = 0  # pads the rows of a batch to equal length
BOS = 1  # begins the decoder's input
EOS = 2  # ends every source and target sentence
UNK = 3  # replaces text without a token; byte-level vocabularies never need it
SPECIAL_NAMES = ("<pad>", "<s>", "</s>", "<unk>")  # names of the special tokens, by id
