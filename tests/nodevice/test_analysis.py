"""Occupancy, roofline and traffic: pure functions against figures from elsewhere."""

import pytest

from onepass.analysis.occupancy import occupancy
from onepass.analysis.report import WIDTH, table
from onepass.analysis.roofline import bound, intensity, limits_us, peak_gflops
from onepass.analysis.traffic import UNKNOWN_SIZE, Traffic, distinct, number, ops_inside, traffic
from onepass.device import KNOWN, Device
from onepass.dtypes import BFLOAT16, FLOAT32, INT64
from onepass.ir.address import View, contiguous
from onepass.ir.cluster import Cluster, Load, Map, Space, Store, Tensor
from onepass.ir.symbol import name
from onepass.plan.cost import time_us

# Threads, blocks and bytes of shared memory that a multiprocessor holds.
LIMITS = {
    "sm_70": (2048, 32, 98304),
    "sm_75": (1024, 16, 65536),
    "sm_80": (2048, 32, 167936),
    "sm_86": (1536, 16, 102400),
    "sm_89": (1536, 24, 102400),
    "sm_90": (2048, 32, 233472),
    "sm_100": (2048, 32, 233472),
}

# Registers a thread, threads and shared bytes a block → resident blocks, as cudaOccMaxActiveBlocksPerMultiprocessor of
# CUDA 13.0 says: a random sample of 2800 rows, all of which were compared once.
RESIDENT = (
    ("sm_70", 253, 64, 15434, 4),
    ("sm_70", 88, 448, 37289, 1),
    ("sm_70", 205, 61, 29416, 3),
    ("sm_70", 209, 864, 0, 0),
    ("sm_70", 219, 640, 0, 0),
    ("sm_70", 78, 864, 0, 0),
    ("sm_70", 165, 157, 0, 2),
    ("sm_75", 62, 160, 54328, 1),
    ("sm_75", 235, 480, 57224, 0),
    ("sm_75", 26, 704, 28364, 1),
    ("sm_75", 200, 384, 0, 0),
    ("sm_75", 31, 448, 0, 2),
    ("sm_75", 165, 128, 0, 3),
    ("sm_75", 38, 739, 0, 1),
    ("sm_80", 241, 384, 1666, 0),
    ("sm_80", 180, 256, 56055, 1),
    ("sm_80", 108, 736, 44506, 0),
    ("sm_80", 244, 1024, 0, 0),
    ("sm_80", 99, 960, 0, 0),
    ("sm_80", 247, 896, 0, 0),
    ("sm_80", 153, 506, 0, 0),
    ("sm_86", 17, 576, 59015, 1),
    ("sm_86", 72, 672, 73136, 1),
    ("sm_86", 230, 292, 30593, 0),
    ("sm_86", 58, 480, 0, 2),
    ("sm_86", 9, 288, 0, 5),
    ("sm_86", 232, 32, 0, 8),
    ("sm_86", 230, 292, 30593, 0),
    ("sm_89", 84, 544, 27536, 1),
    ("sm_89", 49, 288, 19716, 4),
    ("sm_89", 253, 544, 55051, 0),
    ("sm_89", 47, 416, 0, 3),
    ("sm_89", 251, 320, 0, 0),
    ("sm_89", 204, 192, 0, 1),
    ("sm_89", 94, 301, 0, 2),
    ("sm_90", 136, 897, 47678, 0),
    ("sm_90", 146, 64, 69841, 3),
    ("sm_90", 27, 977, 41159, 2),
    ("sm_90", 43, 1024, 0, 1),
    ("sm_90", 109, 320, 0, 1),
    ("sm_90", 126, 608, 0, 0),
    ("sm_90", 136, 897, 47678, 0),
    ("sm_100", 225, 351, 96610, 0),
    ("sm_100", 65, 320, 48145, 2),
    ("sm_100", 110, 736, 41571, 0),
    ("sm_100", 55, 512, 0, 2),
    ("sm_100", 149, 832, 0, 0),
    ("sm_100", 35, 640, 0, 2),
    ("sm_100", 105, 282, 0, 1),
)


def device(arch: str) -> Device:
    threads, blocks, shared_bytes = LIMITS[arch]
    return Device(
        arch,
        "cuda",
        arch,
        1000,
        2.0,
        1000,
        100,
        100,
        threads=threads,
        blocks=blocks,
        shared_bytes=shared_bytes,
    )


