"""docker-compose.yml and the Dockerfile, checked as text without a container engine."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
OF_ENGINES = {
    f"TENFOLD_{name}"
    for name in ("SPARK_MASTER", "SPARK_CONNECTION", "SPARK_PACKAGE", "BEAM_OPTIONS", "ERROR_FILE", "ENGINES_PYTHON")
}
"""The images contain neither Spark nor Beam."""
OF_KUBERNETES = {"TENFOLD_GPU_POD_TEMPLATE"}
OURS = ("tenfold-airflow", "tenfold-training", "tenfold-training-cuda")
ONCE = ("init", "check")
"""These services end. All others keep running."""
WORKERS = ("worker", "cpu-trainer", "gpu-worker")
FORMS_REACH = ("SOURCES", "WORKSPACES", "PUBLISH", "MODELS")


def environment(service: str) -> dict[str, str]:
    return SERVICES[service].get("environment", {})


@pytest.mark.parametrize("name", sorted(set(SERVICES) - set(ONCE)))
def test_permanent_services_have_health_checks_restarts_and_memory_limits(name: str):
    service = SERVICES[name]
    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"]


@pytest.mark.parametrize("name", SERVICES)
def test_services_start_after_their_dependencies_are_healthy(name: str):
    conditions = {dependency["condition"] for dependency in SERVICES[name].get("depends_on", {}).values()}
    assert conditions <= {"service_healthy", "service_completed_successfully"}
    assert conditions or name in ("postgres", "redis", "gcs")


def test_only_the_ui_is_published_and_only_to_this_machine():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["api-server"]
    assert all(port.startswith("127.0.0.1:") for port in published["api-server"])


@pytest.mark.parametrize("name", SERVICES)
def test_no_server_runs_as_root(name: str):
    service = SERVICES[name]
    # The image of Postgres starts as root, which its volume needs, and then switches to its own user.
    assert service["image"] in OURS or service.get("user") or service["image"].startswith("${POSTGRES_IMAGE")
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("target", ["airflow", "training"])
def test_our_images_run_as_an_unprivileged_user(target: str):
    stage = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    [of_target] = [text for text in stage if text.splitlines()[0].endswith(f" AS {target}")]
    assert of_target.rstrip().endswith("USER tenfold")


def test_secrets_come_from_the_environment_and_are_required():
    secret = re.compile("PASSWORD$|SECRET|KEY$|AUTH$|CONN$|BROKER_URL|BACKEND")
    values = {
        value
        for name in SERVICES
        for key, value in environment(name).items()
        if secret.search(key) and not key.startswith("COMET")
    }
    assert len(values) == 8
    for value in values:
        assert re.search(r"\$\{[A-Z_]+:\?[^}]*\}", value), value


@pytest.mark.parametrize("name", [*WORKERS, "gcs"])
def test_workers_and_the_bucket_have_neither_database_access_nor_keys(name: str):
    held = " ".join(map(str, [*environment(name), *environment(name).values()]))
    assert not re.search("POSTGRES|FERNET|JWT|SESSION|TENFOLD_AIRFLOW_PASSWORD", held)


@pytest.mark.parametrize("name", WORKERS)
def test_the_images_of_the_user_are_mounted_read_only(name: str):
    assert next(mount for mount in SERVICES[name]["volumes"] if ":/data" in mount).endswith(":/data:ro")


@pytest.mark.parametrize("name", WORKERS)
def test_forms_are_limited_and_no_model_of_a_package_is_allowed(name: str):
    limits = {limit: environment(name)[f"TENFOLD_ALLOWED_{limit}"] for limit in FORMS_REACH}
    assert all("${" in value and "-" in value for value in limits.values())
    assert limits["MODELS"] == "${TENFOLD_ALLOWED_MODELS-}"  # set and empty: none


def test_a_message_is_not_delivered_again_while_the_longest_training_runs():
    longest_s = 7 * 24 * 3600
    assert int(environment("worker")["AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT"]) > longest_s


@pytest.mark.parametrize("name", WORKERS)
def test_heartbeat_timeouts_are_longer_than_a_restart_of_the_api_server(name: str):
    restart_s = 45  # seen on two busy cores: 10 s until it had stopped, the rest until it answered again
    retries_s = 15  # of one heartbeat, in the client of Airflow 3.3.2. That of 3.4 does not try it again.
    # The scheduler ends a task whose heartbeat is missing. So does the task's own supervisor, by count.
    interval_s = int(environment(name)["AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"])
    silence_s = int(environment("scheduler")["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"])
    assert silence_s > restart_s + retries_s
    assert int(environment(name)["AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"]) * interval_s > silence_s
    assert silence_s <= 90  # so that a dead worker is still noticed within two minutes


def test_a_task_of_a_dead_worker_is_queued_again_and_a_waiting_task_never_fails():
    scheduler = environment("scheduler")
    assert int(scheduler["AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT"]) <= 60
    longest_wait = int(scheduler["AIRFLOW__SCHEDULER__NUM_STUCK_IN_QUEUED_RETRIES"]) * 60
    assert longest_wait > 30 * 24 * 3600


@pytest.mark.parametrize("name", [*WORKERS, "dag-processor"])
def test_every_variable_that_the_code_reads_is_passed_on(name: str):
    code = [path.read_text() for folder in ("dags", "pipeline") for path in (ROOT / folder).rglob("*.py")]
    read = {found for text in code for found in re.findall(r'"(TENFOLD_[A-Z_]+)"', text)}
    assert "TENFOLD_WORKSPACE" in read
    assert read - OF_KUBERNETES - OF_ENGINES <= set(environment(name))


def test_cpu_and_gpu_trainers_share_a_queue_and_have_separate_profiles():
    trainers = [SERVICES["cpu-trainer"], SERVICES["gpu-worker"]]
    assert [trainer["profiles"] for trainer in trainers] == [["cpu"], ["gpu"]]
    assert all("--queues gpu" in trainer["command"] for trainer in trainers)
    assert "--queues default" in SERVICES["worker"]["command"]


@pytest.mark.parametrize("path", [".env", "data/a.jpg"])
def test_secrets_and_images_are_ignored_by_git(path: str):
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0


def test_only_named_folders_get_into_an_image():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    locks = ("docker/*.txt", "requirements.txt", "requirements-cuda.txt")
    assert {rule for rule in rules if rule.startswith("!")} == {
        f"!{name}" for name in ("dags", "pipeline", "plugins", "scripts", *locks)
    }


IMAGES = {"PYTHON_IMAGE": "python:3.11-slim-bookworm", "POSTGRES_IMAGE": "postgres:17", "REDIS_IMAGE": "redis:7"}
"""The default of each base image, which a digest can replace."""


def test_every_base_image_can_be_pinned():
    built = [service["build"] for service in SERVICES.values() if "build" in service]
    assert len(built) == 3
    assert {build["args"]["PYTHON_IMAGE"] for build in built} == {f"${{PYTHON_IMAGE:-{IMAGES['PYTHON_IMAGE']}}}"}
    of_others = [service["image"] for service in SERVICES.values() if service["image"] not in OURS]
    assert of_others == [f"${{{name}:-{IMAGES[name]}}}" for name in ("POSTGRES_IMAGE", "REDIS_IMAGE")]
    bases = set(re.findall(r"^FROM (\S+)(?: AS (\S+))?", DOCKERFILE, flags=re.MULTILINE))
    assert {base for base, _ in bases} - {stage for _, stage in bases} == {"${PYTHON_IMAGE}"}
    assert DOCKERFILE.count(f"ARG PYTHON_IMAGE={IMAGES['PYTHON_IMAGE']}\n") == 1
