"""Converts existing tokenizers to the special tokens of this project.

The tokens keep their order after padding, begin, end and unknown. A tokenizer's settings for ends,
truncation and padding are dropped, since batches handle these.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from schemas.config.data import SentencePieceModel, TokenizerFile
from transformer_core.data.corpus.lines import check_regular
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.tokenizing.special_tokens import SPECIAL_NAMES, UNK

_MARK = "\ufdd0\ufdd1"
"""Suffix of the names of special tokens for models that would find the plain names in text: two
noncharacters, which Unicode bars from text for interchange."""
_HIGHEST = 1 << 24  # highest token id of a usable tokenizer

Spell = Callable[[list[str]], list[list[str | None]]]
"""Returns the tokens of each text as strings, None for unknown ones."""


def convert(settings: TokenizerFile | SentencePieceModel) -> tuple[Tokenizer, Spell]:
    """Returns the tokenizer that ``settings`` names, and the original's way to spell texts, for
    comparison. Raises CorpusError if it is unusable.
    """
    path = Path(settings.path)
    if settings.kind == "sentencepiece":
        source = read_sentencepiece(path)
        spell = _sentencepiece_spell(path)
    else:
        source = read_file(path)
        source.encode_special_tokens = True
        source.no_truncation()
        source.no_padding()
        spell = speller(source, _unknown(json.loads(source.to_str())["model"]))
    converted = with_special_tokens(source, path)
    if converted.get_vocab_size() != settings.vocabulary:
        raise CorpusError(
            f"has {converted.get_vocab_size()} tokens including the special ones, but "
            f"tokenizer.vocabulary is {settings.vocabulary}",
            file=path,
            remedy=f"set tokenizer.vocabulary: {converted.get_vocab_size()}",
        )
    return converted, spell


def speller(tokenizer: Tokenizer, unknown: str | None) -> Spell:
    number = None if unknown is None else tokenizer.token_to_id(unknown)

    def spell(texts: list[str]) -> list[list[str | None]]:
        return [
            [None if token == number else tokenizer.id_to_token(token) for token in encoding.ids]
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]

    return spell


def _sentencepiece_spell(path: Path) -> Spell:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def spell(texts: list[str]) -> list[list[str | None]]:
        return [
            [None if processor.is_unknown(n) else processor.id_to_piece(n) for n in numbers]
            for numbers in processor.encode(texts)
        ]

    return spell


def special_names(tokenizer: Tokenizer) -> list[str] | None:
    """Returns the tokens 0 to 3 if they are this project's special tokens, otherwise None."""
    found = [tokenizer.id_to_token(number) or "" for number in range(len(SPECIAL_NAMES))]
    plain = tuple(name.removesuffix(_MARK) for name in found)
    return found if plain == SPECIAL_NAMES else None


def read_file(path: Path) -> Tokenizer:
    """Reads a tokenizer.json; CorpusError if it is not one."""
    check_regular(path)
    remedy = "give the path of a tokenizer.json of the tokenizers library"
    try:
        found = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception on a damaged file
        raise CorpusError(f"is not a tokenizer ({error})", file=path, remedy=remedy) from None
    highest = max(found.get_vocab().values(), default=0)
    if highest > _HIGHEST:
        # The library loops over all ids up to the highest, used or not.
        message = f"has a token with the id {highest:,}; ids up to {_HIGHEST:,} are supported"
        raise CorpusError(message, file=path, remedy=remedy)
    return found


def with_special_tokens(source: Tokenizer, path: Path) -> Tokenizer:
    """Returns the same tokenizer with this project's special tokens as the ids 0 to 3.

    The original's special tokens, which never occur in encoded text, are dropped; its unknown token
    becomes ours.
    """
    settings = json.loads(source.to_str())
    model = settings["model"]
    tokens = _in_order(model, path)
    # BPE only merges pairs, but other models look up whole words and would find <s> in a text.
    mark = "" if model["type"] == "BPE" and not model.get("ignore_merges") else _MARK
    names = [name + mark for name in SPECIAL_NAMES]
    dropped = {token["content"] for token in settings["added_tokens"] if token["special"]}
    dropped |= {_unknown(model), *SPECIAL_NAMES, *names}
    kept = [token for token in tokens if token not in dropped]
    numbered = [*names, *kept]
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        lowest = min(scores.values(), default=0.0)
        model["vocab"] = [[token, scores.get(token, lowest)] for token in numbered]
        model["unk_id"] = UNK
    else:
        model["vocab"] = {token: number for number, token in enumerate(numbered)}
        if model.get("unk_token") is not None:
            model["unk_token"] = names[UNK]
    if model["type"] == "BPE":
        # Older files store both sides in one string.
        merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        prefix = len(model.get("continuing_subword_prefix") or "")
        # No merge may take or make a token that is dropped, or whose name is one of ours.
        model["merges"] = [
            [left, right]
            for left, right in merges
            if not dropped & {left, right, left + right[prefix:]}
        ]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    settings["added_tokens"] = [
        *({"id": n, "content": name, "special": True} | plain for n, name in enumerate(names)),
        *(token for token in settings["added_tokens"] if not token["special"]),
    ]
    settings |= {"post_processor": None, "truncation": None, "padding": None}
    converted = Tokenizer.from_str(json.dumps(settings))
    converted.encode_special_tokens = True
    return converted


