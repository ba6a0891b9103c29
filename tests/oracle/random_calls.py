"""Random calls of the API at the points where a scenario may make them."""

POINTS = ["after_wrap", "before_forward", "after_forward", "before_backward", "after_backward", "after_step"]
NEXT = {"after_wrap": "before_forward", "before_forward": "after_forward", "after_forward": "before_backward",
        "before_backward": "after_backward", "after_backward": "after_step"}
WEIGHTS = {"set_requires_gradient_sync": 4, "set_requires_all_reduce": 3, "set_reshard_after_forward": 2,
           "set_reshard_after_backward": 3, "set_is_last_backward": 3, "set_modules_to_forward_prefetch": 3,
           "set_modules_to_backward_prefetch": 3, "unshard": 4, "reshard": 2, "set_gradient_divide_factor": 2,
           "set_force_sum_reduction_for_comms": 2, "set_unshard_in_backward": 2, "set_unshard_async_op": 2,
           "set_all_reduce_hook": 2, "share_comm_ctx": 2, "set_post_optim_event": 2, "state_dict": 2}


class Caller:
    def __init__(self, rng, wrapped, root, mesh, train, replicated):
        self.rng, self.wrapped, self.root, self.mesh, self.train = rng, wrapped, root, mesh, train
        self.replicated = replicated
        self.smaller = False  # some group reshards to a smaller one
        self.calls = []

    def point(self, whens=POINTS):
        r, when = self.rng, None
        when = r.choice(whens)
        at = {"when": when}
        if when != "after_wrap":
            if r.random() < 0.7:
                at["iter"] = r.randrange(self.train["iters"])
            if when != "after_step" and (self.train["micro"] > 1) and r.random() < 0.6:
                at["micro"] = r.randrange(self.train["micro"])
        return at

    def module(self):
        if "" in self.wrapped and self.rng.random() < 0.4:
            return ""
        return self.rng.choice(self.wrapped)

    def add(self, at, fn, module, **args):
        self.calls.append({"at": at, "fn": fn, "module": module, "args": args})

    def some_wrapped(self):
        return self.rng.sample(self.wrapped, self.rng.randint(0 if self.rng.random() < 0.2 else 1, min(3, len(self.wrapped))))

    def flag(self, fn):
        """A flag switched off early and on again later, or one random setting."""
        r, module = self.rng, self.module()
        recurse = {} if r.random() < 0.75 else {"recurse": False}
        if fn == "set_is_last_backward":
            recurse = {}
        if self.train["micro"] > 1 and r.random() < 0.5:
            last = self.train["micro"] - 1
            self.add({"when": "before_forward", "micro": 0}, fn, module, value=False, **recurse)
            self.add({"when": "before_forward", "micro": last}, fn, module, value=True, **recurse)
        elif self.train["iters"] > 1 and r.random() < 0.3:
            self.add({"when": "before_forward", "iter": 0}, fn, module, value=False, **recurse)
            self.add({"when": r.choice(["before_forward", "before_backward"]), "iter": 1}, fn, module, value=True, **recurse)
        else:
            self.add(self.point(), fn, module, value=r.random() < 0.35, **recurse)

    def unshard(self):
        r, at, module = self.rng, self.point(), self.module()
        if r.random() < 0.5:
            self.add(at, "unshard", module, **({} if r.random() < 0.5 else {"async": False}))
            return
        if at["when"] == "after_wrap":
            later = {"when": "before_forward", "iter": 0, "micro": 0}
        else:
            at.setdefault("iter", r.randrange(self.train["iters"]))
            at.setdefault("micro", 0)
            later = dict(at, when=NEXT.get(at["when"], at["when"]))
            if at["when"] == "after_step":
                at.pop("micro")
                later = dict(at)
            elif later["when"] == "after_step":
                later = dict(at)
        self.add(at, "unshard", module, **{"async": True})
        if r.random() < 0.7:
            self.add(later if r.random() < 0.5 else at, "wait_unshard_handle", module)

    def one(self):
        r = self.rng
        fn = r.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if fn in ("set_requires_gradient_sync", "set_requires_all_reduce", "set_reshard_after_backward", "set_is_last_backward"):
            self.flag(fn)
        elif fn == "set_reshard_after_forward":
            if not self.replicated:  # not while parameters are kept on a smaller group: 2.11 then mixes the two sizes
                self.add(self.point(["after_wrap"] if self.smaller else POINTS), fn, self.module(), value=r.random() < 0.5, **({} if r.random() < 0.6 else {"recurse": r.random() < 0.3}))
        elif fn.startswith("set_modules"):
            whens = ["after_wrap"] * 3 + POINTS
            self.add(self.point(whens), fn, self.module(), modules=self.some_wrapped())
        elif fn == "unshard":
            self.unshard()
        elif fn in ("reshard", "set_post_optim_event"):
            self.add(self.point(), fn, self.module())
        elif fn == "state_dict":
            names = [m.fqn for m in self.root.walk() if m.forward]
            self.add(self.point(), fn, r.choice(names) if r.random() < 0.6 else "")
        elif fn == "set_gradient_divide_factor":
            n = 1
            for s in self.mesh["shape"]:
                n *= s
            value = r.choice([1, 2, 3, 4, 0.5, 1.5, float(n), self.mesh["shape"][-1], 8.0])
            self.add(self.point(), fn, self.module(), value=value, **({"recurse": True} if r.random() < 0.4 else {}))
        elif fn in ("set_force_sum_reduction_for_comms", "set_unshard_in_backward"):
            self.add(self.point(), fn, self.module(), value=r.random() < (0.8 if "force" in fn else 0.4),
                     **({"recurse": True} if "force" in fn and r.random() < 0.4 else {}))
        elif fn == "set_unshard_async_op":
            self.add(self.point(), fn, self.module(), value=r.random() < 0.8)
        elif fn == "set_all_reduce_hook":
            stream = len(self.mesh["shape"]) == 1 and not self.replicated and r.random() < 0.5
            self.add(self.point(), fn, self.module(), **({"stream": True} if stream else {}))
        elif fn == "share_comm_ctx":
            self.add({"when": "after_wrap"}, fn, "", modules=self.some_wrapped())
