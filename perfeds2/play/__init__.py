"""An interactive page that shows which UEs compute, send, wait and are merged, in three kinds of rounds."""
