"""Every test run checks array shapes and types of the whole package (jaxtyping, by beartype)."""

from jaxtyping import install_import_hook

hook = install_import_hook("perfeds2", "typecheck.checked")
