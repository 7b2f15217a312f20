"""One manifest for the parts of a split."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from schemas.config.data import Filter
from schemas.results.data import LengthHistogram, ShardManifest
from transformer_core.common.digests import check
from transformer_core.common.endings import remake
from transformer_core.common.job import Job
from transformer_core.common.progress import log
from transformer_core.data.arrays import add_counts
from transformer_core.data.corpus.rows import CorpusError
from transformer_core.data.sharding.shard_store import EXAMPLES, check_any_left, write_manifest


def gather(paths: Sequence[Path], rules: Filter, output: Path) -> ShardManifest:
    """Write the manifest of a split from those of its parts, which lie in folders beside it.

    Raises CorpusError if a part is missing or damaged, or if no pair is left.
    """
    parts = [_read(path) for path in paths]
    first = parts[0]
    manifest = ShardManifest(
        corpus=first.corpus,
        split=first.split,
        pairs=sum(part.pairs for part in parts),
        source_tokens=sum(part.source_tokens for part in parts),
        target_tokens=sum(part.target_tokens for part in parts),
        skipped_too_long=sum(part.skipped_too_long for part in parts),
        examples=[example for part in parts for example in part.examples][:EXAMPLES],
        id_type=first.id_type,
        vocabulary=first.vocabulary,
        tokenizer_sha256=first.tokenizer_sha256,
        lengths=LengthHistogram(
            unit="tokens",
            source=add_counts(part.lengths.source for part in parts),
            target=add_counts(part.lengths.target for part in parts),
        ),
        seconds=sum(part.seconds for part in parts),
        shards=[
            shard.model_copy(
                update={"file": str(path.parent.relative_to(output.parent) / shard.file)}
            )
            for path, part in zip(paths, parts, strict=True)
            for shard in part.shards
        ],
        texts=first.texts
        and first.texts.model_copy(
            update={
                name: sum(getattr(part.texts, name, 0) for part in parts)
                for name in ("texts", "bytes")
            }
        ),
    )
    check_any_left(manifest, output, rules)
    write_manifest(manifest, output, [path.parent for path in paths])
    return manifest


def _read(path: Path) -> ShardManifest:
    try:
        content = path.read_bytes()
        check(path, content)
        return ShardManifest.model_validate_json(content)
    except (OSError, ValidationError) as error:
        message = f"cannot be read ({error})"
        raise CorpusError(message, file=path, remedy=remake(path)) from None


class GatherShards(Job):
    """To write the manifest of a split from the manifests of its parts."""

    kind = "gather_shards"

    filter: Filter
    """filter of the study."""
    parts: list[Path] = Field(min_length=1)
    """manifest.json of each part, in order."""
    output: Path
    """manifest.json to write, above the parts."""

    def run(self, log_file: Path | None) -> None:
        made = gather(self.parts, self.filter, self.output)
        log.info("%s: %s pairs in %d shards", self.output, f"{made.pairs:,}", len(made.shards))
