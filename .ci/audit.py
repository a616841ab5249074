"""Does a package we depend on have a known vulnerability?

pip-audit asks the package index about every version in constraints.txt. If it cannot be installed or the index does not
answer, the script says so and passes, because being offline is not a vulnerability. A package that the index does not know
counts as not looked up.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = [f"{folder}/bin/python", "-m"]
        install = [*python, "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
        if subprocess.run(install, capture_output=True, check=False).returncode:  # noqa: S603 (our own words)
            print("audit: pip-audit could not be installed; known vulnerabilities were NOT looked up.")
            return 0
        ask = [
            *python,
            "pip_audit",
            "--requirement",
            str(CONSTRAINTS),
            "--no-deps",
            "--disable-pip",
            "--format",
            "json",
        ]
        try:
            asked = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
        except subprocess.TimeoutExpired:
            print("audit: the vulnerability service did not answer in time; nothing was looked up.")
            return 0
    try:
        packages = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError):
        words = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"audit: the vulnerability service did not answer ({words[:200]}); nothing was looked up.")
        return 0
    return judge(packages)


def judge(packages: list[dict]) -> int:
    known = [package for package in packages if "skip_reason" not in package]
    found = [(package, flaw) for package in known for flaw in package["vulns"]]
    for package, flaw in found:
        fixed = ", ".join(flaw["fix_versions"]) or "no version yet"
        print(f"audit: {package['name']} {package['version']} has {flaw['id']}; fixed in {fixed}.")
    print(f"audit: looked up {len(known)} of {len(packages)} packages, {len(found)} known vulnerabilities.")
    if len(known) < len(packages):
        print(f"audit: {len(packages) - len(known)} packages were NOT looked up: the service does not know them.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
