"""The page in a real browser: accessibility, phones, dark paper, print, keyboard, no scripts."""

import re
from pathlib import Path

import pytest
from hostile import EVIL_LANGUAGE
from markupsafe import escape

from docs.chromium import Chromium, program

axe_core_python = pytest.importorskip("axe_core_python", reason="axe-core is not installed")
AXE = Path(axe_core_python.__file__).parent / "axe.min.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="there is no Chromium here"),
]


UNFOLD = "document.querySelectorAll('details').forEach(d => d.open = true)"
SHORTEN = """document.querySelectorAll(
'section:not(#variants, #claims) tbody tr:nth-child(n+3), article ~ article ~ article, figure svg *')
.forEach(element => element.remove())"""
"""Leaves two of the rows and articles that have the same kinds of words, and nothing in figures, because
axe-core is slow."""


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as made:
        yield made


@pytest.fixture
def browser(chromium):
    """The browser. A test leaves no page behind, because painting an unfolded one takes seconds."""
    yield chromium
    chromium.evaluate("document.body.remove()")


@pytest.fixture(scope="module")
def page(quick_folder, tmp_path_factory):
    """The page, with an existing language in place of the hostile one, and with labels in a figure."""
    text = (quick_folder / "report.html").read_text(encoding="utf-8")
    text = text.replace(f'<dd lang="{escape(EVIL_LANGUAGE)}"', '<dd lang="de"')
    labels = '<text lang="en">devices</text><text lang="ko">장치 수</text></svg>'
    made = tmp_path_factory.mktemp("browser") / "report.html"
    made.write_text(text.replace("</svg>", labels, 1), encoding="utf-8")
    return made


def problems(browser: Chromium, where: str = "", rules: str = "") -> dict[str, list[str]]:
    """Serious or critical findings of axe-core outside of drawings: rule, and elements."""
    browser.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    found = browser.evaluate(
        f"axe.run({{exclude: [['svg']]{where}}}, {{resultTypes: ['violations']{rules}}})"
        ".then(r => r.violations"
        ".filter(v => ['serious', 'critical'].includes(v.impact))"
        ".map(v => [v.id, v.nodes.map(n => n.html.slice(0, 160))]))"
    )
    return dict(found)


def brightness(browser: Chromium) -> int:
    """Sum of the colours of the paper, of 255 each."""
    colour = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)))


def test_axe_finds_nothing_serious_on_a_desktop_that_scrolls_only_vertically(browser, page):
    browser.open(page)
    assert brightness(browser) > 600
    browser.evaluate(UNFOLD)
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    browser.evaluate(SHORTEN)
    assert problems(browser) == {}


def test_text_has_contrast_on_dark_paper(browser, page):
    browser.open(page, dark=True)
    assert brightness(browser) < 150
    browser.evaluate(SHORTEN)
    # Sections that have every kind of word: badges, links, tables, code, captions.
    where = ", include: [['header'], ['nav'], ['#answer'], ['#claims'], ['#variants']]"
    assert problems(browser, where, ", runOnly: ['color-contrast']") == {}


def test_axe_finds_planted_faults(browser, tmp_path):
    wrong = tmp_path / "wrong.html"
    wrong.write_text("<html><body><p style='color:#eee;background:#fff'>pale</p><img src='x'>")
    browser.open(wrong)
    assert {"color-contrast", "html-has-lang", "image-alt"} <= set(problems(browser))


def test_a_phone_scrolls_only_vertically_in_both_languages(browser, page):
    browser.open(page, width=360, height=740, phone=True)
    browser.evaluate(UNFOLD)
    for language in ("ko", "en"):
        browser.evaluate(f"document.getElementById('language-{language}').click()")
        wide = browser.evaluate(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') &&"
            " e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 120)).slice(0, 5)"
        )
        assert wide == []
        assert browser.evaluate("document.documentElement.scrollWidth") == 360
        labels = browser.evaluate(
            "[...document.querySelectorAll('svg text[lang]')]"
            ".filter(e => getComputedStyle(e).display != 'none').map(e => e.getAttribute('lang'))"
        )
        assert labels == [language]


@pytest.mark.parametrize("width", [400, 1280])
def test_names_in_tables_break_only_after_underscores(browser, page, width):
    browser.open(page, width=width)
    browser.evaluate(UNFOLD)
    parts = browser.evaluate(
        "[...document.querySelectorAll('td code, th code')].flatMap(e => [...e.childNodes])"
        ".filter(e => /^\\w+$/.test(e.data)).map(e => { const range = new Range();"
        " range.selectNodeContents(e); return [e.data, range.getClientRects().length] })"
    )
    assert "qkv_" in {text for text, _ in parts}
    assert {text for text, lines in parts if lines > 1} == set()
    # What a deviation is of takes a few words: a column of one letter a line could not be read.
    wide = "[...document.querySelectorAll('.where')].map(e => e.clientWidth)"
    assert min(browser.evaluate(wide)) > 120


@pytest.mark.parametrize("width", [320, 375])
def test_commands_break_between_words_and_settings_between_entries_on_a_phone(browser, page, width):
    browser.open(page, width=width, phone=True)
    browser.evaluate(UNFOLD)
    lines = browser.evaluate(
        "[...document.querySelectorAll('#answer pre span, #answer .option, #details code span')].map(e => {"
        " const range = new Range(); range.selectNodeContents(e);"
        " return [e.textContent, range.getClientRects().length] })"
    )
    there = {text for text, _ in lines}
    assert {"--spec", "results/recommended.yaml", "--config time=1h"} <= there
    assert any(text.startswith('{"') for text in there)
    assert {text for text, count in lines if count > 1} == set()


