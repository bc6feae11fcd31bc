# ruff: noqa
"""Carry out one mapping file: move or merge modules, and follow them in every import, dotted name and path.

    python tools/move.py tools/moves/02-engine.txt

Lines of a mapping file (paths are relative to ``src/holdfast``; ``#`` begins a comment):

    new/module.py <- old/a.py old/b.py     one source: a rename; several: one module with their bodies, in an order in
                                           which none needs a later one. The first source is the principal one.
        "Docstring of the new module."     optional; otherwise that of the principal source stays
    file old/name.html -> new/name.html    a file or a folder that is not Python
    delete old/__init__.py                 of a package that is left empty
    package new/folder "Docstring."        the text of an ``__init__.py`` that has to be made
    name old/module.py Old -> New          the new name of something at the top of that module
    origin stores/base.py                  import from where a name is defined what this module only passes on

It is a tool of the redesign and is deleted with its last step.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
PACKAGE = SRC / "holdfast"
CODE = ("src", "tests", "bench", "examples")
TEXTS = ("docs", "clients", "deploy", "README.md", "CONTRIBUTING.md", "pyproject.toml", "Makefile", ".ci", "bench")
GENERIC = {"model", "operations", "store", "sqlite", "routes", "commands", "pages", "base", "__init__"}


def module_name(path: str) -> str:
    parts = ["holdfast", *Path(path).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass
class Target:
    path: str
    sources: list[str]
    doc: str | None = None


@dataclass
class Mapping:
    targets: list[Target] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    origins: set[str] = field(default_factory=set)


def read_mapping(path: Path) -> Mapping:
    found = Mapping()
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.split(" #")[0].rstrip()
        if not line.strip() or line.startswith("#"):
            continue
        if line[0] in " \t":
            found.targets[-1].doc = line.strip().strip('"')
            continue
        word, _, rest = line.partition(" ")
        if word == "file":
            old, new = rest.split(" -> ")
            found.files.append((old.strip(), new.strip()))
        elif word == "delete":
            found.deleted.extend(rest.split())
        elif word == "package":
            folder, _, doc = rest.partition(" ")
            found.packages[folder] = doc.strip().strip('"')
        elif word == "name":
            where, old, arrow, new = rest.split()
            assert arrow == "->", line
            found.names[module_name(where), old] = new
        elif word == "origin":
            found.origins |= {module_name(each) for each in rest.split()}
        elif " <- " in line:
            target, sources = line.split(" <- ")
            found.targets.append(Target(target.strip(), sources.split()))
        else:
            raise SystemExit(f"{path}:{number}: not understood: {line}")
    return found


# --- positions and edits ---------------------------------------------------------------------------------------------


class Text:
    """A source text and the changes that are to be made in it, by the positions that the parser gives."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = text.splitlines(keepends=True)
        self._edits: list[tuple[int, int, str]] = []

    def at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        n: ast.expr | ast.stmt = node  # type: ignore[assignment]
        return self.at(n.lineno, n.col_offset), self.at(n.end_lineno or 0, n.end_col_offset or 0)

    def replace(self, start: int, end: int, new: str) -> None:
        self._edits.append((start, end, new))

    def changed(self) -> str:
        text, last = self.text, len(self.text) + 1
        for start, end, new in sorted(set(self._edits), reverse=True):
            if end > last:
                raise SystemExit(f"two changes overlap at {text[start:end]!r}")
            text, last = text[:start] + new + text[end:], start
        return text


# --- scopes ----------------------------------------------------------------------------------------------------------

Scope = dict[str, list[ast.AST]]


