"""What is learned along a timeline: tasks, who has which data, objectives, and the replay that trains."""
