"""The stand-in device as seen from inside the tracing process: allocator events and read-backs."""

import ctypes

import torch


class Device:
    """The library that LD_PRELOAD put in front of CUDA, through its own functions."""

    def __init__(self):
        library = ctypes.CDLL(None)
        self._answer = library.tessera_standin_answer
        self._answer.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._unanswered = library.tessera_standin_unanswered
        self._waiting = library.tessera_standin_waiting
        self._copied = library.tessera_standin_copied
        self._copied.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._copied.restype = ctypes.c_size_t
        self._work = library.tessera_standin_work
        self._work.argtypes = [ctypes.c_void_p]
        self.lag = library.tessera_standin_order   # from now on it is as far behind the host as it can be
        self._unanswered.restype = self._waiting.restype = ctypes.c_size_t

    def answer(self, value):
        """The next read by the host gives these bytes."""
        self._answer(value, len(value))

    def work(self):
        """The current stream is given a piece of work that no kernel stands for."""
        self._work(torch.cuda.current_stream().cuda_stream)

    def unanswered(self):
        """Reads so far that nobody had an answer for: they gave zeros."""
        return self._unanswered()

    def copied(self, tensor):
        """The values of a contiguous tensor that was just copied to the device, or None."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        size = host.numel() * host.element_size()
        given = self._copied(tensor.data_ptr(), host.data_ptr(), size) if size else 0
        return host if tensor.is_contiguous() and given == size else None

    def waiting(self):
        """Answers that nothing has read yet."""
        return self._waiting()


def position():
    """Allocations and frees of the caching allocator so far: the time of a trace."""
    count = torch._C._cuda_memoryStats(0)["allocation"]["all"]
    return count["allocated"] + count["freed"]


def start_recording():
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=20_000_000)
    return position()


def recorded():
    """[(is an allocation, address, bytes, stream), ...] since `start_recording`."""
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    return [(e["action"] == "alloc", e["addr"], e["size"], e["stream"])
            for e in entries if e["action"] in ("alloc", "free_requested")]
