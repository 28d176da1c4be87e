"""The client of Google Cloud Storage is loaded at the first request to a bucket."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import pickle, sys
from pathlib import Path
from pipeline import storage
with storage.write_new(Path(sys.argv[1])) as file:
    file.write(b"content")
place = pickle.loads(pickle.dumps(storage.place_of("gs://bucket/folder"))) / "file"
assert storage.place_of(sys.argv[1]).read_bytes() == b"content"
print(*(name for name in sys.modules if name.split(".")[0] in ("google", "requests", "urllib3")))
"""


def test_bucket_paths_and_local_files_do_not_load_google_libraries(tmp_path: Path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert not [name for name in done.stdout.split() if name != "google" and "crc32c" not in name]