def bindings(body: list[ast.AST]) -> Scope:
    """The names that these statements bind in their own scope, with the nodes that bind them."""
    found: Scope = defaultdict(list)
    outer: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name].append(node)
            for each in (*node.decorator_list, *getattr(node, "bases", ())):
                visit(each)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            for each in ast.walk(node):
                if isinstance(each, ast.NamedExpr) and isinstance(each.target, ast.Name):
                    found[each.target.id].append(each)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found[node.id].append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]].append(node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found[node.name].append(node)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            found[node.name].append(node)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found[node.rest].append(node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    for each in body:
        visit(each)
    for name in outer:
        found.pop(name, None)
    return found


def names_of(tree: ast.Module) -> Iterator[tuple[ast.Name, list[ast.AST] | None]]:
    """Every name that is read or bound, with the nodes that bind it where it is local; None where it is global."""

    def look(name: str, scopes: list[tuple[bool, Scope]]) -> list[ast.AST] | None:
        for index, (is_class, scope) in enumerate(reversed(scopes)):
            if name in scope and not (is_class and index):
                return scope[name]
        return None

    def visit(node: ast.AST, scopes: list[tuple[bool, Scope]]) -> Iterator[tuple[ast.Name, list[ast.AST] | None]]:
        if isinstance(node, ast.Name):
            yield node, look(node.id, scopes)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            outside: list[ast.AST] = [*arguments.defaults, *[each for each in arguments.kw_defaults if each]]
            given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            given += [each for each in (arguments.vararg, arguments.kwarg) if each]
            outside += [each.annotation for each in given if each.annotation]
            body: list[ast.AST]
            if isinstance(node, ast.Lambda):
                body = [node.body]
            else:
                outside += [*node.decorator_list, *([node.returns] if node.returns else [])]
                body = list(node.body)
            for each in outside:
                yield from visit(each, scopes)
            inner = bindings(body)
            for argument in given:
                inner[argument.arg].append(argument)
            for each in body:
                yield from visit(each, [*scopes, (False, inner)])
        elif isinstance(node, ast.ClassDef):
            for each in (*node.decorator_list, *node.bases, *node.keywords):
                yield from visit(each, scopes)
            inner = bindings(list(node.body))
            for each in node.body:
                yield from visit(each, [*scopes, (True, inner)])
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            inner = defaultdict(list)
            for generator in node.generators:
                for each in ast.walk(generator.target):
                    if isinstance(each, ast.Name):
                        inner[each.id].append(each)
            yield from visit(node.generators[0].iter, scopes)
            now = [*scopes, (False, inner)]
            for index, generator in enumerate(node.generators):
                yield from visit(generator.target, now)
                if index:
                    yield from visit(generator.iter, now)
                for each in generator.ifs:
                    yield from visit(each, now)
            for each in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                yield from visit(each, now)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, scopes)

    for each in tree.body:
        yield from visit(each, [])


# --- the modules as they are -----------------------------------------------------------------------------------------


@dataclass
class Module:
    name: str
    path: str
    text: str
    tree: ast.Module
    tops: Scope

    def defines(self) -> set[str]:
        """Names of its own: not those that it imports."""
        return {
            name
            for name, nodes in self.tops.items()
            if not all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
        }

    def origin(self, name: str) -> tuple[str, str] | None:
        """Whence it has a name that it only imports."""
        nodes = self.tops.get(name, [])
        if len(nodes) != 1 or not isinstance(nodes[0], ast.ImportFrom) or nodes[0].level:
            return None
        for alias in nodes[0].names:
            if (alias.asname or alias.name) == name:
                return nodes[0].module or "", alias.name
        return None


def read_modules() -> dict[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE).as_posix()
        name = module_name(relative)
        text = path.read_text()
        tree = ast.parse(text)
        found[name] = Module(name, relative, text, tree, bindings(list(tree.body)))
    return found


class Moves:
    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self.modules = read_modules()
        self.moved: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        self.renamed: dict[tuple[str, str], str] = dict(mapping.names)
        self.dropped: set[tuple[str, str]] = set()
        self.notes: list[str] = []
        for (module, name), _ in mapping.names.items():
            if module not in self.modules or name not in self.modules[module].tops:
                self.note(f"no name {name} in {module}")
        for target in mapping.targets:
            missing = [each for each in target.sources if not (PACKAGE / each).exists()]
            for each in missing:
                self.note(f"MISSING source {each} of {target.path}")
            target.sources = [each for each in target.sources if each not in missing]
            for each in target.sources:
                self.moved[module_name(each)] = module_name(target.path)
                self.paths[each] = target.path
        for target in mapping.targets:
            if len(target.sources) > 1:
                self.order(target)
                self.settle_names(target)

    def note(self, text: str) -> None:
        self.notes.append(text)

    # -- one module of several ----------------------------------------------------------------------------------------

    def order(self, target: Target) -> None:
        """Keep the order given, but let a module come after those whose names it needs while it is imported."""
        target_doc = target.sources[0]
        names = {module_name(each): each for each in target.sources}
        needs = {each: set[str]() for each in target.sources}
        for name, path in names.items():
            for node in self.modules[name].tree.body:
                if isinstance(node, ast.ImportFrom):
                    full = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
                    needs[path] |= {names[each] for each in full if each in names and names[each] != path}
        done: list[str] = []
        rest = list(target.sources)
        while rest:
            free = next((each for each in rest if needs[each] <= set(done)), None)
            if free is None:
                self.note(f"{target.path}: its sources import one another in a circle: {rest}")
                free = rest[0]
            rest.remove(free)
            done.append(free)
        if target.doc is None:
            target.doc = ast.get_docstring(self.modules[module_name(target_doc)].tree, clean=False) or ""
        # A docstring of several lines says why and when: it is kept whole, below the new first line.
        for each in target.sources:
            more = ast.get_docstring(self.modules[module_name(each)].tree, clean=False) or ""
            if "\n\n" in more and more.strip() != target.doc.strip():
                target.doc = f"{target.doc.rstrip()}\n\n{more.strip()}\n"
        target.sources = done

    def settle_names(self, target: Target) -> None:
        """No two meanings of one name at the top of the merged module."""
        owner: dict[str, tuple[str, str]] = {}  # name -> (meaning, module)
        sources = [self.modules[module_name(each)] for each in target.sources]
        own = {module.name for module in sources}
        for module in sources:
            for name, nodes in sorted(module.tops.items()):
                if name in {"__all__", "annotations", "TYPE_CHECKING"}:
                    continue
                meaning, imported = self.meaning(module, name, nodes, own)
                if imported and meaning.rpartition(":")[0] in own:
                    continue  # an import that goes away
                now = self.renamed.get((module.name, name), name)
                if now not in owner:
                    owner[now] = (meaning, module.name)
                elif owner[now][0] == meaning:
                    if not imported:
                        self.dropped.add((module.name, name))
                else:
                    new = self.fresh(module, name, {*owner, *(n for each in sources for n in each.tops)})
                    self.renamed[module.name, name] = new
                    owner[new] = (meaning, module.name)
                    kind = "private" if name.startswith("_") else "imported" if imported else "PUBLIC"
                    self.note(f"{target.path}: {kind} {name} of {module.path} is now {new}")
        used = {
            (node.id, module.name)
            for module in sources
            for node, nodes in names_of(module.tree)
            if nodes is None and node.id not in module.tops and hasattr(builtins, node.id)
        }
        for name, module_with_it in used:
            if name in owner and owner[name][1] != module_with_it:
                self.note(f"{target.path}: BUILTIN {name} of {module_with_it} is hidden by {owner[name][1]}")

    def meaning(self, module: Module, name: str, nodes: list[ast.AST], own: set[str]) -> tuple[str, bool]:
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
            node = nodes[0]
            for alias in node.names:  # type: ignore[attr-defined]
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    if isinstance(node, ast.Import):
                        return f"import {alias.name if alias.asname else name}", True
                    whence, original = self.source(node.module or "", alias.name)  # type: ignore[attr-defined]
                    if whence in own and (whence, original) in self.renamed:
                        original = self.renamed[whence, original]
                    return f"{whence}:{original}", True
        if len(nodes) == 1:
            for statement in module.tree.body:
                if any(node is nodes[0] for node in ast.walk(statement)):
                    text = ast.get_source_segment(module.text, statement) or ""
                    if isinstance(statement, ast.Assign | ast.AnnAssign):
                        return text, False
        return f"{module.name}:{name}", False

    def source(self, module: str, name: str) -> tuple[str, str]:
        """Where a name that is imported from here is really defined."""
        for _ in range(5):
            found = self.modules.get(module)
            origin = found.origin(name) if found else None
            if origin is None or not origin[0].startswith("holdfast"):
                break
            module, name = origin
        return module, name

    def fresh(self, module: Module, name: str, taken: set[str]) -> str:
        stem = module.name.rpartition(".")[2]
        singular = (
            stem[:-2]
            if stem.endswith("ches")
            else stem[:-1]
            if stem.endswith("s") and not stem.endswith("ss")
            else stem
        )
        bare = name.lstrip("_")
        lead = name[: len(name) - len(bare)]
        if bare.isupper():
            tries = [f"{singular.upper()}_{bare}", f"{stem.upper()}_{bare}"]
        elif bare[:1].isupper():
            camel = "".join(part.title() for part in singular.split("_"))
            tries = [f"{camel}{bare}", f"{bare}Of{camel}"]
        else:
            tries = [f"{singular}_{bare}", f"{stem}_{bare}", f"{bare}_of_{stem}"]
        return next(lead + each for each in tries if lead + each not in taken)

    # -- one file -----------------------------------------------------------------------------------------------------

    def rewrite(self, text: str, module: str | None, where: str) -> str:
        """The text of one file, with every import, name and dotted string as it will be."""
        source = Text(text)
        target = self.moved.get(module, module) if module else None
        tops = bindings(list(source.tree.body))
        local: dict[str, str] = {}  # names at the top of this file that get another
        if module:
            local |= {name: new for (whose, name), new in self.renamed.items() if whose == module}
        aliases: dict[int, dict[str, str]] = defaultdict(dict)  # import node -> local name -> old module
        inlined: dict[int, set[str]] = defaultdict(set)  # import node -> local names of modules merged into this one
        again: dict[int, dict[str, str]] = defaultdict(dict)  # import node -> local name -> new local name
        taken = {*tops, *(node.id for node, _ in names_of(source.tree))}

        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast" and not node.level:
                self.rewrite_import(source, node, target, local, aliases, inlined, again, taken, tops)
            elif isinstance(node, ast.ImportFrom | ast.Import) and node in source.tree.body:
                self.rewrite_foreign(source, node, local)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.moved and self.moved[alias.name] != alias.name:
                        self.note(f"{where}: `import {alias.name}` is left to you")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "holdfast" in node.value:
                start, end = source.span(node)
                old = source.text[start:end]
                new = self.in_document(old)
                if new != old:
                    source.replace(start, end, new)
            elif isinstance(node, ast.Global):
                if set(node.names) & local.keys():
                    start, end = source.span(node)
                    source.replace(start, end, "global " + ", ".join(local.get(each, each) for each in node.names))

        self.rewrite_names(source, local, aliases, inlined, again, where)
        self.rewrite_comments(source)
        for statement in source.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and statement.name in local:
                start, end = source.span(statement)
                found = re.compile(rf"(?:def|class)\s+({statement.name})\b").search(source.text, start, end)
                assert found, where
                source.replace(found.start(1), found.end(1), local[statement.name])
        if module and local:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    if node.value in local and not self.in_all(source.tree, node):
                        self.note(f"{where}:{node.lineno}: the string {node.value!r} may mean a name that changed")
        for name, nodes in tops.items():
            if name == "__all__" and local:
                for node in ast.walk(source.tree):
                    if isinstance(node, ast.Constant) and node.value in local and self.in_all(source.tree, node):
                        start, end = source.span(node)
                        source.replace(start, end, f'"{local[str(node.value)]}"')
        return source.changed()

    @staticmethod
    def in_all(tree: ast.Module, constant: ast.AST) -> bool:
        return any(
            any(each is constant for each in ast.walk(node))
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        )

    def rewrite_foreign(self, source: Text, node: ast.Import | ast.ImportFrom, local: dict[str, str]) -> None:
        bound = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        if not set(bound) & local.keys():
            return
        names = [
            f"{alias.name} as {local[name]}"
            if name in local
            else f"{alias.name} as {alias.asname}"
            if alias.asname
            else alias.name
            for alias, name in zip(node.names, bound, strict=True)
        ]
        lead = f"from {node.module} import " if isinstance(node, ast.ImportFrom) else "import "
        start, end = source.span(node)
        source.replace(start, end, lead + ", ".join(names))

    def rewrite_import(
        self,
        source: Text,
        node: ast.ImportFrom,
        target: str | None,
        local: dict[str, str],
        aliases: dict[int, dict[str, str]],
        inlined: dict[int, set[str]],
        again: dict[int, dict[str, str]],
        taken: set[str],
        tops: Scope,
    ) -> None:
        lines: dict[str, list[str]] = {}
        changed = False
        top = any(each is node for each in source.tree.body)
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            bound = alias.asname or alias.name
            if full in self.modules:
                new = self.moved.get(full, full)
                aliases[id(node)][bound] = full
                if new == target and target is not None:
                    inlined[id(node)].add(bound)
                    changed = True
                    continue
                parent, _, base = new.rpartition(".")
                name = bound
                if new != full and alias.asname is None and base not in GENERIC and base not in taken:
                    name = base
                    if name != bound:
                        again[id(node)][bound] = name
                elif new != full and alias.asname is None and top:
                    name = self.name_for(new, bound, source, taken)
                    if name != bound:
                        again[id(node)][bound] = name
                elif top and bound in local:
                    name = local[bound]
                lines.setdefault(parent, []).append(base if base == name else f"{base} as {name}")
                changed |= new != full or name != bound
                continue
            whence, original = node.module or "", alias.name
            if whence in self.mapping.origins:
                whence, original = self.source(whence, original)
            new = self.moved.get(whence, whence)
            name = self.renamed.get((whence, original), original)
            if (whence, original) in self.renamed and original != name:
                changed = True
            if new == target and target is not None:
                changed = True
                if bound != name:
                    if top:
                        local[bound] = name
                    else:
                        again[id(node)][bound] = name
                continue
            say = local.get(bound, bound) if top else bound
            if name != original and alias.asname is None and bound not in local:
                if name not in taken:
                    say = name
                    again[id(node)][bound] = name
            lines.setdefault(new, []).append(name if name == say else f"{name} as {say}")
            changed |= new != node.module or say != bound
        if not changed:
            return
        start, end = source.span(node)
        if "#" in source.text[start:end]:
            self.note(f"a comment inside an import of {target} is lost: {source.text[start:end]!r}")
        indent = " " * node.col_offset
        new_text = ("\n" + indent).join(f"from {whence} import {', '.join(names)}" for whence, names in lines.items())
        if not lines:
            alone = node.col_offset and not any(
                node in body and any(not isinstance(each, ast.ImportFrom | ast.Import) for each in body)
                for parent in ast.walk(source.tree)
                for body in (getattr(parent, "body", None),)
                if isinstance(body, list)
            )
            new_text = "pass" if alone else ""
        source.replace(start, end, new_text)

    def name_for(self, new: str, bound: str, source: Text, taken: set[str]) -> str:
        """One name in a file for ``features/limits/routes``, whichever of its sources were imported there: ``limits``."""
        parent, base = new.split(".")[-2:]
        wanted = parent if base in GENERIC else base
        olds = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in source.tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" in self.modules
        }
        same = sorted(name for name, old in olds.items() if self.moved.get(old, old) == new)
        if wanted in same or wanted not in taken:
            return wanted
        return same[0] if len(same) > 1 else bound

    def rewrite_names(
        self,
        source: Text,
        local: dict[str, str],
        aliases: dict[int, dict[str, str]],
        inlined: dict[int, set[str]],
        again: dict[int, dict[str, str]],
        where: str,
    ) -> None:
        parents: dict[int, ast.AST] = {}
        for parent in ast.walk(source.tree):
            for child in ast.iter_child_nodes(parent):
                parents[id(child)] = parent
        tops = bindings(list(source.tree.body))
        for node, nodes in names_of(source.tree):
            binders = nodes if nodes is not None else tops.get(node.id, [])
            start, end = source.span(node)
            imports = [each for each in binders if isinstance(each, ast.ImportFrom)]
            module = next((aliases[id(each)][node.id] for each in imports if node.id in aliases[id(each)]), None)
            if module is not None:
                parent = parents[id(node)]
                merged = any(node.id in inlined[id(each)] for each in imports)
                if isinstance(parent, ast.Attribute):
                    attribute = self.renamed.get((module, parent.attr), parent.attr)
                    if attribute == parent.attr and (module, parent.attr) not in self.renamed:
                        whence, original = self.source(module, parent.attr)
                        attribute = self.renamed.get((whence, original), parent.attr)
                    if merged:
                        whole = source.span(parent)
                        source.replace(whole[0], whole[1], attribute)
                        continue
                    if attribute != parent.attr:
                        whole = source.span(parent)
                        source.replace(whole[1] - len(parent.attr), whole[1], attribute)
                elif merged:
                    self.note(
                        f"{where}:{node.lineno}: module {node.id} is used as a value, and is merged into this one"
                    )
            new = next((again[id(each)][node.id] for each in imports if node.id in again[id(each)]), None)
            if new is None and nodes is None and node.id in local:
                new = local[node.id]
            if new is not None and new != node.id:
                source.replace(start, end, new)

    def rewrite_comments(self, source: Text) -> None:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT and ("holdfast" in token.string or ".py" in token.string):
                new = self.dotted(token.string)
                if new != token.string:
                    start = source._starts[token.start[0] - 1] + token.start[1]
                    source.replace(start, start + len(token.string), new)

    # -- names in text ------------------------------------------------------------------------------------------------

    def dotted(self, text: str) -> str:
        return self.path_names(re.sub(r"\bholdfast(?:\.[A-Za-z_][A-Za-z_0-9]*)+", self._dotted, text))

    def _dotted(self, found: re.Match[str]) -> str:
        parts = found[0].split(".")
        for size in range(len(parts), 1, -1):
            module = ".".join(parts[:size])
            if module not in self.moved:
                if module in self.modules and size > 2:
                    return found[0]
                continue
            rest = parts[size:]
            if size == 2 and not (rest and rest[0] in self.modules[module].tops):
                return found[0]  # also the names of loggers, settings and files; see ``texts``
            if rest:
                rest[0] = self.renamed.get((module, rest[0]), rest[0])
            return ".".join([self.moved[module], *rest])
        return found[0]

    def path_names(self, text: str) -> str:
        def new(found: re.Match[str]) -> str:
            return found[1] + self.paths.get(found[2], found[2])

        return re.sub(r"(\bholdfast/|(?<=[`\s(])(?=[a-z_]+/))([a-z_0-9/]+\.py)\b", new, text)

    def in_document(self, text: str) -> str:
        """Markdown and settings: import statements inside, then dotted names."""
        pattern = re.compile(r"()\bfrom (holdfast[.\w]*) import (\([^)]*\)|[\w, ]*\w)")

        def statement(found: re.Match[str]) -> str:
            line = f"from {found[2]} import {found[3]}"
            try:
                source = Text(line)
            except SyntaxError:
                return found[0]
            node = source.tree.body[0]
            assert isinstance(node, ast.ImportFrom)
            fresh: list[dict[int, dict[str, str]]] = [defaultdict(dict), defaultdict(dict)]
            self.rewrite_import(source, node, None, {}, fresh[0], defaultdict(set), fresh[1], set(), {})
            start = text.rfind("\n", 0, found.start()) + 1
            lead = text[start : found.start()]
            return source.changed().replace("\n", "\n" + lead if not lead.strip(" >") else "; ")

        out, position = [], 0
        for found in pattern.finditer(text):
            out.append(self.dotted(text[position : found.start()]))
            out.append(statement(found))
            position = found.end()
        return "".join([*out, self.dotted(text[position:])])

    # -- merging ------------------------------------------------------------------------------------------------------

    def merge(self, target: Target, texts: dict[str, str]) -> str:
        imports: list[str] = []
        typed: list[str] = []
        bodies: list[str] = []
        exported: list[str] | None = None
        every = [self.modules[module_name(each)] for each in target.sources]
        if any("__all__" in module.tops for module in every):
            exported = []
        for path in target.sources:
            module = self.modules[module_name(path)]
            tree = ast.parse(texts[path])
            lines = texts[path].splitlines(keepends=True)
            position = 0
            body: list[str] = []
            first = True
            for statement in tree.body:
                begin = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))]) - 1
                lead, text = "".join(lines[position:begin]), "".join(lines[begin : statement.end_lineno])
                position = statement.end_lineno or 0
                if first and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    first = False
                    if isinstance(statement.value.value, str):
                        continue
                first = False
                if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                    continue
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    imports.append(lead.strip("\n") + ("\n" if lead.strip() else "") + text.rstrip("\n"))
                    continue
                if isinstance(statement, ast.If) and isinstance(statement.test, ast.Name):
                    if statement.test.id == "TYPE_CHECKING" and not statement.orelse:
                        rest = []
                        for each in statement.body:
                            segment = ast.get_source_segment(texts[path], each) or ""
                            if isinstance(each, ast.Import | ast.ImportFrom):
                                typed.append("    " + segment)
                            elif not isinstance(each, ast.Pass):
                                rest.append(segment)
                        if rest:
                            body.append("\nif TYPE_CHECKING:\n    " + "\n    ".join(rest) + "\n")
                        continue
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    if statement.targets[0].id == "__all__":
                        assert exported is not None
                        exported += list(ast.literal_eval(statement.value))
                        continue
                bound = set(bindings([statement]))
                if bound and all((module.name, name) in self.dropped for name in bound):
                    if lead.strip():
                        body.append(lead)
                    continue
                body.append(lead + text)
            body.append("".join(lines[position:]))
            if exported is not None and "__all__" not in module.tops:
                exported += sorted(
                    self.renamed.get((module.name, name), name) for name in module.defines() if not name.startswith("_")
                )
            text = "".join(body).strip("\n")
            if text:
                bodies.append(text)
        doc = target.doc or ""
        out = [f'"""{doc}"""\n\nfrom __future__ import annotations\n']
        out.append("\n".join(imports))
        if typed:
            if not any("import TYPE_CHECKING" in each or "TYPE_CHECKING" in each for each in imports):
                out.append("from typing import TYPE_CHECKING")
            out.append("\nif TYPE_CHECKING:\n" + "\n".join(typed))
        if exported is not None:
            out.append("\n__all__ = [\n" + "".join(f'    "{each}",\n' for each in sorted(set(exported))) + "]\n")
        return "\n".join(out) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"

    # -- all of it ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        changed: dict[Path, str] = {}
        for folder in CODE:
            for path in sorted((ROOT / folder).rglob("*.py")):
                if "__pycache__" in path.parts:
                    continue
                text = path.read_text()
                module = None
                if path.is_relative_to(PACKAGE):
                    module = module_name(path.relative_to(PACKAGE).as_posix())
                new = self.rewrite(text, module, path.relative_to(ROOT).as_posix())
                if new != text:
                    changed[path] = new
        for name in TEXTS:
            where = ROOT / name
            for path in sorted(where.rglob("*")) if where.is_dir() else [where]:
                if not path.is_file() or path.suffix == ".py" or "node_modules" in path.parts:
                    continue
                try:
                    text = path.read_text()
                except UnicodeDecodeError:
                    continue
                new = self.in_document(text)
                if new != text:
                    changed[path] = new
        for path, text in changed.items():
            path.write_text(text)

        whole: set[Path] = set()
        merged: list[tuple[Target, str]] = []
        for target in self.mapping.targets:
            if len(target.sources) > 1:
                merged.append(
                    (target, self.merge(target, {each: (PACKAGE / each).read_text() for each in target.sources}))
                )
        # Through names of their own first: a target may have the name of another's source.
        for target in self.mapping.targets:
            for each in target.sources:
                git("mv", f"src/holdfast/{each}", f"src/holdfast/{each}.moving")
        for old, new in self.mapping.files:
            (PACKAGE / new).parent.mkdir(parents=True, exist_ok=True)
            git("mv", f"src/holdfast/{old}", f"src/holdfast/{new}")
        for path in self.mapping.deleted:
            git("rm", "-q", "-f", f"src/holdfast/{path}")
        for target in self.mapping.targets:
            if not target.sources:
                continue
            whole.add((PACKAGE / target.path).parent)
            (PACKAGE / target.path).parent.mkdir(parents=True, exist_ok=True)
            sizes = {each: (PACKAGE / f"{each}.moving").stat().st_size for each in target.sources}
            largest = max(sizes, key=lambda each: sizes[each])
            git("mv", f"src/holdfast/{largest}.moving", f"src/holdfast/{target.path}")
            for each in target.sources:
                if each != largest:
                    git("rm", "-q", "-f", f"src/holdfast/{each}.moving")
        for target, text in merged:
            (PACKAGE / target.path).write_text(text)
        for target in self.mapping.targets:
            if len(target.sources) == 1 and target.doc is not None:
                self.set_doc(PACKAGE / target.path, target.doc)
        self.packages()
        self.tidy()
        for note in self.notes:
            print("note:", note)

    def set_doc(self, path: Path, doc: str) -> None:
        text = path.read_text()
        tree = ast.parse(text)
        first = tree.body[0] if tree.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            text = "\n".join(text.splitlines()[first.end_lineno :]) + "\n"
        path.write_text(f'"""{doc}"""\n' + text)

    def packages(self) -> None:
        for folder, doc in self.mapping.packages.items():
            init = PACKAGE / folder / "__init__.py"
            if init.parent.is_dir():
                if init.exists():
                    self.set_doc(init, doc)
                else:
                    init.write_text(f'"""{doc}"""\n')
        for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
            init = folder / "__init__.py"
            if not init.exists():
                init.write_text(f'"""{folder.name.replace("_", " ").capitalize()}."""\n')
                self.note(f"package {folder.relative_to(PACKAGE)} got an empty __init__.py")
        for init in sorted(PACKAGE.rglob("__init__.py"), reverse=True):
            others = [each for each in init.parent.rglob("*") if each.is_file() and each != init]
            others = [each for each in others if "__pycache__" not in each.parts]
            if not others and len(ast.parse(init.read_text()).body) <= 1:
                git("rm", "-q", "-f", init.relative_to(ROOT).as_posix())
                self.note(f"removed the empty package {init.parent.relative_to(PACKAGE)}")
        git("add", "-A", "src")

    def tidy(self) -> None:
        ruff = str(ROOT / ".venv" / "bin" / "ruff")
        places = [each for each in CODE if (ROOT / each).exists()]
        select = ["--select", "I,F401,F811", "--fix", "-q", "--exit-zero"]
        subprocess.run([ruff, "check", *select, *places], cwd=ROOT, check=True)
        subprocess.run([ruff, "format", "-q", *places], cwd=ROOT, check=True)


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    Moves(read_mapping(Path(sys.argv[1]))).run()
