"""The instrumented pass: operators with shapes, FLOPs and bytes, and what the host reads back."""

import contextlib
import functools
import math
import mmap
import re
import shlex
import struct
import typing
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .device import position
from .errors import Refused

NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh",
             "detach", "alias", "resize_"}


ATTENTION = {f"_scaled_dot_product_{kind}_attention{tail}" for kind in ("flash", "efficient", "cudnn")
             for tail in ("", "_backward")}


# Convolutions, and whether the operator is a transposed one; None: an argument says it.
CONVOLUTIONS = {"convolution": None, "_convolution": None, "convolution_overrideable": None,
                "cudnn_convolution": False, "cudnn_convolution_relu": False, "cudnn_convolution_add_relu": False,
                "cudnn_convolution_transpose": True, "_slow_conv2d_forward": False, "slow_conv3d_forward": False,
                "slow_conv_dilated2d": False, "slow_conv_dilated3d": False, "slow_conv_transpose2d": True,
                "slow_conv_transpose3d": True, "_conv_depthwise2d": False, "conv_depthwise3d": False}
CONVOLUTIONS_BACKWARD = {"convolution_backward", "convolution_backward_overrideable"}


def argument(func, args, kwargs, name, default=None):
    """The argument of a call that the operator's schema calls `name`."""
    places = [a.name for a in func._schema.arguments]
    place = places.index(name) if name in places else len(args)
    return args[place] if place < len(args) else kwargs.get(name, default)


def convolution_flops(inputs, weight, output, transposed):
    """FLOP of a forward, from the shapes. Every position of the output (transposed: of the input) is multiplied
    with the entire filter, whose shape has the channels of one group only. Padding counts, as in PyTorch's
    counter."""
    at = inputs if transposed else output
    return 2 * at[0] * math.prod(at[2:]) * math.prod(weight)


def convolution_backward_flops(func, args, kwargs):
    """FLOP of a backward. The gradients of the input and of the filter cost as much as forward each; that of the
    bias is a sum. PyTorch 2.11 counts the filter's gradient as if all groups were one."""
    output, inputs, weight = (x.shape for x in args[:3])
    wanted = argument(func, args, kwargs, "output_mask")
    transposed = argument(func, args, kwargs, "transposed", False)
    return convolution_flops(inputs, weight, output, transposed) * sum(map(bool, wanted[:2]))


def tensors(*values):
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


# What overwrites its first argument without reading it.
OVERWRITES = {"copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
              "_foreach_copy_", "_foreach_zero_"}
# What reads of its first argument the elements that it returns; a loss's are one per label.
LOOKS_UP = {"embedding", "index", "index_select", "gather", "nll_loss_forward", "nll_loss2d_forward"}
# What changes of its first argument the elements that the others stand for.
SCATTERS = {"scatter_", "scatter_add_", "scatter_reduce_", "index_put_", "_index_put_impl_", "index_add_",
            "index_copy_", "index_fill_"}
LOSS_BACKWARDS = {"nll_loss_backward", "nll_loss2d_backward"}
# Backwards that take the shape of their second argument, and read nothing of it.
SHAPE_ONLY = {"max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward", "avg_pool3d_backward",
              "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"}
# What takes shape and dtype of its first argument, and reads nothing of it.
MAKES = {f"{kind}_like" for kind in ("zeros", "ones", "full", "rand", "randn", "randint")} | {"new_zeros", "new_ones", "new_full"}


def distinct_bytes(*values):
    """Returns the bytes of memory that tensors cover: what an expanded one repeats counts once, as does a tensor
    that is there twice."""
    sizes = {}
    for x in tensors(values):
        elements = math.prod(n for n, stride in zip(x.shape, x.stride()) if stride)
        place = (x.untyped_storage()._cdata, x.storage_offset(), tuple(x.shape), x.stride())
        sizes[place] = elements * x.element_size()
    return sum(sizes.values())


def arguments_of(func, args, kwargs):
    """Returns pairs of an argument in the operator's schema and its value."""
    schema = func._schema.arguments
    return [*zip(schema, args), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)]


