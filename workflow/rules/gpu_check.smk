# checks that need a GPU, and an ordinary study on it -> one page of the results

GPU_TESTS = ["model", "train", "data", "measure", "parallel", "profiling"]
GPU_CHECKED = {
    "runs": expand(
        "results/runs/{variant}/repeat-1/metrics.json",
        variant=["single", "tf32", "amp_fp16", "amp_bf16"],
    ),
    "comparisons": "results/comparisons.json",
    "timed": TIMED,
    "memory": [
        "results/memory/predicted.json",
        *expand("results/memory/largest_batch/{variant}.json", variant=SEARCHED),
    ],
    "profile": "results/profiles/amp_bf16/capture.json",
    "roofline": "results/machine/roofline.json",
}


rule gpu_tests:
    output:
        "results/gpu_check/tests.json",
    log:
        "results/logs/gpu_tests.log",
    threads: workflow.cores
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
        timed=1,
    params:
        code=CODE["gpu_tests"],
        asked=asked(GPU_TESTS),
        order=lambda wildcards, output: order("gpu_tests", folders=GPU_TESTS, output=output[0]),
    message:
        "Run the tests that need a GPU"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule attention_truth:
    output:
        "results/gpu_check/attention.json",
    log:
        "results/logs/attention_truth.log",
    threads: workflow.cores
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
        timed=1,
    params:
        code=CODE["attention_truth"],
        order=lambda wildcards, output: order("attention_truth", output=output[0]),
    message:
        "Check the attention kernels"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule device_facts:
    output:
        "results/gpu_check/device.json",
    log:
        "results/logs/device_facts.log",
    threads: workflow.cores
    resources:
        **needs(lambda wildcards: [ONE_DEVICE]),
        timed=1,
    params:
        code=CODE["device_facts"],
        order=lambda wildcards, output: order("device_facts", output=output[0]),
    message:
        "Check NVML, NCCL and the compiler"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule gpu_checks:
    input:
        **GPU_CHECKED,
        device="results/gpu_check/device.json",
        tests="results/gpu_check/tests.json",
        attention="results/gpu_check/attention.json",
    output:
        "results/gpu_check/checks.json",
    log:
        "results/logs/gpu_checks.log",
    params:
        code=CODE["gpu_checks"],
        order=lambda wildcards, output: order("gpu_checks", output=output[0]),
    message:
        "Check the findings against expectations"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"


rule gpu_check_page:
    input:
        checks="results/gpu_check/checks.json",
        device="results/gpu_check/device.json",
        tests="results/gpu_check/tests.json",
        attention="results/gpu_check/attention.json",
    output:
        "results/gpu_check/report.html",
    log:
        "results/logs/gpu_check_page.log",
    params:
        code=CODE["gpu_check_page"],
        order=lambda wildcards, input, output: order(
            "gpu_check_page", **dict(input.items()), output=output[0]
        ),
    message:
        "Write the page: results/gpu_check/report.html"
    shell:
        "python -m transformer_core.run.job --order {params.order:q} --log-file {log}"
