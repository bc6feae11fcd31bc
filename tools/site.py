"""Build the documentation site: `make docs` and `make docs ARGS=--serve`. Needs requirements/docs.txt and no network.

Zensical, the maintained successor of Material for MkDocs, renders docs/ with the settings of mkdocs.yml. Before that,
the pages are copied to .site/docs with three changes:

- Links to files outside docs/ (examples, sources, tests) lead to the repository if `repo_url` is set. Without one they
  become plain text, because the site has no such pages.
- CHANGELOG.md of the root becomes a page.
- Decisions (docs/adr/) are listed in the navigation in order.

A page that is not in the navigation, a page of the navigation that does not exist, a broken link or anchor fails the
build.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGE = ROOT / ".site"
CHANGELOG = "changelog.md"
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)


class _SettingsLoader(yaml.SafeLoader):
    """Loads settings and keeps tags of Python objects as they are."""


class _SettingsDumper(yaml.SafeDumper):
    """Writes settings with their tags."""


class _Tagged:
    """A value with the tag of a Python object."""

    def __init__(self, tag: str, value: Any) -> None:
        self.tag, self.value = tag, value


_SettingsLoader.add_multi_constructor(
    "tag:yaml.org,2002:python/",
    lambda loader, suffix, node: _Tagged(
        f"tag:yaml.org,2002:python/{suffix}", loader.construct_mapping(node, deep=True)
    ),
)
_SettingsDumper.add_representer(_Tagged, lambda dumper, node: dumper.represent_mapping(node.tag, node.value))


def prepare() -> list[str]:
    """Write .site/ and return the problems of the navigation."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _SettingsLoader)
    pages = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*")) if path.is_file()}
    pages.pop(".gitignore", None)
    pages[CHANGELOG] = ROOT / "CHANGELOG.md"
    decisions = [page for page in pages if re.fullmatch(r"adr/\d+.*\.md", page)]
    for section in settings["nav"]:
        if "Concepts and decisions" in section:
            section["Concepts and decisions"] += decisions
    listed = _pages(settings["nav"])
    settings["site_dir"] = "site"
    for page, path in pages.items():
        target = STAGE / "docs" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        if page.endswith(".md"):
            content = rewritten(content.decode(), page, settings.get("repo_url")).encode()
        if not target.is_file() or target.read_bytes() != content:
            target.write_bytes(content)
    for stale in (STAGE / "docs").rglob("*"):
        if stale.is_file() and stale.relative_to(STAGE / "docs").as_posix() not in pages:
            stale.unlink()
    (STAGE / "mkdocs.yml").write_text(yaml.dump(settings, Dumper=_SettingsDumper, sort_keys=False), encoding="utf-8")
    problems = [f"mkdocs.yml: there is no page {page}" for page in listed if page not in pages]
    problems += [
        f"docs/{page} is not in the navigation" for page in pages if page.endswith(".md") and page not in listed
    ]
    return problems


def rewritten(markdown: str, page: str, repository: str | None) -> str:
    """Return a page with links that work on the site."""
    folder = "" if page == CHANGELOG else posixpath.join("docs", posixpath.dirname(page))
    here = posixpath.dirname(page) or "."

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match.group()
        path, _, anchor = target.partition("#")
        full = posixpath.normpath(posixpath.join(folder, path))
        if full in ("CHANGELOG.md", "README.md"):
            return f"[{text}]({posixpath.relpath(CHANGELOG if full == 'CHANGELOG.md' else 'index.md', here)})"
        if full.startswith("docs/"):
            inside = posixpath.relpath(full.removeprefix("docs/"), here)
            return f"[{text}]({inside}{'#' + anchor if anchor else ''})"
        return f"[{text}]({repository.rstrip('/')}/blob/main/{full})" if repository else text

    parts, position = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[position : fence.start()]), fence.group()]
        position = fence.end()
    return "".join([*parts, _LINK.sub(link, markdown[position:])])


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, list):
        return [page for item in nav for page in _pages(item)]
    if isinstance(nav, dict):
        return [page for item in nav.values() for page in _pages(item)]
    return [nav]


def zensical(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "zensical"), *arguments, "--config-file", str(STAGE / "mkdocs.yml")]


def build() -> int:
    if problems := prepare():
        print("\n".join(problems), file=sys.stderr)
        return 1
    code = subprocess.run(
        zensical("build", "--clean", "--strict"), cwd=STAGE, env=_environment(), check=False
    ).returncode
    if code == 0:
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        (STAGE / "site").rename(ROOT / "site")
    return code


def serve() -> int:
    """Serve on 127.0.0.1:8001 and copy pages that change."""
    print(*prepare(), sep="\n", end="", file=sys.stderr)
    with subprocess.Popen(zensical("serve", "--dev-addr", "127.0.0.1:8001"), cwd=STAGE, env=_environment()) as server:
        try:
            while server.poll() is None:
                time.sleep(1)
                prepare()
        except KeyboardInterrupt:
            server.terminate()
    return 0


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1"}


if __name__ == "__main__":
    sys.exit(serve() if "--serve" in sys.argv else build())
