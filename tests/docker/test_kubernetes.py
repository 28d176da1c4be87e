"""The pod templates, checked against the schema of a Kubernetes version and the needs of Airflow's executor."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from scripts.airflow.checks import BACKFILLS, SCHEDULES

ROOT = Path(__file__).parents[2]
VERSION = "1.34"
TEMPLATES = sorted((ROOT / "docker" / "kubernetes").glob("*.yaml"))
GPU = "nvidia.com/gpu"


@pytest.fixture(params=TEMPLATES, ids=lambda path: path.stem)
def pod(request: pytest.FixtureRequest) -> Any:
    return yaml.safe_load(request.param.read_text())


def test_there_are_two_pod_templates():
    assert [path.stem for path in TEMPLATES] == ["gpu_pod_template", "pod_template"]


def test_kubernetes_knows_every_field(pod: Any):
    assert kubernetes_validate.validate(pod, VERSION, strict=True) == VERSION


@pytest.mark.parametrize(("field", "value"), [("restartPolice", "Never"), ("volumes", "none"), ("containers", None)])
def test_a_wrong_field_fails_the_validation(pod: Any, field: str, value: Any):
    pod["spec"][field] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_the_executor_finds_its_container(pod: Any):
    """It merges its container into the first one, reads the log of `base`, and keeps the template's name and image."""
    container, *others = pod["spec"]["containers"]
    assert (container["name"], others) == ("base", [])
    assert container["image"]
    assert pod["metadata"]["name"]
    assert not {"command", "args"} & set(container)  # The executor's arguments would follow these.
    assert pod["spec"]["restartPolicy"] == "Never"


def test_a_pod_runs_with_the_least_privileges(pod: Any):
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_every_mounted_volume_is_defined(pod: Any):
    [container] = pod["spec"]["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}


def test_secrets_come_from_secret_objects(pod: Any):
    [container] = pod["spec"]["containers"]
    secret = [each for each in container["env"] if any(word in each["name"] for word in ("KEY", "PASSWORD", "TOKEN"))]
    assert all("secretKeyRef" in each["valueFrom"] for each in secret)


def test_only_a_training_requests_a_gpu():
    limits = {
        path.stem: yaml.safe_load(path.read_text())["spec"]["containers"][0]["resources"]["limits"]
        for path in TEMPLATES
    }
    assert limits["gpu_pod_template"][GPU] == "1"
    assert GPU not in limits["pod_template"]


def test_a_pod_has_the_time_zone_of_the_days(pod: Any):
    [container] = pod["spec"]["containers"]
    assert {"name": "TENFOLD_TIMEZONE", "value": "UTC"} in container["env"]


def test_a_pod_has_room_for_the_schedules_and_their_settings(pod: Any):
    """Without the schedule of its DAG, the first task refuses the run of a date: it may be one of another time zone."""
    [container] = pod["spec"]["containers"]
    named = {each["name"] for each in container["env"]}
    assert {*SCHEDULES, BACKFILLS, "TENFOLD_SETTINGS"} <= named


def test_a_form_may_reach_only_listed_places(pod: Any):
    [container] = pod["spec"]["containers"]
    allowed = {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("TENFOLD_ALLOWED_")}
    assert allowed.keys() == {f"TENFOLD_ALLOWED_{name}" for name in ("SOURCES", "WORKSPACES", "PUBLISH", "MODELS")}
    assert "*" not in "".join(allowed.values())
    assert allowed["TENFOLD_ALLOWED_MODELS"] == ""
