#!/usr/bin/env bash
# Keras: with gradient_accumulation_steps, use_ema averages the weights after each micro-batch instead of each update.
#
# Versions: Keras 3.15.1 with tensorflow-cpu 2.21.0 and with jax 0.10.2, NumPy 2.4.6, Python 3.11 to 3.13.
#
# Guess of an expert: a training with batches of 4 and a training that accumulates 4 batches of 1 give the same weights,
# with and without averages. The documentation of gradient_accumulation_steps says that the variables of the optimizer,
# such as the average, change at an update only, and that the frequency of the average refers to updates.
#
# Behavior: the weights alone are equal. The average is not. It is computed after each micro-batch, 4 times per update,
# from weights that change once. So an average over about 100 updates becomes one over about 25. `fit` ends with the
# average as the weights of the model, so the exported model is another one. The fourth root of the momentum does not
# repair this: 3 of the 4 averages of an update still see the weights before it. With ema_overwrite_frequency=N, the
# condition "updates + 1 is a multiple of N" is true for 4 micro-batches in a row. So the average replaces the weights 4
# times, 3 of them before the update.
#
# Seen on 2026-11-29, the weight after 6 updates (the same with both backends):
#   no average: 0.7984 with batches of 4, 0.7984 with 4 batches of 1
#   average: 0.2552 with batches of 4, 0.4674 with 4 batches of 1
#   average, fourth root of the momentum: 0.2552 with batches of 4, 0.2105 with 4 batches of 1
#   average, ema_overwrite_frequency=3: 0.2003 with batches of 4, 0.2537 with 4 batches of 1
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    keras==3.15.1 tensorflow-cpu==2.21.0 jax==0.10.2 numpy==2.4.6

cat > "$folder/train.py" <<'EOF'
import keras
import numpy as np

INPUTS = np.arange(1, 9, dtype="float32")[:, None] / 8
MOMENTUM = 0.9


def weight(batch_size, accumulated, **average):
    """Train y = 2 x on 8 rows for 3 epochs, and return the only weight after `fit`, and the number of updates."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulated, **average), "mse")
    model.fit(INPUTS, 2 * INPUTS, batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return round(float(keras.ops.convert_to_numpy(layer.kernel).item()), 4), int(model.optimizer.iterations)


def compare(name, equal, batches, micro_batches):
    (whole, updates), (accumulated, accumulated_updates) = batches, micro_batches
    print(f"{name}: {whole} with batches of 4, {accumulated} with 4 batches of 1")
    if updates != 6 or accumulated_updates != 6 or (abs(whole - accumulated) < 1e-3) != equal:
        raise SystemExit("The behavior has changed.")


print("Keras", keras.__version__, "with", keras.backend.backend())
compare("no average", True, weight(4, None), weight(1, 4))
average = {"use_ema": True, "ema_momentum": MOMENTUM}
root = {"use_ema": True, "ema_momentum": MOMENTUM**0.25}
compare("average", False, weight(4, None, **average), weight(1, 4, **average))
compare("average, fourth root of the momentum", False, weight(4, None, **average), weight(1, 4, **root))
overwrite = {**average, "ema_overwrite_frequency": 3}
compare("average, ema_overwrite_frequency=3", False, weight(4, None, **overwrite), weight(1, 4, **overwrite))
EOF
export TF_CPP_MIN_LOG_LEVEL=3
for backend in tensorflow jax; do
    KERAS_BACKEND=$backend "$folder/venv/bin/python" "$folder/train.py"
done
echo "The behavior is as described."
