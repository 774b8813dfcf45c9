"""Puts every golden model and its result into one folder: make_models.py FOLDER

The f32 and Q8_0 models are made anew by tools/mkmodel.py, the others are copied from models/.
Whatever is already there with the right digest is kept. A file whose digest is not the one in
SHA256SUMS is an error: the results would be those of another model.
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MKMODEL = HERE.parent.parent / "tools" / "mkmodel.py"


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def make(path):
    stored = HERE / "models" / path.name
    if stored.exists():
        shutil.copyfile(stored, path)
        return
    config, tensor_type = path.stem.rsplit("-", 1)
    subprocess.run([sys.executable, str(MKMODEL), config, str(path), "--type", tensor_type],
                   check=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    # Made aside and then moved, so that nobody ever sees half a model.
    making = folder / "making"
    making.mkdir(parents=True, exist_ok=True)
    for line in (HERE / "SHA256SUMS").read_text().splitlines():
        wanted, name = line.split()
        if digest(folder / name) != wanted:
            make(making / name)
            if digest(making / name) != wanted:
                sys.exit(f"{making / name} has digest {digest(making / name)}, not {wanted}")
            (making / name).replace(folder / name)
        result = pathlib.Path(name).stem + ".json"
        shutil.copyfile(HERE / "results" / result, folder / result)


if __name__ == "__main__":
    main()
