"""Write codegen/prelude/costs.toml: instructions and errors of the CUDA prelude's functions, measured.

Needs the NVRTC and nvdisasm wheels and a host compiler, no GPU. Run: python tools/prelude_costs.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

HEADER = """\
# What a function of the CUDA prelude costs and how exact it is. Written by tools/prelude_costs.py.
#
# instructions  machine instructions an element, sm_90; the rare branch of sin and cos is left out,
#               the slow paths of div, pow, fmod and remainder count
# special       of these, instructions of the special-function pipe (16 lanes a cycle and SM)
# max_error     largest relative error against float64 over all of fp32, approximate instructions as far off
#               as the PTX ISA allows (emulate/ptx_on_host.hpp has the bounds), sampled, so not a proof.
#               0: exact. Absent: the CUDA math library's own function
# floor         what is off by no more than this counts as right: smaller results may be 0 or lose digits
"""


def main() -> None:
    from harness.costs import BINARY, EXACT, UNARY, cost, errors, floor_of

    measured = errors()
    parts = [HEADER]
    for name in UNARY + BINARY:
        instructions, special = cost(name)
        parts.append(f"\n[{name}]\ninstructions = {instructions:g}\nspecial = {special:g}\n")
        if name in measured:
            # Rounded up to two digits, so that the test's argument set stays inside.
            parts.append(f"max_error = {1.05 * measured[name][0]:.1e}\nfloor = {floor_of(name):.2e}\n")
        elif name in EXACT or name in ("max", "min"):
            parts.append("max_error = 0.0\nfloor = 0.0\n")
        elif name == "div":  # correctly rounded
            parts.append("max_error = 6.0e-08\nfloor = 1.40e-45\n")
        elif name == "div_h":  # 2 ulp
            parts.append("max_error = 3.0e-07\nfloor = 5.61e-45\n")
    (ROOT / "src/onepass/codegen/prelude/costs.toml").write_text("".join(parts))


if __name__ == "__main__":
    main()
