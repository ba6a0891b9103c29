"""What nvcc made of our kernels, read from their machine code: one row a kernel.

    cubins.py CUOBJDUMP OBJECT...      tab-separated: kernel, registers, stack, shared, local, local_in_loops, local_in_inner, loads, wide_loads

registers: of a thread. stack, shared: bytes of local memory of a thread, and of shared memory of a block beside what a launch
gives it. local: instructions that access local memory (spilled registers, arrays with an index that is not constant);
local_in_loops: those of them between a jump backwards and its target; local_in_inner: in a loop that has no other one inside,
which is what a thread does for every pack. loads: instructions that read the GPU's memory, and
those of them that read 16 bytes.

Instructions of sm_70 to sm_90 have 16 bytes: the operation is in the lowest 12 bits, the width of a load in bits 73 to 75, the
distance of a jump in bits 16 to 23 and from 34 on, in words of 4 bytes.
"""
import os, struct, subprocess, sys, tempfile

LDG, LDGSTS, LDL, STL, BRA = 0x981, 0xfae, 0x983, 0x387, 0x947
WIDE = 6                                                # 128 bits
FRAME_SIZE, REGCOUNT = 0x11, 0x2f                       # of .nv.info
SHT_SYMTAB = 2


def sections(elf):
    """Sections of an ELF file of 64 bits: name, type, offset, bytes."""
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, n, names = struct.unpack_from("<HHH", elf, 0x3a)
    heads = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(n)]
    table = elf[heads[names][4]:heads[names][4] + heads[names][5]]
    return [(table[h[0]:table.index(b"\0", h[0])].decode(), h[1], h[4], h[5]) for h in heads]


def symbols(elf, found):
    """Names by number."""
    place = {name: (offset, size) for name, _, offset, size in found}
    offset, size = next((o, s) for _, kind, o, s in found if kind == SHT_SYMTAB)
    text = elf[place[".strtab"][0]:sum(place[".strtab"])]
    starts = [struct.unpack_from("<I", elf, offset + i)[0] for i in range(0, size, 24)]
    return [text[s:text.index(b"\0", s)].decode() for s in starts]


def info(elf, found):
    """(attribute, kernel) -> value, of those attributes that belong to a kernel."""
    names, out = symbols(elf, found), {}
    for name, _, offset, size in found:
        at = offset
        while name == ".nv.info" and at < offset + size:
            form, attribute, n = struct.unpack_from("<BBH", elf, at)
            at += 4
            if form == 4:                               # n bytes behind; else the value is n
                if n == 8:
                    symbol, value = struct.unpack_from("<II", elf, at)
                    out[attribute, names[symbol]] = value
                at += n
    return out


def distance(low, high):
    words = low >> 16 & 0xff | low >> 34 << 8 | (high & 0x3ffff) << 38
    return 4 * (words - (1 << 56) if words >> 55 else words)


def code(text):
    """local, local_in_loops, local_in_inner, loads, wide_loads of a kernel's instructions."""
    loops, local, loads, wide = [], [], 0, 0
    for i, (low, high) in enumerate(struct.iter_unpack("<QQ", text)):
        operation, at = low & 0xfff, 16 * i
        if operation == BRA and 0 <= at + 16 + distance(low, high) < at:
            loops.append((at + 16 + distance(low, high), at))
        elif operation in (LDL, STL):
            local.append(at)
        elif operation in (LDG, LDGSTS):
            loads += 1
            wide += high >> 9 & 7 == WIDE
    inner = [(a, b) for a, b in loops if not any((a, b) != (c, d) and a <= c and d <= b for c, d in loops)]
    return len(local), *(sum(any(a <= x <= b for a, b in some) for x in local) for some in (loops, inner)), loads, wide


def rows(path):
    with open(path, "rb") as f:
        elf = f.read()
    found = sections(elf)
    of, shared = info(elf, found), {n[11:]: s for n, _, _, s in found if n.startswith(".nv.shared.")}
    for name, _, offset, size in found:
        if name.startswith(".text.tsr_"):
            kernel = name[6:]
            yield kernel, of[REGCOUNT, kernel], of[FRAME_SIZE, kernel], shared.get(kernel, 0), *code(elf[offset:offset + size])


def main():
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sys.argv[2:]:
            subprocess.run([os.path.abspath(sys.argv[1]), "-arch", "sm_90a", "-xelf", "all", os.path.abspath(path)], cwd=folder, stdout=subprocess.DEVNULL, check=True)
        for name in sorted(os.listdir(folder)):
            found += rows(os.path.join(folder, name))
    print("kernel\tregisters\tstack\tshared\tlocal\tlocal_in_loops\tlocal_in_inner\tloads\twide_loads")
    for row in sorted(found):
        print(*row, sep="\t")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
