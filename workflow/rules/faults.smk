# planted faults and healthy variants of a tiny training -> what certificates say of them

GARDEN = sorted(map(str, Path(workflow.basedir, "tests/faults").rglob("*.py")))


rule faults:
    input:
        GARDEN,
    output:
        report="results/faults/certificates.json",
        table="results/faults/certificates.md",
    log:
        "results/logs/faults.log",
    params:
        certificates=CODE["short_run"] + CODE["certify"],
    message:
        "Plant faults, and ask for certificates"
    shell:
        # It fails where a fault is missed that should be seen; the report is there all the same.
        "python -m tests.faults.tending --output {output.report} --table {output.table} 2>&1 | tee {log}"


rule healthy:
    input:
        GARDEN,
    output:
        "results/faults/healthy.json",
    log:
        "results/logs/healthy.log",
    params:
        certificates=CODE["short_run"] + CODE["certify"],
    message:
        "Certify 340 healthy variants of tiny trainings"
    shell:
        # Some of them take two threads, which must not spin while they wait for a core.
        "OMP_WAIT_POLICY=PASSIVE python -m tests.faults.healthy --output {output} 2>&1 | tee {log}"


# The records of the harnesses that the report joins.
FAULT_RECORDS = [
    f"results/faults/{harness}.json"
    for harness in ("configs", "damages", "system_calls", "kills_10")
]


rule fault_configs:
    output:
        "results/faults/configs.json",
    log:
        "results/logs/fault_configs.log",
    params:
        code=CODE["fault_configs"],
        config=f"{workflow.basedir}/config",
    message:
        "Try bad study files"
    shell:
        "python -m transformer_core.faults.configs.job --config {params.config:q} --output {output}"
        " 2>&1 | tee {log}"


rule fault_report:
    input:
        records=FAULT_RECORDS,
    output:
        "results/faults/report.json",
    log:
        "results/logs/fault_report.log",
    params:
        code=CODE["fault_report"],
    message:
        "Join what the harnesses found"
    shell:
        "python -m transformer_core.faults.job {input.records} --output {output} 2>&1 | tee {log}"


use rule fault_report as fault_report_of_a_night with:
    input:
        records=FAULT_RECORDS[:-1] + ["results/faults/kills_100.json"],
    output:
        "results/faults/nightly.json",
    log:
        "results/logs/fault_report_of_a_night.log",
