"""The order of samples of a run, as exec/data/data.h defines it."""

MASK = (1 << 64) - 1
ROUNDS = 8


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


class Permutation:
    """A pseudo-random order of 0 ... n-1."""

    def __init__(self, n, seed, epoch):
        self.n, self.half = n, 3
        while (n - 1) >> 2 * self.half:
            self.half += 1
        state, self.keys = mix(mix(seed) ^ epoch), []
        for _ in range(ROUNDS):
            state = mix(state)
            self.keys.append(state)

    def __call__(self, i):
        while True:
            mask = (1 << self.half) - 1
            left, right = i >> self.half, i & mask
            for key in self.keys:
                left, right = right, left ^ (mix(right ^ key) >> 32 & mask)
            i = left << self.half | right
            if i < self.n:
                return i


def samples(n, seed, first, count):
    """The samples at positions first ... first + count - 1 of endless epochs of n samples."""
    epochs = {}
    out = []
    for p in range(first, first + count):
        epoch = p // n
        if epoch not in epochs:
            epochs[epoch] = Permutation(n, seed, epoch)
        out.append(epochs[epoch](p % n))
    return out