def test_a_page_without_a_choice_of_languages_is_in_english(browser, page, tmp_path):
    """As the pages about a script and a GPU are."""
    text = re.sub("<fieldset.*?</fieldset>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    made = tmp_path / "english.html"
    made.write_text(text, encoding="utf-8")
    browser.open(made)
    browser.evaluate(UNFOLD)
    shown = browser.evaluate("document.body.innerText")
    assert "The answer" in shown
    assert re.findall("[가-힣]+", shown) == []


def test_a_sample_may_be_written_from_right_to_left(browser, page):
    browser.open(page)
    browser.evaluate(UNFOLD)
    # The full stop stands left of the last letter.
    places = browser.evaluate(
        "(() => { const text = document.querySelector('.sample dd'); text.textContent = 'אב גד.';"
        "return [4, 5].map(n => { const one = document.createRange();"
        "one.setStart(text.firstChild, n); one.setEnd(text.firstChild, n + 1);"
        "return one.getBoundingClientRect().left; }); })()"
    )
    assert places[1] < places[0]


def test_print_keeps_figures_and_rows_whole_and_unfolds(browser, page):
    shown = (
        "[...document.querySelectorAll('details.folded table')]"
        ".filter(t => !t.closest('details:not(.folded)'))"
        ".map(t => t.checkVisibility({contentVisibilityAuto: true}))"
    )
    browser.open(page)
    assert set(browser.evaluate(shown)) == {False}
    browser.open(page, media="print", scripts=False)
    assert set(browser.evaluate(shown)) == {True}
    for element, style, wanted in (
        *(("main figure", "breakInside", "avoid"), ("main tbody tr", "breakInside", "avoid")),
        *(("main h2", "breakAfter", "avoid"), ("nav", "display", "none")),
        (".languages", "display", "none"),
    ):
        shown = f"getComputedStyle(document.querySelector('{element}')).{style}"
        assert browser.evaluate(shown) == wanted
    size = "parseFloat(getComputedStyle(document.querySelector('{}')).fontSize)".format
    assert browser.evaluate(f"{size('figcaption')} < {size('main p:not(.answer)')}")


def test_the_page_is_complete_without_scripts(browser, page):
    browser.open(page, scripts=False)
    text = browser.evaluate("document.body.innerText")
    assert "On this machine, training is 1.62" in text
    assert browser.evaluate("document.getElementById('search').hidden")
    assert browser.evaluate("document.querySelectorAll('nav li a').length") > 10
    assert browser.evaluate("document.querySelectorAll('details > summary').length") > 5


def test_the_keyboard_is_enough(browser, page):
    browser.open(page)
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    browser.press("Enter", 13)
    assert browser.evaluate("location.hash") == "#answer"
    browser.evaluate("document.querySelector('#variants > details').open = true")
    head = "document.querySelector('#variants thead th:nth-child(4)')"
    browser.evaluate(f"{head}.querySelector('button').focus()")
    browser.press("Enter", 13)
    assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "ascending"
    column = (
        "[...document.querySelectorAll('#variants table.sortable tbody tr')]"
        ".map(r => r.cells[3].querySelector('data')?.value ?? null)"
    )
    rising = browser.evaluate(column)
    browser.press("Enter", 13)
    falling = browser.evaluate(column)
    numbers = sorted(float(value) for value in rising if value is not None)
    missing = [None] * (len(rising) - len(numbers))
    assert missing
    for found, expected in ((rising, numbers), (falling, numbers[::-1])):
        assert [value and float(value) for value in found] == [*expected, *missing]


def test_the_open_page_is_short_and_links_open_what_is_folded(browser, page):
    closed = "[...document.querySelectorAll('main > section > details.whole')]"
    browser.open(page)
    assert browser.evaluate(f"{closed}.every(d => !d.open)")
    assert browser.evaluate("document.querySelectorAll('main > section > h2').length") == 6
    browser.open(page, anchor="#machine")
    assert browser.evaluate("document.querySelector('#machine > details').open")
    browser.open(page, anchor="#comparisons-caption")
    opened = "document.getElementById('comparisons-caption').closest('details').open"
    assert browser.evaluate(opened)


def test_a_link_opens_its_section_once_more(browser, page):
    browser.open(page, anchor="#machine")
    browser.evaluate("document.querySelector('#machine > details').open = false")
    browser.evaluate("document.querySelector('nav a[href=\"#machine\"]').click()")
    assert browser.evaluate("document.querySelector('#machine > details').open")


def _hidden_by_search(browser: Chromium, searched: str) -> list[str]:
    browser.evaluate(
        f"(() => {{const box = document.getElementById('search-words'); box.value = '{searched}';"
        "box.dispatchEvent(new Event('input'))})()"
    )
    sections = "[...document.querySelectorAll('main > section')]"
    hidden: list[str] = browser.evaluate(f"{sections}.filter(s => s.hidden).map(s => s.id)")
    return hidden


def test_search_hides_sections_without_the_words(browser, page):
    browser.open(page, anchor="#100%")  # No encoded text: it must not end the script.
    every = browser.evaluate("document.querySelectorAll('main > section').length")
    assert len(_hidden_by_search(browser, "stroke-linejoin")) == every, "a style of figures"
    hidden = _hidden_by_search(browser, "chrF bpe")
    assert "answer" in hidden
    assert "details" not in hidden
    # A link into a hidden section shows it.
    followed = (
        "new Promise(done => { addEventListener('hashchange', () => "
        "done(document.getElementById('answer').hidden)); location.hash = '#answer' })"
    )
    assert browser.evaluate(followed) is False
