#!/usr/bin/env bash
# tf.io.parse_example drops numbers in silence if a valid tf.train.Example holds a list in two blocks.
#
# Versions: tensorflow-cpu 2.21.0, NumPy 2.4.6, Python 3.11 to 3.13.
#
# Situation: a writer appends to a list in serialized form. The format allows it: two serialized messages in a row are
# the merged message, and a parser must accept a list in any number of blocks, packed or not, and join them.
#
# Guess of an expert: tf.io.parse_example gives the same values as tf.train.Example.FromString. Both are parts of
# TensorFlow and read Protocol Buffers. If its faster parser could not read a message, it would raise an error, and
# FixedLenFeature would in any case, because the number of values is wrong.
#
# Behavior: its parser reads the first block and skips the rest of the list, without an error or a warning. With
# FixedLenFeature([2]) a list of 4 numbers passes as a list of 2. All operations that parse examples do this. They read
# numbers that are not packed at all, so the support of the format is more than the usual encoding, but not complete.
#
# Seen on 2026-11-29:
#   not packed: Example.FromString [1, 2, 3, 4]
#       parse_example, ragged: [1, 2, 3, 4]
#       parse_single_example, two numbers: InvalidArgumentError
#   two blocks: Example.FromString [1, 2, 3, 4]
#       parse_example, ragged: [1, 2]
#       parse_single_example, sparse: [1, 2]
#       parse_single_example, two numbers: [1, 2]
#       parse_sequence_example: [1, 2]
#       parse_single_sequence_example: [1, 2]
# Two merged features, and a block followed by two numbers that are not packed, give the same as two blocks.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 numpy==2.4.6

TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'EOF'
import tensorflow as tf


def packed(*numbers):
    return tf.train.Int64List(value=numbers).SerializeToString()


def unpacked(*numbers):
    return b"".join(bytes([1 << 3, number]) for number in numbers)


def field(number, payload):
    """A field that holds bytes or a message of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def example(feature):
    """An Example with one feature `x`."""
    return field(1, field(1, field(1, b"x") + field(2, feature)))


def parsers(serialized):
    variable, fixed = {"x": tf.io.VarLenFeature(tf.int64)}, {"x": tf.io.FixedLenFeature([2], tf.int64)}
    ragged = {"x": tf.io.RaggedFeature(tf.int64)}
    yield "parse_example, ragged", lambda: tf.io.parse_example([serialized], ragged)["x"].values
    yield "parse_single_example, sparse", lambda: tf.io.parse_single_example(serialized, variable)["x"].values
    yield "parse_single_example, two numbers", lambda: tf.io.parse_single_example(serialized, fixed)["x"]
    yield "parse_sequence_example", lambda: tf.io.parse_sequence_example([serialized], variable)[0]["x"].values
    yield "parse_single_sequence_example", (
        lambda: tf.io.parse_single_sequence_example(serialized, variable)[0]["x"].values
    )


def numbers_of(parse):
    try:
        return parse().numpy().tolist()
    except tf.errors.InvalidArgumentError:
        return "InvalidArgumentError"


ALL, FIRST, ERROR = [1, 2, 3, 4], [1, 2], "InvalidArgumentError"
CASES = {
    "one block": (field(3, packed(1, 2, 3, 4)), [ALL, ALL, ERROR, ALL, ALL]),
    "not packed": (field(3, unpacked(1, 2, 3, 4)), [ALL, ALL, ERROR, ALL, ALL]),
    "two blocks": (field(3, packed(1, 2) + packed(3, 4)), [FIRST] * 5),
    "two merged features": (field(3, packed(1, 2)) + field(3, packed(3, 4)), [FIRST] * 5),
    "a block, then two numbers": (field(3, packed(1, 2) + unpacked(3, 4)), [FIRST] * 5),
}
print("TensorFlow", tf.__version__)
for case, (feature, expected) in CASES.items():
    serialized = example(feature)
    message = list(tf.train.Example.FromString(serialized).features.feature["x"].int64_list.value)
    seen = {name: numbers_of(parse) for name, parse in parsers(serialized)}
    print(f"{case}: Example.FromString {message}")
    for name, numbers in seen.items():
        print(f"    {name}: {numbers}")
    if message != ALL or list(seen.values()) != expected:
        raise SystemExit("The behavior has changed.")
print("The behavior is as described.")
EOF
