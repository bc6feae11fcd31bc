"""A Flask shop: an order and the job for its receipt are committed together.

    python examples/flask_shop.py                                             # place an order and exit
    flask --app examples/flask_shop:make_site run                             # serve it
    flask --app examples/flask_shop:make_site holdfast worker                 # run jobs

The dashboard is at /jobs/. Log in as any user with the header `x-user`, which stands in for your authentication.
Install with: pip install 'holdfast[flask,sqlalchemy]'
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import holdfast
from holdfast.integrations.flask import Holdfast, background_worker, identity
from holdfast.integrations.sqlalchemy import enqueue


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]


def make_site(url: str | None = None) -> Flask:
    url = url or os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/shop.db"
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.create_all(engine)

    jobs = holdfast.App(url, name="shop")

    @jobs.job
    def send_receipt(email: str, order: int) -> str:
        return f"receipt for order {order} sent to {email}"

    site = Flask("shop")
    extension = Holdfast(jobs, site)

    def current_user() -> Any:
        user = request.headers.get("x-user")  # use your login instead: flask.session, flask_login.current_user
        return None if user is None else identity(user, "operator")

    extension.mount(site, "/jobs", identity=current_user)

    @site.post("/orders")
    def place() -> dict[str, object]:
        with Session(engine) as session, session.begin():
            order = Order(email=request.form["email"])
            session.add(order)
            session.flush()
            # The job exists if the session commits, as the order does.
            handle = enqueue(session, send_receipt, order.email, order.id)
            placed = {"order": order.id, "job": handle.id}
        return placed

    return site


def main(url: str | None = None) -> str:
    site = make_site(url)
    jobs: holdfast.App = site.extensions["holdfast"].app
    client = site.test_client()
    with background_worker(jobs):  # for small deployments; otherwise run `flask holdfast worker`
        placed = client.post("/orders", data={"email": "ada@example.com"}).get_json()
        jobs.jobs.handle(placed["job"]).wait(timeout="30s")
    receipt: str = jobs.jobs.result(placed["job"]).value
    print(receipt)
    for headers in ({}, {"x-user": "ada"}):
        page = client.get("/jobs/", headers=headers)
        print(f"dashboard with {headers or 'no user'}: {page.status_code}, {len(page.text):,} characters")
    jobs.close()
    return receipt


if __name__ == "__main__":
    main()
