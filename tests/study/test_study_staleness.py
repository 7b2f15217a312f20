"""The table of files and rules, against the rules and the sources themselves."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transformer_core.common.sources.bare_trees import PACKAGES
from transformer_core.common.sources.cache import FOLDER, Cache
from transformer_core.common.sources.definitions import Definitions
from transformer_core.common.sources.fingerprint import ROOT, Place, Sources
from transformer_core.run.kinds import JOBS
from transformer_core.study import staleness
from transformer_core.study.programs import MAKES_RUN_SPECS, PROGRAMS

pytestmark = pytest.mark.slow

RULE = re.compile(r"^\s*rule (\w+):\n(.*?)(?=^\s*(?:use )?rule |\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def sources() -> Sources:
    made = Sources(ROOT, ROOT / FOLDER)
    staleness.fingerprints(made)  # keeps what was read
    return made


@pytest.fixture(scope="module")
def rules(sources: Sources) -> dict[str, list[str]]:
    return staleness.rules_of_files(sources)


def written_rules() -> dict[str, str]:
    """The text of every rule by its name."""
    texts = [path.read_text() for path in sorted(ROOT.glob("workflow/rules/*.smk"))]
    return {name: body for text in texts for name, body in RULE.findall(text)}


def test_the_table_names_the_programs_that_the_rules_start() -> None:
    started = {
        name: tuple(
            program
            for program in re.findall(r"(?<=[ \"])(transformer_core\.[\w.]+)(?=[ \"])", body)
            if program != "transformer_core.run.quick_start"
        )
        for name, body in written_rules().items()
    }
    started["train_again"] = started["train"]
    for name, body in written_rules().items():
        if kind := re.search(r'order\(\s*"(\w+)"', body):
            started[name] += (JOBS[kind[1]].rpartition(".")[0],)
    started["train_again"] = started["train"]
    listed = {
        # The report's programs import its sections by name.
        name: tuple(program for program in programs if ".report.sections." not in program)
        for name, programs in PROGRAMS.items()
    }
    assert {name: programs for name, programs in started.items() if programs} == listed


def test_a_section_of_the_report_matters_where_it_is_shown(rules: dict[str, list[str]]) -> None:
    section = "transformer_core/report/sections/equivalence"
    assert {"figures", "tables", "page"} <= set(rules[f"{section}.py"])
    assert "page" in rules[f"{section}.po"]
    assert "page" in rules[f"{section}.html"]
    assert "tables" not in rules[f"{section}.html"]


def test_every_rule_with_a_program_has_its_own_fingerprint() -> None:
    for name, body in written_rules().items():
        found = [*dict.fromkeys(re.findall(r"code=CODE\[\"(\w+)\"\],", body))]
        assert found == [name] * (name in PROGRAMS), name


def test_what_reads_the_rules_imports_nothing_heavy() -> None:
    """It is imported whenever Snakemake starts, whatever it then does."""
    text = "\n".join(path.read_text() for path in sorted(ROOT.glob("workflow/rules/*.smk")))
    imports = re.findall(
        r"^from (?:schemas|transformer_core)[\w.]* import (?:\([^)]*\)|.*)", text, re.MULTILINE
    )
    assert len(imports) > 10
    heavy = {"torch", "numpy", "pyarrow", "scipy", "matplotlib", "schemas.results.projection"}
    code = "\n".join(["import sys", *imports, f"print(*({heavy} & sys.modules.keys()))"])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


def test_no_source_is_an_input() -> None:
    assert "transformer_core/" not in "".join(written_rules().values())


def test_names_of_modules_are_written_whole() -> None:
    # A name that is put together when the program runs would not be found.
    start = tuple(f"{package}." for package in PACKAGES)
    for package in PACKAGES:
        for path in ROOT.joinpath(package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                    assert not str(node.values[0].value).startswith(start), f"{path}:{node.lineno}"


def test_defaults_count_for_rules_that_make_run_specs(sources: Sources) -> None:
    merge = sources.names["schemas.base"]["merge"]
    reaching = {
        rule
        for rule, programs in PROGRAMS.items()
        if {("schemas.base", number) for number in merge} & sources.reached(programs).items
    }
    assert reaching == MAKES_RUN_SPECS


TIMED = {"train", "turns", "self_test_sessions", "profile", "compute_times", "link_trial", "search"}


@pytest.mark.parametrize("module", ["quick_start", "host_processes"])
def test_what_starts_a_timed_job_counts(rules: dict[str, list[str]], module: str) -> None:
    found = set(rules[f"transformer_core/run/{module}.py"])
    assert found >= TIMED
    assert not found & {"claims", "families", "compare", "page", "tables", "figures", "tokenizer"}


def holding(sources: Sources, text: str) -> set[tuple[str, int]]:
    """Definitions of the measurements' processes whose source has this text."""
    found = set()
    for module, definitions in sources.modules.items():
        source = sources.file(module).read_text()
        if module.startswith("transformer_core.run.") and text in source:
            for node in ast.parse(source).body:
                if text in (ast.get_source_segment(source, node) or ""):
                    bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                    names = {node.name} if isinstance(node, ast.FunctionDef) else bound
                    items = enumerate(definitions.items)
                    found |= {(module, number) for number, i in items if names & {*i.names}}
    return found


