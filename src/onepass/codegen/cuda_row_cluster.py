"""Kernel IR → CUDA C++: a row in registers and shared memory, of one block or of the blocks of a thread-block cluster."""

from __future__ import annotations

from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.cuda_prelude import reduce_scratch_bytes
from onepass.codegen.cuda_row import RowPrinter, reduces_blocks
from onepass.codegen.printer import stores
from onepass.ir.kernel import Access, Accumulate, ColumnLoop, Compute, Keep, Kept, Kernel, LoadValue
from onepass.plan.schedules.row_cluster import ClusterSchedule, held

# Vectors in flight where shared memory holds a row and nothing else says how many.
DEPTH = 2


class ClusterPrinter(RowPrinter):
    """A column loop is printed twice: for the vectors in registers, and for those in shared memory."""

    def __init__(self, kernel: Kernel, name: str, schedule: ClusterSchedule) -> None:
        CudaPrinter.__init__(self, kernel, name, (("zero", "i64"),))
        self.cluster = schedule
        self.schedule = schedule  # type: ignore[assignment]
        self.held = held(kernel)
        self.loaded: set[str] = set()
        self.reduced = ""
        self.copying = False  # copies to shared memory are under way
        self.used: set[str] = set()  # values of the row that a loop has used

    def print(self) -> None:
        s = self.cluster
        self.head(f"{s.threads}" + (f", {s.min_blocks}" if s.min_blocks else ""))
        self.put(
            1,
            f"constexpr int C = {s.blocks}, B = {s.threads}, T = C * B, K = {s.steps}, H = {s.in_registers}, "
            f"E = {s.width}, cols = {s.cols};",
        )
        group = f"cluster_groups<{s.blocks}, B>" if s.blocks > 1 else "groups<B, 1>"
        scratch = 2 * s.lanes // 32 if s.blocks > 1 else reduce_scratch_bytes(s.threads, 1) // 4
        self.put(1, f"__shared__ float scratch[{scratch}];")
        self.put(1, f"{group} group(scratch);")
        self.block_group()
        self.places()
        self.put(1, f"const int lane = {'ptx_cluster_rank() * B + ' if s.blocks > 1 else ''}threadIdx.x;")
        self.put(1, f"const i64 row = blockIdx.x{' / C' if s.blocks > 1 else ''};")
        self.put(1, "const bool live = true;")
        self.decode(1, "row")
        self.pointers(1)
        self.fetch()
        for stage in self.kernel.stages:
            self.stage(stage)
        self.put(0, "}")

    def head(self, threads: str) -> None:
        if self.cluster.blocks > 1:
            threads = f"{threads}) __cluster_dims__({self.cluster.blocks}, 1, 1"
        super().head(threads)

    # What shared memory holds

    def places(self) -> None:
        """Where shared memory holds what registers do not: (K - H) vectors a thread of each."""
        if not self.cluster.shared_bytes:
            return
        self.put(1, "extern __shared__ u32x4 held_s[];")
        before = "(char*)held_s"
        for name, ctype in self.places_of():
            self.put(1, f"constexpr int {name}_b = B * 4 * vec<{ctype}, E>::words;")
            self.put(1, f"char* const {name}_s = {before};")
            before = f"{name}_s + (K - H) * {name}_b"

    def places_of(self) -> list[tuple[str, str]]:
        raw = [(name, self.kernel.access(name).dtype.ctype) for name in self.held]
        return [*raw, *((value, "float") for value in self.kernel.kept)]

    def spot(self, name: str) -> str:
        return f"{name}_s + (k - H) * {name}_b"

    # Loads

    def fetch(self) -> None:
        for name in self.held:
            if not self.kernel.access(name).index:
                self.load_vectors(1, self.kernel.access(name))

    def load_vectors(self, depth: int, a: Access) -> None:
        """Of a held access: what goes to shared memory is asked for first, it takes no registers."""
        self.loaded.add(a.name)
        place = "(k * T + lane) * E"
        if self.cluster.shared_bytes:
            self.copying = True
            guard = "" if self.schedule.exact else f"if ({place} < cols) "
            text = (
                f"hold_copy<B, E>({self.spot(a.name)}, {self.place(a, place) if a.blocks else f'{a.name}_g + {place}'});"
                if self.copied(a)
                else f"hold<B>({self.spot(a.name)}, {self.load_text(a, place)});"
            )
            self.put(depth, "#pragma unroll 4")
            self.put(depth, f"for (int k = H; k < K; ++k) {guard}{text}")
        if self.cluster.in_registers:
            self.put(depth, f"vec<{a.dtype.ctype}, E> {a.name}_r[H];")
            self.put(depth, "#pragma unroll")
            self.put(depth, f"for (int k = 0; k < H; ++k) {a.name}_r[k] = {self.load_text(a, place)};")

    def copied(self, a: Access) -> bool:
        """Whether its vectors are pieces of 16 bytes wholly inside the row, which copies bring without registers."""
        whole = self.width(a) == self.schedule.width and a.dtype.nbytes * self.schedule.width % 16 == 0
        return whole and a.column == "unit" and a.window is None and self.hint(a) == "stream"

    # Loops

    def column_loop(self, loop: ColumnLoop) -> None:
        self.begin(loop)
        sums = [s.name for s in loop.body if isinstance(s, Accumulate)]
        fresh = [a for a in self.fresh(loop) if not a.index]
        if self.reduced:
            for a in fresh:
                self.put(1, f"{a.name}_g = after({a.name}_g, {self.reduced}, a.zero);")
        again = self.again(loop) if self.cluster.anew else []
        if again:
            self.put(1, "{")
            self.put(1, f"const float {', '.join(f'{n}_0 = again({n}, a.zero)' for n in again)};")
            self.put(1, "{")
            self.put(1, f"const float {', '.join(f'{n} = {n}_0' for n in again)};")
        if self.cluster.in_registers:
            self.put(1, "#pragma unroll")
            self.put(1, "for (int k = 0; k < H; ++k) {")
            if self.schedule.depth and sums:
                for a in fresh:
                    self.put(
                        2,
                        f"if (k % {self.schedule.depth} == 0 && k > 0) "
                        f"{a.name}_g = after({a.name}_g, {sums[0]}_a, a.zero);",
                    )
            for a in self.narrow(loop):
                self.put(2, f"{a.name}_r[k] = again({a.name}_r[k], {self.reduced}, a.zero);")
            self.part(loop, shared=False)
            self.put(1, "}")
        if self.cluster.shared_bytes:
            if self.copying:
                self.put(1, "ptx_copies_done();")
                self.copying = False
            self.put(1, f"#pragma unroll {self.schedule.depth or DEPTH}")
            self.put(1, "for (int k = H; k < K; ++k) {")
            self.part(loop, shared=True)
            self.put(1, "}")
        if again:
            self.put(1, "}}")

    def again(self, loop: ColumnLoop) -> list[str]:
        """Values of the row that an earlier loop has used too. What is computed from them a second time is meant to be
        computed: the compiler would keep it, in more registers than the row itself has."""
        here = {
            o
            for s in loop.body
            if isinstance(s, Compute)
            for o in s.operands
            if isinstance(o, str) and self.kinds[o] == "float"
        }
        local = {s.name for s in loop.body if isinstance(s, (LoadValue, Compute, Kept))}
        row = sorted(here - local)
        found = [n for n in row if n in self.used]
        self.used |= set(row)
        return found

    def narrow(self, loop: ColumnLoop) -> list[Access]:
        """What a loop after the first takes from registers in fewer bits than it computes with: what `again` says of values
        of the row holds for conversions too, and there each costs a register more."""
        names = dict.fromkeys(s.access for s in loop.body if isinstance(s, LoadValue))
        found = [self.kernel.access(n) for n in names if n in self.loaded]
        return [a for a in found if self.cluster.anew and self.reduced and a.dtype.nbytes < 4]

    def begin(self, loop: ColumnLoop) -> None:
        """What stands before a loop: rows of tables, arrays for what it keeps, accumulators."""
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.index and a.name not in self.loaded:
                    self.table_row(1, a)
                    if a.name in self.held:
                        self.load_vectors(1, a)
            if isinstance(s, Keep) and self.cluster.in_registers:
                self.put(1, f"float {s.value}_r[H * E];")
        self.accumulators(loop)

    def part(self, loop: ColumnLoop, shared: bool) -> None:
        self.shared = shared
        self.put(2, "const int c = (k * T + lane) * E;")
        together = reduces_blocks(loop)  # lanes past the end take part in shuffles
        guard = not self.schedule.exact and not together
        if guard:
            self.put(2, "if (c < cols) {")
        ragged = not self.schedule.exact and (together or self.schedule.cols % self.schedule.width != 0)
        self.step(loop, 3 if guard else 2, ragged)
        if guard:
            self.put(2, "}")

    def step(self, loop: ColumnLoop, depth: int, ragged: bool, guard: str = "") -> None:
        vectors: dict[str, str] = {}
        for s in loop.body:
            if isinstance(s, LoadValue):
                vectors[s.name] = self.vector(loop, self.kernel.access(s.access), depth)
            elif isinstance(s, Keep) and self.shared:
                self.put(depth, f"float {s.value}_q[E];")
            elif isinstance(s, Kept) and self.shared:
                got = self.held_vector(loop, "float", f"held<B, float, E>({self.spot(s.name)})")
                self.put(depth, f"const vec<float, E> {s.name}_q = {got};")
        self.results(depth, loop)
        self.elements(loop, vectors, depth, ragged)
        for s in loop.body:
            if isinstance(s, Keep) and self.shared:
                self.put(depth, f"hold<B>({self.spot(s.value)}, pack<float, E>({s.value}_q));")
        for s in stores(loop.body):
            self.put_store(s, depth)

    def vector(self, loop: ColumnLoop, a: Access, depth: int) -> str:
        """The name of the vector at k of an access: where it is held, or loaded here."""
        if a.name in self.loaded and not self.shared:
            return f"{a.name}_r[k]"
        ctype = a.dtype.ctype
        got = (
            self.held_vector(loop, ctype, f"held<B, {ctype}, E>({self.spot(a.name)})")
            if a.name in self.loaded
            else self.load_text(a, "c")
        )
        self.put(depth, f"const vec<{a.dtype.ctype}, E> {a.name}_v = {got};")
        return f"{a.name}_v"
