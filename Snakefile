# One study file in, one report out.
#   snakemake --cores all results/report.html
#   snakemake --cores all results/report.html --configfile config/studies/multi30k.yaml
import gc
import sys

from snakemake.utils import min_version

min_version("9.0")
# Loading modules and rules leaves no garbage; collecting it over and over would take half a second.
gc.disable()


# Jobs run in Snakemake's own Python environment, also with --software-deployment-method apptainer. Only
# --lint asks for an image.
if "--lint" in sys.argv:

    container: "docker://python:3.12-slim"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/machine.smk"
include: "workflow/rules/memory.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/equivalence.smk"
include: "workflow/rules/profiles.smk"
include: "workflow/rules/comparisons.smk"
include: "workflow/rules/self_test.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/script.smk"
include: "workflow/rules/links.smk"
include: "workflow/rules/projection.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/gpu_check.smk"


gc.freeze()
gc.enable()


# Jobs of a second are not worth a place in a cluster's queue.
localrules:
    all,
    resolve_spec,
    short_spec,
    describe_study,
    certify,
    certificates,
    combine,
    compare,
    families,
    claims,
    utilisation,
    link_trial_specs,
    link_error,
    projection,
    page,
    against,
    compare_page,
    gpu_checks,
    gpu_check_page,
    self_test,


# Without a search, the job only says so.
if STUDY.search is None:

    localrules:
        search,


rule all:
    default_target: True
    input:
        own_targets(STUDY) or "results/report.html",
