"""Noisy pictures of digits, and a small network that learns to read them."""

import tensorflow as tf

PICTURES = """
### .#. ### ### #.# ### ### ### ### ###
#.# .#. ..# ..# #.# #.. #.. ..# #.# #.#
#.# .#. ### ### ### ### ### ..# ### ###
#.# .#. #.. ..# ..# ..# #.# ..# #.# ..#
### .#. ### ### ..# ### ### ..# ### ###
"""
DIGITS = ["".join(rows) for rows in zip(*map(str.split, PICTURES.split("\n")[1:-1]), strict=True)]
DOTS = len(DIGITS[0])
HIDDEN = 32
BATCH = 200


def make_data(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Make pictures, and say which digits they show; always the same ones for a seed."""
    clean = tf.constant([[float(dot == "#") for dot in digit] for digit in DIGITS])
    answers = tf.random.stateless_uniform([BATCH], [seed, 0], 0, len(DIGITS), tf.int32)
    noise = tf.random.stateless_normal([BATCH, DOTS], [seed, 1])
    return tf.gather(clean, answers) + 0.2 * noise, answers


class Network:
    """Two layers. Make it in the scope of a strategy, which decides where its weights are kept."""

    def __init__(self, *, rate: float) -> None:
        self.rate = rate
        self.weights = []
        for inputs, outputs in ((DOTS, HIDDEN), (HIDDEN, len(DIGITS))):
            start = tf.random.stateless_normal([inputs, outputs], [inputs, 2]) / inputs**0.5
            for value in (start, tf.zeros([outputs])):
                # Where every worker keeps a weight, all of them change it by the mean.
                weight = tf.Variable(value, aggregation=tf.VariableAggregation.MEAN)
                self.weights.append(weight)

    def read(self, pictures: tf.Tensor) -> tf.Tensor:
        """Return a number for each digit that a picture may show: the greatest is the answer."""
        first, first_bias, second, second_bias = self.weights
        return tf.nn.relu(pictures @ first + first_bias) @ second + second_bias

    def learn(self, seed: tf.Tensor) -> None:
        """Take one step with the pictures of a seed."""
        pictures, answers = make_data(seed)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(answers, self.read(pictures))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.weights)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(self.rate * gradient)

    def accuracy(self, seed: tf.Tensor) -> tf.Tensor:
        """Return the share of the pictures of a seed that is read right."""
        pictures, answers = make_data(seed)
        right = tf.argmax(self.read(pictures), axis=1, output_type=tf.int32) == answers
        return tf.reduce_mean(tf.cast(right, tf.float32))