@pytest.mark.parametrize("text", ["MALLOC_MMAP_THRESHOLD_", "def threads_per_process"])
def test_the_allocator_and_the_threads_count(sources: Sources, text: str) -> None:
    holders = holding(sources, text)
    assert holders
    for rule in TIMED:
        assert holders <= sources.reached(PROGRAMS[rule]).items, rule


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert staleness.main(["--rule", "hardware"]) == 0
    assert "transformer_core/machine/hardware.py" in capsys.readouterr().out
    file = "transformer_core/data/corpus/readers.py"
    assert staleness.main(["--file", file]) == 0
    assert capsys.readouterr().out == f"{file}\n    read_corpus\n"
    assert staleness.main(["--file", str(Path(file).absolute())]) == 0
    assert capsys.readouterr().out == f"{file}\n    read_corpus\n"


@pytest.mark.parametrize("arguments", [["--rule", "trian"], ["--file", "transformer_core/tain.py"]])
def test_an_unknown_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        staleness.main(arguments)
    assert f"{' '.join(arguments)}: is not known" in capsys.readouterr().err


class _Changed(ast.NodeTransformer):
    """Changes every value and every function of a module, and what they mention in nothing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body.append(ast.parse("(lambda: 'changed')()").body[0])
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if not any(isinstance(n, ast.FunctionDef | ast.AnnAssign) for n in node.body):
            node.bases.append(ast.Constant("changed"))
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = ast.Tuple([node.value, ast.Constant("changed")])
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = ast.Tuple([node.value or ast.Constant(0), ast.Constant("changed")])
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):  # a docstring
            return node
        # An effect at the top of a module.
        return ast.Expr(ast.Tuple([node.value, ast.Constant("changed")]))


def said_otherwise(source: str) -> str:
    """The same module with other comments, formatting and docstrings, and with log lines."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.parse("'''Otherwise.'''").body[0]
        if isinstance(node, ast.FunctionDef):
            node.body.append(ast.parse("log.info('done: %s', len('xyz'))").body[0])
    return f"# Said otherwise.\n{ast.unparse(tree)}\n"


def project_at(root: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("*.pyc"))
    return root


def test_no_file_that_is_only_said_otherwise_counts(sources: Sources, tmp_path: Path) -> None:
    root = project_at(tmp_path)
    before = staleness.fingerprints(sources)
    shutil.copytree(ROOT / FOLDER, root / "cache")
    assert staleness.fingerprints(Sources(root, root / "cache")) == before
    for package in PACKAGES:
        for path in root.joinpath(package).rglob("*.py"):
            path.write_text(said_otherwise(path.read_text()))
    assert staleness.fingerprints(Sources(root, root / "cache")) == before


def changed_project(root: Path) -> Path:
    """A copy in which every file says something else."""
    project_at(root)
    for package in PACKAGES:
        for path in filter(Path.is_file, root.joinpath(package).rglob("*")):
            kept = path.read_bytes()
            if path.suffix == ".py":
                path.write_text(ast.unparse(_Changed().visit(ast.parse(kept))))
            else:
                more = {".yaml": b"\nchanged: 1\n", ".po": b'\nmsgid "changed"\nmsgstr "x"\n'}
                path.write_bytes(kept + more.get(path.suffix, b"changed"))
    return root


