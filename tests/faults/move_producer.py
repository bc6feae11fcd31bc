"""Enqueues jobs through the database that HOLDFAST_URL names until the folder has a file named `stop`; records each job
that was accepted, and how long that took."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from holdfast import App
from holdfast.errors import HoldfastError
from tests.support.worker_processes import FOLDER_VARIABLE


def main() -> None:
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (
        closing(App(name="producer", enqueued_by="tester")) as app,
        (folder / "accepted").open("a", buffering=1) as out,
    ):
        number = 0
        while not (folder / "stop").exists():
            begun = time.monotonic()
            try:
                job = app.enqueue("work", {"number": number})
            except HoldfastError as error:
                print("refused", error.code, file=out)
                continue
            print(job.id, time.monotonic() - begun, file=out)
            number += 1
            time.sleep(0.01)


if __name__ == "__main__":
    main()
