#!/usr/bin/env bash
# tf.random.experimental.index_shuffle gives the same order for two seeds, and related orders for others.
#
# Versions: tensorflow-cpu 2.21.0, NumPy 2.4.6, Python 3.11 to 3.13.
#
# Situation: a training reads examples by their number. For each epoch, index_shuffle gives the order of a million
# examples without a list of them: a permutation for each seed. The number of the epoch is the seed. A batch has 128
# examples.
#
# Guess of an expert: a seed has 64 bits, and the permutations of two seeds are independent. So no two epochs have the
# same order, and two examples of a batch meet again in a batch of another epoch as often as by chance (1.0 times), as
# with tf.random.experimental.stateless_shuffle, which needs the list.
#
# Behavior: each result is a permutation, but epochs 1 and 1,025 have the same one. In the four other pairs of epochs
# below, two examples of a batch meet again 3 to 58 times as often as by chance. By chance, a batch of 128 has about one
# such pair, so at 58 times it has about 60. Seeds of tf.random.split, in which all bits vary, help only in part. The
# permutation is a block cipher with 4 rounds. Of the last number of the seed, only the lowest 10 bits count here: half of
# the 20 bits of a million. index_shuffle has no argument for more rounds. tf.raw_ops.RandomIndexShuffle has one: with 8
# rounds and the same seeds, the pairs are about as frequent as by chance.
#
# Seen on 2026-11-30 (how many times as often as by chance). The four numbers are for epochs 1 and 2, 3 and 4, 10 and 11,
# and 1 and 1,000. For split seeds, they are for the seeds 1 and 2, 2 and 3, 3 and 4, and 4 and 5:
#   index_shuffle, epochs 1 and 1,025: the same order
#   index_shuffle: 16.6 58.0 14.8 2.9
#   index_shuffle, split seeds: 2.5 1.1 8.1 2.7
#   4 rounds: 16.6 58.0 14.8 2.9
#   8 rounds: 1.0 1.0 1.0 1.0
#   stateless_shuffle: 1.0 1.0 1.0 1.0
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 numpy==2.4.6

TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'EOF' | tee "$folder/seen"
import numpy as np
import tensorflow as tf

EXAMPLES, BATCH = 1_000_000, 128
NUMBERS = tf.range(EXAMPLES, dtype=tf.int64)
FIRST = 498247692  # index_shuffle puts this number before its seed.
EPOCHS = (1, 2), (3, 4), (10, 11), (1, 1000)
SPLIT = tf.cast(tf.random.split(tf.constant([0, 1]), 5), tf.int64)


def by_index(seed):
    return tf.random.experimental.index_shuffle(NUMBERS, seed, EXAMPLES - 1)


def by_rounds(rounds):
    def order(seed):
        seed = tf.concat([[FIRST], seed], 0)
        return tf.raw_ops.RandomIndexShuffle(index=NUMBERS, seed=seed, max_index=EXAMPLES - 1, rounds=rounds)

    return order


def by_list(seed):
    return tf.random.experimental.stateless_shuffle(NUMBERS, seed)


def seed_of(epoch):
    return tf.constant([0, epoch], tf.int64)


def batches(order):
    """The batch of each example."""
    order = order.numpy()
    assert (np.sort(order) == np.arange(EXAMPLES)).all()
    of_example = np.empty(EXAMPLES, np.int64)
    of_example[order] = np.arange(EXAMPLES) // BATCH
    return of_example


def times_as_often(one, other):
    """How often two examples share a batch in both orders, compared with chance."""
    _, counts = np.unique(batches(one) * EXAMPLES + batches(other), return_counts=True)
    pairs_of_batches = EXAMPLES * (BATCH - 1) / 2
    return (counts * (counts - 1) / 2).sum() / (pairs_of_batches * (BATCH - 1) / (EXAMPLES - 1))


def show(name, order, seeds):
    print(f"{name}:", *(f"{times_as_often(order(one), order(other)):.1f}" for one, other in seeds))


are_same = (by_index(seed_of(1)).numpy() == by_index(seed_of(1025)).numpy()).all()
print(f"index_shuffle, epochs 1 and 1,025: {'the same order' if are_same else 'two orders'}")
of_epochs = [(seed_of(one), seed_of(other)) for one, other in EPOCHS]
show("index_shuffle", by_index, of_epochs)
show("index_shuffle, split seeds", by_index, zip(SPLIT, SPLIT[1:]))
show("4 rounds", by_rounds(4), of_epochs)
show("8 rounds", by_rounds(8), of_epochs)
show("stateless_shuffle", by_list, of_epochs)
EOF

diff - "$folder/seen" <<'EOF' || { echo "The behavior has changed." >&2; exit 1; }
index_shuffle, epochs 1 and 1,025: the same order
index_shuffle: 16.6 58.0 14.8 2.9
index_shuffle, split seeds: 2.5 1.1 8.1 2.7
4 rounds: 16.6 58.0 14.8 2.9
8 rounds: 1.0 1.0 1.0 1.0
stateless_shuffle: 1.0 1.0 1.0 1.0
EOF
echo "The behavior is as described."
