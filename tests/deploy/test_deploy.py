"""The files in deploy/ (JF-18): they are consistent, their tools accept them, and their commands work.

No container engine is needed: `test_commands_of_compose_work` runs the database script and the commands of compose.yaml
as processes, in the same order and with the same logins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from holdfast import App
from tests.support.postgres_server import PostgresServer
from tests.support.processes import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-18")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "container/Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
LOGINS = ("owner", "service", "worker", "app", "reader")


def seconds(span: str) -> float:
    return float(span.removesuffix("s"))


def grace_of(command: list[str]) -> float:
    return seconds(command[command.index("--grace") + 1])


# -- the container image ---------------------------------------------------------------------------------------------


def test_image_is_built_in_two_stages_and_runs_unprivileged() -> None:
    stages = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.M)
    assert len(stages) == 2
    last = CONTAINERFILE.rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER holdfast$", last, re.M)
    assert "pip install" not in last
    for name in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.M):
        for path in name.split():
            assert (ROOT / path).exists(), f"the image copies {path}"
            assert f"!{path}" in (DEPLOY / "container/Containerfile.dockerignore").read_text().split()


# -- compose ---------------------------------------------------------------------------------------------------------


def test_compose_mounts_and_dependencies_exist() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), f"{name} mounts {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name} mounts {source}"
        assert set(service.get("depends_on", {})) <= set(SERVICES)
    named = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose/compose.yaml").read_text()))
    assert named == set(re.findall(r"^(\w+)=$", (DEPLOY / "compose/env.example").read_text(), re.M))


def test_compose_services_have_separate_logins_and_few_rights() -> None:
    for name, login in {"migrate": "owner", "service": "service", "worker": "worker"}.items():
        service = SERVICES[name]
        assert f"//holdfast_{login}:" in service["environment"]["HOLDFAST_URL"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    assert seconds(SERVICES["worker"]["stop_grace_period"]) > grace_of(SERVICES["worker"]["command"])
    for service in SERVICES.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "ports are published on this machine only"


# -- Kubernetes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def rendered(tmp_path: Path) -> list[dict[str, Any]]:
    """The documents that `kubectl apply -k` would send; where kubectl is missing, those of the files themselves."""
    folder = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    for example in folder.glob("secrets/*.env.example"):
        example.rename(example.with_suffix(""))
    if shutil.which("kubectl"):
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [each for name in listed for each in yaml.safe_load_all((folder / name).read_text()) if each]


def test_kubernetes_pods_are_restricted_and_have_time_to_stop(rendered: list[dict[str, Any]]) -> None:
    pods = {
        each["metadata"]["name"]: each["spec"]["template"] for each in rendered if each["kind"] in {"Job", "Deployment"}
    }
    assert set(pods) == {"holdfast-migrate", "holdfast-service", "holdfast-worker"}
    for pod in pods.values():
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
    worker = pods["holdfast-worker"]["spec"]
    assert worker["terminationGracePeriodSeconds"] > grace_of(worker["containers"][0]["args"])


def test_kubernetes_references_are_consistent(rendered: list[dict[str, Any]]) -> None:
    pods = [each for each in rendered if each["kind"] in {"Job", "Deployment"}]
    used = [
        next(iter(source.values()))["name"]
        for each in pods
        for source in each["spec"]["template"]["spec"]["containers"][0]["envFrom"]
        if "secretRef" in source
    ]
    assert len(set(used)) == 3, "one secret per database role"
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in pods]
    for each in rendered:
        spec = each.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector"))
        if each["kind"] in {"Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service"}:
            wanted = selector.get("matchLabels", selector)
            wanted = {key: value for key, value in wanted.items() if key != "app.kubernetes.io/part-of"}
            assert any(wanted.items() <= found.items() for found in labels), f"{each['kind']} selects no pod"
        if each["kind"] == "ScaledObject":
            assert spec["scaleTargetRef"]["name"] in {pod["metadata"]["name"] for pod in pods}


# -- systemd ---------------------------------------------------------------------------------------------------------


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = sorted((DEPLOY / "systemd").iterdir())
    assert [each.name for each in units] == [
        *("holdfast-service.service", "holdfast-tick.service", "holdfast-tick.timer", "holdfast-worker.service")
    ]
    for each in units:
        text = each.read_text()
        (tmp_path / each.name).write_text(
            text.replace("/opt/holdfast/bin/holdfast", shutil.which("true") or "/bin/true")
        )
        if "--grace" in text:
            (stop,) = re.findall(r"^TimeoutStopSec=(.+)$", text, re.M)
            assert seconds(stop) > grace_of(text.split())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        ["systemd-analyze", "verify", *(f"./{each.name}" for each in units)],
        *(), capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# -- the guides that show these files --------------------------------------------------------------------------------


def guide(name: str) -> str:
    return (ROOT / "docs/guides" / f"{name}.md").read_text(encoding="utf-8")


def test_systemd_guide_installs_what_the_units_serve() -> None:
    assert "--metrics-port" in (DEPLOY / "systemd/holdfast-worker.service").read_text()
    (extras,) = re.findall(r"pip install 'holdfast\[([^\]]+)\]'", guide("deployment"))
    assert {"standard", "prometheus"} <= set(extras.split(","))


def test_containers_of_the_guides_start_the_entrypoint_once() -> None:
    (entrypoint,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', CONTAINERFILE, re.M)
    for text in map(guide, ("health", "deployment", "workers", "service")):
        for block in re.findall(r"```yaml\n(.*?)```", text, re.S):
            for container in (yaml.safe_load(block) or {}).get("containers", []):
                assert container["args"][0] != entrypoint
                assert container["args"][0] in {"worker", "serve", "tick", "migrate"}


def test_every_role_has_a_login_except_the_approvers() -> None:
    """Approvers decide in the dashboard or with a token; the service acts for them."""
    script = (DEPLOY / "postgres/roles.sql").read_text()
    roles = set(re.findall(r"'(holdfast_\w+)'", script.partition("nologin")[0]))
    assert roles - set(re.findall(r"^grant (\w+) to \w+;$", script, re.M)) == {"holdfast_approver"}


def test_every_process_has_an_artifact_store(rendered: list[dict[str, Any]]) -> None:
    named = "HOLDFAST_ARTIFACTS"
    for name in ("service", "worker"):
        where = SERVICES[name]["environment"][named]
        assert any(where.startswith(volume.split(":")[1]) for volume in SERVICES[name]["volumes"])
    for unit in (DEPLOY / "systemd").glob("*.service"):
        (where,) = re.findall(rf"^Environment={named}=(.+)$", unit.read_text(), re.M)
        assert where.startswith("/var/lib/holdfast/"), "the only folder that the units may write"
    settings = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["configMapGenerator"][0][
        "literals"
    ]
    assert any(each.startswith(f"{named}=s3://") for each in settings), "pods share no folder"


def test_alerts_are_not_counted_in_words() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) > 10
    for text in (guide("observability"), (DEPLOY / "prometheus/alerts.yml").read_text()):
        assert not re.search(r"\b(ten|eleven|twelve|thirteen|\d+) (alert|alarm)", text)


# -- the commands without containers --------------------------------------------------------------------------------


@pytest.fixture
def stack(own_server: PostgresServer, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A database as the PostgreSQL container makes it, and the environment that .env would give."""
    own_server.start()
    name = f"deploy_{os.getpid()}"
    own_server.create_database(name)
    passwords = {f"HOLDFAST_{login.upper()}_PASSWORD": f"{login}-'secret" for login in LOGINS}
    folder = tmp_path / "docker-entrypoint-initdb.d"
    folder.mkdir()
    for each in (DEPLOY / "compose/initdb.sh", DEPLOY / "postgres/roles.sql"):
        shutil.copy(each, folder)
    subprocess.run(
        ["sh", folder / "initdb.sh"],
        *(), check=True, timeout=60,
        env={
            **passwords,
            "PATH": f"{own_server.programs}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": str(own_server.port),
            "PGPASSWORD": own_server.password,
            "POSTGRES_USER": own_server.user,
            "POSTGRES_DB": name,
        },
    )  # fmt: skip
    yield {**passwords, "@postgres/holdfast": f"@127.0.0.1:{own_server.port}/{name}"}
    own_server.drop_database(name)
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:
        for login in LOGINS:
            connection.execute(f"drop role holdfast_{login}")


