"""When two sets of values are the same: within rounding, or within the spread that PyTorch has itself."""
import torch

# Within these nobody asks for a spread: those of float32 sums in another order (relative to the tensor's largest value).
RELATIVE = 2e-5
TINY = 1e-9
FACTOR = 4.0


def tolerance(real):
    known = real[torch.isfinite(real)].abs()
    return TINY + RELATIVE * (known.max().item() if known.numel() else 0.0)


def distance(a, b):
    """Of each element; infinite where only one of them is a number, 0 where both are the same non-number."""
    d = (a - b).abs()
    fine = torch.isfinite(a) & torch.isfinite(b)
    alike = (torch.isnan(a) & torch.isnan(b)) | (a == b)
    return torch.where(fine, d, torch.where(alike, 0.0, float("inf")).double())


def shapes(real, mine):
    """Texts: values that only one side has. A state that never was written is zeros on the other side."""
    out = []
    for n in sorted(real.keys() | mine.keys()):
        a, b = real.get(n), mine.get(n)
        if n.startswith("state") and (a is None or b is None):
            there = b if a is None else a
            if there.abs().max().item() != 0 if there.numel() else False:
                out.append(f"{n}: only {'ours' if a is None else 'PyTorch'} has it")
        elif a is None or b is None or a.shape != b.shape:
            out.append(f"{n}: {'absent' if a is None else list(a.shape)} and {'absent' if b is None else list(b.shape)}")
    return out


def outside(real, mine, spreads):
    """[(name, text)] of what differs by more than rounding and more than FACTOR times the spread.

    Elements are compared by rank: the k-th largest difference with the k-th largest spread, because noise strikes
    elements at random.
    """
    out = []
    for n, a in real.items():
        if n not in mine or a.numel() == 0:
            continue
        b = mine[n]
        d = distance(a, b).sort(descending=True).values
        bound = torch.zeros_like(d)
        for spread in spreads:
            if n in spread and spread[n].shape == a.shape:
                bound = torch.maximum(bound, distance(a, spread[n]))
        bound = FACTOR * bound.sort(descending=True).values + tolerance(a)
        bad = d > bound
        if bool(bad.any()):
            at = int(distance(a, b).argmax())
            k = int(bad.int().argmax())
            out.append((n, f"{n}[{at}]: PyTorch {a[at].item():.7g}, ours {b[at].item():.7g}; difference number {k} is "
                           f"{d[k].item():.3g}, allowed {bound[k].item():.3g}; {int(bad.sum())} of {a.numel()} outside"))
    return out
