"""The paper itself: its figures run again, what it claims, where it errs."""
