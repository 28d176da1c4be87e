#!/usr/bin/env bash
# tf.io.decode_and_crop_jpeg returns other pixels than tf.io.decode_jpeg and a slice, in about half of all random crops.
#
# Versions: tensorflow-cpu 2.21.0, NumPy 2.4.6, Python 3.11 to 3.13.
#
# Guess of an expert: both give the same bytes. The documentation calls the operation "equivalent to a combination of
# decode and crop". A JPEG is decoded in blocks, and all blocks that a crop touches are decoded. So an input pipeline
# can change from one to the other, or store decoded images, and train on the same values.
#
# Behavior: in a JPEG with halved chroma (4:2:0, which TensorFlow writes by default), the decoder computes the color of
# a pixel from two columns of chroma (fancy_upscaling). At the edges of the decoded columns it has only one. The left
# edge of the decoded columns is a multiple of 16, and the right edge is that of the crop:
#   - the leftmost column differs if the crop begins at a multiple of 16;
#   - the rightmost column differs if the crop ends at an even column;
#   - no column differs at an edge of the image, with full chroma, or with fancy_upscaling=False. No row differs ever.
#
# Seen on 2026-11-29:
#   4:2:0: 259 of 500 crops differ, by at most 11 of 255; 0 in a column that is not predicted
#   4:2:0, fancy_upscaling=False: 0 of 500 crops differ, by at most 0 of 255; 0 in a column that is not predicted
#   4:4:4: 0 of 500 crops differ, by at most 0 of 255; 0 in a column that is not predicted
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 numpy==2.4.6

TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'EOF'
import numpy as np
import tensorflow as tf

HEIGHT, WIDTH, CROPS = 160, 240, 500


def picture():
    """A smooth image in which the colors change from column to column, without noise."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    waves = [np.sin(x / 7), np.sin(y / 9), np.sin((x + y) / 11)]
    return np.stack([(wave + 1) * 127 for wave in waves], axis=2).astype(np.uint8)


def expected_columns(x, width):
    left = {0} if x % 16 == 0 and x > 0 else set()
    right = {width - 1} if (x + width) % 2 == 0 and x + width < WIDTH else set()
    return left | right


def compare(chroma_downsampling, fancy_upscaling):
    """Return how many crops differ, the largest difference, and how many crops differ in other columns."""
    jpeg = tf.io.encode_jpeg(picture(), quality=90, chroma_downsampling=chroma_downsampling)
    options = {"channels": 3, "fancy_upscaling": fancy_upscaling}
    whole = tf.io.decode_jpeg(jpeg, **options).numpy().astype(int)
    random = np.random.default_rng(0)
    differing = largest = surprises = 0
    for _ in range(CROPS):
        height, width = random.integers(40, 120, 2)
        y, x = random.integers(0, HEIGHT - height + 1), random.integers(0, WIDTH - width + 1)
        crop = tf.io.decode_and_crop_jpeg(jpeg, [y, x, height, width], **options).numpy()
        difference = np.abs(crop - whole[y : y + height, x : x + width]).max(axis=2)
        columns = set(np.flatnonzero(difference.any(axis=0)).tolist())
        differing += bool(columns)
        largest = max(largest, int(difference.max()))
        surprises += not columns <= expected_columns(x, width)
    return differing, largest, surprises


print("TensorFlow", tf.__version__)
seen = {}
for name, downsampling, fancy in [
    ("4:2:0", True, True),
    ("4:2:0, fancy_upscaling=False", True, False),
    ("4:4:4", False, True),
]:
    seen[name] = compare(downsampling, fancy)
    print(f"{name}: {seen[name][0]} of {CROPS} crops differ, by at most {seen[name][1]} of 255;", end=" ")
    print(f"{seen[name][2]} in a column that is not predicted")
half, unsmoothed, full = seen.values()
if not (0.4 * CROPS < half[0] < 0.7 * CROPS and half[1] > 5 and half[2] == 0):
    raise SystemExit("The behavior has changed for 4:2:0.")
if unsmoothed[0] or full[0]:
    raise SystemExit("The behavior has changed: crops differ without smoothed chroma.")
print("The behavior is as described.")
EOF
