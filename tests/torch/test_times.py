"""Time of traced models against hand sums: products, bytes and kernels of a step follow from the configuration alone, and
the time from a card of round figures. The classes: products, attention, elementwise (with sums, softmax and gathers),
norm, embedding, loss, optimizer; what sharding copies is left out."""

import json
import os
import re
import tempfile
import unittest
from collections import Counter

import tessera
import torch
from decode import played
from tessera import program
from torch.utils.flop_counter import FlopCounterMode

import timed

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "timed.py")

# ---- a card of round figures ----------------------------------------------------------------------------------------

PRODUCTS, ATTENTION = 4e14, 2e14        # FLOP/s of kernels that are "measured" on it
BANDWIDTH, UNITS, CLOCK = 1e12, 100, 1e9
# How a kernel uses the bandwidth, and seconds that it takes beside: experiments/validation/kernels/README.md and the
# file that it names. A sum or product that repeats an operand makes at most 0.92 elements a clock on each multiprocessor.
SHARES = {"pointwise": (0.85, 2e-6), "reduction": (0.75, 2e-6), "softmax": (0.75, 2e-6), "norm": (0.62, 2e-6),
          "norm_bwd": (0.33, 2e-6), "embedding": (0.75, 2e-6), "embedding_bwd": (0.40, 4e-6), "loss": (0.62, 2e-6),
          "loss_bwd": (0.44, 2e-6), "optimizer": (0.80, 2e-6)}
REPEATED_PER_CLOCK = 0.92
CLASSES = {"gemm": "products", "attention": "attention", "attention_bwd": "attention", "pointwise": "elementwise",
           "reduction": "elementwise", "softmax": "elementwise", "norm": "norm", "norm_bwd": "norm",
           "embedding": "embedding", "embedding_bwd": "embedding", "loss": "loss", "loss_bwd": "loss",
           "optimizer": "optimizer"}
RATES = {"mm": PRODUCTS, "addmm": PRODUCTS, "_grouped_mm": PRODUCTS, "convolution": PRODUCTS,
         "convolution_backward": PRODUCTS, "flash_attention": ATTENTION, "flash_attention_backward": ATTENTION,
         "efficient_attention": ATTENTION, "efficient_attention_backward": ATTENTION}


def write_card(folder):
    """Leaves the files of a cluster of one such card; returns its path."""
    runs = [{"kernel": name, "dtype": "bf16", "per": "flop", "source": "a round figure", "runs": [[1e12, 1e18 / rate]]}
            for name, rate in RATES.items()]
    peaks = {"bf16": 5e14, "fp16": 5e14, "fp8": None, "tf32": None, "fp32": 5e13, "fp64": None}
    files = {"kernels": {"gpu": "hand", "measured": runs},
             "gpu": {"architecture": "Hopper", "compute_capability": "9.0", "sm_count": UNITS, "compute_clock_hz": CLOCK,
                     "memory": {"visible_bytes": 80 * 10**9, "bandwidth_bytes_per_s": BANDWIDTH}, "nvlink": None,
                     "peak_dense_flop_per_s": peaks, "pcie": {"bandwidth_bytes_per_s_per_direction": 5e10},
                     "kernels": ["hand"]},
             "node": {"gpu": "hand", "gpus_per_node": 1, "intra_node": {"type": "none"}, "nics": None,
                      "host": {"cpu": None, "memory_bytes": None}, "pcie_generation": 5},
             "cluster": {"node": "hand", "nodes": 1, "topology": {"type": "single_node"}}}
    for kind, content in files.items():
        with open(os.path.join(folder, f"{kind}-hand.json"), "w", encoding="utf-8") as f:
            json.dump({"kind": kind, "name": "hand", "description": "round figures", **content}, f)
    return os.path.join(folder, "cluster-hand.json")


# ---- what a step is, by hand ----------------------------------------------------------------------------------------


