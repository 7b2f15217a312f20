import ast
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from drawn import SVG, description, texts
from matplotlib.figure import Figure
from page_reader import page_of
from report_builders import changed

from schemas.errors import ConfigError
from schemas.results import Interval
from transformer_core.common.digests import NAME
from transformer_core.decide.study_results import StudyResults
from transformer_core.report import sections
from transformer_core.report.contents import SECTIONS
from transformer_core.report.kit import svg
from transformer_core.report.kit.drawing import (
    RatioRow,
    in_lines,
    legend_below,
    ratio_points,
    ratio_waterfall,
    rows,
    series,
    shortened,
)
from transformer_core.report.kit.language import NOTHING as UNNAMED
from transformer_core.report.page import FIGURES, draw, draw_all


@pytest.fixture(scope="module")
def drawings(drawing):
    return {name: drawing(name) for name in FIGURES}


def test_every_figure_is_drawn_in_one_section():
    written = "".join(path.read_text() for path in Path(sections.__file__).parent.glob("*.py"))
    assert sorted(re.findall(r"^def draw_(\w+)", written, re.MULTILINE)) == sorted(FIGURES)
    assert len(FIGURES) == sum(len(section.figures) for section in SECTIONS)


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_accessible_and_follows_the_theme(name, drawings):
    root = ElementTree.fromstring(drawings[name])
    shown = [*texts(drawings[name]), description(drawings[name])]
    assert len(shown) > 2, "it shows something"
    assert not [text for text in shown if re.search(r"\d%", text)], "20 %, as on the page"
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    described = [root.find(f"{SVG}title"), root.find(f"{SVG}desc")]
    assert [element.get("id") for element in described if element is not None] == labels
    assert all(element is not None and element.text for element in described)
    for key in ("data-title-ko", "data-description-ko"):
        assert re.search("[가-힣]", root.get(key) or ""), key
    assert svg.INK not in drawings[name]
    assert "currentColor" in drawings[name]
    assert "prefers-color-scheme:dark" in drawings[name]
    assert not re.search(r"fill: #(fff|FFF)", drawings[name])
    assert "date>" not in drawings[name]


def test_identifiers_are_unique_over_all_figures(drawings):
    ids = re.findall(r'\bid="([^"]+)"', "".join(drawings.values()))
    assert len(ids) == len(set(ids))
    for name, drawing in drawings.items():
        own = set(re.findall(r'\bid="([^"]+)"', drawing))
        targets = re.findall(r'(?:href="#|url\(#)([^")]+)', drawing)
        assert targets, name
        assert set(targets) <= own


