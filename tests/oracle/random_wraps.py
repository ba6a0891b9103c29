"""Random wrapping of a model: which modules, in which groups, with which options."""
import modules

MESHES = [([1], 3), ([2], 8), ([3], 4), ([4], 7), ([8], 4), ([1, 2], 2), ([2, 1], 2), ([2, 2], 5), ([1, 4], 2),
          ([4, 1], 2), ([2, 4], 4), ([4, 2], 3), ([3, 2], 2), ([2, 3], 2)]
LOW = ("bf16", "f16")


def mesh(rng):
    shape = rng.choices([m for m, _ in MESHES], [w for _, w in MESHES])[0]
    return {"shape": shape, "dim_names": ["shard"] if len(shape) == 1 else ["replicate", "shard"]}


def mixed_precision(rng, base, odd):
    """A policy. All groups of a scenario agree on the dtype they compute in, or products would be refused; `odd`: not so."""
    mp = {}
    if base:
        mp["param"] = base
    if odd and rng.random() < 0.3:
        mp["param"] = rng.choice(["bf16", "f16", "f32", "f64"])
    if rng.random() < 0.5:
        mp["reduce"] = rng.choice(["f32", "f32", "bf16", "bf16", "f16", "f16", "f64"])
    if rng.random() < 0.15:
        mp["output"] = base or "f32"
    elif odd and rng.random() < 0.3:
        mp["output"] = rng.choice(["f32", "bf16", "f16", "f64"])
    if rng.random() < (0.3 if odd else 0.15 if not base else 0.02):
        mp["cast_inputs"] = False
    return mp


def root_precision(rng, mp):
    """What only the outermost group may have: another dtype for the model's output."""
    if rng.random() < 0.3:
        mp["output"] = rng.choice(["f32", "f32", "bf16", "f16", "f64"])
    return mp


class Wrapper:
    def __init__(self, rng, root, mesh_spec, tree):
        self.tree = tree
        self.rng, self.root, self.mesh = rng, root, mesh_spec
        self.n_shards = mesh_spec["shape"][-1]
        self.named = dict(modules.params(root))
        self.can = [m for m in root.walk() if m.forward]
        self.use_mp, self.odd = rng.random() < 0.5, rng.random() < 0.12
        self.base = rng.choice([None, None, "bf16", "bf16", "f16", "f32", "f64"])
        self.offload = rng.choice(["cpu", "cpu_pinned"]) if rng.random() < 0.12 else None
        self.ignored = self.some_params(0.5) if rng.random() < 0.12 else None
        self.dims = self.shard_dims() if rng.random() < 0.25 else None
        one_d = len(mesh_spec["shape"]) == 1
        pick = rng.random() if one_d else 1
        self.api = "replicate" if pick < 0.18 else "mixed" if pick < 0.26 else "fully_shard"
        self.common_reshard = self.reshard() if rng.random() < 0.5 else "each"

    def some_params(self, chance):
        names = list(self.named)
        return sorted(self.rng.sample(names, max(1, int(len(names) * chance * self.rng.random()))))

    def shard_dims(self):
        out = []
        for name, shape in self.named.items():
            even = [d for d in range(1, len(shape)) if shape[d] % self.n_shards == 0]
            if even and self.rng.random() < 0.6:
                d = self.rng.choice(even)
                out.append([name, d if self.rng.random() < 0.7 else d - len(shape)])
            elif self.rng.random() < 0.1:
                out.append([name, -len(shape)])
        return out or None

    def reshard(self):
        r, n = self.rng, self.n_shards
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        if self.dims:  # a smaller group and another dim than 0 do not go together in 2.11
            divisors = [1, n]
        return r.choice(["absent", None, None, True, True, False, False, r.choice(divisors), r.choice(divisors)])

    def options(self, is_root=False):
        r, entry = self.rng, {"api": self.api}
        if self.api == "mixed":
            entry["api"] = r.choice(["fully_shard", "replicate"])
        if entry["api"] == "fully_shard":
            reshard = self.reshard() if self.common_reshard == "each" else self.common_reshard
            if reshard != "absent":
                entry["reshard_after_forward"] = reshard
            if self.dims:
                entry["shard_dim"] = self.dims
        if self.use_mp:
            mp = mixed_precision(r, self.base, self.odd)
            if is_root:
                mp = root_precision(r, mp)
            if mp:
                entry["mp"] = mp
        if self.offload:
            entry["offload"] = self.offload
        if self.ignored:
            entry["ignored"] = self.ignored
        return entry

    def below_first(self, chosen):
        """Children before parents, siblings in any order."""
        order = sorted(chosen, key=lambda m: (-m.fqn.count(".") if m.fqn else 1, self.rng.random()))
        return order

    def pick(self):
        r, root = self.rng, self.root
        style = r.random()
        inner = [m for m in self.can if m.fqn]
        if style < 0.12:
            chosen = []
        elif style < 0.5:
            parents = [m for m in root.walk() if len([c for c in m.children if c.forward]) > 1]
            parent = r.choice(parents)
            chosen = [c for c in parent.children if c.forward]
            if r.random() < 0.4:
                chosen = [c for c in chosen if r.random() < 0.7]
        else:
            p = r.choice([0.15, 0.3, 0.5])
            chosen = [m for m in inner if r.random() < p]
        if not chosen or (self.use_mp and self.base) or self.odd or r.random() < 0.85:
            chosen = [m for m in chosen if m.fqn] + [root]
        return chosen

    def wildcard(self, batch):
        """One pattern for a batch that is exactly all wrappable children of a module."""
        names = [m.fqn for m in batch]
        if not names[0].rpartition(".")[0]:
            return names  # "*" would match the root, too
        if not self.tree and not names[0].rpartition(".")[2].isdigit():
            return names  # library models have modules without parameters that are not named here
        head = names[0].rpartition(".")[0]
        pattern = modules.join(head, "*")
        matches = [m.fqn for m in self.root.walk() if m.fqn and modules.glob(pattern).match(m.fqn)]
        return [pattern] if sorted(matches) == sorted(names) and self.rng.random() < 0.7 else names

    def entries(self):
        r, left, out = self.rng, self.below_first(self.pick()), []
        while left:
            n = 1 if r.random() < 0.6 else r.randint(1, len(left))
            batch, left = left[:n], left[n:]
            nested = any(modules.inside(a.fqn, b.fqn) for a in batch for b in batch)
            group = len(batch) > 1 and r.random() < 0.3 and (not nested or r.random() < 0.3)
            group = group and batch[-1].fqn != ""  # a list cannot be the root
            if group or not nested:
                entry = {"modules": self.wildcard(batch), **self.options(batch[-1].fqn == "")}
                if group or (len(batch) == 1 and r.random() < 0.03):
                    entry["group"] = True
                out.append(entry)
            else:
                out += [{"modules": [m.fqn], **self.options(m.fqn == "")} for m in batch]
        return out


def wrapped(entries, root):
    """Names of the modules that the entries wrap themselves."""
    names = [m.fqn for m in root.walk()]
    return [n for n in names if any(modules.glob(p).match(n) for e in entries for p in e["modules"])]
