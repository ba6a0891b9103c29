"""When two sets of values are the same: within rounding, or within the spread that PyTorch has itself."""
import torch

# Within these nobody asks for a spread: those of float32 sums in another order (relative to the tensor's largest value).
RELATIVE = 2e-5
TINY = 1e-9
FACTOR = 4.0
FIRST = 4e-6   # of a first loss: float32 sums of a few numbers
CHAOS = 0.02


def tolerance(real):
    known = real[torch.isfinite(real)].abs()
    return TINY + RELATIVE * (known.max().item() if known.numel() else 0.0)


def distance(a, b):
    """Of each element; infinite where only one of them is a number, 0 where both are the same non-number."""
    d = (a - b).abs()
    fine = torch.isfinite(a) & torch.isfinite(b)
    alike = (torch.isnan(a) & torch.isnan(b)) | (a == b)
    return torch.where(fine, d, torch.where(alike, 0.0, float("inf")).double())


def first_differs(a, b):
    """Whether two vectors of losses differ by more than float32 sums in another order."""
    return a.shape != b.shape or bool((distance(a, b) > TINY + FIRST * a.abs().nan_to_num(0, 0, 0)).any())


def shapes(real, mine):
    """Texts: values that only one side has. A state that never was written is zeros on the other side."""
    out = []
    for n in sorted(n for n in real.keys() | mine.keys() if not n.startswith("grad.")):
        a, b = real.get(n), mine.get(n)
        if n.startswith("state") and (a is None or b is None):
            there = b if a is None else a
            if there.abs().max().item() != 0 if there.numel() else False:
                out.append(f"{n}: only {'ours' if a is None else 'PyTorch'} has it")
        elif a is None or b is None or a.shape != b.shape:
            out.append(f"{n}: {'absent' if a is None else list(a.shape)} and {'absent' if b is None else list(b.shape)}")
    return out


def widest(real, name, spreads):
    """Of each element: how far PyTorch's other runs are from this one."""
    out = torch.zeros_like(real[name])
    for spread in spreads:
        if name in spread and spread[name].shape == out.shape:
            out = torch.maximum(out, distance(real[name], spread[name]))
    return out


def steps_at_random(real, name, spreads, train):
    """Elements that AdamW moves in some step by about the learning rate in a direction that noise decides: up to that
    step their gradients are not larger than FACTOR times the spread of the tensor's. States are compared all the same."""
    optimizer = train["optimizer"]
    chance = torch.zeros_like(real[name], dtype=torch.bool)
    if optimizer["name"] != "adamw" or not spreads:
        return chance
    beta, square, steps = optimizer.get("betas", [0.9, 0.999])[1], torch.zeros_like(real[name]), 0
    for i in range(train["iters"]):
        gradient = real.get(f"grad.{i}.{name}")
        if gradient is None:
            continue
        steps += 1
        square = beta * square + (1 - beta) * gradient ** 2
        noise = widest(real, f"grad.{i}.{name}", spreads).max()
        chance |= (square / (1 - beta ** steps)).sqrt() <= FACTOR * noise
    return chance


def chaotic_from(real, spreads, train):
    """The first step whose losses PyTorch itself does not know to CHAOS of them; None: it knows all."""
    for i in range(1, train["iters"]):
        loss = real[f"loss.{i}"]
        if loss.numel() and widest(real, f"loss.{i}", spreads).max() > CHAOS * loss.abs().max():
            return i
    return None


def is_before(name, step):
    """Computed before that step's forward: losses and norms of earlier ones."""
    kind, _, number = name.partition(".")
    return kind in ("loss", "norm") and int(number) < step


def outside(real, mine, spreads, train, rounding=0.0, before=None):
    """[(name, text)] of what differs by more than rounding and more than FACTOR times the spread.

    rounding: so much of an element is one rounding in the precision of the scenario. before: only what is computed
    before that step.

    Elements are compared by rank: the k-th largest difference with the k-th largest spread, because noise strikes
    elements at random. `train`: the scenario's.
    """
    out = []
    step = 2.2 * train["optimizer"]["lr"] * train["iters"]
    for n, a in real.items():
        if n not in mine or a.numel() == 0 or (before is not None and not is_before(n, before)):
            continue
        b = mine[n]
        d = distance(a, b)
        once = rounding * (2 if n.startswith("state1.") else 1)  # of a square: twice
        d = torch.where(d <= once * torch.maximum(a.abs(), b.abs()), 0.0, d)
        d = torch.where(steps_at_random(real, n, spreads, train) & (d <= step), 0.0, d)
        d = d.sort(descending=True).values
        spread = widest(real, n, spreads).sort(descending=True).values
        known = spread[torch.isfinite(spread)]
        floor = known.square().mean().sqrt() / FACTOR if known.numel() else 0.0  # few samples: the tail is thin
        bound = FACTOR * torch.clamp(spread, min=float(floor)) + tolerance(a)
        bad = d > bound
        if bool(bad.any()):
            at = int(distance(a, b).argmax())
            k = int(bad.int().argmax())
            out.append((n, f"{n}[{at}]: PyTorch {a[at].item():.7g}, ours {b[at].item():.7g}; difference number {k} is "
                           f"{d[k].item():.3g}, allowed {bound[k].item():.3g}; {int(bad.sum())} of {a.numel()} outside"))
    return out
