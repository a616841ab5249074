"""In which rounds may an objective be trained, and what is it called then?"""

MODES = ("SYN", "S2", "ASY")


def algorithm_name(objective: str, mode: str) -> str:
    """As users of the paper know it: PerFedS2, PerFed-SYN, PerFed-ASY."""
    return f"{objective}S2" if mode == "S2" else f"{objective}-{mode}"