@pytest.mark.parametrize(
    ("name", "english", "korean"),
    [
        ("throughput", "non-padding tokens per second", "초당 토큰 수 (패딩 제외)"),
        ("speedup", "throughput over that of single", "single 대비 처리량"),
        ("training_loss", "training loss (nats per token)", "학습 손실 (토큰당 nat)"),
        ("drift", "over the median", "중앙값 대비"),
        ("lengths_tokens", "tokens in a sentence", "문장당 토큰"),
        ("memory_anatomy", "optimizer state", "옵티마이저 상태"),
        ("profile_partition", "idle", "유휴"),
        ("scaling", "accumulation with no_sync", "no_sync를 쓰는 누적"),
        ("equivalence", "smoothed final loss", "평활한 마지막 손실"),
        ("memory_milestones", "first kernel", "첫 커널"),
        ("memory_milestones", "process (resident set)", "프로세스 (상주)"),
        ("memory_step", "backward", "역전파"),
    ],
)
def test_axes_have_units_and_words_are_on_the_page_in_both_languages(
    name, english, korean, drawings, tmp_path
):
    alone = texts(drawings[name])
    assert english in alone
    assert korean not in alone
    path = tmp_path / f"{name}.svg"
    path.write_text(drawings[name])
    markup = svg.read(path).markup
    root = ElementTree.fromstring(markup)
    said = [(e.get("lang"), e.text) for e in root.iter(f"{SVG}text") if e.get("lang")]
    assert ("ko", korean) in said
    assert [lang for lang, _ in said] == ["en", "ko"] * (len(said) // 2)
    assert {text for lang, text in said if lang == "en"} <= {*alone}
    assert "data-text-ko" not in markup


def test_a_title_has_its_unit_in_both_languages(drawings):
    picture = svg.picture(drawings["lengths_characters"], "lengths_characters")
    assert "in characters" in picture.title
    assert "characters" not in picture.korean[0]


def test_small_shares_have_ticks_that_differ(drawings):
    ticks = [text for text in texts(drawings["utilisation"]) if text.endswith(" %")]
    assert len({*ticks}) == len(ticks) > 2


def test_variant_without_numbers_is_left_out_with_a_note(drawings):
    for name in ("throughput", "speedup", "training_loss", "validation_loss", "memory", "drift"):
        shown = texts(drawings[name])
        assert "amp_bf16" in shown
        assert "ddp" not in shown
        assert "Left out: ddp (unsupported)." in description(drawings[name])
    assert "single" not in texts(drawings["speedup"]), "it is not compared with itself"


NOTHING = {
    "collective_bandwidth": "Not measured",
    "layer_tree": "No trace names the modules of the model",
    "operator_roofline": "No trace records operator shapes",
    "profile_communication": "No variant communicates",
    "scaling": "Nothing to project",
    "bucket_sizes": "Nothing to project",
}
"""Sentences in empty figures that have no row per variant."""


@pytest.mark.parametrize("name", FIGURES)
def test_study_without_a_number_still_has_its_figures(name, empty_report):
    shown = texts((empty_report / f"figures/{name}.svg").read_text(encoding="utf-8"))
    # The corpus always has numbers, and the search found something here.
    if not name.startswith("lengths") and name != "waterfall":
        assert shown == [NOTHING.get(name, "No variant to show")]


def test_a_study_of_one_variant_says_that_nothing_drifted_beside_it(results):
    one = changed(results, paired_runs=[], variants={"single": results.variants["single"]})
    assert description(draw("drift", one)) == "No variant was compared with the baseline."


@pytest.mark.slow
def test_processes_share_the_figures_and_draw_the_same_bytes(
    study_folder, tmp_path, drawing, monkeypatch
):
    some = ("throughput", "scaling", "waterfall")
    monkeypatch.setattr(
        "transformer_core.report.page.FIGURES", {name: FIGURES[name] for name in some}
    )
    draw_all(StudyResults(study_folder), tmp_path, processes=2)
    for name in some:
        assert (tmp_path / f"{name}.svg").read_text() == drawing(name)
    assert {path.name for path in tmp_path.iterdir()} == {*(f"{name}.svg" for name in some), NAME}
    picture = svg.read(tmp_path / "throughput.svg")
    assert (picture.name, picture.title) == ("throughput", "Throughput")
    assert "prefers-color-scheme" in picture.markup


def test_a_page_with_its_figures_is_whole_and_small(written, drawings):
    for name, drawing in drawings.items():
        (written / "figures" / f"{name}.svg").write_text(drawing)
    assert page_of(written).unbalanced == []
    assert (written / "report.html").stat().st_size < 1_500_000


@pytest.mark.parametrize("processes", [1, 2])
def test_job_names_missing_steps(processes, copied, monkeypatch):
    (copied / "runs/single/repeat-1/steps.parquet").unlink()
    only = {"training_loss": FIGURES["training_loss"]}
    monkeypatch.setattr("transformer_core.report.page.FIGURES", only)
    with pytest.raises(ConfigError, match=r"single/repeat-1/steps\.parquet"):
        draw_all(StudyResults(copied), copied / "figures", processes)


def test_texts_may_hold_anything():
    for text, title, said, shown in (
        ("<b> & </b>", "<b> & </b>", "</desc><script>", "<b> & </b>"),
        ("kernel \x1b[2J \x00", "\x1b", "\ufffe", "\ufffd"),
    ):
        figure = Figure()
        figure.text(0.5, 0.5, text)
        drawing = svg.render(figure, "x", title, said)
        assert ElementTree.fromstring(drawing).findtext(f"{SVG}title") == shown
        assert not [bad for bad in ("<b>", "<script", "\x1b") if bad in drawing]


@pytest.mark.parametrize(
    "content",
    [
        '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        '<svg xmlns="http://www.w3.org/2000/svg"><foreignObject/></svg>',
        "<html/>",
        "<svg",
    ],
)
def test_foreign_svg_is_refused(content, tmp_path):
    path = tmp_path / "figure.svg"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"figure\.svg"):
        svg.read(path)


@pytest.mark.filterwarnings("error")
def test_only_compositions_with_the_baseline_have_short_names():
    names = ["old", "old_with_adamw", "new_with_adamw"]
    for baseline, third in (("old", "+ adamw"), ("", "old_with_adamw")):
        _, axes = rows(names, baseline=baseline)
        shown = [label.get_text() for label in axes.get_yticklabels()]
        assert shown == ["old", third, "new_with_adamw"]