def _in_order(model: dict[str, Any], path: Path) -> list[str]:
    match model["type"]:
        case "Unigram":
            return [token for token, _ in model["vocab"]]
        case "BPE" | "WordPiece" | "WordLevel":
            return sorted(model["vocab"], key=model["vocab"].__getitem__)
        case other:
            raise CorpusError(
                f"is a model of type {other}",
                file=path,
                remedy="use a model of type BPE, Unigram, WordPiece or WordLevel",
            )


def _unknown(model: dict[str, Any]) -> str | None:
    if model["type"] == "Unigram":
        number = model["unk_id"]
        return None if number is None else model["vocab"][number][0]
    return model.get("unk_token")


def read_sentencepiece(path: Path) -> Tokenizer:
    """Converts a SentencePiece model; CorpusError if the file is not one, or its type is missing
    from the tokenizers library."""
    proto = _read_proto(path)
    pieces = proto.pieces
    kind = type(pieces[0])
    unknown = next((n for n, piece in enumerate(pieces) if piece.type == kind.UNKNOWN), None)
    byte_fallback = any(piece.type == kind.BYTE for piece in pieces)
    usable = {kind.NORMAL, kind.USER_DEFINED, kind.BYTE, kind.UNKNOWN}
    vocabulary = [(piece.piece, piece.score) for piece in pieces if piece.type in usable]
    numbers = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    unknown_piece = None if unknown is None else pieces[unknown].piece
    model: models.Model
    match proto.trainer_spec.model_type:
        case proto.trainer_spec.UNIGRAM:
            model = models.Unigram(
                vocabulary,
                unk_id=None if unknown_piece is None else numbers[unknown_piece],
                byte_fallback=byte_fallback,
            )
        case proto.trainer_spec.BPE:
            model = models.BPE(
                numbers,
                _merges(vocabulary, numbers),
                unk_token=unknown_piece,
                fuse_unk=True,
                byte_fallback=byte_fallback,
            )
        case _:
            raise CorpusError(
                "is a SentencePiece model of words or characters",
                file=path,
                remedy="use a model of type unigram or bpe",
            )
    tokenizer = Tokenizer(model)
    _set_spaces(tokenizer, proto)
    own = [piece.piece for piece in pieces if piece.type == kind.USER_DEFINED]
    if any("▁" in piece for piece in own):
        raise CorpusError(
            f"has symbols with spaces ({', '.join(own)})", file=path, remedy="train it without them"
        )
    tokenizer.add_tokens(own)
    return tokenizer


def _read_proto(path: Path) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2 as schema
    except ImportError as error:
        raise CorpusError(
            f"cannot be read without the package sentencepiece ({error})",
            file=path,
            remedy='pip install -c constraints.txt -e ".[sentencepiece]"',
        ) from None
    from google.protobuf.message import DecodeError

    check_regular(path)
    proto: Any = schema.ModelProto()  # type: ignore[attr-defined]
    try:
        proto.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise CorpusError(
            f"is not a SentencePiece model ({error})", file=path, remedy="give the path of a .model"
        ) from None
    if not proto.pieces:
        raise CorpusError("holds no pieces", file=path, remedy="give the path of a .model")
    return proto


def _merges(
    vocabulary: Sequence[tuple[str, float]], numbers: dict[str, int]
) -> list[tuple[str, str]]:
    """The pairs that form pieces, highest score first: the order in which SentencePiece merges."""
    found = []
    for piece, score in vocabulary:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in numbers and right in numbers:
                found.append((-score, numbers[left], numbers[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _set_spaces(tokenizer: Tokenizer, proto: Any) -> None:
    rules = proto.normalizer_spec
    stages: list[Any] = []
    if rules.precompiled_charsmap:
        stages.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        stages += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if stages:
        tokenizer.normalizer = normalizers.Sequence(stages)
    scheme = "always" if rules.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme), decoders.Fuse()]
    )
