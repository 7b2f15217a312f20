# The machine, read inside a job: the head node of a cluster is another one.


rule hardware:
    input:
        code=sources("transformer_core.measure.hardware"),
    output:
        "results/machine/hardware.json",
    log:
        "results/logs/hardware.log",
    message:
        "Describe the machine"
    shell:
        "python -m transformer_core.measure.hardware --output {output} 2>&1 | tee {log}"
