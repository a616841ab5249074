"""What is measured of a model? (Names only, so that tables and reports need no JAX.)"""

METRICS = ("train_loss", "train_loss_personal", "test_accuracy", "test_accuracy_personal")
