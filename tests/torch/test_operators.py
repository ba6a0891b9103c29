"""FLOP and bytes of operators. Convolutions of random shapes against PyTorch's own counter, which is right for one
group only, over each group alone; the others against hand sums."""

import math
import random
import unittest

import torch
import torch.nn.functional as F
from tessera.operators import bytes_of, flops_of, kernels_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

CASES = 300


class Calls(TorchDispatchMode):
    """[(operator, FLOP, (bytes read, written), output_mask), ...] of the convolutions that run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if "convolution" in name:
            self.found.append((name, flops_of(func, args, kwargs or {}, output),
                               bytes_of(func, args, kwargs or {}, output),
                               args[-1] if name.endswith("backward") else None))
        return output


class Case:
    def __init__(self, rng):
        self.dims, self.groups = rng.randint(1, 3), rng.choice((1, 1, 2, 3, 8))
        self.transposed, self.batch = rng.random() < 0.4, rng.randint(1, 3)
        self.wide_in, self.wide_out = rng.randint(1, 3), rng.randint(1, 3)   # of a group

        def each(low, high):
            return [rng.randint(low, high) for _ in range(self.dims)]
        self.kernel, self.size, self.stride = each(1, 3), each(5, 8), each(1, 3)
        self.padding, self.dilation = each(0, 1), each(1, 2)
        self.grads = rng.choice(((True, True), (True, False), (False, True)))
        self.bias = rng.random() < 0.5

    def tensors(self, groups):
        def make(shape, needs):
            return torch.empty(shape, device="meta", requires_grad=needs)
        wide = (self.wide_in, self.wide_out)[::1 if self.transposed else -1]
        filters = make([groups * wide[0], wide[1], *self.kernel], self.grads[1])
        bias = make([groups * self.wide_out], self.grads[1]) if self.bias else None
        return make([self.batch, groups * self.wide_in, *self.size], self.grads[0]), filters, bias

    def run(self, groups):
        inputs, filters, bias = self.tensors(groups)
        name = f"conv{'_transpose' if self.transposed else ''}{self.dims}d"
        output = getattr(F, name)(inputs, filters, bias, stride=self.stride, padding=self.padding,
                                  dilation=self.dilation, groups=groups)
        output.backward(torch.empty_like(output))
        return inputs, filters, bias, output

    def __str__(self):
        return str(vars(self))


def size(*tensors):
    return sum(4 * x.numel() for x in tensors if x is not None)


class Convolutions(unittest.TestCase):
    def test_groups_strides_dilation_and_transposition(self):
        rng, grouped = random.Random(29), 0
        for _ in range(CASES):
            case = Case(rng)
            with Calls() as calls:
                inputs, filters, bias, output = case.run(case.groups)
            (forward, forward_flops, forward_bytes, _), (backward, flops, moved, mask) = calls.found
            with FlopCounterMode(display=False) as counter:
                case.run(1)
            counted = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
            at = (inputs if case.transposed else output).shape
            macs = case.batch * math.prod(at[2:]) * math.prod(case.kernel) * case.wide_in * case.wide_out
            with self.subTest(str(case)):
                self.assertEqual((forward, backward), ("convolution", "convolution_backward"))
                self.assertEqual(forward_flops, case.groups * counted["aten.convolution"])
                self.assertEqual(flops, case.groups * counted["aten.convolution_backward"])
                self.assertEqual(forward_flops, 2 * macs * case.groups)
                self.assertEqual(flops, sum(case.grads) * forward_flops)
                self.assertEqual(list(mask[:2]), list(case.grads))
                self.assertEqual(forward_bytes, (size(inputs, filters, bias), size(output)))
                read = size(output, filters if case.grads[0] else None, inputs if case.grads[1] else None)
                grads = [x for x in (inputs, filters, bias) if x is not None and x.requires_grad]
                self.assertEqual(moved, (read, size(*grads)))
            grouped += case.groups > 1
        self.assertGreater(grouped, CASES // 3)

    def test_a_depthwise_convolution_is_not_a_dense_one(self):
        inputs = torch.empty(1, 4096, 4096, device="meta", requires_grad=True)
        filters = torch.empty(4096, 1, 4, device="meta", requires_grad=True)
        with Calls() as calls:
            output = F.conv1d(inputs, filters, padding=3, groups=4096)
            output.backward(torch.empty_like(output))
        self.assertEqual([flops for _, flops, _, _ in calls.found], [134316032, 268632064])


class Bytes(unittest.TestCase):
    """Bytes read and written by one call on float32 of 6 x 8, which is 192 bytes, or on parts of it."""

    def moved(self, call, operator):
        class Last(TorchDispatchMode):
            def __torch_dispatch__(mode, func, types, args=(), kwargs=None):
                output = func(*args, **(kwargs or {}))
                mode.found[func.overloadpacket.__name__] = bytes_of(func, args, kwargs or {}, output)
                return output
        with Last() as last:
            last.found = {}
            call()
        return last.found[operator]

    def test_against_hand_sums(self):
        def make(*shape, dtype=torch.float32):
            return torch.empty(shape, dtype=dtype, device="meta")
        x, y, row, many = make(6, 8), make(6, 8), make(8), make(8).expand(6, 8)
        ids, labels, table = make(3, dtype=torch.int64), make(6, dtype=torch.int64), make(100, 8)
        logits = make(6, 8).requires_grad_()
        cases = [
            ("two operands", "mul", lambda: x * y, (384, 192)),
            ("one repeated operand", "mul", lambda: x * row, (192 + 32, 192)),
            ("an expanded operand", "mul", lambda: x * many, (192 + 32, 192)),
            ("a number", "mul", lambda: x * 2, (192, 192)),
            ("a tensor with itself", "mul", lambda: x * x, (192, 192)),
            ("a transposed operand", "add", lambda: x + make(8, 6).t(), (384, 192)),
            ("in place", "add_", lambda: x.add_(y), (384, 192)),
            ("in place, with itself", "mul_", lambda: x.mul_(x), (192, 192)),
            ("into a given result", "mul", lambda: torch.mul(x, y, out=make(6, 8)), (384, 192)),
            ("a copy", "copy_", lambda: x.copy_(y), (192, 192)),
            ("a fill", "fill_", lambda: x.fill_(1), (0, 192)),
            ("a cast", "_to_copy", lambda: x.bfloat16(), (192, 96)),
            ("lists", "_foreach_add_", lambda: torch._foreach_add_([x, x], [y, row]), (192 * 2 + 32, 192)),
            ("a look-up", "embedding", lambda: F.embedding(ids, table), (3 * 32 + 24, 3 * 32)),
            ("chosen rows", "index", lambda: table[ids], (3 * 32 + 24, 3 * 32)),
            ("rows that are set", "index_put_", lambda: table.index_put_([ids], make(3, 8)),
             (2 * (3 * 32 + 24), 3 * 32 + 24)),
            ("a loss", "nll_loss_forward", lambda: F.nll_loss(x, labels), (8 + 48, 8)),
            ("a loss's gradient", "nll_loss_backward",
             lambda: F.nll_loss(logits * 1, labels).backward(make()), (4 + 48 + 4, 192)),
        ]
        for what, operator, call, wanted in cases:
            with self.subTest(what):
                self.assertEqual(self.moved(call, operator), wanted)

    def test_what_only_lends_its_shape_is_not_read(self):
        x = torch.empty(6, 8, device="meta")
        for operator, call in (("zeros_like", torch.zeros_like), ("new_zeros", lambda x: x.new_zeros(6, 8)),
                               ("full_like", lambda x: torch.full_like(x, 3))):
            self.assertEqual(self.moved(lambda call=call: call(x), operator), (0, 192))


class Kernels(unittest.TestCase):
    """The kernels of one call, with the bytes that they read and write."""

    def of(self, call, operator):
        class Last(TorchDispatchMode):
            def __torch_dispatch__(mode, func, types, args=(), kwargs=None):
                output = func(*args, **(kwargs or {}))
                if func.overloadpacket.__name__ == operator:
                    mode.found = kernels_of(func, args, kwargs or {}, output)
                return output
        with Last() as last:
            call()
        return [(k.name.split(".")[1], k.flops, k.read, k.written) for k in last.found]

    def test_calls_of_several_kernels(self):
        def make(*shape, dtype=torch.float32):
            return torch.empty(shape, dtype=dtype, device="meta")
        x, ids, mask = make(6, 8).requires_grad_(), make(3, dtype=torch.int64), make(6, 8, dtype=torch.bool)
        image, filters = make(2, 4, 5, 5).requires_grad_(), make(8, 4, 3, 3).requires_grad_()
        norm = torch.nn.GroupNorm(2, 4, device="meta")
        moved, out = 4 * 2 * 4 * 25, 4 * 2 * 8 * 9
        flops, weight = 2 * 2 * 9 * 8 * 4 * 9, 4 * 8 * 4 * 9
        copy, rows = ("clone", 0, 192, 192), 3 * 32 + 24
        cases = [
            ("slice_backward", lambda: x[:, :4].sum().backward(), [("fill_", 0, 0, 192), ("copy_", 0, 4, 96)]),
            ("constant_pad_nd", lambda: F.pad(x, (0, 2)), [("fill_", 0, 0, 240), ("copy_", 0, 192, 192)]),
            ("masked_fill", lambda: x.masked_fill(mask, 0), [copy, ("masked_fill", 0, 192 + 48, 192)]),
            ("index_put", lambda: x.detach().index_put([ids], make(3, 8)), [copy, ("index_put", 0, 2 * rows, rows)]),
            ("index_put", lambda: x[ids].sum().backward(), [("index_put", 0, 2 * (4 + 24), 4 + 24)]),
            ("_softmax_backward_data", lambda: (x.softmax(1) * x).sum().backward(),
             [("mul", 0, 384, 192), ("_softmax_backward_data", 0, 384, 192)]),
            ("native_group_norm", lambda: norm(image), [("native_group_norm", 0, moved, 32), ("native_group_norm", 0, moved + 32, moved)]),
            ("native_group_norm_backward", lambda: (norm(image) * image).sum().backward(),
             [("native_group_norm_backward", 0, 2 * moved + 32 + 16, 32), ("native_group_norm_backward", 0, 2 * moved + 32 + 16, moved)]),
            ("convolution_backward", lambda: (F.conv2d(image, filters, make(8).requires_grad_()) ** 2).sum().backward(),
             [("convolution_backward", flops, out + weight, moved), ("convolution_backward", flops, out + moved, weight),
              ("sum", 0, out, 32)]),
        ]
        for operator, call, wanted in cases:
            with self.subTest(operator):
                self.assertEqual(self.of(call, operator), wanted)


if __name__ == "__main__":
    unittest.main()
