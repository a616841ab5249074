"""A cell to play with, in the browser: who computes, sends, waits and is merged, in three kinds of rounds side by side?"""
