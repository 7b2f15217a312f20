"""What mkdocs needs beside docs/: files of the project that a page links to are pages too, so that
the site needs neither a network nor the address of a repository."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES_ABOVE = {"contributing.md": ROOT / "CONTRIBUTING.md", "changelog.md": ROOT / "CHANGELOG.md"}
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from above docs/, the linked files, and the colours of code."""
    for name, path in PAGES_ABOVE.items():
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    for file in [file for file in files if file.is_documentation_page()]:
        for link in LINK.findall(file.content_string):
            path = linked(file.src_uri, link)
            if path is not None and page_of(path, files) is None:
                shown = File.generated(config, source_page(path), content=show(path))
                shown.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(shown)
    files.append(File.generated(config, "code.css", content=colours()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links out of docs/ to the pages of these files."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def lead(match: re.Match[str]) -> str:
        path = linked(here, match[1])
        target = page_of(path, files) if path is not None else None
        return posixpath.relpath(target, posixpath.dirname(here)) if target else match[1]

    return LINK.sub(lead, markdown)


def linked(page: str, link: str) -> Path | None:
    """The file or folder of the project that a link of a page leads to, if it does."""
    origin = PAGES_ABOVE.get(page, DOCS / page)
    path = (origin.parent / link).resolve()
    return path if "://" not in link and path.is_relative_to(ROOT) and path.exists() else None


def page_of(path: Path, files: Files) -> str | None:
    """The file of the site that shows a file of the project."""
    above = {origin: name for name, origin in PAGES_ABOVE.items()}
    above[ROOT / "README.md"] = "index.md"
    inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else ""
    for name in (above.get(path, ""), inside, source_page(path)):
        file = files.get_file_from_path(name) if name else None
        if file is not None and not file.inclusion.is_excluded():
            return name
    return None


def source_page(path: Path) -> str:
    """The page that shows a file as it is."""
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def show(path: Path) -> str:
    """A file as a page: its text, or the names of what a folder holds."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = sorted(each.name for each in path.iterdir() if not each.name.startswith("_"))
        return f"# {name}/\n\n" + "\n".join(f"- `{each}`" for each in inside)
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except ClassNotFound:
        language = "text"
    return f"# {name}\n\n~~~~~~{language}\n{path.read_text(encoding='utf-8')}\n~~~~~~\n"


def colours() -> str:
    """The style of highlighted code on a light and on a dark page."""
    light = HtmlFormatter(style="default").get_style_defs(".codehilite")
    dark = HtmlFormatter(style="github-dark").get_style_defs("[data-bs-theme=dark] .codehilite")
    return f"{light}\n{dark}\n"
