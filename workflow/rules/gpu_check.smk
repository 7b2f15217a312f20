# checks that need a GPU, and an ordinary study on it -> one page of the results

GPU_CHECKED = [
    *expand(
        "results/runs/{variant}/repeat-1/metrics.json",
        variant=["single", "tf32", "amp_fp16", "amp_bf16"],
    ),
    "results/comparisons.json",
    *TIMED,
    "results/memory/predicted.json",
    *expand("results/memory/largest_batch/{variant}.json", variant=SEARCHED),
    "results/profiles/amp_bf16/capture.json",
    "results/machine/roofline.json",
]


# Of this check itself.
FOUND_OUT = expand("results/gpu_check/{name}.json", name=["device", "tests", "attention"])


rule gpu_tests:
    output:
        "results/gpu_check/tests.json",
    log:
        "results/logs/gpu_tests.log",
    priority: 2
    threads: CORES
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
        timed=1,
    params:
        **job("gpu_tests"),
    message:
        "Run the tests that need a GPU"
    shell:
        JOB


use rule gpu_tests as attention_truth with:
    output:
        "results/gpu_check/attention.json",
    log:
        "results/logs/attention_truth.log",
    priority: 3
    params:
        **job("attention_truth"),
    message:
        "Check the attention kernels"


use rule gpu_tests as device_facts with:
    output:
        "results/gpu_check/device.json",
    log:
        "results/logs/device_facts.log",
    # Cheap facts first: access to a borrowed GPU may end at any time.
    priority: 4
    params:
        **job("device_facts"),
    message:
        "Check NVML, NCCL and the compiler"


rule gpu_checks:
    input:
        GPU_CHECKED,
        FOUND_OUT,
    output:
        "results/gpu_check/checks.json",
    log:
        "results/logs/gpu_checks.log",
    params:
        **job("gpu_checks"),
    message:
        "Check the findings against expectations"
    shell:
        JOB


rule gpu_check_page:
    input:
        "results/gpu_check/checks.json",
        FOUND_OUT,
    output:
        "results/gpu_check/report.html",
    log:
        "results/logs/gpu_check_page.log",
    params:
        **job("gpu_check_page"),
    message:
        "Write the page: results/gpu_check/report.html"
    shell:
        JOB


# The same page from the existing results, if the check did not finish.
rule gpu_check_so_far:
    output:
        "results/gpu_check/so_far.html",
    log:
        "results/logs/gpu_check_so_far.log",
    params:
        **job("gpu_check_so_far"),
    message:
        "Write the page of the existing results: results/gpu_check/so_far.html"
    shell:
        JOB
