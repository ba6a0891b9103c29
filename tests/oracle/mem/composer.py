"""What a Composer step does beside forward, loss and backward, in plain PyTorch: DecoupledAdamW, the
clipping of FSDP1, language metrics. Each returns or keeps what its original does; parameters may be
DTensors, of which the local parts are used, as FSDP1's parameters are."""
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor


def local(t):
    return t._local_tensor if isinstance(t, DTensor) else t


class Decoupled:
    """DecoupledAdamW with weight decay 0. reads: the number of steps is a tensor on the device (June 2023 on)."""
    def __init__(self, params, reads):
        self.params, self.reads, self.state = list(params), reads, {}

    def zero_grad(self, set_to_none=True):
        for p in self.params: p.grad = None

    @torch.no_grad()
    def step(self):
        chosen, steps = [], []
        for p in self.params:
            if p.grad is None: continue
            chosen.append(p)
            if p not in self.state:
                s = self.state[p] = {}
                s["step"] = torch.zeros((), dtype=torch.float, device="cuda") if self.reads else 0
                s["exp_avg"], s["exp_avg_sq"] = torch.zeros_like(local(p)), torch.zeros_like(local(p))
            self.state[p]["step"] += 1
            steps.append(self.state[p]["step"])
        for p, step in zip(chosen, steps):
            grad, exp_avg, exp_avg_sq = local(p.grad), self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
            if self.reads: step.item()   # a stand-in device has no number there
            exp_avg.mul_(0.9).add_(grad, alpha=0.1)
            exp_avg_sq.mul_(0.95).addcmul_(grad, grad, value=0.05)
            denom = (exp_avg_sq.sqrt() / 2.0).add_(1e-8)
            local(p).addcdiv_(exp_avg, denom, value=-1e-4)


@torch.no_grad()
def clip_loop(params, group, max_norm=1.0):
    """FullyShardedDataParallel.clip_grad_norm_() of sharded parameters; those without a local part have no gradient."""
    grads = [local(p.grad) for p in params if p.grad is not None and local(p.grad).numel()]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, 2.0, dtype=torch.float32) for g in grads]), 2.0, dtype=torch.float32)
    total = norm ** 2.0
    torch.distributed.all_reduce(total, group=group)
    total = total ** 0.5
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for g in grads:
        g.mul_(factor)


class Metric:
    """LanguageCrossEntropy (and LanguagePerplexity, which differs when it is computed)."""
    def __init__(self):
        self.sum_loss, self.total_items = None, None

    def reset(self):
        self.sum_loss = torch.zeros((), device="cuda")
        self.total_items = torch.zeros((), dtype=torch.int64, device="cuda")

    @torch.no_grad()
    def update(self, logits, target):
        target = target.view(-1)
        losses = F.cross_entropy(logits.view(target.shape[0], -1).float(), target, reduction="sum")
        self.total_items += (target != -100).sum()
        self.sum_loss += losses


class FlashCrossEntropy(torch.autograd.Function):
    """flash-attn's SoftmaxCrossEntropyLossFn; its two kernels are replaced by the memory that they return."""
    @staticmethod
    def forward(ctx, logits, labels, inplace):
        losses, lse = (torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) for _ in range(2))
        losses.masked_fill_(labels == -100, 0)
        ctx.save_for_backward(logits, lse, labels)
        ctx.inplace = inplace
        return losses

    @staticmethod
    def backward(ctx, grad_loss):
        logits, lse, labels = ctx.saved_tensors
        grad_loss = grad_loss.contiguous()
        grad_loss.masked_fill_(labels == -100, 0)
        return logits if ctx.inplace else torch.empty_like(logits), None, None


def loss_of(kernel, logits, target):
    if kernel == "eager":
        return F.cross_entropy(logits.float(), target)
    loss = FlashCrossEntropy.apply(logits, target, kernel == "flash_attn_inplace")
    return loss.sum() / (target != -100).sum()