def bytes_of(func, args, kwargs, output):
    """Returns the bytes that a call reads and those that it writes. A convolution's backward reads the filter for
    the gradient of the input only, and the input for that of the filter."""
    name = func.overloadpacket.__name__
    given = arguments_of(func, args, kwargs)
    changed = [value for a, value in given if a.alias_info and a.alias_info.is_write]
    read = [value for a, value in given if not a.is_out]
    written = distinct_bytes(changed, output)
    if name in CONVOLUTIONS_BACKWARD:
        wanted = argument(func, args, kwargs, "output_mask")
        read = [args[0], args[2] if wanted[0] else (), args[1] if wanted[1] else ()]
    elif name in OVERWRITES | MAKES:
        read = read[1:]
    elif name in LOOKS_UP:
        return min(distinct_bytes(read[0]), written) + distinct_bytes(read[1:]), written
    elif name in SCATTERS:
        others = distinct_bytes(read[1:])
        return min(distinct_bytes(read[0]), others) + others, min(written, others)
    elif name in LOSS_BACKWARDS | SHAPE_ONLY:
        read = [read[0], *read[2:]]
    return distinct_bytes(read), written


# What copies its first argument and changes the copy: as SCATTERS, or all of it.
COPIES_FIRST = {name.rstrip("_") for name in SCATTERS} | {"masked_fill", "masked_scatter"}
# What fills its result with zeros, or a number, and copies its first argument into a part of it.
FILLS_FIRST = {"slice_backward", "select_backward", "diagonal_backward", "constant_pad_nd"}
# What fills its result with zeros first, of SHAPE_ONLY.
SCATTERS_PEAKS = {"max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"}
# Cells of recurrences: gradients of gates whose sums are those of biases.
GATES = {"_thnn_fused_gru_cell_backward": ((0, 3), (1, 4)), "_thnn_fused_lstm_cell_backward_impl": ((0, 2),)}
# What goes over its first argument for the sums of rows or channels, and again for the result.
NORMS = {"native_group_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"}
# Backends of convolutions that leave the sum with the bias to another kernel.
ADDS_BIAS = {torch._C._ConvBackend.Cudnn, torch._C._ConvBackend.CudnnTranspose}


class Kernel(typing.NamedTuple):
    """A row of the trace's table of operators."""
    name: str
    shapes: tuple
    dtype: str
    flops: int
    read: int
    written: int


def kernel(name, inputs, read, written, flops=0):
    """A kernel that takes tensors (one that takes none: that it writes) and moves some bytes."""
    return Kernel(name, tuple(tuple(x.shape) for x in inputs), str(inputs[0].dtype).removeprefix("torch.") if inputs else "",
                  flops, read, written)


def kernels_of(func, args, kwargs, output):
    """Returns the kernels of a call. It is one, but for operators that PyTorch's CUDA code makes of several large ones; what these
    do with a few numbers beside is left out."""
    name, inputs = func.overloadpacket.__name__, tensors(args, kwargs)
    own = kernel(name_of(func, args), inputs or tensors(output)[:1], *bytes_of(func, args, kwargs, output),
                 flops=flops_of(func, args, kwargs, output))
    own = own._replace(shapes=own.shapes if inputs else ())
    first = inputs[0] if inputs else None
    if name in FILLS_FIRST:
        return [kernel("aten.fill_.Scalar", [output], 0, distinct_bytes(output)),
                kernel("aten.copy_.default", [first, first], distinct_bytes(first), first.numel() * first.element_size())]
    if name in COPIES_FIRST:
        return copy_of(name, first) + [own._replace(**changes(name, args, kwargs))]
    if name == "_softmax_backward_data":
        return [kernel("aten.mul.Tensor", inputs[:2], own.read, own.written), own]
    if name in NORMS:
        sums = distinct_bytes(output[1:])
        return [own._replace(read=distinct_bytes(first), written=sums), own._replace(written=own.written - sums)]
    if name.removesuffix("_backward") in NORMS:
        return [own._replace(written=distinct_bytes(output[1:])), own._replace(written=distinct_bytes(output[0]))]
    if name in SCATTERS_PEAKS:
        return [kernel("aten.fill_.Scalar", [output], 0, own.written), own]
    if name in GATES:
        return [own] + [kernel("aten.sum.dim_IntList", [output[gates]], distinct_bytes(output[gates]), distinct_bytes(output[bias]))
                        for gates, bias in GATES[name] if output[bias] is not None]
    if name in CONVOLUTIONS and adds_bias(func, args, kwargs):
        bias, moved = argument(func, args, kwargs, "bias"), distinct_bytes(output)
        return [own, kernel("aten.add_.Tensor", [output, bias], moved + distinct_bytes(bias), moved)]
    if name in CONVOLUTIONS_BACKWARD:
        return convolution_gradients(own, args, output)
    return [own]


