# ruff: noqa
import re

from edit import ROOT, swap

# The lists name the routers themselves: modules that become one would be named twice.
for path, name, attribute in (
    ("src/holdfast/api/__init__.py", "ROUTES", "router"),
    ("src/holdfast/dashboard/__init__.py", "PAGES", "routes"),
):
    file = ROOT / path
    text = file.read_text()
    found = re.search(rf"^{name} = \((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    assert found, path
    inner = re.sub(r"\b([a-z_]+)\b", rf"\1.{attribute}", found[1])
    file.write_text(text[: found.start(1)] + inner + text[found.end(1) :])
swap("src/holdfast/api/__init__.py", "for routes in ROUTES:", "for router in ROUTES:")
swap(
    "src/holdfast/api/__init__.py",
    "include_router(routes.router, prefix=PREFIX)",
    "include_router(router, prefix=PREFIX)",
)
swap("src/holdfast/dashboard/__init__.py", "for route in page.routes]", "for route in page]")
# The same class under the name that the other routes have it by.
for path in ("src/holdfast/api/at_once.py", "src/holdfast/api/linking.py"):
    swap(path, "from starlette.requests import Request\n", "from fastapi import Request\n")
