"""The memory of each cache of decoded images, in processes that read several epochs."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pipeline.system.process import environment_of_tensorflow
from tests.published import publish

ROOT = Path(__file__).resolve().parents[2]
IMAGES, SIDE, EPOCHS = 1_536, 256, 4
"""302 MB of decoded images."""

READ = """
import sys
from pathlib import Path

from pipeline.dataset.manifest import load
from pipeline.input import BatchOptions, Server, open_cache, training_batches
from pipeline.system.malloc import keep_large_blocks

folder, choice, local, side, epochs = sys.argv[1:]
options = BatchOptions(image_size=int(side), batch_size=32, crop="whole", shuffle_bytes=20_000_000)
with open_cache(choice, Path(local), load(Path(folder)), options, Server(), int(epochs)) as kept:
    batches = iter(training_batches(folder, kept, epochs=int(epochs)))
    keep_large_blocks()
    peak_kb = 0
    for number, _ in enumerate(batches):
        if number % 8 == 0:
            fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
            peak_kb = max(peak_kb, sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")))
    print(peak_kb / 1000)
"""


def private_mb(folder: Path, choice: str, local: Path) -> float:
    """Return the peak of the private memory of a process that reads all epochs, in MB."""
    command = [sys.executable, "-c", READ, str(folder), choice, str(local), str(SIDE), str(EPOCHS)]
    done = subprocess.run(command, cwd=ROOT, env=environment_of_tensorflow(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.long
def test_a_disk_cache_takes_hardly_more_memory_than_none(tmp_path: Path):
    for number in range(IMAGES):
        path = tmp_path / "source" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number % 251, number // 251, 0)).save(path)
    folder = Path(str(publish(tmp_path / "source", tmp_path / "workspace", num_shards=6)))
    off, memory, disk = (private_mb(folder, choice, tmp_path / choice) for choice in ("off", "memory", "disk"))
    print(f"peak of the private memory in {EPOCHS} epochs, in MB: off {off:.0f}, memory {memory:.0f}, disk {disk:.0f}")
    assert memory > off + 200  # Otherwise, this test would not see decoded images.
    assert disk <= off + 60