def copy_of(name, tensor):
    """The copy that such an operator makes of its first argument. Autograd's own formulas scatter in place, but where they see a
    dispatch mode."""
    if name in ("index_put", "index_add", "scatter", "scatter_add") and torch._C._current_autograd_node() is not None:
        return []
    moved = distinct_bytes(tensor)
    return [kernel("aten.clone.default", [tensor], moved, moved)]


def changes(name, args, kwargs):
    """The bytes of the change in place."""
    whole, others = distinct_bytes(args[0]), distinct_bytes(args[1:], kwargs)
    part = min(whole, others) if f"{name}_" in SCATTERS else whole
    return {"read": part + others, "written": part}


def dense(tensor):
    """The tensor as if it lay in one piece: the choice of a backend copies what does not, and that copy would be an allocation of
    the run."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride(), tensor.storage_offset())


def adds_bias(func, args, kwargs):
    bias = argument(func, args, kwargs, "bias")
    if bias is None or not bias.is_cuda or func.overloadpacket.__name__ != "convolution":
        return False
    if any(x.untyped_storage().nbytes() < (x.storage_offset() + x.numel()) * x.element_size() for x in args[:2]):
        return False   # it repeats its values
    return torch._C._select_conv_backend(dense(args[0]), dense(args[1]), *args[2:], *kwargs.values(), bias_sizes=list(bias.shape)) in ADDS_BIAS


def convolution_gradients(own, args, output):
    """A kernel for each gradient: of the input, of the filter, and a sum for that of the bias."""
    gradient, inputs, weight = args[:3]
    made, found = [x is not None for x in output], []
    for other, result in ((weight, output[0]), (inputs, output[1])):
        if result is not None:
            found.append(own._replace(flops=own.flops // sum(made[:2]), read=distinct_bytes(gradient, other), written=distinct_bytes(result)))
    if made[2]:
        found.append(kernel("aten.sum.dim_IntList", [gradient], distinct_bytes(gradient), distinct_bytes(output[2])))
    return found


def grouped_product_flops(a, b):
    """Of the shapes: experts' rows, columns or the summed dimension are packed in a matrix."""
    if len(a) == 3 and len(b) == 3:
        return 2 * a[0] * a[1] * a[2] * b[2]
    if len(a) == 2:
        return 2 * a[0] * a[1] * b[-1]
    return 2 * a[1] * a[2] * b[-1]


def attention_flops(q, k, v, backward):
    """Also where several heads share their keys and values. Backward makes the scores once more."""
    batch, heads, rows, width = q
    scores = 2 * batch * heads * rows * k[2]
    return scores * (3 * width + 2 * v[3]) if backward else scores * (width + v[3])


def name_of(func, args):
    """The operator's name; attention says whether it is causal, since kernels then do half the work."""
    causal = func.overloadpacket.__name__ in ATTENTION and argument(func, args, {}, "is_causal")
    return f"{func} causal" if causal else str(func)


def flops_of(func, args, kwargs, output):
    """FLOPs of a call; 0 where only bytes count, -1 for operators that PyTorch does not know."""
    if func.namespace not in ("aten", "prims"):
        return -1
    name = func.overloadpacket.__name__
    if name == "_grouped_mm":
        return grouped_product_flops(args[0].shape, args[1].shape)
    if name in CONVOLUTIONS:
        transposed = CONVOLUTIONS[name]
        if transposed is None:
            transposed = argument(func, args, kwargs, "transposed", False)
        return convolution_flops(args[0].shape, args[1].shape, output.shape, transposed)
    if name in CONVOLUTIONS_BACKWARD:
        return convolution_backward_flops(func, args, kwargs)
    if name in ATTENTION:
        backward = name.endswith("_backward")
        return attention_flops(*(x.shape for x in args[backward:backward + 3]), backward)
    formula = flop_registry.get(func.overloadpacket)
    try:
        return int(formula(*args, **kwargs, out_val=output)) if formula else 0
    except Exception:   # shapes that PyTorch's formula does not take
        return -1


