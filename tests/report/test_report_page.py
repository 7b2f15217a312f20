import json
import re
import subprocess
import sys
from collections import defaultdict

import pytest
from drawn import section, words
from hostile import EVIL, EVIL_LANGUAGE
from page_reader import Page
from report_builders import VARIANTS, changed

from schemas.errors import ConfigError
from schemas.results import Answer, PairedRun
from tests.orders import comparing, run_job
from transformer_core.common.digests import NAME, forget
from transformer_core.common.endings import STUDY_OPTIONS
from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import FIGURES, SECTIONS
from transformer_core.report.page import write_page
from transformer_core.report.sections.answer import read_answer
from transformer_core.report.sections.quality import translations

OF_TRANSLATIONS = [section for section in SECTIONS if section.task in (None, "translation")]


def test_page_is_well_formed_and_in_order(page):
    assert page.unbalanced == []
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = [str(a["href"])[1:] for a in page.all("a")]
    assert links
    assert set(links) <= set(ids)
    labels = [a["aria-labelledby"] for _, a in page.elements if a.get("aria-labelledby")]
    assert {name for label in labels for name in str(label).split()} <= set(ids)
    shown = [a["id"] for a in page.all("section")]
    assert shown == [section.name for section in OF_TRANSLATIONS]
    assert len(page.all("h1")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))


