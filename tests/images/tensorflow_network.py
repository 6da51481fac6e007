"""The network of numpy_network in TensorFlow, which finds the derivative itself."""

import tensorflow as tf


def loss_and_gradient(weights, pictures, classes):
    """The mean loss of a batch, and its derivative by each weight."""
    first, first_offset, second, second_offset = weights
    with tf.GradientTape() as tape:
        hidden = tf.tanh(tf.matmul(pictures, first) + first_offset)
        logarithms = tf.nn.log_softmax(tf.matmul(hidden, second) + second_offset)
        loss = -tf.reduce_mean(tf.reduce_sum(logarithms * classes, axis=1))
    return loss, tape.gradient(loss, weights)