def test_a_caption_explains_short_names_only_if_there_are_any():
    assert shortened(["old", "old_with_adamw"], "old") == " old with x is written + x."
    assert shortened(["old", "new_with_adamw"], "old") == ""


def test_ratios_have_as_many_decimals_as_in_the_tables():
    near = Interval(median=1.004, low=1.002, high=1.006, samples=3)
    shown = [RatioRow("new", near, "FASTER")]
    for figure in (ratio_points(shown, UNNAMED), ratio_waterfall(shown, "old")):
        (text,) = figure.axes[0].texts
        assert text.get_text().split()[0] == "1.004×"


def test_long_names_take_several_lines():
    assert in_lines("as_published") == "as_published"
    assert in_lines("+ adamw") == "+ adamw"
    long = "as_published_with_" + "fused_optimizer_" * 3
    lines = in_lines(long).split("\n")
    assert "".join(lines) == long
    assert max(map(len, lines)) <= 28


def test_figures_with_short_names_explain_them():
    drawn = []
    for path in Path(sections.__file__).parent.glob("*.py"):
        functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
        for function in functions:
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            named = {ast.unparse(call.func).rpartition(".")[2]: call for call in calls}
            if "rows" in named and any(key.arg == "baseline" for key in named["rows"].keywords):
                assert "shortened" in named, function.name
                drawn.append(function.name)
    assert len(drawn) > 9


def test_no_two_lines_look_alike():
    looks = {str(series(number)) for number in range(50)}
    assert len(looks) == 50


def test_axes_without_labels_need_no_legend():
    """A study of one variant on one device has a single colour."""
    figure, axes = plt.subplots()
    axes.barh(["single"], [1.0])
    legend_below(axes, "rank")
    assert axes.get_legend() is None
    assert not figure.legends
    plt.close(figure)


DRAWING = """<svg xmlns="http://www.w3.org/2000/svg"
  xmlns:xlink="http://www.w3.org/1999/xlink" id="own">
 <g id="group">
  <defs> <path id="mark" d="M 0.123 0 L 0 3.456" style="stroke: red; stroke-width: 2" /> </defs>
  <clipPath id="window"><rect x="1.26" y="2" width="3" height="4" /></clipPath>
  <g clip-path="url(#window)">
   <use xlink:href="#mark" x="1.55" y="2.44" style="fill: blue; stroke: blue" />
   <use xlink:href="#mark" x="3" y="4" style="fill: blue; stroke: blue" />
  </g>
  <g> <g> <text id="said" transform="rotate(-0 3.5 4.5)"> two  words </text> </g> </g>
 </g>
</svg>"""


def test_compact_drawings_show_the_same():
    root = ElementTree.fromstring(DRAWING)
    svg.compact(root, "#own")
    text = ElementTree.tostring(root, encoding="unicode")
    assert "group" not in text
    assert 'id="said"' not in text
    assert "rotate" not in text
    assert "> two  words <" in text
    # Referenced elements keep their names.
    assert {e.get("id") for e in root.iter() if e.get("id")} == {"own", "mark", "window"}
    names = [e.tag.rpartition("}")[2] for e in root.iter()]
    assert names.count("use") == 2
    assert names.count("g") == 1
    # A style of several elements becomes a class of this drawing.
    assert text.count("blue") == 2  # fill and stroke, once
    assert "#own .a{fill:blue;stroke:blue}" in text
    assert text.count('class="a"') == 2
    # A style of a single element stays.
    assert 'style="stroke: red; stroke-width: 2"' in text
    # Coordinates are in tenths of a point.
    assert 'd="M0.1 0L0 3.5"' in text
    assert 'x="1.3"' in text


def test_long_names_leave_room_for_the_figure():
    name = "as_published_with_loss_one_pass_with_tokens_unpadded_with_adam"
    figure, axes = rows(["single", name])
    figure.draw_without_rendering()
    label = axes.get_yticklabels()[1]
    assert label.get_text().replace("\n", "") == name
    assert label.get_window_extent().x0 >= 0
    assert axes.get_window_extent().width > figure.bbox.width / 2


def test_many_rows_are_close_together_without_overlap():
    few, many = (rows([f"variant_{number}" for number in range(count)]) for count in (20, 67))
    assert many[0].get_figheight() < 2 * few[0].get_figheight()
    for figure, axes in (many, rows([f"{'lines_' * 10}{number}" for number in range(21)])):
        figure.draw_without_rendering()
        extents = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert all(above.y0 > below.y1 for above, below in pairwise(extents))
