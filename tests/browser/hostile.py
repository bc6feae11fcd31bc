"""Text that does harm if it is not treated as text, for every field that people can fill."""

from __future__ import annotations

SCRIPT = "<script>window.harmed=1</script>"
IMAGE = '"><img src=x onerror=window.harmed=1>'
BREAK = "</title></textarea></pre></svg><svg onload=window.harmed=1>"
TEMPLATE = "{{7*7}}${7*7}<%= 7*7 %>"
LINK = "javascript:window.harmed=1"
ALL = f"{SCRIPT} {IMAGE} {BREAK} {TEMPLATE} {LINK} ' \" ` --> ]]> \u202e\u2066"

KIND = f"mail {IMAGE}"
QUEUE = f"q'{SCRIPT}"
TAG = f"t&amp;{IMAGE}"
AGENT = f"agent {SCRIPT}"
SCHEDULE = f"nightly {IMAGE}"
DOCUMENT = {SCRIPT: [ALL, {"__proto__": IMAGE, "on": LINK}], "plain": BREAK}
