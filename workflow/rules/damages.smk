# a finished study, damaged on purpose, and a small one that is killed -> who notices


rule fault_damages:
    input:
        "results/report.html",
    output:
        "results/faults/damages.json",
    log:
        "results/logs/fault_damages.log",
    params:
        code=CODE["fault_damages"],
    message:
        "Damage results in a copy"
    shell:
        "python -m transformer_core.faults.damages.job --results results --output {output}"
        " 2>&1 | tee {log}"


rule fault_system_calls:
    input:
        "results/report.html",
    output:
        "results/faults/system_calls.json",
    log:
        "results/logs/fault_system_calls.log",
    params:
        code=CODE["fault_system_calls"],
    message:
        "Let calls of the system fail"
    shell:
        "python -m transformer_core.faults.system_calls.job --results results --output {output}"
        " 2>&1 | tee {log}"


# Ten kills take some five minutes, a hundred an hour: for a night. Where this is killed itself it
# goes on, and a hundred go on from ten.
rule fault_kills:
    output:
        "results/faults/kills_{moments}.json",
    log:
        "results/logs/fault_kills_{moments}.log",
    wildcard_constraints:
        moments=r"[1-9]\d{0,3}",
    threads: CORES
    params:
        code=CODE["fault_kills"],
    message:
        "Kill a small study at {wildcards.moments} moments"
    shell:
        "python -m transformer_core.faults.kills.job --moments {wildcards.moments}"
        " --folder results/faults/kills --output {output} 2>&1 | tee {log}"
