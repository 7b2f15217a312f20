"""The fastest combination of techniques on this machine that trains the same model.

    python -m transformer_core.decide.search.job --study study.json --variants variants.json \
        --comparisons comparisons.json --certificates equivalence/*.json \
        --reference equivalence/trajectories/reference --data data/<corpus> \
        --output search.json --recommended recommended.yaml

Single effects do not multiply: a technique may pay only beside another, or not at all once another
has taken what there was to gain. So combinations themselves are measured, by successive halving
(Karnin, Koren and Somekh, Almost Optimal Exploration in Multi-Armed Bandits, 2013; Jamieson and
Talwalkar, arXiv 1502.07943): all take turns with the baseline, the better half stays, and the next
round measures it in fresh processes with twice the turns. Which combinations enter is decided by
the product of the single effects; so the best one is then measured without each of its techniques,
and what it is faster without is left out. The best one whose certificate holds is compared with the
baseline anew, stage by stage: the rounds that it won are no evidence, because it won them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.config.study import Study
from schemas.config.variants import Variant
from schemas.errors import ConfigError
from schemas.results import Certificate, Comparison
from transformer_core.common.endings import program
from transformer_core.common.progress import log_to
from transformer_core.common.records import read_as, read_record
from transformer_core.common.reproducing import reproducing_command
from transformer_core.common.seals import write_sealed
from transformer_core.decide.search.combinations_search import search
from transformer_core.decide.search.recommended import recommended_yaml
from transformer_core.run.folder_locks import workplace
from transformer_core.run.supervisor import end_on_request


@program
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_core.decide.search.job",
        description="Find the fastest combination of techniques that trains the same model.",
    )
    parser.add_argument("--study", type=Path, required=True, help="the study as JSON")
    parser.add_argument("--variants", type=Path, required=True, help="its variants as JSON")
    parser.add_argument("--comparisons", type=Path, required=True, help="comparisons.json")
    parser.add_argument(
        "--certificates", type=Path, required=True, nargs="+", help="certificate of every variant"
    )
    parser.add_argument(
        "--reference", type=Path, required=True, help="folder of the short run of the reference"
    )
    parser.add_argument("--data", type=Path, required=True, help="results/data/<corpus>")
    parser.add_argument("--output", type=Path, required=True, help="search.json")
    parser.add_argument("--recommended", type=Path, required=True, help="the run spec as YAML")
    parser.add_argument("--log-file", type=Path, help="file for plain log lines")
    options = parser.parse_args(arguments)
    log_to(options.log_file)
    end_on_request()
    folder = options.output.with_suffix("")
    try:
        study = read_record(options.study, Study)
        variants: dict[str, Variant] = read_as(options.variants, dict[str, Variant])
        comparisons: list[Comparison] = read_as(options.comparisons, list[Comparison])
        read = [read_record(file, Certificate) for file in options.certificates]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    with workplace(folder):
        result = search(
            study,
            variants,
            comparisons,
            {certificate.variant: certificate for certificate in read},
            options.reference,
            options.data,
            folder,
            reproducing_command(options.output),
        )
        write_sealed(options.recommended, recommended_yaml(result))
        write_sealed(options.output, result.model_dump_json(indent=1) + "\n")
    print(f"recommended: {' + '.join(result.parts) or result.baseline} ({result.reason})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
