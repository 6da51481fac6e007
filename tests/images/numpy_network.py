"""A small network in NumPy, whose gradient is written out: frameworks are compared with it.

Two layers with tanh between them, the mean cross entropy of a softmax over classes, and steps of
gradient descent, all in double precision.
"""

SIZES = (24, 16, 5)  # of a picture, of the layer between, and the number of classes
BATCH = 16
STEPS = 5
RATE = 0.5
# In double precision, sums in another order differ by some units of 2^-53, and steps multiply that.
GRADIENT_TOLERANCE = 1e-13
TOLERANCE = 1e-10
LEAST_CHANGE = 1e-3  # of a weight: a step that does nothing would make everything equal


def made(np):
    """The weights of both layers, each with its offsets."""
    random = np.random.default_rng(20)
    inputs, between, classes = SIZES
    return [
        random.standard_normal((inputs, between)) / 4,
        random.standard_normal(between) / 4,
        random.standard_normal((between, classes)) / 4,
        random.standard_normal(classes) / 4,
    ]


def batches(np):
    """The same for everyone: pictures, with 1 in the column of each one's class."""
    random = np.random.default_rng(99)
    for _ in range(STEPS):
        pictures = random.standard_normal((BATCH, SIZES[0]))
        yield pictures, np.eye(SIZES[2])[random.integers(SIZES[2], size=BATCH)]


def gradient(np, weights, pictures, classes):
    """The mean loss of a batch, and its derivative by each weight, by the chain rule."""
    first, first_offset, second, second_offset = weights
    hidden = np.tanh(pictures @ first + first_offset)
    scores = hidden @ second + second_offset
    scores = scores - scores.max(axis=1, keepdims=True)
    logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = -(logarithms * classes).sum(axis=1).mean()
    of_scores = (np.exp(logarithms) - classes) / len(pictures)
    of_hidden = of_scores @ second.T * (1 - hidden**2)
    return loss, [
        pictures.T @ of_hidden,
        of_hidden.sum(axis=0),
        hidden.T @ of_scores,
        of_scores.sum(axis=0),
    ]


def trained(np):
    """The weights after steps over all batches, and the mean loss of each."""
    weights, losses = made(np), []
    for pictures, classes in batches(np):
        loss, by_weight = gradient(np, weights, pictures, classes)
        weights = [old - RATE * by for old, by in zip(weights, by_weight)]  # noqa: B905 - Python 3.9
        losses.append(float(loss))
    return weights, losses


def apart(np, ours, others):
    """The largest difference between two lists of arrays; NaN if there is one."""
    pairs = zip(ours, others)  # noqa: B905 - Python 3.9 has no strict
    return max(float(np.max(np.abs(np.asarray(one) - np.asarray(other)))) for one, other in pairs)
