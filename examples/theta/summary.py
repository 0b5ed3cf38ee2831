"""Say what the benchmarks have found, as Markdown and as a plot, for the report."""

import csv
import os
import statistics
from collections import defaultdict
from pathlib import Path

found = defaultdict(list)
with Path(os.environ["RANKWISE_SAMPLES"]).open() as file:
    for row in csv.DictReader(file):
        if row["value"]:
            found[row["metric"], int(row["size"]), row["unit"]].append(float(row["value"]))
medians = {key: statistics.median(values) for key, values in found.items()}
out = Path(os.environ["RANKWISE_ANALYSIS"])
lines = ["# In short", "", "| metric | best | at message size |", "| --- | --- | --- |"]
for metric, best in (("latency", min), ("bandwidth", max)):
    of_metric = {key: value for key, value in medians.items() if key[0] == metric}
    if of_metric:
        _, size, unit = key = best(of_metric, key=of_metric.get)
        lines.append(f"| {metric} | {of_metric[key]:.4g} {unit} | {size} |")
speeds = sorted((key[1], value) for key, value in medians.items() if key[0] == "bandwidth")
if speeds:
    peak = max(value for _, value in speeds)
    half = next(size for size, value in speeds if value >= peak / 2)
    lines += ["", f"Half of the peak bandwidth is reached with messages of **{half}** bytes."]
    bars = "".join(
        f'<rect x="{20 * at}" y="{100 - 100 * value / peak:.1f}" width="16" '
        f'height="{100 * value / peak:.1f}" fill="#0072b2"><title>{size}</title></rect>'
        for at, (size, value) in enumerate(speeds)
    )
    size = f'width="{20 * len(speeds)}" height="100"'
    drawing = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{bars}</svg>'
    (out / "bandwidth.svg").write_text(drawing)
    lines += ["", "Bandwidth by message size, as a share of the peak:", "", "![](bandwidth.svg)"]
(out / "summary.md").write_text("\n".join([*lines, ""]))
