"""Distribution of the tests over several processes of pytest: which tests share a process, and in what order."""

from xdist.scheduler import LoadFileScheduling

CLUSTER, LIVE = "a cluster", "a live Airflow"
SHARED = {
    CLUSTER: ("tests/cluster/",),
    LIVE: ("tests/scripts/test_airflow_backfill_embedded.py", "tests/scripts/test_live_airflow.py"),
}
"""Files, or folders, that share a server, by the name of their group."""
SPREAD = ("tests/docs/test_tutorials.py",)
"""Files whose tests take minutes and share little. Each of these tests is a group of its own."""
LONGEST = (
    CLUSTER,
    LIVE,
    "tests/scripts/test_airflow_embedded.py",
    "tests/scripts/test_airflow_upgrade.py",
    "tests/benchmarks/test_gpu.py",
    "tests/test_secrets.py",
    "tests/plugins/test_in_the_browser.py",
    "tests/docs/test_tutorials.py",
    "tests/dags/test_in_airflow.py",
    "tests/training/compare/test_process.py",
    "tests/training/test_exact_resume.py",
    "tests/test_faults_of_runs.py",
    "tests/dags/test_retries.py",
    "tests/dags/test_image_training.py",
    "tests/training/test_servers.py",
    "tests/training/test_stop.py",
    "tests/training/test_callbacks.py",
    "tests/training/test_job.py",
    "tests/test_transient_errors.py",
    "tests/test_crashes.py",
    "tests/training/test_bucket.py",
    "tests/training/test_crashes.py",
    "tests/stages/test_build.py",
    "tests/input/test_cache.py",
    "tests/input/test_images.py",
)
"""Groups that take longest, the longest first. If they began last, the other processes would be idle at the end."""


def group_of(nodeid: str) -> str:
    """Return the group of a test. By default it is its file, because the tests of a file share what the file starts."""
    file = nodeid.partition("::")[0]
    if file in SPREAD:
        return nodeid
    return next((group for group, places in SHARED.items() if file.startswith(places)), file)


def rank(group: str) -> int:
    """Return a sort key for a group. Groups with lower keys begin earlier."""
    names = (group, group.partition("::")[0])
    return min((LONGEST.index(name) for name in names if name in LONGEST), default=len(LONGEST))


class ByGroup(LoadFileScheduling):
    """Gives all tests of a group to one process. `--dist loadgroup` of xdist 3.8 does not work with pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
