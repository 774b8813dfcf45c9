"""The figures of handoff.py as Markdown, JSON and an SVG plot. Standard library only."""
import json

WIDTH, HEIGHT, LEFT, TOP = 360, 260, 60, 50
COLOURS = {"push": "#1668b0", "bulk": "#c2571a", "local": "#c2571a", "floor": "#888888"}


# ---- Markdown ----

def percent(x):
    return f"{100 * x:.1f} %"


def signed(x):
    return f"{100 * x:+.1f} %"


COLUMNS = ("model", "tokens", "r", "link, Mbit/s", "round trip, ms", "first token, ms", "floor, ms",
           "off it", "off it by its own computing", "exposed, ms", "of the bytes alone",
           "all at the end, ms")


def table_lines(rows):
    beside = {(r["model"], r["tokens"], r["ratio"], r["round_trip_ms"]): r for r in rows
              if r["order"] == "bulk"}
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|---" * len(COLUMNS) + "|"
    for r in rows:
        if r["order"] != "push":
            continue
        bulk = beside.get((r["model"], r["tokens"], r["ratio"], r["round_trip_ms"]))
        spread = f" ±{r['spread_ms'] / 2:.0f}" if r["n"] > 1 else ""
        cells = (r["model"], r["tokens"], f"{r['ratio']:g}", f"{r['link_mbit']:.0f}",
                 f"{r['round_trip_ms']:g}", f"{r['first_token_ms']:.0f}{spread}",
                 f"{r['floor_ms']:.0f}", signed(r["over_floor"]), signed(r["over_own_floor"]),
                 f"{r['exposed_ms']:.1f}", percent(r["exposed_share"]),
                 f"{bulk['first_token_ms']:.0f}" if bulk else "")
        yield "| " + " | ".join(map(str, cells)) + " |"


def verdict_lines(rows):
    push = [r for r in rows if r["order"] == "push"]
    for words, limit, chosen in (("r at most 1: within 10 % of the floor", 0.10,
                                  [r for r in push if r["ratio"] <= 1]),
                                 ("r above 1: within 5 % of the link's bound", 0.05,
                                  [r for r in push if r["ratio"] > 1])):
        good = [r for r in chosen if r["over_floor"] <= limit]
        if chosen:
            best = min(chosen, key=lambda r: r["over_floor"])
            worst = max(chosen, key=lambda r: r["over_floor"])
            yield f"- {words}: {len(good)} of {len(chosen)} cells, from " \
                  f"{signed(best['over_floor'])} to {signed(worst['over_floor'])} of the floor; " \
                  f"the latest is {worst['model']}, {worst['tokens']} tokens, r " \
                  f"{worst['ratio']:g}, round trip {worst['round_trip_ms']:g} ms"
    half = [r for r in push if r["ratio"] == 0.5 and r["tokens"] >= 8192]
    if half:
        most = max(r["exposed_share"] for r in half)
        yield f"- r 0.5, 8192 tokens: at most {percent(most)} of sending is exposed (wanted: 3 %)"
    yield "- A value a little below its floor is no error: the floor takes the median times " \
          "of computing other prompts and their last tokens, and those vary from prompt to " \
          "prompt; the column \"by its own computing\" has the floor with the times of that very " \
          "prompt."
    yield "- Exposed is what remains to be sent when computing has ended, as a share of the time " \
          "that the bytes alone take at the cable's rate; all sent at the end takes that and a " \
          "little more, and so may be a bit over 100 %."


def given_lines(rows):
    yield "| tokens | first token, ms | prefilled here, ms | computing, ms | exposed, ms | of " \
          "sending hidden | bytes | link, MB/s | r |"
    yield "|---" * 9 + "|"
    for g in rows:
        yield f"| {g['tokens']} | {g['first_token_ms']:.1f} | {g['local_ms']:.1f} | " \
              f"{g['compute_ms']:.1f} | {g['exposed_ms']:.1f} | {g['overlap_percent']:.1f} % | " \
              f"{g['bytes']} ({g['wire_type']}) | {g['link_bytes_per_s'] / 1e6:.1f} | " \
              f"{g['ratio']:.2f} |"


def markdown(found):
    if found["given"]:
        return "\n".join(["# Handoff between two machines as they are", "",
                          f"Worker {found['given'][0]['worker']}; measured by "
                          f"{found['program']}.", "",
                          *given_lines(found["given"]), "",
                          "![first token over prompts](handoff.svg)", ""])
    lines = ["# Handoff on shaped links", "",
             f"{found['program']}; {found['machine']}; load average "
             f"{found['load_before'][0]:.1f} before, {found['load_after'][0]:.1f} after. Worker "
             f"and server on one core each. Dense: {found['dense']}"
             + (f" at {found['rate']:g} tokens/s" if found["rate"] else "")
             + "; hybrid: random weights, 12 recurrent layers of 16, at 1000 tokens/s. Written by "
             "`baton bench handoff" + (" --full" if found["full"] else "") + "`.", ""]
    lines += [f"Not measured: {problem}\n" for problem in found["failed"]]
    if found["table"]:
        lines += ["## Time to the first token", ""]
        lines += [*verdict_lines(found["table"]), "", *table_lines(found["table"]), ""]
        lines += ["![first token over r](handoff.svg)", ""]
    if found["goodput"]:
        lines += ["## Goodput while the link is the slower side", "",
                  "| link, Mbit/s | push, Mbit/s | iperf3, Mbit/s | share |", "|---|---|---|---|"]
        lines += [f"| {g['link_mbit']} | {g['push_bytes_per_s'] * 8 / 1e6:.1f} | "
                  f"{g['iperf3_bytes_per_s'] * 8 / 1e6:.1f} | {percent(g['share'])} |"
                  for g in found["goodput"]] + [""]
    if found["cpu"]:
        lines += ["## CPU seconds per GB of rows", "",
                  "| | worker | server | at, MB/s |", "|---|---|---|---|"]
        lines += [f"| {c['kind']} | {c['worker_s_per_gb']:.2f} | {c['server_s_per_gb']:.2f} | "
                  f"{c['bytes_per_s'] / 1e6:.0f} |" for c in found["cpu"]] + [""]
    if found["gap"]:
        lines += ["## Four sequences that decode meanwhile", ""]
        lines += [f"- {g['words']}" for g in found["gap"]] + [""]
    return "\n".join(lines)


