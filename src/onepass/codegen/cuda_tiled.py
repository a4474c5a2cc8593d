"""Kernel IR → CUDA C++: element-wise, with tensors that run along another dimension turned in shared memory."""

from __future__ import annotations

from onepass.codegen.arguments import struct
from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.cuda_prelude import cuda_prelude, own_prelude
from onepass.codegen.printer import stores
from onepass.ir.kernel import Access, ColumnLoop, Kernel, LoadValue, RowBlock
from onepass.plan.schedules.tiled import TiledSchedule, pitch, turned, written

# Bytes that neighbouring lanes read or write along the dimension that is turned: one line.
LINE_BYTES = 128
LANES = 32
# Vectors of a thread in flight: those of single elements are many, and each takes registers for its address.
IN_FLIGHT = 8


class TiledPrinter(CudaPrinter):
    """Tiles come into shared memory, vectors of columns are computed, tiles go out."""

    def __init__(self, kernel: Kernel, name: str, schedule: TiledSchedule) -> None:
        super().__init__(kernel, name, (("tiles_down", "i64"), ("tiles", "i64")))
        self.schedule = schedule
        self.turned = turned(kernel, schedule.down)
        outgoing = written(kernel)
        self.inward = [a for a in self.turned if a.name not in outgoing]
        self.outward = [a for a in self.turned if a.name in outgoing]

    def text(self) -> str:
        self.print()
        body = "\n".join(self.lines)
        return f"{cuda_prelude()}\n{own_prelude('tile')}\n{struct(self.block)}\n{body}\n"

    def print(self) -> None:
        s = self.schedule
        self.vector_function()
        self.head(f"{s.threads}")
        self.put(
            1,
            f"constexpr int T = {s.threads}, D = {s.tall}, C = {s.wide}, H = {s.height}, E = {s.width};",
        )
        for a in self.turned:
            words = -(-pitch(a, s) * s.wide * a.dtype.nbytes // 16)
            self.put(1, f"__shared__ u32x4 {a.name}_m[{words}];")
            self.put(1, f"{a.dtype.ctype}* const {a.name}_s = ({a.dtype.ctype}*){a.name}_m;")
        self.put(1, "i64 tile, above, left;")
        self.put(1, "divide(blockIdx.x, a.tiles, tile, left);")
        self.put(1, "divide(tile, a.tiles_down, tile, above);")
        self.put(1, "above *= D;")
        self.put(1, "left *= C;")
        self.batch()
        for a in self.inward:
            self.bring(a)
        if self.inward:
            self.put(1, "__syncthreads();")
        self.compute_tile()
        if self.outward:
            self.put(1, "__syncthreads();")
        for a in self.outward:
            self.take_out(a)
        self.put(0, "}")

    def batch(self) -> None:
        """Coordinates of the dimensions that are neither of the tile's."""
        others = [k for k in range(self.rank) if k != self.schedule.down]
        rest = "tile"
        for k in reversed(others[1:]):
            self.put(1, f"i64 i{k}, r{k};")
            self.put(1, f"divide({rest}, a.n{k}, r{k}, i{k});")
            rest = f"r{k}"
        if others:
            self.put(1, f"const i64 i{others[0]} = {rest};")

    # Tiles in and out

    def bring(self, a: Access) -> None:
        """Vectors of a tile in flight, then into shared memory."""
        count = min(IN_FLIGHT, self.trips(self.schedule.height))
        self.put(1, "#pragma unroll 1")
        self.put(1, f"for (int first = 0; first < {self.trips(self.schedule.height)}; first += {count}) {{")
        self.put(2, f"vec<{a.dtype.ctype}, H> {a.name}_r[{count}];")
        for put in (False, True):
            self.put(2, "#pragma unroll")
            self.put(2, f"for (int k = 0; k < {count}; ++k) {{")
            self.column_place(a, "(first + k)")
            where = f"{a.name}_s + x * {pitch(a, self.schedule)} + y"
            text = (
                f"tile_put<H>({where}, {a.name}_r[k])"
                if put
                else f"{a.name}_r[k] = load<{self.hint(a)}, H>({self.place(a)})"
            )
            self.put(3, f"{self.inside()}{text};")
            self.put(2, "}")
        self.put(1, "}")

    def take_out(self, a: Access) -> None:
        self.put(1, f"#pragma unroll {IN_FLIGHT}")
        self.put(1, f"for (int k = 0; k < {self.trips(self.schedule.height)}; ++k) {{")
        self.column_place(a, "k")
        tile = f"tile_take<H>({a.name}_s + x * {pitch(a, self.schedule)} + y)"
        self.put(3, f"{self.inside()}store<stream, H>({self.place(a)}, {tile});")
        self.put(1, "}")

    def trips(self, width: int) -> int:
        """How many vectors of a tile a thread takes; a power of two."""
        s = self.schedule
        return -(-s.tall * s.wide // (width * s.threads))

    def column_place(self, a: Access, k: str) -> None:
        """Neighbouring lanes take neighbouring vectors of a line of a column, then the next column."""
        s = self.schedule
        lanes = max(1, min(s.tall, LINE_BYTES // a.dtype.nbytes) // s.height)
        self.put(3, f"const int v = {k} * T + threadIdx.x, x = v / {lanes} % C;")
        self.put(3, f"const int y = (v / ({lanes} * C) * {lanes} + v % {lanes}) * H;")

    def inside(self) -> str:
        s = self.schedule
        beyond = "y < D && " if self.trips(s.height) * s.threads * s.height > s.tall * s.wide else ""
        return f"if ({beyond}above + y < a.n{s.down} && left + x < a.cols) "

    def place(self, a: Access) -> str:
        terms = "".join(f" + i{k} * a.{a.name}_o{k}" for k in range(self.rank) if k != self.schedule.down)
        return f"a.{a.name}{terms} + (above + y) + (left + x) * a.{a.name}_c"

    # Vectors of columns

    def compute_tile(self) -> None:
        s = self.schedule
        lanes = max(1, min(s.wide, LANES) // s.width)
        trips = self.trips(s.width)
        self.put(1, f"#pragma unroll {IN_FLIGHT}")
        self.put(1, f"for (int k = 0; k < {trips}; ++k) {{")
        self.put(2, f"const int v = k * T + threadIdx.x, y = v / {lanes} % D;")
        self.put(2, f"const int x = (v / ({lanes} * D) * {lanes} + v % {lanes}) * E;")
        beyond = "x < C && " if trips * s.threads * s.width > s.tall * s.wide else ""
        given = [f"i{k}" if k != s.down else "above + y" for k in range(self.rank)]
        given += ["left + x", *(f"{a.name}_s + x * {pitch(a, s)} + y" for a in self.turned)]
        self.put(
            2,
            f"if ({beyond}above + y < a.n{s.down} && left + x < a.cols) vector_of<E>(a, {', '.join(given)});",
        )
        self.put(1, "}")

    def vector_function(self) -> None:
        outgoing = {a.name for a in self.outward}
        taken = [f"i64 i{k}" for k in range(self.rank)] + ["i64 c"]
        taken += [f"{'' if a.name in outgoing else 'const '}{a.dtype.ctype}* {a.name}_s" for a in self.turned]
        self.put(0, "template <int E>")
        self.put(0, f"__device__ __forceinline__ void vector_of(const Args& a, {', '.join(taken)}) {{")
        self.pointers(1)
        vectors: dict[str, str] = {}
        for stage in self.kernel.stages:
            if isinstance(stage, RowBlock):
                for s in stage.body:
                    self.row_statement(s)
        loop = next((s for s in self.kernel.stages if isinstance(s, ColumnLoop)), ColumnLoop(()))
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                self.put(1, f"const vec<{a.dtype.ctype}, E> {s.name}_v = {self.load_text(a)};")
                vectors[s.name] = f"{s.name}_v"
        self.results(1, loop)
        self.put(1, "#pragma unroll")
        self.put(1, "for (int e = 0; e < E; ++e) {")
        for s in loop.body:
            self.lane_statement(s, vectors, 2)
        self.put(1, "}")
        for store in stores(loop.body):
            self.put(1, self.store_text(self.kernel.access(store.access)))
        self.put(0, "}")
        self.put(0, "")

    def load_text(self, a: Access) -> str:
        if a in self.turned:
            return f"tile_across<E, {pitch(a, self.schedule)}>({a.name}_s)"
        if a.column == "strided":
            return f"load_strided<{self.hint(a)}, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, E)"
        return f"load<{self.hint(a)}, E>({a.name}_g + c)"

    def store_text(self, a: Access) -> str:
        if a in self.turned:
            return f"tile_spread<E, {pitch(a, self.schedule)}>({a.name}_s, {self.packed(a)});"
        if a.column == "strided":
            return (
                f"store_strided<stream, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, {self.packed(a)}, E);"
            )
        return f"store<stream, E>({a.name}_g + c, {self.packed(a)});"