def filled(text: str, stack: dict[str, str]) -> str:
    """A value as compose resolves it: variables from .env, and the host name of its network."""
    for name, value in stack.items():
        text = text.replace(f"${{{name}:?}}", value.replace("'", "%27")).replace(name, value)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@contextmanager
def started(name: str, stack: dict[str, str], log: Path, **replaced: str) -> Iterator[subprocess.Popen[bytes]]:
    service = SERVICES[name]
    command = [replaced.get(word, filled(word, stack)) for word in service["command"]]
    environment = {key: filled(value, stack) for key, value in service["environment"].items()}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["holdfast", *command, *([] if "extra" not in replaced else replaced["extra"].split())],
            *(), stdout=output, stderr=output, cwd=log.parent,
            env={**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT / "examples")},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answer(url: str, token: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.slow
def test_commands_of_compose_work(stack: dict[str, str], tmp_path: Path) -> None:
    with started("migrate", stack, tmp_path / "migrate.log") as migrate:
        assert migrate.wait(60) == 0, (tmp_path / "migrate.log").read_text()
    with ExitStack() as running:
        web, metrics = free_port(), free_port()
        service = running.enter_context(
            started("service", stack, tmp_path / "service.log", **{"0.0.0.0": "127.0.0.1", "extra": f"--port {web}"})
        )
        worker = running.enter_context(
            started("worker", stack, tmp_path / "worker.log", **{"0.0.0.0": "127.0.0.1", "9464": str(metrics)})
        )
        until(lambda: answer(f"http://127.0.0.1:{web}/readyz")[0] == 200, "the service is ready")
        until(lambda: answer(f"http://127.0.0.1:{metrics}/livez")[0] == 200, "the worker is alive")

        # The image's health check, for both.
        check = json.loads(re.search(r"^\s+CMD (\[\"python.*)$", CONTAINERFILE, re.M).group(1))  # type: ignore[union-attr]
        for url in (f"http://127.0.0.1:{web}/livez", f"http://127.0.0.1:{metrics}/livez"):
            assert (
                subprocess.run([sys.executable, *check[1:]], env={"HOLDFAST_HEALTH_URL": url}, check=False).returncode
                == 0
            )

        # The token for Prometheus, and the metrics it reads.
        (issue,) = SERVICES["metrics-token"]["command"]
        folder = tmp_path / "token"
        folder.mkdir()
        subprocess.run(
            ["sh", "-c", issue.replace("/token/", f"{folder}/")],
            *(), check=True, timeout=60,
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOLDFAST_URL": filled(SERVICES["metrics-token"]["environment"]["HOLDFAST_URL"], stack),
            },
        )  # fmt: skip
        token = (folder / "token").read_text().strip()
        status, figures = answer(f"http://127.0.0.1:{web}/metrics", token)
        assert status == 200
        assert "holdfast_jobs" in figures

        # The application enqueues with its own login, and the worker runs the job.
        url = filled("postgresql://holdfast_app:${HOLDFAST_APP_PASSWORD:?}@postgres/holdfast", stack)
        with closing(App(url, name="deploy")) as app:
            assert app.enqueue("send_receipt", {"order": 7}).result(timeout=30) == "sent for order 7"

        worker.send_signal(signal.SIGTERM)
        assert worker.wait(seconds(SERVICES["worker"]["stop_grace_period"])) == 0
        service.send_signal(signal.SIGTERM)
        assert service.wait(seconds(SERVICES["service"]["stop_grace_period"])) == 0
