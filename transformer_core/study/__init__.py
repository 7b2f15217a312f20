"""From a study to a DAG: resolving variants, checks across sections, jobs, targets, comparisons."""
