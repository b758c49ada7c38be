"""A replayable corpus that scores search policies by regret against GPU seconds; see README.md."""
