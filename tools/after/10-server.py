# ruff: noqa
from edit import swap

swap("src/holdfast/server/rendering.py", 'PackageLoader("holdfast.dashboard")', 'PackageLoader("holdfast.server")')
