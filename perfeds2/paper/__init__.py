"""The paper's figures, claims and errata."""