class Step:
    """Kernels of a step: (kind, FLOP, bytes read, bytes written, elements of the result if it repeats an operand)."""

    def __init__(self, size=2):
        self.kernels = []
        self.size = size   # of an element

    def add(self, kind, read, written, times=1, flops=0, repeated=0):
        self.kernels += [(kind, flops, read, written, repeated)] * times

    def each(self, read, written, times=1, repeated=0):
        """An elementwise kernel."""
        self.add("pointwise", read, written, times, repeated=repeated)

    def sums(self, read, written, times=1):
        self.add("reduction", read, written, times)

    def few(self, times):
        """Kernels of at most some numbers for each token: their start-up counts."""
        self.each(0, 0, times)

    def product(self, m, n, k, times=1, bias=False, batch=1):
        read, written = batch * (m * k + k * n) + n * bias, batch * m * n
        self.add("gemm", self.size * read, self.size * written, times, 2 * m * n * k * batch)

    def linear(self, rows, wide_in, wide_out, bias, times=1, grad_in=True):
        """Forward, the two gradients, and the sum that is the bias's."""
        self.product(rows, wide_out, wide_in, times, bias)
        self.product(wide_out, wide_in, rows, times)
        if grad_in:
            self.product(rows, wide_in, wide_out, times)
        if bias:
            self.sums(self.size * rows * wide_out, self.size * wide_out, times)

    def convolution(self, read, written, weights, macs, grad_in=True):
        """Elements of the tensors; forward and both gradients."""
        pairs = [(read + weights, written), (written + read, weights)] + [(written + weights, read)] * grad_in
        for elements_in, elements_out in pairs:
            self.add("gemm", self.size * elements_in, self.size * elements_out, flops=2 * macs)

    def bias(self, n):
        """A convolution's: cuDNN leaves it to a kernel of its own."""
        self.each(self.size * n, self.size * n, repeated=n)
        self.sums(self.size * n, 0)

    def channel_norm(self, n):
        """Group and batch norm: once for the sums, once for the result, forward and backward."""
        x = self.size * n
        for read, written in ((x, 0), (x, x), (2 * x, 0), (2 * x, x)):
            self.sums(read, written)

    def activation(self, n):
        self.each(self.size * n, self.size * n)
        self.each(2 * self.size * n, self.size * n)

    def squares(self, n):
        """The sum of squares as a loss, whose gradient is one number for all."""
        x = self.size * n
        self.each(x, x)
        self.sums(x, 0)
        self.few(1)
        self.each(x, x, 2)
        self.each(x, x, repeated=n)

    def attention(self, batch, heads, kv_heads, queries, keys, wide, causal, bias=0, bias_grad=0):
        """Forward and backward, which makes the scores again: five products for two. `bias`: bytes of one, with batch 1."""
        q, kv, rows = 2 * batch * heads * queries * wide, 2 * batch * kv_heads * keys * wide, 4 * batch * heads * queries
        flops = 4 * batch * heads * queries * keys * wide // (2 if causal else 1)
        self.add("attention", q + 2 * kv + bias, q + rows, flops=flops)
        self.add("attention_bwd", 3 * q + 2 * kv + rows + bias, q + 2 * kv + bias_grad, flops=5 * flops // 2)

    def layer_norm(self, rows, wide, times=1):
        x = 2 * rows * wide
        self.add("norm", x + 4 * wide, x + 8 * rows, times)
        self.add("norm_bwd", 2 * x + 8 * rows + 4 * wide, x + 4 * wide, times)

    def written_rms_norm(self, rows, wide, times, narrow):
        """The RMSNorm that a model writes out, forward and backward; x in bf16, its squares in fp32. `narrow`: x itself is
        multiplied with the root, else the copy of it in fp32."""
        n = rows * wide
        x = 2 * n if narrow else 4 * n
        for _ in range(times):
            self.each(2 * n, 4 * n)                                     # fp32
            self.each(4 * n, 4 * n)                                     # square
            self.sums(4 * n, 4 * rows)
            self.few(2)                                                 # + epsilon, root
            self.each(x + 4 * rows, 4 * n, repeated=n)                  # x root
            self.each(4 * n, 2 * n)                                     # bf16
            self.each(2 * n + 2 * wide, 2 * n, repeated=n)              # weight
            self.each(2 * n + 2 * wide, 2 * n, repeated=n)              # gradient weight
            self.each(4 * n, 2 * n)                                     # gradient normed, summed for the weight
            self.sums(2 * n, 2 * wide)
            self.each(2 * n, 4 * n)                                     # fp32
            self.each(4 * n + x, 4 * n)                                 # gradient x, summed for the root
            self.sums(4 * n, 4 * rows)
            self.each(4 * n + 4 * rows, 4 * n, repeated=n)              # gradient root
            self.few(3)                                                 # root ^ 3, / -2, gradient
            self.each(4 * rows, 4 * n, repeated=n)                      # the mean's: the same for a row
            self.each(4 * n, 4 * n, 2)                                  # x ^ 1, 2
            self.each(8 * n, 4 * n)                                     # gradient of the squares
            if narrow:
                self.each(4 * n, 2 * n, 2)                              # both in bf16, added
                self.each(4 * n, 2 * n)
            else:
                self.each(8 * n, 4 * n)                                 # added, in bf16
                self.each(4 * n, 2 * n)

    def dropout(self, n, times=1):
        """Dropout keeps a mask of bytes."""
        self.each(2 * n, 3 * n, times)
        self.each(3 * n, 2 * n, times)

    def residual(self, n, times=1):
        """x + f(x), and the sum of both gradients."""
        self.each(4 * n, 2 * n, 2 * times)

    def embedding(self, rows, wide, words):
        self.add("embedding", 2 * rows * wide + 8 * rows, 2 * rows * wide)
        self.add("embedding_bwd", 2 * rows * wide + 8 * rows, 2 * words * wide)

    def cross_entropy(self, rows, words, size):
        """Rows beyond 48 KiB do not fit into shared memory: log-softmax reads them three times, its backward the gradient
        twice. `size`: of an element of the logits."""
        x, long = size * rows * words, size * words > 48 << 10
        self.add("loss", (3 if long else 1) * x, x)
        self.add("loss", 0, 0)
        self.add("loss_bwd", 0, x)
        self.add("loss_bwd", (3 if long else 2) * x, x)

    def adamw(self, parameters):
        """foreach: decay; first moment; second moment, twice; root; / correction; + epsilon; the update."""
        for read, written in ((1, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)):
            self.add("optimizer", 4 * read * parameters, 4 * written * parameters)

    def classes(self):
        """{class: (FLOP, bytes, seconds)}"""
        found = {}
        for kind, flops, read, written, repeated in self.kernels:
            was = found.get(CLASSES[kind], (0, 0, 0.0))
            seconds = seconds_of(kind, flops, read + written, repeated)
            found[CLASSES[kind]] = (was[0] + flops, was[1] + read + written, was[2] + seconds)
        return found


def seconds_of(kind, flops, moved, repeated):
    if kind in ("gemm", "attention", "attention_bwd"):
        return flops / (PRODUCTS if kind == "gemm" else ATTENTION)
    share, start = SHARES[kind]
    return start + max(moved / (BANDWIDTH * share), repeated / (UNITS * CLOCK * REPEATED_PER_CLOCK))


def gpt2():
    batch, seq, wide, heads, words, layers, places = 4, 512, 768, 12, 50257, 2, 1024
    rows, step = batch * seq, Step()
    n, inner, one = rows * wide, 4 * rows * wide, seq * wide
    step.embedding(rows, wide, words)
    step.embedding(seq, wide, places)               # positions of one sequence ...
    step.each(2 * n + 2 * one, 2 * n, repeated=n)   # ... repeated; their gradient is a sum
    step.sums(2 * n, 2 * one)
    step.few(9)                                     # positions; are they consecutive?
    step.dropout(n)
    for _ in range(layers):
        step.layer_norm(rows, wide, 2)
        step.linear(rows, wide, 3 * wide, True)
        step.attention(batch, heads, heads, seq, seq, wide // heads, True)
        step.each(6 * n, 6 * n)                     # gradients of q, k, v side by side
        step.linear(rows, wide, wide, True)
        step.dropout(n, 2)
        step.residual(n, 2)
        step.linear(rows, wide, 4 * wide, True)
        step.linear(rows, 4 * wide, wide, True)
        step.each(2 * inner, 2 * inner, 6)          # x / 2; x^3, c; c, tanh, + 1
        step.each(4 * inner, 2 * inner, 2)          # x + c x^3; the product
        step.each(4 * inner, 2 * inner, 3 + 1 + 2)  # gradients of products, tanh; sums of gradients
        step.each(2 * inner, 2 * inner, 3 + 2)      # / 2, c, c; 3 x^2
    step.layer_norm(rows, wide)
    head(step, rows, wide, words)
    step.adamw(words * wide + places * wide + layers * (12 * wide**2 + 13 * wide) + 2 * wide)
    step.each(4 * words * wide, 2 * words * wide)   # embedding and head are one
    return step


def head(step, rows, wide, words):
    """Logits in fp32 and their loss; labels are moved by one."""
    step.linear(rows, wide, words, False)
    step.each(2 * rows * words, 4 * rows * words)
    step.cross_entropy(rows, words, 4)
    step.each(4 * rows * words, 2 * rows * words)
    step.few(3)                                     # labels; the loss's own gradient


def mixtral():
    batch, seq, wide, heads, kv_heads, inner, words, experts, chosen = 2, 1024, 4096, 32, 8, 14336, 32000, 8, 2
    rows, step, narrow = batch * seq, Step(), 4096 // 32 * 8
    n, pairs, angles = rows * wide, batch * seq * chosen, seq * wide // heads
    step.embedding(rows, wide, words)
    step.few(9)                                     # positions; are they consecutive?
    step.few(1)                                     # angles
    step.each(0, 2 * angles, repeated=angles // 2)
    step.each(2 * angles, 4 * angles)               # the same for both halves
    step.each(4 * angles, 4 * angles, 4)            # cosine, sine, both times 1
    step.each(4 * angles, 2 * angles, 2)
    step.written_rms_norm(rows, wide, 3, narrow=False)
    step.linear(rows, wide, wide, False, 2)
    step.linear(rows, wide, narrow, False, 2)
    for part in (rows * wide, rows * narrow):       # q and k are turned
        table = 2 * angles
        step.each(2 * part + table, 2 * part, 4, repeated=part)     # cosine, sine, forward and backward
        step.each(part, part, 2)                                    # a half is negated
        step.each(2 * part, 2 * part)                               # halves side by side
        step.each(4 * part, 2 * part, 1 + 2)                        # sums; of gradients
        step.each(0, 2 * part, 2)                                   # gradients of halves: zeros, a copy
        step.each(part, part, 2)
        step.each(2 * part, 2 * part)                               # into the order of the product
    step.attention(batch, heads, kv_heads, seq, seq, wide // heads, True)
    step.residual(n, 2)
    step.each(4 * n, 2 * n, 2 + 1)                  # gradients of q, k, v; of experts and router
    step.linear(rows, wide, experts, False)
    step.few(8)                                     # probabilities, the best of them
    step.few(13)                                    # and backward
    experts_of(step, rows, pairs, wide, inner, experts)
    head(step, rows, wide, words)
    attention, mlp = 2 * wide * wide + 2 * wide * narrow, experts * 3 * wide * inner
    step.adamw(2 * words * wide + attention + mlp + experts * wide + 3 * wide)
    return step


def experts_of(step, rows, pairs, wide, inner, experts):
    n, each = pairs * wide, pairs // experts
    step.few(8)                                     # pairs in the order of experts, and back
    step.each(2 * rows * wide, 2 * n)               # rows of the pairs
    for wide_in, wide_out in ((wide, 2 * inner), (inner, wide)):
        step.product(each, wide_out, wide_in, batch=experts)
        step.product(each, wide_in, wide_out, batch=experts)
        step.product(wide_in, wide_out, each, batch=experts)
    act = pairs * inner
    step.each(2 * act, 2 * act)                     # gate, product
    step.each(4 * act, 2 * act)
    step.each(4 * act, 2 * act, 3)                  # gradients of both, of the gate
    step.each(4 * act, 4 * act)                     # side by side
    step.each(2 * n, 4 * n, repeated=n)             # times the probability, in fp32
    step.each(4 * n, 4 * n)                         # order of tokens
    step.sums(4 * n, 4 * rows * wide)
    step.each(4 * rows * wide, 2 * rows * wide)
    step.each(2 * rows * wide, 4 * rows * wide)     # backward: fp32, for both experts
    step.each(4 * rows * wide, 4 * n)
    step.each(0, 4 * n)                             # zeros, added to
    step.each(8 * n, 4 * n)
    step.each(6 * n, 4 * n)                         # summed for the probability
    step.sums(4 * n, 0)
    step.each(4 * n, 4 * n, repeated=n)
    step.each(4 * n, 2 * n)
    step.each(0, 2 * rows * wide)                   # zeros, added to
    step.each(2 * n + 2 * rows * wide, 2 * rows * wide)


def vit():
    batch, wide, heads, layers, patch, side, labels = 16, 768, 12, 2, 16, 224, 1000
    patches, pixels, step = (side // patch) ** 2, batch * 3 * side**2, Step()
    tokens = patches + 1
    rows, plain = batch * tokens, batch * patches * wide
    n, inner = rows * wide, 4 * rows * wide
    step.each(4 * pixels, 2 * pixels)               # bf16
    step.linear(batch * patches, 3 * patch**2, wide, False, grad_in=False)
    step.each(2 * plain, 2 * plain, repeated=plain)  # the convolution's bias
    step.sums(2 * plain, 2 * wide)
    step.each(2 * n, 2 * n)                         # a class token
    step.each(2 * n + 2 * tokens * wide, 2 * n, repeated=n)   # places
    step.sums(2 * n, 2 * tokens * wide)
    for _ in range(layers):
        step.layer_norm(rows, wide, 2)
        step.linear(rows, wide, wide, True, 4)
        step.attention(batch, heads, heads, tokens, tokens, wide // heads, False)
        step.residual(n, 2)
        step.each(4 * n, 2 * n, 2)                  # gradients of q, k, v
        step.linear(rows, wide, 4 * wide, True)
        step.each(2 * inner, 2 * inner)
        step.each(4 * inner, 2 * inner)
        step.linear(rows, 4 * wide, wide, True)
    step.layer_norm(rows, wide)
    step.linear(batch, wide, labels, True)
    step.each(0, 2 * n)                             # the class token's gradient among zeros
    step.few(1)
    step.cross_entropy(batch, labels, 2)
    step.few(2)                                     # the class token's own; the loss's own gradient
    block = 12 * wide**2 + 13 * wide
    step.adamw(wide * (3 * patch**2 + 1) + (tokens + 1) * wide + layers * block + 2 * wide + labels * (wide + 1))
    return step


def t5():
    batch, seq, answer, wide, heads, inner, words, layers, buckets = 8, 512, 128, 768, 12, 3072, 32128, 2, 32
    step = Step()
    rows, out = batch * seq, batch * answer
    n, m = rows * wide, out * wide
    for tokens in (rows, out):
        step.embedding(tokens, wide, words)
    bias_of(step, seq, heads, buckets, bidirectional=True)
    bias_of(step, answer, heads, buckets, bidirectional=False)
    # blocks: attention to itself, the decoder's to the encoder, and the feed-forward part
    step.written_rms_norm(rows, wide, 2 * layers + 1, narrow=True)
    step.written_rms_norm(out, wide, 3 * layers + 1, narrow=True)
    whole, cross, own = (2 * heads * a * b for a, b in ((seq, seq), (answer, seq), (answer, answer)))
    for _ in range(layers):
        for tokens, size in ((rows, n), (out, m)):
            step.linear(tokens, wide, wide, False, 4)
            step.each(4 * size, 2 * size, 2)        # gradients of q, k, v
            feed_forward(step, tokens, wide, inner)
            step.residual(size, 2)
            step.dropout(size, 2)
        step.attention(batch, heads, heads, seq, seq, wide // heads, False, whole, batch * whole)
        step.each(whole, whole)                     # the bias, in rows
        step.sums(batch * whole, whole)             # its gradient is one for all sequences
        step.attention(batch, heads, heads, answer, answer, wide // heads, False, own, batch * own)
        step.each(own, own)
        step.each(own + answer**2, own, 2)          # causal, forward and backward
        step.sums(batch * own, own)
        step.linear(out, wide, wide, False, 2)
        step.linear(rows, wide, wide, False, 2)
        step.attention(batch, heads, heads, answer, seq, wide // heads, False, cross)
        step.residual(m)
        step.dropout(m)
        step.each(4 * n, 2 * n)                     # gradients of keys and values
    step.each(0, cross)                             # a bias of zeros between decoder and encoder
    step.each(4 * n, 2 * n, layers - 1)             # gradients of the encoder's result, by layer
    step.each(2 * whole, whole, layers - 1)         # of the biases
    step.each(2 * own, own, layers - 1)
    for size in (n, m):
        step.dropout(size, 2)                       # before and behind all blocks
    step.each(2 * m, 2 * m, 2)                      # scaled for the head
    step.linear(out, wide, words, False)
    step.cross_entropy(out, words, 2)
    step.each(4 * words * wide, 2 * words * wide, 2)   # three uses of one table
    step.few(6 + 3 + 8)                             # labels moved by one; the loss's own gradient; causal masks
    attention = 4 * wide**2
    step.adamw(words * wide + 2 * buckets * heads + layers * (3 * attention + 4 * wide * inner + 5 * wide) + 2 * wide)
    return step


def feed_forward(step, rows, wide, inner):
    size = rows * inner
    step.linear(rows, wide, inner, False)
    step.linear(rows, inner, wide, False)
    step.each(2 * size, 2 * size)
    step.each(4 * size, 2 * size)
    step.dropout(size)


def bias_of(step, seq, heads, buckets, bidirectional):
    """A bucket for each pair of places, in int64, and the bias of each head that it looks up."""
    n = seq * seq
    step.few(3)                                     # places
    step.each(0, 8 * n, repeated=n)                 # differences
    if bidirectional:
        step.each(8 * n, n)                         # > 0, int64, buckets
        step.each(n, 8 * n)
        step.each(8 * n, 8 * n, 2 + 1)              # ...; 0 +; the absolute
    else:
        step.each(0, 8 * n)                         # zeros, the lesser, negated
        step.each(16 * n, 8 * n)
        step.each(8 * n, 8 * n)
    step.each(8 * n, n)                             # near?
    step.each(8 * n, 4 * n)                         # logarithm in fp32
    step.each(4 * n, 4 * n, 4)
    step.each(4 * n, 8 * n)
    step.each(8 * n, 8 * n)                         # + the near ones, at most the last
    step.each(0, 8 * n)
    step.each(16 * n, 8 * n)
    step.each(17 * n, 8 * n)                        # one or the other
    step.each(16 * n if bidirectional else 8 * n, 8 * n)
    step.add("embedding", 2 * buckets * heads + 8 * n, 2 * n * heads)
    step.add("embedding_bwd", 2 * n * heads + 8 * n, 2 * buckets * heads)


def resnet():
    batch, places, more, labels = 16, 56**2, 256, 1000
    step = Step(4)
    n, wide, stem, pixels = batch * 64 * places, batch * more * places, batch * 64 * 4 * places, batch * 3 * 224**2
    step.convolution(pixels, stem, 64 * 3 * 49, stem * 3 * 49, grad_in=False)
    step.channel_norm(stem)
    step.activation(stem)
    step.each(4 * stem, (4 + 8) * n)                # the largest of 9 with its place; back from there
    step.each(0, 4 * stem)
    step.each((4 + 8) * n, 4 * stem)
    for window in (1, 9):
        step.convolution(n, n, 64 * 64 * window, n * 64 * window)
        step.channel_norm(n)
        step.activation(n)
    for _ in ("the block's last", "its shortcut"):
        step.convolution(n, wide, 64 * more, wide * 64)
        step.channel_norm(wide)
    step.each(8 * wide, 4 * wide)
    step.each(8 * n, 4 * n)                         # gradients of both
    step.activation(wide)
    step.sums(4 * wide, 4 * batch * more)           # the mean of all places, and its gradient
    step.each(4 * batch * more, 4 * wide, repeated=wide)
    step.linear(batch, more, labels, True)
    step.cross_entropy(batch, labels, 4)
    step.few(5 + 1)                                 # norms count batches; the loss's own gradient
    step.adamw(64 * (3 * 49 + 64 * 10) + 2 * 64 * more + 2 * (3 * 64 + 2 * more) + labels * (more + 1))
    return step


def unet_block():
    batch, wide, places = 8, 320, 64**2
    step, n = Step(), batch * wide * places
    step.each(4 * n, 2 * n)                         # bf16
    step.convolution(n, n, wide**2, n * wide, grad_in=False)
    for _ in range(2):
        step.channel_norm(n)
        step.activation(n)
        step.convolution(n, n, 9 * wide**2, 9 * n * wide)
        step.bias(n)
    step.residual(n)
    step.convolution(n, 4 * n, 4 * wide**2, 4 * n * wide)   # each place makes four
    step.bias(4 * n)
    step.squares(4 * n)
    step.adamw(wide**2 * (1 + 2 * 9 + 4) + wide * (2 * 2 + 2 + 1))
    return step


def gru():
    times, batch, wide, hidden = 6, 256, 512, 1024
    step = Step()
    n, gates = batch * hidden, 3 * batch * hidden
    step.each(4 * times * batch * wide, 2 * times * batch * wide)   # bf16
    step.each(0, 2 * n)                             # the state before the first
    for width in (wide, hidden):
        step.product(batch, 3 * hidden, width, times)
        step.product(3 * hidden, width, batch, times)
        step.each(3 * 4 * hidden * width, 3 * 2 * hidden * width, times - 1)   # the filter's gradients are summed
    step.product(batch, hidden, 3 * hidden, times - 1)              # the first state takes none
    step.each(4 * gates + 2 * n, 2 * (n + 5 * n), times)            # a new state, and five parts that are kept
    step.each(2 * (n + 5 * n), 4 * gates + 2 * n, times)
    step.sums(2 * gates, 0, 2 * times)              # both biases
    step.few(2 * (times - 1))
    step.each(4 * n, 2 * n, times - 1)              # two ways to a state
    step.squares(n)
    step.adamw(3 * hidden * (wide + hidden + 2))
    return step


def mlp():
    """Under autocast, parameters in fp32: each is cast in every step, and so is its gradient."""
    rows, wide, inner = 2048, 1024, 4096
    step, n, weights = Step(), rows * wide, wide * inner
    step.each(4 * n, 2 * n)
    step.linear(rows, wide, inner, True, grad_in=False)
    step.activation(rows * inner)
    step.linear(rows, inner, wide, True)
    for to in ((4, 2), (2, 4)):
        step.each(to[0] * weights, to[1] * weights, 2)
    step.few(2 + 2)                                 # biases
    step.each(2 * n, 4 * n)                         # the loss is one of fp32
    step.each(8 * n, 0)
    step.few(1)
    step.each(8 * n, 4 * n)
    step.each(4 * n, 2 * n)
    step.adamw(2 * weights + inner + wide)
    return step


# ---- what the program says ------------------------------------------------------------------------------------------


class Prices:
    """A trace's step on that card: {class: (FLOP, bytes, seconds)}, and the share of kernels without a price."""

    def __init__(self, trace, folder, precision):
        trace.save(os.path.join(folder, "model.trace"))
        path = os.path.join(folder, "file.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"model: {{trace: model.trace}}\nprecision: {{param: {precision}}}\ncluster: {write_card(folder)}\nstrategies: {{all: {{wrap: root}}}}\n")
        out = os.path.join(folder, "out")
        done = program.run(["compare", path, "--format", "json", "--out", out, "--traces", "--pictures", "none"])
        self.unknown = json.loads(done)["rows"][0]["unknown_kernels_s"]
        kernels = [self.kernel(line) for line in program.run(["program", path, "--strategy", "all"]).splitlines()
                   if re.match(r"\d+ op ", line)]
        with open(os.path.join(out, "all", "trace.json"), encoding="utf-8") as f:
            events = [e for e in json.load(f)["traceEvents"] if e.get("cat") == "kernel"]
        self.kernels = [(*kernel, event["dur"] * 1e-6)
                        for kernel, event in zip(kernels, events[-len(kernels):], strict=True)]
        assert all(event["name"].endswith(kernel[1]) or kernel[0] not in ("pointwise", "optimizer", "loss")
                   for kernel, event in zip(kernels, events[-len(kernels):]))

    @staticmethod
    def kernel(line):
        kind, name = re.match(r"\d+ op \S+ \S+ (\w+):(\S+)", line).groups()
        moved = re.search(r" moved=(\d+)\+(\d+)", line)
        flops = re.search(r" flops=(\d+)", line)
        return kind, name, int(flops.group(1)) if flops else 0, sum(map(int, moved.groups())) if moved else 0

    def classes(self):
        found = {}
        for kind, name, flops, moved, seconds in self.kernels:
            if kind in CLASSES:
                was = found.get(CLASSES[kind], (0, 0, 0.0))
                counted = flops if kind in ("gemm", "attention", "attention_bwd") else 0
                found[CLASSES[kind]] = (was[0] + counted, was[1] + moved, was[2] + seconds)
        return found


class Times(unittest.TestCase):
    def compare(self, name, by_hand, dtype="bf16", precision="bf16"):
        with tempfile.TemporaryDirectory() as folder:
            prices = Prices(tessera.trace(f"{MODELS}:{name}", wrap="root", dtype=dtype), folder, precision)
        said, wanted = prices.classes(), by_hand.classes()
        self.assertEqual(prices.unknown, 0)
        self.assertEqual(sorted(said), sorted(wanted))
        for kind in wanted:
            with self.subTest(kind):
                self.assertEqual(said[kind][0], wanted[kind][0], "FLOP")
                self.assertAlmostEqual(said[kind][1] / wanted[kind][1], 1, delta=0.005, msg="bytes")
                self.assertAlmostEqual(said[kind][2] / wanted[kind][2], 1, delta=0.005, msg="seconds")

    def test_gpt2(self):
        self.compare("gpt2", gpt2())

    def test_mixtral(self):
        self.compare("mixtral", mixtral())

    def test_vit(self):
        self.compare("vit", vit())

    def test_t5(self):
        self.compare("t5", t5())

    def test_batch_norm_and_pools(self):
        self.compare("resnet", resnet(), "fp32", "f32")

    def test_group_norm_and_a_transposed_convolution(self):
        self.compare("unet_block", unet_block())

    def test_a_recurrence(self):
        self.compare("gru", gru())

    def test_autocast(self):
        self.compare("mlp", mlp(), "autocast-bf16", "f32")

    def test_flop_of_a_whole_unet(self):
        """Beside PyTorch's own counter."""
        if not os.path.isdir(os.path.join(os.path.dirname(MODELS), "..", "golden-bridge", "models")):
            self.skipTest("no tests/golden-bridge/models")
        with torch.device("meta"):
            model, batch, loss = timed.unet()
        with FlopCounterMode(display=False) as counter:
            loss(model(batch["x"], batch["t"]), batch).backward()
        counted = {str(op).split(".")[1]: flops for op, flops in counter.get_flop_counts()["Global"].items()}
        trace = tessera.trace(f"{MODELS}:unet", wrap="root", dtype="fp32").content
        first, second = trace["variants"][0]["iterations"][:2]
        found = Counter()
        for _, _, _, events in played(trace, [first, second])[len(first):]:
            for event in events:
                if event[0] == "call":
                    name, flops = (trace["ops"][event[1]][k] for k in (0, 3))
                    found[name.split(".")[1]] += flops
        self.assertEqual({name: flops for name, flops in found.items() if flops}, counted)


if __name__ == "__main__":
    unittest.main()
