"""Train models along a timeline: tasks, the division of data among UEs, objectives, merges and the replay."""
