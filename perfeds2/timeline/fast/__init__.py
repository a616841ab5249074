"""The clock in compiled loops: optional, faster, and the same to the last bit. Everything else calls only ``play_fast``."""
