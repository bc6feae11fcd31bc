# ruff: noqa
from edit import sub, swap

# The architecture tests name the new layers.
layers = "tests/architecture/test_layers.py"
swap(
    layers,
    'DOMAIN = ROOT / "src" / "holdfast" / "domain"\n',
    '''PACKAGE = ROOT / "src" / "holdfast"
PURE = ("model", "forms", "timing", "signing", "verification", "statistics", "why", "why_reasons")
"""The files of a feature that decide, as the engine does, and touch nothing."""
''',
)
swap(
    layers, "and a domain with nothing but the standard library", "and an engine with nothing but the standard library"
)
sub(
    layers,
    r'@pytest.mark.parametrize\("path", sorted\(DOMAIN.rglob.*?\ndef test_domain_imports_only_itself_and_the_standard_library',
    """def pure() -> list[Path]:
    features = [path for path in (PACKAGE / "features").glob("*/*.py") if path.stem in PURE]
    return sorted([*(PACKAGE / "engine").rglob("*.py"), *features, PACKAGE / "errors.py"])


@pytest.mark.parametrize("path", pure(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_pure_modules_import_only_themselves_and_the_standard_library""",
)
words = "tests/architecture/test_words.py"
swap(
    words,
    'ALLOWED = {"stores", "config.py", "cli", "testing"}\n',
    '''ALLOWED = {"stores", "config.py", "cli", "testing"}
ALLOWED_FILES = {"commands.py"}
"""Of a feature: its part of the command line."""
''',
)
swap(
    words,
    "    return sorted(path for path in paths if path.relative_to(PACKAGE).parts[0] not in ALLOWED)",
    """    outside = [path for path in paths if path.relative_to(PACKAGE).parts[0] not in ALLOWED]
    return sorted(path for path in outside if not (path.parent.parent.name == "features" and path.name in ALLOWED_FILES))""",
)