# "module: operator" that runs in the traced process, readable by the process that waits for it.
_running = mmap.mmap(-1, 1024)
LIBRARIES = re.compile(r"cuFFT|CUFFT|cusolver|CUSOLVER|CUBLAS|cuDNN|CUDNN|[cC][uU][sS][pP][aA][rR][sS][eE]|"
                       r"MAGMA|[nN][vV][rR][tT][cC]|CUDA driver|CUDA error")


def set_running(text=""):
    """Notes which operator runs; "": none does."""
    _running.seek(0)
    _running.write(text.encode(errors="replace")[:1023] + b"\0")


def running():
    return _running[:].partition(b"\0")[0].decode(errors="replace")


def needs_a_gpu(what):
    """The refusal of a call that ends in an error of a library, or in its death."""
    return Refused(f"{what} calls a library that needs a GPU (of cuFFT, cuSOLVER, cuSPARSE and MAGMA the "
                   "stand-in device has nothing): write it with other operators, or trace the model without it")


def integer(number):
    return struct.pack("<q", number)


def raw(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def fills(args):
    """Whether index_put runs as masked_fill, which counts nothing: one mask, and a number of the host's."""
    indices, value = [i for i in args[1] if i is not None], args[2]
    accumulate = len(args) > 3 and args[3]
    return (not accumulate and len(indices) == 1 and indices[0].dtype in (torch.bool, torch.uint8)
            and value.numel() == 1 and value.device.type == "cpu")


def expected_reads(func, args, kwargs, shadows, output_device):
    """What the host will read during a call, from the shadows: a list of bytes. None: nothing, or not
    known how. Raises KeyError where it reads and the value is unknown."""
    name = func.overloadpacket.__name__
    if not any(isinstance(x, torch.Tensor) and x.is_cuda for x in tree_leaves((args, kwargs))):
        return None

    def known(tensor):
        value = shadows.get(tensor)
        if value is None:
            raise KeyError(name)
        return value

    if name == "_local_scalar_dense":
        return [raw(known(args[0]))]
    if name == "nonzero":
        return [integer(int(torch.count_nonzero(known(args[0]))))]
    if name in ("masked_select", "masked_scatter_backward"):
        return [integer(int(torch.count_nonzero(known(args[1]))))]
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        if name != "index" and fills(args):
            return None
        masks = [i for i in args[1] if i is not None and i.is_cuda and i.dtype in (torch.bool, torch.uint8)]
        return [integer(int(torch.count_nonzero(known(m)))) for m in masks] or None
    if name == "unique_consecutive":
        return [integer(torch.unique_consecutive(known(args[0])).numel())] if args[3:] in ((), (None,)) else None
    if name == "equal":
        return [raw(torch.tensor(torch.equal(known(args[0]), known(args[1]))))]
    if name == "bincount":
        value = known(args[0])
        return [raw(value.min()), raw(value.max())]
    if name == "repeat_interleave" and func._overloadname == "Tensor" and kwargs.get("output_size") is None:
        repeats = known(args[0])
        return [integer(int(repeats.sum())), raw((repeats >= 0).all())]   # then: is none negative
    if name == "_to_copy" and args[0].is_cuda and output_device == "cpu":
        return [raw(known(args[0]))]
    if name == "copy_" and args[0].device.type == "cpu" and args[1].is_cuda:
        return [raw(known(args[1]))]
    return None


class Operators(TorchDispatchMode):
    """Writes (position after, "call", row of the table, parameters read, (position before, after),
    addresses of the results) to the log. `reads`: (module, operator, bytes) as the host read them."""

    def __init__(self, log, device, shadows, parameters, module, given, watch):
        super().__init__()
        self.log, self.device, self.shadows, self.watch = log, device, shadows, watch
        self.parameters = parameters      # address of the storage -> index
        self.module = module              # () -> index of the innermost module that runs
        self.given = given                # (module, operator, is a Boolean) -> bytes, or None
        self.reads, self.routed = [], False
        self.unanswered = 0               # as the device counted when the last operator ended

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._look_between(func)
        foreseen = self._foresee(func, args, kwargs)
        for value in foreseen:
            self.device.answer(value)
        missed = self.device.unanswered()
        before = position()
        what = f"{self.module.name()}: {func}"
        set_running(what)
        try:
            output = func(*args, **kwargs)
        except RuntimeError as error:
            if LIBRARIES.search(str(error)):
                raise needs_a_gpu(what) from error
            self.module.note_failure()
            raise
        set_running()
        after = position()
        reads = foreseen + [b"\0"] * (self.device.unanswered() - missed)
        if len(reads) > len(foreseen):
            self._ask(func, args)
        if self.device.waiting():
            raise Refused(f"{self.module.name()}: {func} reads less than was foreseen: "
                          "this version of torch is not supported")
        for value in reads:
            self.reads.append((self.module(), str(func), value))
        if func.overloadpacket.__name__ == "lift_fresh" and args[0].is_cuda:   # torch.tensor(numbers)
            self.shadows.set(output, self.device.copied(args[0]))
        else:
            self.shadows.follow(func, args, kwargs, output)
        if torch.Tag.nondeterministic_seeded in func.tags and any(x.device.type == "cpu" for x in tensors(output)):
            self.module.drew.add(self.module())
        self._write(func, args, kwargs, output, before, after)
        self.unanswered = self.device.unanswered()
        return output

    def _look_between(self, func):
        """What was read since the last operator, by something that is none, got zeros."""
        missed = self.device.unanswered() - self.unanswered
        if missed and not self.given.zeros:
            raise Refused(f"{self.module.name()}: before {func} a value is read from the device by something that is no "
                          "operator: read it with .item() or .tolist()")
        self.reads += [(self.module(), "between operators", b"\0")] * missed

    def reads_list(self, name, values):
        """torch.tensor() reads each tensor of the device in a list, which no operator shows."""
        with _disable_current_modes():   # this mode sees what the model does
            for x in tree_leaves(values):
                if isinstance(x, torch.Tensor) and x.is_cuda:
                    value = self.shadows.get(x)
                    value = raw(value) if value is not None else self.given(self.module(), name, x.dtype == torch.bool)
                    if value is None:
                        self._ask(name, [x])
                        value = b"\0"
                    self.routed = self.routed or self.shadows.is_chosen(x)
                    self.device.answer(value)
                    self.reads.append((self.module(), name, value))

    @contextlib.contextmanager
    def watch_lists(self):
        with contextlib.ExitStack() as stack:
            for place, name in ((torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"), (torch.Tensor, "new_tensor")):
                stack.enter_context(mock.patch.object(place, name, self._watched(place, name)))
            yield

    def _watched(self, place, name):
        made = getattr(place, name)

        @functools.wraps(made)
        def watched(*args, **kwargs):
            given = args[0 if place is torch else 1:]
            values = given[0] if given else kwargs.get("data", kwargs.get("obj"))
            if isinstance(values, (list, tuple)):
                self.reads_list(f"torch.{name}", values)
            return made(*args, **kwargs)
        return watched

    def _foresee(self, func, args, kwargs):
        try:
            target = torch.device(kwargs.get("device") or "cuda").type
            reads = expected_reads(func, args, kwargs, self.shadows, target) or []
        except KeyError:
            boolean = getattr(args[0], "dtype", None) == torch.bool
            value = self.given(self.module(), str(func), boolean)
            return [] if value is None else [value]
        if reads and any(self.shadows.is_chosen(x) for x in tree_leaves((args, kwargs))
                         if isinstance(x, torch.Tensor)):
            self.routed = True
        return reads

    def _ask(self, func, args):
        if not self.given.zeros:
            what = f" of {args[0].dtype} {list(args[0].shape)}" if isinstance(args[0], torch.Tensor) else ""
            place = shlex.quote(f"{self.module.name()}:{func}=VALUE")
            raise Refused(f"{self.module.name()}: {func}{what} asks the device for a value that depends on "
                          f"data; give it with --readback {place}, or make the batch on the CPU with values")

    def _write(self, func, args, kwargs, output, before, after):
        inputs, outputs = tensors(args, kwargs), tensors(output)
        results = {x.untyped_storage().data_ptr() for x in outputs if x.is_cuda}
        read = [x.untyped_storage().data_ptr() for x in inputs if x.is_cuda]
        view = not func._schema.is_mutable and after == before and results <= set(read) and results
        launched = not view and func.overloadpacket.__name__ not in NO_KERNEL
        rows = kernels_of(func, args, kwargs, output) if launched else [None]
        parameters = sorted({self.parameters[a] for a in read if a in self.parameters})
        if launched and parameters and self.module.in_forward():
            self.watch.reads(parameters, str(func))
        self.log.append((after, "call", rows[0], tuple(parameters) if launched else (), (before, after), results))
        self.log += [(after, "call", row, (), (after, after), results) for row in rows[1:]]
