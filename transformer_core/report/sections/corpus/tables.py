"""The table of the corpus."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row


def corpus(results: StudyResults) -> list[Row]:
    """A row per split."""
    rows: list[Row] = []
    for name, split in results.splits.items():
        manifest = results.manifests[name]
        rows.append(
            {
                "corpus": split.corpus,
                "split": name,
                "pairs_read": split.pairs_read,
                "pairs_kept": split.pairs_kept,
                "skipped_empty": split.skipped.get("empty", 0),
                "skipped_invalid": split.skipped.get("invalid", 0),
                "skipped_too_many_characters": split.skipped.get("too_long", 0),
                "skipped_too_many_tokens": manifest.skipped_too_long,
                "pairs": manifest.pairs,
                "source_tokens": manifest.source_tokens,
                "target_tokens": manifest.target_tokens,
                "vocabulary": manifest.vocabulary,
            }
        )
    return rows