@pytest.mark.parametrize(("arch", "registers", "threads", "shared_bytes", "blocks"), RESIDENT)
def test_occupancy_is_nvidias(
    arch: str, registers: int, threads: int, shared_bytes: int, blocks: int
) -> None:
    warps, most = -(-threads // 32), LIMITS[arch][0] // 32
    assert occupancy(registers, threads, shared_bytes, device(arch)) == pytest.approx(blocks * warps / most)


def test_occupancy_counts_warps_and_not_threads() -> None:
    """Blocks of one thread fill half of a V100's warps, though only 1.56 % of its threads."""
    assert occupancy(20, 1, 0, device("sm_70")) == 0.5
    assert occupancy(32, 256, 0, device("sm_70")) == 1.0


def test_the_ridge_of_a_v100() -> None:
    work = Traffic(
        read_bytes=4 * 10**9, written_bytes=4 * 10**9, flops=7 * 10**9, instructions=10**9, special=0
    )
    v100 = next(d for d in KNOWN if "V100" in d.name)
    assert peak_gflops(v100) == pytest.approx(15_700, rel=0.01)  # the datasheet's
    ridge = peak_gflops(v100) / v100.bandwidth_gbps
    assert ridge == pytest.approx(15_700 / 800, rel=0.01)
    assert intensity(work.flops, work.bytes) == pytest.approx(0.875)
    assert intensity(work.flops, work.bytes) < ridge
    assert bound(work, v100) == "memory"
    assert time_us(work, v100) == pytest.approx(limits_us(work, v100)["memory"] + v100.launch_us)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Traffic(10**9, 10**9, 1, 1, 1), "memory"),
        (Traffic(1, 1, 1, 10**10, 1), "instructions"),
        (Traffic(1, 1, 1, 1, 10**10), "special functions"),
        (Traffic(1, 1, 1, 1, 1), "launch"),
    ],
)
def test_what_bounds(work: Traffic, expected: str) -> None:
    assert bound(work, device("sm_90")) == expected


def test_sizes_at_typical_values() -> None:
    rows = name("s0")
    assert number(rows * 3 + 1, {"s0": 5}) == 16
    assert number(rows * 3, {}) == 3 * UNKNOWN_SIZE
    assert number(7, {}) == 7


def tensor(name: str, dtype: object, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, contiguous(shape))  # type: ignore[arg-type]


def test_traffic_counts_each_element_once() -> None:
    x, w, y = tensor("x", BFLOAT16, 6, 8), tensor("w", FLOAT32, 8), tensor("y", FLOAT32, 6, 8)
    cluster = Cluster(
        "mul+add",
        Space(48),
        (
            Load("a", "full", "x", contiguous((6, 8)), "float"),
            Load("b", "full", "w", View(((6, 0), (8, 1))), "float"),
            Load("c", "full", "x", contiguous((6, 8)), "float", window=(0, 4)),
            Map("m", "full", "mul", ("a", "b"), "float"),
            Map("s", "full", "add", ("m", "c"), "float"),
        ),
        (Store("y", "s", "full", contiguous((6, 8))),),
        ("mul.Tensor", "add.Tensor"),
        {"x": x, "w": w, "y": y},
    )
    work = traffic(cluster, {})
    assert work.read_bytes == 2 * 48 + 4 * 8
    assert work.written_bytes == 4 * 48
    assert work.flops == 2 * 48


def test_a_gather_reads_the_rows_it_is_asked_for() -> None:
    table_, index, y = tensor("t", FLOAT32, 1000, 8), tensor("i", INT64, 6), tensor("y", FLOAT32, 6, 8)
    cluster = Cluster(
        "embedding",
        Space(48),
        (
            Load("i", "full", "i", View(((6, 1), (8, 0))), "int"),
            Load("g", "full", "t", View(((6, 0), (8, 1))), "float", index="i", table=(1000, 8)),
        ),
        (Store("y", "g", "full", contiguous((6, 8))),),
        ("embedding.default",),
        {"t": table_, "i": index, "y": y},
    )
    assert traffic(cluster, {}).read_bytes == 8 * 6 + 4 * 48
    assert distinct(View(((6, 0), (8, 1)))) == 8


def test_the_ops_in_a_merged_cluster() -> None:
    space = Space(1)
    merged = Cluster("gelu>add_1+cat.0|cat.1", space, (), (), (), {})
    assert ops_inside(merged) == ("gelu", "add_1", "cat")


def test_tables_fit_a_terminal() -> None:
    lines = table([["kernel" * 40, "1", "22"], ["short", "333", "4"]])
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].endswith("  1  22")
    assert "…" in lines[0]
