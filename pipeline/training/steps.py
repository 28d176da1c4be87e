"""One training step and one evaluation step, on every replica of a strategy."""

import keras
import tensorflow as tf


class Steps:
    """Compiled steps of one model under one strategy.

    Both take a batch, images (uint8, (n, size, size, 3)) and labels (int32, (n,)), and return two float32 scalars: the
    sum of the examples' losses, and how many of them were right.
    """

    def __init__(self, strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.Optimizer) -> None:
        self._strategy, self._model, self._optimizer = strategy, model, optimizer
        self.train = tf.function(self._train, reduce_retracing=True)
        self.evaluate = tf.function(self._evaluate, reduce_retracing=True)

    def _train(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._summed(self._strategy.run(self._train_replica, args=(images, labels)))

    def _evaluate(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._summed(self._strategy.run(self._evaluate_replica, args=(images, labels)))

    def _train_replica(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = self._model(images, training=True)
            losses = _losses(labels, logits)
            mean = tf.reduce_mean(losses)
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(mean, variables), variables)
        return tf.reduce_sum(losses), _right(labels, logits)

    def _evaluate_replica(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self._model(images, training=False)
        return tf.reduce_sum(_losses(labels, logits)), _right(labels, logits)

    def _summed(self, values: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        loss, right = (self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in values)
        return loss, right


def _losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32))
