#!/usr/bin/env python3
"""Golden results that are not in the tree: check_folder.py BATON

Runs check_logits.py on every NAME.json beside a NAME.gguf in the folder that BATON_GOLDEN_DIR names;
77 (skipped) when it names none.
"""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    if not os.environ.get("BATON_GOLDEN_DIR"):
        print("BATON_GOLDEN_DIR is not set: nothing checked")
        sys.exit(77)
    folder = pathlib.Path(os.environ["BATON_GOLDEN_DIR"])
    results = [r for r in sorted(folder.glob("*.json")) if r.with_suffix(".gguf").exists()]
    if not results:
        sys.exit(f"{folder}: no results beside their models")
    failed = [r.name for r in results
              if subprocess.run([sys.executable, str(HERE / "check_logits.py"), sys.argv[1],
                                 str(r)]).returncode != 0]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