class Mixed:
    """Some files as they are, others as they are in another copy of the project."""

    def __init__(self, here: Cache, there: Cache, changed: set[str]) -> None:
        self.here, self.there, self.changed = here, there, changed
        self.fingerprints: dict[str, str] = {}
        self.names = here.names
        self.definitions = {
            module: (there if files_name(module, found) in changed else here).definitions[module]
            for module, found in here.definitions.items()
        }

    def contents(self, name: str) -> str:
        return (self.there if name in self.changed else self.here).contents(name)


def files_name(module: str, found: Definitions) -> str:
    return f"{module.replace('.', '/')}{'/__init__' * found.package}.py"


class Noted(dict[str, Any]):
    """Notes the keys that are asked for."""

    def __init__(self, items: dict[str, Any], asked: set[str]) -> None:
        super().__init__(items)
        self.asked = asked

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


class Known:
    """What every definition adds to a fingerprint and leads to, and the modules that say so: while
    those are the same, it need not be found again."""

    def __init__(self, cache: Cache) -> None:
        sources = Sources(ROOT)
        sources._cache = cache
        self.names = sources.names
        asked: set[str] = set()
        sources.modules = Noted(sources.modules, asked)
        sources.names = Noted(sources.names, asked)
        self.modules: dict[Place, frozenset[str]] = {}
        for module, found in sources.modules.items():
            for number in range(len(found.items)):
                asked.clear()
                place = module, number
                sources.next(place)
                for fills_defaults in (False, True):
                    sources._lines[place, fills_defaults] = sources._line(place, fills_defaults)
                self.modules[place] = frozenset(asked)
        self.next, self.lines = sources._next, sources._lines


class Changes:
    """Fingerprints of the project with some of its files as they are in a changed copy."""

    def __init__(self, here: Cache, there: Cache) -> None:
        self.here, self.there = here, there
        self.known, changed = Known(here), Sources(ROOT)
        changed._cache = there
        self.names = changed.names

    def from_scratch(self, changed: set[str]) -> Sources:
        sources = Sources(ROOT)
        sources._cache = Mixed(self.here, self.there, changed)  # type: ignore[assignment]
        return sources

    def sources(self, changed: set[str]) -> Sources:
        """The same, with all that is known of what did not change."""
        sources, known = self.from_scratch(changed), self.known
        modules = {
            module
            for module, found in self.here.definitions.items()
            if files_name(module, found) in changed
        }
        sources.names = known.names | {module: self.names[module] for module in modules}
        same = {place for place, asked in known.modules.items() if modules.isdisjoint(asked)}
        sources._next = {place: known.next[place] for place in same}
        sources._lines = {key: line for key, line in known.lines.items() if key[0] in same}
        return sources


def fingerprint(sources: Sources, rule: str) -> str:
    return sources.fingerprint(PROGRAMS[rule], rule in MAKES_RUN_SPECS)


@pytest.mark.slow  # all files of the project are changed, and every rule's sources followed
def test_a_change_of_any_file_counts_for_the_rules_of_the_table(
    sources: Sources, tmp_path: Path
) -> None:
    here = Cache(ROOT, ROOT / FOLDER)
    there = Cache(changed_project(tmp_path / "changed"), tmp_path / "cache of changed")
    changes = Changes(here, there)
    before, table = staleness.fingerprints(sources), staleness.rules_of_files(sources)
    for rule in PROGRAMS:
        others = {name for name, rules in table.items() if rule not in rules}
        found = fingerprint(changes.from_scratch(others), rule)
        assert found == before[rule], f"{rule} depends on more"
    # What a definition adds to a fingerprint is the same for all rules that use it, but for those
    # that fill in defaults: the rule with the fewest definitions shows it.
    size = {rule: len(sources.reached(programs).items) for rule, programs in PROGRAMS.items()}
    for number, (name, rules) in enumerate(table.items()):
        changed = changes.sources({name})
        fewest = {min(rules, key=size.__getitem__)} if rules else set()
        for rule in fewest | (MAKES_RUN_SPECS & {*rules}):
            found = fingerprint(changed, rule)
            assert found != before[rule], f"{rule} does not depend on {name}"
            if number % 40 == 0:
                assert found == fingerprint(changes.from_scratch({name}), rule)
