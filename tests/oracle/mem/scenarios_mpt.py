"""MPT and what a Composer step does beside the model (composer.py): golden-memory/mpt."""


def t(name, **k):
    return dict(dict(name=name, model="mpt-tiny"), **k)


BIG = dict(model="mpt-125m", batch=4, seq=2048)
SCENARIOS = [
    t("mpt-tiny"),
    t("mpt-tiny-ac", batch=2, ac="full"),
    t("mpt-125m-8ranks", **BIG),
    t("mpt-tiny-decoupled", optimizer="decoupled"),
    t("mpt-tiny-decoupled-read", optimizer="decoupled_read"),
    t("mpt-tiny-clip-loop", clip=True, clip_variant="loop"),
    t("mpt-tiny-metrics", batch=2, metrics=2, grad_accum=2),
    t("mpt-tiny-flash-loss", loss_kernel="flash_attn"),
    t("mpt-tiny-flash-inplace", loss_kernel="flash_attn_inplace"),
    t("mpt-125m-flash-loss", **BIG, loss_kernel="flash_attn", metrics=2),
]
