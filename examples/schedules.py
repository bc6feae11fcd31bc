"""Schedules and a template, and a day that passes in a second.

    python examples/schedules.py                             # on a private SQLite file
    python examples/schedules.py --url postgresql://…        # on a PostgreSQL server, in a temporary schema

The test kit moves the clock, so you see a whole day at once: a report at nine in Paris, a stock count every six hours,
and a newsletter from a template.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import holdfast
from holdfast.testing import Kit

app = holdfast.App("sqlite:///shop.db", name="shop")


@app.schedule("0 9 * * MON-FRI", tz="Europe/Paris", missed="once", overlap="skip")
@app.job
def report(scope: str = "yesterday") -> str:
    return f"{scope} in numbers"


@app.schedule("every 6h", jitter="1m")
@app.job
def take_stock() -> str:
    return "counted"


@app.job
def newsletter(title: str, language: str = "en") -> str:
    return f"{title} ({language})"


def main(url: str | None = None) -> list[str]:
    lines: list[str] = []
    with Kit(app, url) as kit:
        kit.travel_to(datetime(2027, 3, 26, 0, 0, tzinfo=UTC))  # a Friday
        app.templates.set("news", "newsletter", {"title": "Spring"})
        app.templates.set("news", "newsletter", {"title": "Spring", "language": "fr"})
        app.schedules.add("spring", "at 2027-03-26 12:00", template="news", tz="Europe/Paris")
        kit.drain()  # a worker starts and stores the declared schedules
        lines += [f"{schedule.name}: {schedule.timed.words} ({schedule.zone})" for schedule in app.schedules.list()]

        for _ in range(24):
            kit.travel("1h")
            kit.drain()
        for schedule in app.schedules.list():
            for run in reversed(app.schedules.history(schedule.name)):
                job = app.jobs.get(run.job_id) if run.job_id else None
                lines.append(f"{run.due_at:%H:%M} {schedule.name}: {job.state if job else run.status}")

        lines += [f"{time.local:%a %d %b %H:%M %Z}" for time in app.schedules.preview("report", 2)]
    for line in lines:
        print(line)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A day of a shop's schedules, in a second.")
    parser.add_argument("--url", help="A PostgreSQL server; else a private SQLite file.")
    main(parser.parse_args().url)
