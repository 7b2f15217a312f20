"""From a study to a DAG: resolving variants, rules across sections, jobs, targets, comparisons."""