def test_page_is_self_contained(html, page):
    assert not {tag for tag, _ in page.elements} & {"img", "link", "iframe", "object"}
    assert page.all("script") == [{}], "one script of its own, inside the page"
    addresses = set(re.findall(r"https?://[^\"'<\s]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in html
    assert not any(key.startswith("on") for _, a in page.elements for key in a)


def test_texts_are_escaped(html, page):
    assert html.count("<script") == 1
    assert "alert(1)</script>" not in html
    sections = ["variants", "equivalence", "limits", "translations", "corpus", "machine", "details"]
    assert [name for name in sections if EVIL not in page.texts[name]] == []
    languages = {attributes.get("lang") for attributes in page.all("dd")}
    assert EVIL_LANGUAGE in languages


def test_percentages_have_one_form(page):
    said = " ".join(page.texts[part.name] for part in OF_TRANSLATIONS)
    assert re.findall(r"\d %", said)
    assert re.findall(r"\S*\d%", said) == []


@pytest.mark.parametrize("part", OF_TRANSLATIONS, ids=lambda part: part.name)
def test_every_section_begins_with_its_answer_and_folds_its_tables(part, html):
    body = html.split(f'<section id="{part.name}"')[1].split("</section>")[0]
    found = re.search(r"</h2>(?:</summary>)?\s*(.*?</p>)", body, re.DOTALL)
    assert found[1].startswith('<p class="answer">')
    assert len(re.sub(r"<[^>]+>", "", found[1]).strip()) > 20
    first = ("answer", "todo", "why", "equivalence", "memory", "tried")
    assert ('<details class="folded whole">' in body) == (part.name not in first)
    folded = 0
    for tag in re.findall(r"<details|</details|<table", body):
        folded += {"<details": 1, "</details": -1}.get(tag, 0)
        assert folded or tag != "<table"


def test_the_command_that_trains_and_open_questions_are_on_the_page_once(page):
    said = " ".join(page.texts[part.name] for part in OF_TRANSLATIONS)
    for once in ("python -m transformer_core.training --spec", "More time settles"):
        assert said.count(once) == page.texts["answer"].count(once) == 1


def test_rows_of_variants(page):
    row = page.row("amp_bf16")
    assert (row[1], row[4]) == ("ok", "equivalent")
    assert re.fullmatch(r"\d+ \[\d+, \d+\]", row[2])
    assert re.fullmatch(r"1\.62× \[1\.[\d., ]+\] FASTER", row[3])
    assert re.fullmatch(r"[\d.]+ (s|min)", row[5])
    assert row[6:10] == ["2.375", "31.4", "345 MiB", "2.9 %"]
    assert page.row("single")[3] == "baseline"
    _, status, *rest = page.row("ddp")  # it did not run
    assert status.startswith("unsupported")
    assert EVIL in status
    assert rest == ["–", "–", "unsupported"] + ["–"] * 6
    # Those of another model have no speed-up.
    _, _, _, ratio, certificate, *_ = page.row("forgetful")
    assert re.fullmatch(r"2\.10× \[[\d., ]+\]no speed-up: not equivalent", ratio)
    assert certificate == "not equivalent"
    _, _, _, ratio, certificate, *_ = page.row("sgd")
    assert ratio.endswith("no speed-up: different model")
    assert certificate == "different"


def test_summary_claims_only_what_the_intervals_support(page):
    text = page.texts["tried"]
    assert "ran to the end: 6 of 7." in text
    assert re.search(r"Faster: amp_bf16 reached 1\.62× \[[\d., ]+\] the throughput of single", text)
    assert "Slower: accum4_sync (bundle of 2 changes) 0.7" in text
    assert re.search(r"The same: qkv_separate 1\.00\d?× \[0\.9\d+, 1\.0\d+\]\. Its whole", text)
    assert "Undecided" not in text
    assert "Did not finish: ddp (unsupported)" in text
    assert "Not equivalent: forgetful. It does not train the same model" in text
    assert re.search(r"Not the same training: sgd 1\.100?×", text)


def test_a_ratio_without_a_certificate_is_not_called_another_training(results):
    certificates = {
        name: found.model_copy(update={"status": "failed"})
        for name, found in results.certificates.items()
        if found.status == "equivalent"
    }
    comparisons = []
    for each in results.all_comparisons:
        lost = {"certificate": "failed"} if each.certificate == "equivalent" else {}
        comparisons.append(each.model_copy(update={"counts": False} | lost))
    certificates = results.certificates | certificates
    uncertain = changed(results, all_comparisons=comparisons, certificates=certificates)
    text = words("tried", uncertain)
    assert re.search(r"Not the same training: sgd [^,]*, [^,]*\. Such", text)
    assert "Not certified as timed, or the baseline is not: amp_bf16" in text
    others = results.certificates | {"single": certificates["single"]}
    uncertain = changed(results, all_comparisons=comparisons, certificates=others)
    assert "The baseline is not certified, so no ratio" in words("variants", uncertain)


def test_certificates_have_their_deviations(page):
    assert "as the reference: 4 of 7." in page.texts["equivalence"]
    first = next(row for row in page.rows if row[0] == "forgetful" and "loss" in row[3])
    assert first[1:3] == ["tolerance", "not equivalent"]
    assert first[3:7] == ["training loss too far", "1.3e-02", "1.0e-04", "step 2"]
    bf16 = next(row for row in page.rows if row[0] == "amp_bf16" and "final loss" in row[3])
    assert bf16[1:4] == ["statistical", "equivalent", "smoothed final loss"]
    assert "training loss off by 1.3e-02 (step 2)" in page.texts["variant-forgetful"]


def test_commands_name_the_study_that_was_run(results, monkeypatch):
    monkeypatch.setenv(STUDY_OPTIONS, "--configfile=mine.yaml")
    command = "metrics.json --configfile=mine.yaml --forcerun train train_again"
    assert command in section("details", results).striptags()
    assert command in section("techniques", results)
    assert read_answer(results).commands.reproduce.endswith("--configfile=mine.yaml --forceall")


def test_details_are_enough_to_repeat_a_run(page):
    text = page.texts["variant-accum4_sync"]
    for shown in (
        # Without the last option, Snakemake would find nothing to do.
        "snakemake --cores all results/runs/accum4_sync/metrics.json --forcerun train train_again",
        *('"synchronise": "every"', "gloo", "bucket_bytes", "abc1234", "torch 2.13.0"),
        *("2; hosts: 1; threads each: 1", "python -m example --variant accum4_sync"),
    ):
        assert shown in text
    rows = [row for row in page.rows if "2024-05-06T07:08:09Z" in row]
    assert len(rows) == 2 * len(VARIANTS)


def test_every_comparison_has_a_verdict_on_each_quantity(page):
    found = {row[0]: row[1:] for row in page.rows if len(row) == 5 and row[1] == "single"}
    assert found["accum4_sync"][1].endswith("SLOWER")
    assert found["accum4_sync"][2] == "1.014× [1.014, 1.014] SAME"
    assert "is not counted" in found["accum4_sync"][3]
    assert found["qkv_separate"][3] == "– SAMEneither has any traffic between processes"
    assert found["ddp"][1].startswith("–ddp ended unsupported: needs 2 GPUs")


def test_nothing_is_faster_after_one_session(copied):
    for path in copied.glob("turns/single/1/*/single.json"):
        run = PairedRun.model_validate_json(path.read_text())
        path.write_text(run.model_copy(update={"sessions": run.sessions[:1]}).model_dump_json())
    assert run_job("compare", output=copied / "comparisons.json", **comparing(copied)) == 0
    text = words("tried", StudyResults(copied))
    assert "No variant is shown to be faster than single" in text
    assert "Undecided: amp_bf16 1.62×" in text
    assert "Faster:" not in text
    table = section("variants", StudyResults(copied))
    assert "UNDECIDED" in Page(table).row("amp_bf16")[3]
    assert "FASTER" not in table


def test_page_and_brief_name_every_gpu_if_any_variant_used_it(written):
    """Otherwise the host's CPU trained them all."""
    path, run = written / "machine/hardware.json", written / "runs/single/metrics.json"
    hardware, single = json.loads(path.read_text()), json.loads(run.read_text())
    assert read_answer(StudyResults(written)).machine == hardware["cpu"]
    path.write_text(json.dumps(hardware | {"gpus": 2 * hardware["gpus"]}))
    for repeat in single["repeats"]:
        repeat["topology"]["device"] = "cuda"
    run.write_text(json.dumps(single))
    for each in (path, run):
        forget(each)
    write_page(StudyResults(written))
    assert "7 variants on 2 × Example GPU." in (written / "report.html").read_text()
    assert "Study `example` on 2 × Example GPU," in (written / "report.md").read_text()


def test_equal_translations_are_grouped(results):
    first, second = translations(results).values()
    everybody = ["single", "amp_bf16", "qkv_separate", "accum4_sync", "sgd", "forgetful"]
    assert {text: [*names] for text, names in first.items()} == {"Ein Hund .": everybody}
    assert [*second["Der Lehrer sieht ein Haus."]] == ["amp_bf16"]


def test_study_without_a_number_has_a_page(empty_report):
    page = Page((empty_report / "report.html").read_text(encoding="utf-8"))
    assert page.unbalanced == []
    answer = Answer.model_validate_json((empty_report / "summary.json").read_text())
    assert answer.format == 1
    assert all(variant.speedup is None for variant in answer.variants)
    assert "ran to the end: 0 of 7." in page.texts["tried"]
    assert "this machine or this study lacks" in page.texts["limits"]
    assert "Faster:" not in page.texts["tried"]
    for name in VARIANTS:
        assert set(page.row(name)[2:]) <= {"–", "baseline", "unsupported", "different"}


@pytest.mark.slow
def test_pages_need_no_torch():
    names = "transformer_core.report.page, transformer_core.report.tune_page"
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_figure_is_named(results):
    with pytest.raises(ConfigError, match=rf"{next(iter(FIGURES))}\.svg"):
        write_page(results)
    assert not (results.folder / "report.html").exists()


RATIO = re.compile(r'<data value="([^"]+)" title="[^"]*">[\d.,]+×</data>')
VALUE = re.compile(r'<data value="([^"]+)"')


def rows(part: str) -> list[tuple[str, list[str]]]:
    """Variant and cells of every row of a table that is about one."""
    found = []
    for row in re.findall(r"<tr.*?</tr>", part, re.DOTALL):
        cells = re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)
        name = re.search(r'href="#variant-(\w+)"', cells[0])
        if name:
            found.append((name[1], cells))
    return found


def test_throughputs_are_to_each_other_as_the_ratios_say(results):
    table = section("variants", results).split('id="comparisons-caption"')[0]
    speeds, ratios = {}, {}
    for name, cells in rows(table):
        if found := VALUE.search(cells[2]):
            speeds[name] = float(found[1])
        if found := RATIO.search(cells[3]):
            ratios[name] = float(found[1])
    assert len(ratios) >= 5
    for name, ratio in ratios.items():
        assert speeds[name] / speeds["single"] == pytest.approx(ratio, rel=1e-6), name


def test_a_ratio_to_the_baseline_is_the_same_everywhere(results):
    said: dict[str, set[str]] = defaultdict(set)
    for name in ("variants", "techniques"):
        for variant, cells in rows(section(name, results)):
            against = [c for c in cells[1:3] if "#variant-" in c]
            if not against or "#variant-single" in against[0]:
                shown = [found[1] for cell in cells[2:4] if (found := RATIO.search(cell))]
                said[variant] |= set(shown[:1])
    in_sentence = r'href="#variant-(\w+)"><code>\w+</code></a> (?:ran at )?<data value="([^"]+)"'
    for variant, ratio in re.findall(in_sentence, section("tried", results)):
        said[variant].add(ratio)
    assert len(said) >= 5
    assert {name: values for name, values in said.items() if len(values) > 1} == {}


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("comparisons.json", ("amp_bf16", "amp_other")),
        ("comparisons.json", ('"quantity": "traffic"', '"quantity": "throughput"')),
        ("memory/predicted.json", ("amp_bf16", "amp_other")),
        ("utilisation.json", ("amp_bf16", "amp_other")),
        ("search.json", ("amp_bf16", "amp_other")),
        ("search.json", ('"baseline": "single"', '"baseline": "ddp"')),
        ("study.json", ('"baseline": "single"', '"baseline": "amp_bf16"')),
        ("runs/amp_bf16/metrics.json", ("amp_bf16", "amp_other")),
        ("equivalence/amp_bf16.json", ("amp_bf16", "amp_other")),
        ("turns/single/1/amp_bf16/single.json", ("amp_bf16", "amp_other")),
    ],
)
def test_a_result_that_does_not_fit_the_study_is_refused_by_name(written, file, wrong):
    """Without a digest, any contents of the right form are read."""
    for digests in written.rglob(NAME):
        digests.unlink()
    path = written / file
    text = json.dumps(json.loads(path.read_text()))
    assert wrong[0] in text
    path.write_text(text.replace(*wrong))
    with pytest.raises(ConfigError, match=rf"(?s){file}.*snakemake .*{file}"):
        write_page(StudyResults(written))
