"""Records of benchmark results for benchmarks that are scripts; bench/README.md describes the format.

As a program, `records.py kernel COMMAND` and `records.py tree COMMAND` run that benchmark, show its output, and write its record.
"""

import datetime
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
# Share of the processors that other programs may use on a quiet machine.
QUIET = 0.1
ORDER = ("bench part title question method verdict command machine commit date rounds load unit better columns rows "
         "targets").split()


def four(value):
    """Rounds to four significant digits."""
    return float(f"{value:.3e}")


def cell(values):
    """Returns the median of the rounds, with the lowest and the highest value. Returns None without values, or if a
    value is negative or not finite."""
    values = [value for value in values if value is not None]
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        return None
    found = {"median": four(statistics.median(values))}
    if min(values) != max(values):
        found |= {"min": four(min(values)), "max": four(max(values))}
    return found


def target(what, found, at_least=None, at_most=None):
    """Returns a target with its bound; it is met if the median of `found` meets the bound."""
    bound = {"at_least": at_least} if at_least is not None else {"at_most": at_most}
    met = found["median"] >= at_least if at_least is not None else found["median"] <= at_most
    return {"what": what, "bound": bound, "found": found, "met": met}


def verdict(targets):
    missed = [target["what"] for target in targets if not target["met"]]
    if not targets:
        return "This part has no target."
    if not missed:
        return f"All {len(targets)} targets are met." if len(targets) > 1 else "The target is met."
    return f"{len(targets) - len(missed)} of {len(targets)} targets are met. Missed: {'; '.join(missed)}."


class Draft:
    """The fields that all records of one run share. Make it before the first measurement: it measures the load."""

    def __init__(self, bench, rounds, directory, words=None):
        self.common = {
            "bench": bench,
            "command": shlex.join(["cargo", "xtask", "bench", bench, *(words or [])]),
            "machine": machine(directory),
            "commit": git("rev-parse", "--short=7", "HEAD"),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "rounds": rounds,
            "load": "quiet" if other_work() < QUIET else "busy",
        }

    def write(self, part, title, unit, better, columns, rows, targets=(), keep_title=True, finding=None):
        """Writes the record of a part: columns as (name, kind), rows as (name, cells). Keeps the texts of the previous
        record."""
        path = RESULTS / f"{self.common['bench']}-{part}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        text = {key: known.get(key, title) for key in ("title", "question", "method")}
        if not keep_title:
            text["title"] = title
        record = self.common | text | {
            "part": part, "verdict": finding or verdict(targets), "unit": unit, "better": better,
            "columns": [{"name": name, "kind": kind} for name, kind in columns],
            "rows": [{"name": name.replace("|", " ")[:120], "cells": cells} for name, cells in rows],
            "targets": list(targets),
        }
        lines = []
        for key in ORDER:
            value = record[key]
            if isinstance(value, list) and value:
                items = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in value)
                lines.append(f'  "{key}": [\n{items}\n  ]')
            elif value or key != "targets":
                lines.append(f'  "{key}": {json.dumps(value, ensure_ascii=False)}')
        RESULTS.mkdir(exist_ok=True)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"recorded {path.stem}; `cargo xtask bench --page` shows it", file=sys.stderr)


def git(*words):
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or None


def machine(directory):
    """Returns the facts of this machine; "disk" is the type of the file system with the directory."""
    value = lambda path, key: next((line.split(":", 1)[1].strip() for line in read(path).splitlines() if line.startswith(key)), "")
    kib = value("/proc/meminfo", "MemTotal").split(" ")[0]
    directory = str(Path(directory).resolve())
    above = [fields for fields in map(str.split, read("/proc/mounts").splitlines())
             if (directory + "/").startswith(fields[1].rstrip("/") + "/")]
    return {
        "cpus": os.cpu_count(),
        "cpu": value("/proc/cpuinfo", "model name") or "unknown",
        "memory": f"{round(int(kib) / (1 << 20))} GiB" if kib else "unknown",
        "kernel": f"Linux {os.uname().release}",
        "disk": max(above, key=lambda fields: len(fields[1]))[2] if above else "unknown",
    }


def read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def other_work():
    """Measures for a second which share of the processors is busy: before the benchmark, that of other programs."""
    times = lambda: [int(word) for word in read("/proc/stat").splitlines()[0].split()[1:9]]
    before = times()
    time.sleep(1)
    spent = [b - a for a, b in zip(before, times())]
    return 1 - (spent[3] + spent[4]) / sum(spent) if sum(spent) else 1


def kernel(draft, output):
    """Records the JSON line of the benchmark `kernel`."""
    line = next((line for line in output.splitlines() if line.startswith("[")), None)
    if line is None:
        sys.exit("no JSON in the output: nothing was recorded")
    rows = json.loads(line)
    one = lambda number: cell([number])
    table = [(f"{row['what']}, NFSv{row['version'].removeprefix('vers=')}",
              [one(row["ganesha"]), one(row["weir"]), one(row["things"])]) for row in rows]
    columns = [("nfs-ganesha", "floor"), ("Weir", "result"), ("operations", "extra")]
    draft.write("requests", "Requests of a stock kernel client", "requests", "lower", columns, table)


def tree(draft, output):
    """Records the times in the output of the benchmark `tree`: lines such as `in: 12.3 s: ...`."""
    found = re.findall(r"^(in|out|rm -r): ([0-9.]+) s\b", output, re.MULTILINE)
    if not found:
        sys.exit("no times in the output: nothing was recorded")
    rows = [(f"{number}. {name}", [cell([float(seconds)])]) for number, (name, seconds) in enumerate(found, 1)]
    # The benchmark prints these times only if all copies are identical to the originals.
    draft.write("copies", "Copies of a real directory tree", "seconds", "lower", [("Weir", "result")], rows,
                finding="All copies are identical to the originals.")


def main():
    kinds = {"kernel": kernel, "tree": tree}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        sys.exit("usage: records.py kernel|tree COMMAND...")
    draft = Draft(sys.argv[1], 1, os.environ.get("TMPDIR", "/tmp"))
    lines = []
    with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        for line in command.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if command.returncode != 0:
        sys.exit(f"{sys.argv[1]} failed: nothing was recorded")
    kinds[sys.argv[1]](draft, "".join(lines))


if __name__ == "__main__":
    main()
