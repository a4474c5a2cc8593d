"""Every sample of PyTorch's op database through the back end on the CPU, as a log of one line an entry and dtype.

    python tools/opinfo_full.py                 # the entries that are asked for → tests/opinfo/log/cpu.jsonl
    python tools/opinfo_full.py --others        # the second list → tests/opinfo/log/cpu-others.jsonl
    python tools/opinfo_full.py sum amax        # these entries only, again
    python tools/opinfo_full.py --freeze        # write the frozen list, tests/opinfo/samples.toml, and run nothing

An entry that the log has is not run again, so that a run that was stopped goes on; `--again` starts over. `--report` prints
what the log says: totals, and what is left or wrong by samples lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import torch  # noqa: E402

from opinfo.battery import STATES, line, outcomes  # noqa: E402
from opinfo.entries import dtypes_of, entries, frozen, samples  # noqa: E402

LOG = ROOT / "tests" / "opinfo" / "log"
# Samples of one compilation: more would hold more of PyTorch's graphs in memory at once.
BATCH = 400


def run_entry(entry: str, others: bool) -> list[dict[str, Any]]:
    """The lines of one entry. Raises: RuntimeError, since not every error passes between processes."""
    dtypes = dtypes_of(entries(others)[entry])
    drawn = [sample for dtype in dtypes for sample in samples(entry, dtype)]
    batches = [drawn[at : at + BATCH] for at in range(0, len(drawn), BATCH)]
    try:
        found = [o for batch in batches for o in outcomes(batch, threads=1)]
    except Exception as error:  # noqa: BLE001 - told which entry it is about, and raised again
        raise RuntimeError(f"{entry}: {error!r}") from None
    return [line(entry, dtype, [o for o in found if o.sample.dtype == dtype]) for dtype in dtypes]


def start(folder: str) -> None:
    """What each process needs: one thread, a kernel cache that goes away, failures that are raised."""
    torch.set_num_threads(1)
    os.environ |= {"ONEPASS_CACHE_DIR": folder, "ONEPASS_STRICT": "1", "ONEPASS_VERIFY": "1"}


def run(names: Sequence[str], others: bool, processes: int, log: Path) -> None:
    begun = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(processes, get_context("spawn"), start, (folder,)) as pool,
    ):
        waiting = {pool.submit(run_entry, name, others): name for name in names}
        for i, done in enumerate(as_completed(waiting), 1):
            name = waiting[done]
            lines = done.result()
            with log.open("a") as file:
                file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
            total = Counter(dict.fromkeys(STATES, 0))
            for one in lines:
                total.update({s: one[s] for s in STATES})
            words = ", ".join(f"{n} {s}" for s, n in total.items() if n)
            print(f"{time.monotonic() - begun:6.0f} s  {i}/{len(names)}  {name}: {words}", flush=True)
    ordered = sorted(read(log), key=lambda one: one["entry"])
    log.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in ordered))


def read(log: Path) -> list[dict[str, Any]]:
    """The last lines of each entry."""
    found = {}
    for text in log.read_text().splitlines() if log.exists() else ():
        one = json.loads(text)
        found[one["entry"], one["dtype"]] = one
    return list(found.values())


def report(lines: Iterable[dict[str, Any]], most: int) -> None:
    lines = list(lines)
    print(f"{len({one['entry'] for one in lines})} entries, {sum(one['samples'] for one in lines)} samples")
    for dtype in dict.fromkeys(one["dtype"] for one in lines):
        mine = [one for one in lines if one["dtype"] == dtype]
        print(f"  {dtype}: " + ", ".join(f"{sum(one[s] for one in mine)} {s}" for s in STATES))
    lost = Counter[str]()
    for one in lines:
        for reason, n in one["reasons"].items():
            lost[reason] += n
    for reason, n in lost.most_common(most):
        print(f"{n:6}  {reason}")
    for one in lines:
        for failure in one["failures"]:
            print(f"wrong: {one['dtype']} {failure}")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ask.add_argument("entries", nargs="*", help="only these, again")
    ask.add_argument("--others", action="store_true", help="the second list")
    ask.add_argument("--again", action="store_true", help="forget the log")
    ask.add_argument(
        "--resume", action="store_true", help="of the entries that are named those that the log lacks"
    )
    ask.add_argument("--report", action="store_true", help="print what the log says, and run nothing")
    ask.add_argument("--freeze", action="store_true", help="write the frozen list, and run nothing")
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--most", type=int, default=60, help="reasons that a report prints")
    ask.add_argument("--log", type=Path, help="another file")
    given = ask.parse_args()
    log = given.log or LOG / ("cpu-others.jsonl" if given.others else "cpu.jsonl")
    if given.freeze:
        (ROOT / "tests" / "opinfo" / "samples.toml").write_text(frozen())
        return
    if not given.report:
        if given.again:
            log.unlink(missing_ok=True)
        have = {one["entry"] for one in read(log)} if given.resume or not given.entries else set()
        names = [n for n in given.entries or entries(given.others) if n not in have]
        if unknown := set(names) - set(entries(given.others)):
            ask.error(f"no entries of the list: {', '.join(sorted(unknown))}")
        run(names, given.others, given.processes, log)
    report(read(log), given.most)


if __name__ == "__main__":
    main()
