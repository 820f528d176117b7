#!/usr/bin/env python3
"""Time, bytes and share of bandwidth of each kernel of one pass: op_table.py GB_PER_S < ncu.csv

Reads what `ncu --csv --metrics gpu__time_duration.sum,dram__bytes_read.sum` says of some passes (bench_step with `rows`) and
shows the last whole one. Kernels were timed one by one: they overlap in a real pass, whose time is less than the sum."""
import collections
import csv
import sys

TIME = {"ns": 1e-3, "us": 1, "ms": 1e3, "nsecond": 1e-3, "usecond": 1, "msecond": 1e3}
BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def main():
    best = float(sys.argv[1])
    kernels = collections.OrderedDict()
    for r in csv.reader(sys.stdin):
        if len(r) < 10 or not r[0].isdigit():
            continue
        kernel = kernels.setdefault(int(r[0]), {"name": r[4].split("(")[0].replace("void ", ""), "grid": r[8]})
        value = float(r[-1].replace(",", ""))
        if r[-2] in TIME:
            kernel["us"] = value * TIME[r[-2]]
        else:
            kernel["bytes"] = value * BYTES[r[-2]]
    items = list(kernels.values())
    starts = [i for i, k in enumerate(items) if k["name"].startswith("embed")]
    items = items[starts[-2] : starts[-1]]
    total = sum(k["us"] for k in items)
    print("%-36s %-14s %5s %9s %9s %7s %9s %8s" % ("kernel", "grid", "times", "us each", "us", "share", "MB each", "of read"))
    rows = collections.OrderedDict()
    for k in items:
        rows.setdefault((k["name"], k["grid"]), []).append(k)
    for (name, grid), same in rows.items():
        us, n = sum(k["us"] for k in same), len(same)
        read = sum(k["bytes"] for k in same)
        print("%-36s %-14s %5d %9.2f %9.0f %6.1f%% %9.2f %7.0f%%" % (name[:36], grid, n, us / n, us, 100 * us / total, read / n / 1e6,
              read / us / 1e3 / best * 100))
    print("%d kernels, %.0f us one by one" % (len(items), total))


main()