# ---- the plot: time to the first token, in panels ----

def place(values, low, high, begin, end):
    return [begin + (v - low) / (high - low or 1) * (end - begin) for v in values]


def panel(title, labels, lines, x0, y0):
    """lines: name to a list of (index of the label, ms)."""
    top = 1.1 * max(ms for points in lines.values() for _, ms in points)
    at = place(range(len(labels)), 0, max(1, len(labels) - 1), x0 + LEFT, x0 + WIDTH - 20)
    bottom = y0 + HEIGHT - 40

    def y(ms):
        return bottom - ms / top * (HEIGHT - TOP - 40)

    yield f'<text x="{x0 + LEFT}" y="{y0 + 24}" font-weight="bold">{title}</text>'
    for i in range(5):
        ms = top * i / 4
        yield f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - 20}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" ' \
              f'stroke="#ddd"/><text x="{x0 + LEFT - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">' \
              f'{ms / 1000:.2g} s</text>'
    for label, x in zip(labels, at):
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    for name, points in lines.items():
        if points:
            line = " ".join(f"{at[i]:.1f},{y(ms):.1f}" for i, ms in points)
            dash = ' stroke-dasharray="5 4"' if name == "floor" else ""
            yield f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" ' \
                  f'stroke-width="2"{dash}/>'
            yield "".join(f'<circle cx="{at[i]:.1f}" cy="{y(ms):.1f}" r="3" '
                          f'fill="{COLOURS[name]}"/>' for i, ms in points if name != "floor")


def table_panel(rows, model, tokens, x0, y0):
    """One model and prompt over r, at the middle round trip."""
    trips = sorted({r["round_trip_ms"] for r in rows if r["order"] == "push"})
    trip = trips[len(trips) // 2]
    rows = [r for r in rows if r["model"] == model and r["tokens"] == tokens
            and r["round_trip_ms"] == trip]
    ratios = sorted({r["ratio"] for r in rows})
    lines = {name: sorted((ratios.index(r["ratio"]), r[field]) for r in rows if r["order"] == order)
             for name, field, order in (("floor", "floor_ms", "push"),
                                        ("bulk", "first_token_ms", "bulk"),
                                        ("push", "first_token_ms", "push"))}
    return panel(f"{model}, {tokens} tokens, round trip {trip:g} ms",
                 [f"r {ratio:g}" for ratio in ratios], lines, x0, y0)


def given_panel(rows, x0, y0):
    rows = sorted(rows, key=lambda g: g["tokens"])
    lines = {name: [(i, g[field]) for i, g in enumerate(rows)]
             for name, field in (("local", "local_ms"), ("push", "first_token_ms"))}
    return panel("this server and its worker", [f"{g['tokens']} tokens" for g in rows], lines, x0,
                 y0)


def drawing(panels, legend):
    columns = min(3, len(panels))
    height = (len(panels) + columns - 1) // columns * HEIGHT + 40
    width = max(columns * WIDTH, LEFT + sum(30 + 8 * len(words) for _, words in legend))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
           f'fill="white"/>']
    for i, draw in enumerate(panels):
        out += draw(i % columns * WIDTH, i // columns * HEIGHT)
    x = LEFT
    for name, words in legend:
        out.append(f'<rect x="{x}" y="{height - 26}" width="14" height="4" fill="{COLOURS[name]}"/>'
                   f'<text x="{x + 20}" y="{height - 20}">{words}</text>')
        x += 30 + 8 * len(words)
    return "\n".join(out + ["</svg>", ""])


def svg(found):
    """None where nothing was measured that has a plot."""
    if found["given"]:
        return drawing([lambda x, y: given_panel(found["given"], x, y)],
                       (("push", "first token, prefilled there"), ("local", "prefilled here")))
    rows = found["table"]
    cells = sorted({(r["model"], r["tokens"]) for r in rows})
    return rows and drawing([lambda x, y, cell=cell: table_panel(rows, *cell, x, y)
                             for cell in cells],
                            (("push", "time to the first token, pushed"),
                             ("bulk", "all at the end"), ("floor", "floor")))


def write(found, folder):
    """Whether there is a plot."""
    (folder / "handoff.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "handoff.md").write_text(markdown(found))
    plot = svg(found)
    if plot:
        (folder / "handoff.svg").write_text(plot)
    return bool(plot)
