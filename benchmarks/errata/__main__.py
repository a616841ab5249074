import json

from benchmarks.errata import NUMBERS

for number, compute in sorted(NUMBERS.items()):
    print(f"\n[{number}]\nnumbers = [")
    for label, value in compute():
        rounded = float(f"{value:.6g}") if isinstance(value, float) else value
        print(f"    {json.dumps([label, rounded], ensure_ascii=False)},")
    print("]")
